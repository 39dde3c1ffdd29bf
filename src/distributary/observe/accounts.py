"""Accounting in source records, such that nothing is lost or doubled in any sum. Pure.

A record may be in several tables (bronze, its own, the wide one). The equation counts it in one of
them: as parked while that table waits for it, as written as soon as it has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributary.model.manifest import Counts
from distributary.observe.rows import PARKED, RESUMED, BatchKey, TableRow

REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A batch's own equation, as far as sums need it."""

    key: BatchKey
    counts: Counts

    @property
    def lane(self) -> str:
        """`stream` or `replay`."""
        return self.key[2]


def still_parked(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Of rows with outcome parked or resumed: those parked ones that were not resumed."""
    rows = tuple(rows)
    resumed = {(row.key, row.table) for row in rows if row.outcome == RESUMED}
    return tuple(
        row for row in rows if row.outcome == PARKED and (row.key, row.table) not in resumed
    )


def waiting(parked: Iterable[TableRow]) -> dict[BatchKey, int]:
    """How many records of each batch still wait; 0 where only other tables wait for them."""
    records: dict[BatchKey, int] = defaultdict(int)
    for row in parked:
        records[row.key] += row.records if row.counted else 0
    return dict(records)


def total(batches: Iterable[BatchCounts], still_waiting: Mapping[BatchKey, int]) -> Counts:
    """The equation over many batches as it stands now.

    A resumed table moves its records from parked to written. A replay reads no new records: what
    it could decode moves from the dead letters to where it went.
    """
    result = Counts()
    for batch in batches:
        now = _settled_now(batch.counts, still_waiting.get(batch.key, 0))
        result = result + (_moved(now) if batch.lane == REPLAY else now)
    return result


def _settled_now(counts: Counts, still_waiting: int) -> Counts:
    resumed = counts.parked - min(counts.parked, still_waiting)
    return counts + Counts(written=resumed, parked=-resumed)


def _moved(replay: Counts) -> Counts:
    healed = replay.read - replay.dead_lettered
    return Counts(0, replay.written, -healed, replay.parked, replay.skipped)
