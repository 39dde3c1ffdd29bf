"""What a table is to be merged from, and what became of it: plain facts that travel to tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distributary.model.change import CHANGE_COLUMNS
from distributary.model.table import Column
from distributary.publish.base import Mark

Deletes = Literal["hard", "soft"]
Evolution = Literal["mergeSchema", "overwriteSchema", "none"]

HORIZON_SECONDS = 7 * 24 * 3600
"""How long it is remembered what was removed, unless somebody says otherwise."""

_CHANGE = {column.name: column for column in CHANGE_COLUMNS}
SEQ_COLUMN, TIME_COLUMN = _CHANGE["_seq"], _CHANGE["_source_ts"]
DELETED_COLUMN = Column("_deleted", _CHANGE["_deleted"].type, "whether the source deleted the row")


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """Bring one merged table up to date with one batch of its log."""

    table: str
    path: str
    """The merged table's folder."""
    tombstones: str
    """The folder in which it is remembered what was removed."""
    files: tuple[str, ...]
    """Parquet files with the batch's rows of the log."""
    columns: tuple[Column, ...]
    """The source table's columns as the log has them now, without those of the change."""
    app_id: str
    batch: int
    now_us: int
    """Microseconds since 1970: the moment from which what is removed now is remembered."""
    deletes: Deletes = "hard"
    evolution: Evolution = "mergeSchema"
    horizon: int = HORIZON_SECONDS
    """Seconds for which a row that was removed cannot come back with an older event."""
    source_hash: str = ""
    comment: str = ""

    @property
    def mark(self) -> Mark:
        """What the commit carries, so that a second try sees the first."""
        return Mark(self.app_id, self.batch, self.source_hash)

    @property
    def soft(self) -> bool:
        """Whether deleted rows stay, marked."""
        return self.deletes == "soft"

    def wanted(self) -> tuple[Column, ...]:
        """The columns of the merged table as this order would make it."""
        extra = (DELETED_COLUMN,) if self.soft else ()
        return (*self.columns, SEQ_COLUMN, TIME_COLUMN, *extra)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What the events of a batch did.

    `events` is the sum of `keyless`, `truncates`, `superseded`, `ignored` and of the events that
    had an effect; `deleted` also counts what a truncate removed.
    """

    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    superseded: int = 0
    """Events that a newer one of the same batch overtook."""
    ignored: int = 0
    """The newest of their key in the batch, but older than what the table knows, or deletes of
    rows that are not there."""
    keyless: int = 0
    """Events without a key: they are in the log only."""
    truncates: int = 0


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The merged table after an order."""

    table: str
    version: int
    """The table's newest version; -1 when there is no table yet, and nothing to put in one."""
    counts: MergeCounts = MergeCounts()
    seconds: float = 0.0
    skipped: bool = False
    """The table's mark was at or past the batch."""
    way: Literal["arrow", "spark"] = "arrow"
