"""The pace of a run that may be as late as a freshness allows: when its next batch begins.

A record must be readable a given time after it came. The oldest record of a batch came just after
the batch before it began, so the time between the beginnings of two batches and the time that a
batch takes must not exceed the freshness together. The later a batch begins, the more records it
has, and the fewer files and commits each record costs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from distributary.observe.status.pulse import Pace

_REMEMBERED = 24
"""The number of rounds whose durations are remembered: older ones predict little."""
_SPARE_SHARE = 0.1
"""The part of a predicted duration that is added, because durations vary."""


@dataclass(frozen=True, slots=True)
class _Round:
    records: int
    seconds: float


class Pacing:
    """Chooses when batches begin, from how long earlier ones took and how fast records come."""

    def __init__(self, freshness: float) -> None:
        self._freshness = freshness
        self._rounds: deque[_Round] = deque(maxlen=_REMEMBERED)
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._batches = 0

    def done(self, *, records: int, seconds: float, since: float | None) -> None:
        """Note a round of batches; its records came in the `since` seconds before it began.

        A round without records takes no time to speak of, and says only that nothing came. Records
        of a backlog came at an unknown rate (`since` is None).
        """
        if records:
            if self._batches == 1:
                # a process is slow at its first batch: Spark compiles, tables are made
                self._rounds.clear()
            self._batches += 1
            self._rounds.append(_Round(records, seconds))
        if since:
            self._rates.append(records / since)

    def next(self) -> Pace:
        """Choose the seconds between the beginnings of the last round and of the next one."""
        fixed, each = self._costs()
        # the highest of the last rates, because a batch that begins too early is never late
        rate = max(list(self._rates)[-3:], default=0.0)
        interval = max(0.0, (self._freshness - fixed) / (1.0 + each * rate))
        largest = max((each.records for each in self._rounds), default=0)
        if largest and rate * interval > largest:
            # what a larger batch costs is unknown: as if all of the time were for its records
            fixed, each = 0.0, fixed / largest + each
            interval = self._freshness / (1.0 + each * rate)
        seconds = fixed + each * rate * interval
        return Pace(
            freshness_seconds=self._freshness,
            interval_seconds=interval,
            batch_seconds=seconds,
            records=_about(rate * interval),
            # without pauses, a record waits for one batch and is read by the next one
            late=2 * median([each.seconds for each in self._rounds] or [0.0]) > self._freshness,
        )

    def _costs(self) -> tuple[float, float]:
        """Return the fixed seconds of a round, and the seconds that each record adds.

        Both are from a line through the last rounds. The line is raised until no round was slower,
        except for the slowest one, which a pause of the machine may explain.
        """
        if not self._rounds:
            # how long the first batch takes is unknown
            return self._freshness / 2, 0.0
        records = np.array([each.records for each in self._rounds], np.float64)
        seconds = np.array([each.seconds for each in self._rounds])
        spread = ((records - records.mean()) ** 2).sum()
        slope = ((records - records.mean()) * (seconds - seconds.mean())).sum()
        each = max(0.0, float(slope / spread)) if spread > 0 else 0.0
        # not more than all of the time, or a round without records would take less than nothing
        each = min(each, float((seconds / records).min()))
        above = np.sort(seconds - each * records)
        highest = above[-2] if len(above) > 4 else above[-1]
        return float(highest) * (1 + _SPARE_SHARE), each * (1 + _SPARE_SHARE)


def _about(records: float) -> int:
    """Round an estimated number of records to two digits."""
    return int(float(f"{records:.1e}"))
