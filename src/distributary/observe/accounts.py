"""Accounting in source records, such that nothing is lost or doubled in any sum. Pure.

A record may be in several tables (bronze, its own, the wide one). It counts as parked while any of
them waits for it, and as written from the moment on which the last of them has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from distributary.model.manifest import Counts, Manifest
from distributary.model.table import Role
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


def parked_records(manifest: Manifest, parked: Collection[str]) -> int:
    """How many records of a batch wait, given the names of the tables that were parked."""
    by_role: dict[str, int] = defaultdict(int)
    for entry in manifest.tables:
        if entry.table.name in parked:
            by_role[entry.table.role] += entry.records
    return min(_distinct(by_role), manifest.counts.written)


def still_parked(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Of rows with outcome parked or resumed: those parked ones that were not resumed."""
    rows = tuple(rows)
    resumed = {(row.key, row.table) for row in rows if row.outcome == RESUMED}
    return tuple(
        row for row in rows if row.outcome == PARKED and (row.key, row.table) not in resumed
    )


def waiting(parked: Iterable[TableRow]) -> dict[BatchKey, int]:
    """How many records of each batch still wait."""
    by_batch: dict[BatchKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in parked:
        by_batch[row.key][row.role] += row.records
    return {key: _distinct(by_role) for key, by_role in by_batch.items()}


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


def _distinct(by_role: Mapping[str, int]) -> int:
    # tables of one role share no record; tables of different roles hold the same ones. Dead
    # letters stay counted as such, wherever their rows are
    return max((n for role, n in by_role.items() if role != Role.DEAD_LETTERS), default=0)
