"""The forecast of lag: its trend, and when the pipeline will have caught up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import pairwise
from statistics import median

from distributary.observe.ledger.ledger_rows import (
    BatchRow,
)

WINDOW = 20
"""The number of newest batches that a forecast uses."""
_STEADY = 0.02
"""The share of the pipeline's rate below which a difference from the producer's rate is noise."""
_LONGEST = timedelta(days=30)
"""The longest time ahead for which a forecast is given."""


class Trend(StrEnum):
    """The trend of the lag between a pipeline and its source."""

    CAUGHT_UP = "caught_up"
    CATCHING_UP = "catching_up"
    FALLING_BEHIND = "falling_behind"
    HOLDING = "holding"
    """The pipeline is behind, and the lag neither grows nor shrinks."""
    BEHIND = "behind"
    """The pipeline is behind; it is stopped or has too few batches for a forecast."""
    UNKNOWN = "unknown"
    """The source does not report its unread records."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The last measured lag, and its trend."""

    trend: Trend
    lag_records: int | None = None
    lag_at: datetime | None = None
    """The time of this measurement."""
    lag_seconds: float | None = None
    """The time from the production of the newest record that was read until its batch was
    settled."""
    event_seconds: float | None = None
    """The age of that record by its own timestamp, if the timestamp is far from the truth."""
    unknown_since: datetime | None = None
    """The time of the last measurement, if the source has not answered since."""
    last_known_records: int | None = None
    """The lag at that moment."""
    our_rate: float | None = None
    """The number of source records per second while a batch is under way."""
    producer_rate: float | None = None
    net_rate: float | None = None
    """The number of records per second by which the lag shrinks; negative while it grows."""
    caught_up_at: datetime | None = None
    batch_seconds: float = 0.0
    """The median duration of a batch."""
    slowest_step: str = ""
    slowest_share: float = 0.0
    """The share of this step in the time of the batches."""

    def words(self, *, now: datetime, tz: tzinfo | None = None) -> str:
        """Return one line for people; times are in `tz`, or in the time zone of this machine."""
        behind = f"{short_number(self.lag_records or 0)} behind"
        match self.trend:
            case Trend.UNKNOWN if self.unknown_since is not None:
                then = f"; {short_number(self.last_known_records or 0)} behind then"
                since = _clock(self.unknown_since, now, tz, past=True)
                return f"unknown since {since}, because the source does not answer{then}"
            case Trend.UNKNOWN:
                return "unknown"
            case Trend.CAUGHT_UP:
                return "caught up"
            case Trend.CATCHING_UP:
                at = self.caught_up_at
                end = f", caught up at {_clock(at, now, tz)}" if at else ""
                return f"{behind}, catching up at {short_number(self.net_rate or 0)}/s{end}"
            case Trend.FALLING_BEHIND:
                rates = f"producer {short_number(self.producer_rate or 0)}/s"
                rates += f", we {short_number(self.our_rate or 0)}/s"
                step = f", step {self.slowest_step} takes {self.slowest_share * 100:.0f} %"
                return f"falling behind: {rates}{step if self.slowest_step else ''}"
            case Trend.HOLDING:
                return f"{behind}, neither catching up nor falling behind"
            case Trend.BEHIND:
                return behind


def forecast(batches: Sequence[BatchRow], *, running: bool = True) -> Forecast:
    """Compute the trend from the newest batches of one stream, given oldest first."""
    recent = _since_last_break([b for b in batches if b.batches == 1][-WINDOW:])
    if not recent:
        return Forecast(Trend.UNKNOWN)
    last, (step, share) = recent[-1], slowest(recent)
    net, producer = _source_rates(recent)
    known = Forecast(
        Trend.BEHIND,
        lag_records=last.lag_records,
        lag_at=None if last.lag_records is None else last.finished_at,
        lag_seconds=last.lag_seconds,
        event_seconds=last.event_seconds,
        batch_seconds=median(b.seconds for b in recent),
        our_rate=our_rate(recent),
        producer_rate=producer,
        net_rate=net,
        slowest_step=step,
        slowest_share=share,
    )
    return judged(known, running=running)


def judged(known: Forecast, *, running: bool) -> Forecast:
    """Return the status with the trend that its numbers show."""
    lag, net = known.lag_records, known.net_rate
    if lag is None or known.lag_at is None:
        return replace(known, trend=Trend.UNKNOWN)
    # records that arrive during a batch wait at its end, and do not count as lag
    arrivals = (known.producer_rate or 0.0) * known.batch_seconds * 1.5
    if lag == 0 or (running and lag <= arrivals):
        return replace(known, trend=Trend.CAUGHT_UP, caught_up_at=None)
    if not running or net is None:
        return replace(known, trend=Trend.BEHIND, caught_up_at=None)
    if abs(net) <= _STEADY * (known.our_rate or 0.0):
        return replace(known, trend=Trend.HOLDING, caught_up_at=None)
    if net < 0:
        return replace(known, trend=Trend.FALLING_BEHIND, caught_up_at=None)
    near = lag / net < _LONGEST.total_seconds()
    end = known.lag_at + timedelta(seconds=lag / net) if near else None
    return replace(known, trend=Trend.CATCHING_UP, caught_up_at=end)


def our_rate(batches: Sequence[BatchRow]) -> float | None:
    """Return the source records per second of the time in which batches ran."""
    seconds = sum(batch.seconds for batch in batches)
    return sum(batch.read for batch in batches) / seconds if seconds > 0 else None


def slowest(batches: Sequence[BatchRow]) -> tuple[str, float]:
    """Return the step that takes the most time, and its share."""
    whole = sum(batch.seconds for batch in batches)
    sums: Counter[str] = Counter()
    for batch in batches:
        sums.update(batch.steps)
    ((step, seconds),) = sums.most_common(1)
    return (step, min(seconds / whole, 1.0)) if whole > 0 and seconds > 0 else ("", 0.0)


def short_number(value: float) -> str:
    """Format a number as `9,000`, or `1.2 M` for large ones."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:,.0f}"


def _since_last_break(batches: list[BatchRow]) -> list[BatchRow]:
    """Return the batches since the last pause: rates across a pause would be wrong."""
    gaps = [(b.started_at - a.finished_at).total_seconds() for a, b in pairwise(batches)]
    if not gaps:
        return batches
    longest = 60.0 + 5.0 * max(median(gaps), 0.0)
    breaks = [i for i, gap in enumerate(gaps, start=1) if gap > longest]
    return batches[breaks[-1] :] if breaks else batches


def _source_rates(batches: Sequence[BatchRow]) -> tuple[float | None, float | None]:
    """Compute the rates of the shrinking lag and of the producer, in records per second."""
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


def without_answer(known: Forecast) -> Forecast:
    """Return the forecast for a source that does not answer: its lag is not known."""
    return replace(
        known,
        trend=Trend.UNKNOWN,
        lag_records=None,
        lag_at=None,
        caught_up_at=None,
        unknown_since=known.lag_at,
        last_known_records=known.lag_records,
    )


def _clock(moment: datetime, now: datetime, tz: tzinfo | None, *, past: bool = False) -> str:
    local = (moment if past else max(moment, now)).astimezone(tz)
    far = abs(moment - now) > timedelta(hours=20)
    return local.strftime("%Y-%m-%d %H:%M" if far else "%H:%M")
