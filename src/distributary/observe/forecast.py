"""Lag said in words: who is faster, since when, and when it will be level. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import pairwise
from statistics import median

from distributary.observe.rows import BatchRow

WINDOW = 20
"""How many of the newest batches a forecast looks at."""
_STEADY = 0.02
"""A difference in speed below this share of ours is neither catching up nor falling behind."""
_LONGEST = timedelta(days=30)
"""Further ahead than this, a moment says nothing."""


class Trend(StrEnum):
    """How a pipeline stands to its source."""

    LEVEL = "level"
    CATCHING_UP = "catching_up"
    FALLING_BEHIND = "falling_behind"
    HOLDING = "holding"
    """Behind, and the distance stays what it is."""
    BEHIND = "behind"
    """Behind, and it cannot be told how it goes on: stopped, or too few batches yet."""
    UNKNOWN = "unknown"
    """The source does not tell how much is left."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The lag after the newest batch, and where it is heading."""

    trend: Trend
    lag_records: int | None = None
    lag_seconds: float | None = None
    our_rate: float | None = None
    """Source records a second while a batch is under way."""
    producer_rate: float | None = None
    net_rate: float | None = None
    """By how many records a second the lag shrinks; negative while it grows."""
    level_at: datetime | None = None
    slowest_step: str = ""
    slowest_share: float = 0.0
    """Its part of the time of the batches."""

    def words(self, *, now: datetime, tz: tzinfo | None = None) -> str:
        """One line for people; moments are in `tz`, or in the time zone of this machine."""
        behind = f"{number(self.lag_records or 0)} behind"
        match self.trend:
            case Trend.UNKNOWN:
                return "lag unknown: no batch has told it"
            case Trend.LEVEL:
                return "level"
            case Trend.CATCHING_UP:
                end = f", level at {_clock(self.level_at, now, tz)}" if self.level_at else ""
                return f"{behind}, catching up at {number(self.net_rate or 0)}/s{end}"
            case Trend.FALLING_BEHIND:
                rates = f"producer {number(self.producer_rate or 0)}/s"
                rates += f", we {number(self.our_rate or 0)}/s"
                step = f", step {self.slowest_step} takes {self.slowest_share * 100:.0f} %"
                return f"falling behind: {rates}{step if self.slowest_step else ''}"
            case Trend.HOLDING:
                return f"{behind}, neither catching up nor falling behind"
            case Trend.BEHIND:
                return behind


def forecast(batches: Sequence[BatchRow], *, running: bool = True) -> Forecast:
    """Reads the trend off the newest batches of one stream, oldest first."""
    recent = _since_last_break([b for b in batches if b.batches == 1][-WINDOW:])
    if not recent or recent[-1].lag_records is None:
        return Forecast(Trend.UNKNOWN)
    last, lag = recent[-1], recent[-1].lag_records
    step, share = slowest(recent)
    ours, net, producer = our_rate(recent), *_source_rates(recent)
    known = Forecast(
        Trend.BEHIND,
        lag_records=lag,
        lag_seconds=last.lag_seconds,
        our_rate=ours,
        producer_rate=producer,
        net_rate=net,
        slowest_step=step,
        slowest_share=share,
    )
    return _with_trend(known, last=last, typical=median(b.seconds for b in recent), running=running)


def our_rate(batches: Sequence[BatchRow]) -> float | None:
    """Source records a second, over the time in which batches were under way."""
    seconds = sum(batch.seconds for batch in batches)
    return sum(batch.read for batch in batches) / seconds if seconds > 0 else None


def slowest(batches: Sequence[BatchRow]) -> tuple[str, float]:
    """The step that takes the most time, and its share of the whole."""
    whole = sum(batch.seconds for batch in batches)
    sums = {
        step: sum(batch.steps[step] for batch in batches)
        for step in ("plan", "stage", "manifest", "publish")
    }
    step = max(sums, key=lambda name: sums[name])
    if whole <= 0 or sums[step] <= 0:
        return "", 0.0
    return step, min(sums[step] / whole, 1.0)


def number(value: float) -> str:
    """`9,000`, and `1.2 M` where nobody counts single ones any more."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:,.0f}"


def _with_trend(known: Forecast, *, last: BatchRow, typical: float, running: bool) -> Forecast:
    lag, net = known.lag_records or 0, known.net_rate
    # what arrives while a batch is under way is waiting when it ends, and is no lag
    arrivals = (known.producer_rate or 0.0) * typical * 1.5
    if lag == 0 or (running and lag <= arrivals):
        return replace(known, trend=Trend.LEVEL)
    if not running or net is None:
        return known
    if abs(net) <= _STEADY * (known.our_rate or 0.0):
        return replace(known, trend=Trend.HOLDING)
    if net < 0:
        return replace(known, trend=Trend.FALLING_BEHIND)
    ahead = lag / net
    level_at = (
        last.finished_at + timedelta(seconds=ahead) if ahead < _LONGEST.total_seconds() else None
    )
    return replace(known, trend=Trend.CATCHING_UP, level_at=level_at)


def _since_last_break(batches: list[BatchRow]) -> list[BatchRow]:
    """Drops what was before the pipeline stood still: rates over a pause would be wrong."""
    gaps = [(b.started_at - a.finished_at).total_seconds() for a, b in pairwise(batches)]
    if not gaps:
        return batches
    longest = 60.0 + 5.0 * max(median(gaps), 0.0)
    breaks = [i for i, gap in enumerate(gaps, start=1) if gap > longest]
    return batches[breaks[-1] :] if breaks else batches


def _source_rates(batches: Sequence[BatchRow]) -> tuple[float | None, float | None]:
    """By how much the lag shrinks, and how much is produced, in records a second."""
    known = [(b.finished_at, b.lag_records, b.read) for b in batches if b.lag_records is not None]
    if len(known) < 2:
        return None, None
    (start, first_lag, _), (end, last_lag, _) = known[0], known[-1]
    seconds = (end - start).total_seconds()
    if seconds <= 0:
        return None, None
    read = sum(records for _, _, records in known[1:])
    shrunk = first_lag - last_lag
    return shrunk / seconds, max((read - shrunk) / seconds, 0.0)


def _clock(moment: datetime | None, now: datetime, tz: tzinfo | None) -> str:
    if moment is None:
        return ""
    local = max(moment, now).astimezone(tz)
    far = moment - now > timedelta(hours=20)
    return local.strftime("%Y-%m-%d %H:%M" if far else "%H:%M")
