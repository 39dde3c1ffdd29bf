"""Orders to merge a table, their results, and the columns of the table after them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    columns_of,
    fields_of,
    merge_fields,
)
from distributary.errors import PublishError
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.manifest import Mark
from distributary.model.table import Column, Role

# Orders and results of merges: plain facts that are sent to tasks and back.

Deletes = Literal["hard", "soft"]
DeletesAs = Literal["rewrite", "vectors"]
Evolution = Literal["mergeSchema", "overwriteSchema", "none"]

Arrival = Literal["partitions", "files", "unknown"]
"""The meaning of the order of arrival. partitions: the changes of a row arrive in order; files:
they arrive in any order; unknown: the order means nothing, as for replayed dead letters."""
Undecided = Literal["refuse", "replaced", "repeated"]
"""An operator's decision about a source that went back in its log for an unclear reason."""

HORIZON_SECONDS = 7 * 24 * 3600
"""The default time for which tombstones are kept."""

_CHANGE = {column.name: column for column in CHANGE_COLUMNS}
SEQ_COLUMN, TIME_COLUMN = _CHANGE["_seq"], _CHANGE["_source_ts"]
DELETED_COLUMN = Column("_deleted", _CHANGE["_deleted"].type, "whether the source deleted the row")


class RebuildNeededError(PublishError):
    """An error for a table whose rows are in another order than new events.

    This happens if the source's times decided the order in an earlier version, and if files show
    late that another server had taken over while they were written.
    """

    retryable = False


class TombstonesBehindError(PublishError):
    """An error for tombstones that are older than their table; its log has the deletes."""

    retryable = False


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """The order to merge one batch of a log into one table."""

    table: str
    path: str
    """The folder of the merged table."""
    tombstones: str
    """The folder of the table's tombstones."""
    files: tuple[str, ...]
    """The Parquet files with the rows that the batch added to the log."""
    columns: tuple[Column, ...]
    """The source table's columns in the log, without the columns about the change."""
    app_id: str
    batch: int
    now_us: int
    """The time of this merge, in microseconds since 1970; tombstones expire after it."""
    role: Role = Role.MERGED
    deletes: Deletes = "hard"
    deletes_as: DeletesAs = "rewrite"
    """The way to delete rows from a large file: rewriting it, or a deletion vector."""
    evolution: Evolution = "mergeSchema"
    horizon: int = HORIZON_SECONDS
    """Seconds for which tombstones are kept."""
    source_hash: str = ""
    comment: str = ""
    log: str = ""
    """The folder of the log; empty if no log is kept."""
    current: str = ""
    """For a history: the folder of the merged table, which records the source's incarnations."""
    arrival: Arrival = "unknown"
    undecided: Undecided = "refuse"
    chosen: tuple[str, ...] = ()
    """For a history: the columns with whose changes versions begin; empty for all records."""

    @property
    def mark(self) -> Mark:
        """Return the mark of the commit, by which a second attempt recognises the first."""
        return Mark(self.app_id, self.batch, self.source_hash)

    @property
    def soft(self) -> bool:
        """Return whether deleted rows stay and are marked."""
        return self.deletes == "soft"

    def wanted(self) -> tuple[Column, ...]:
        """Return the columns that this order wants the merged table to have."""
        extra = (DELETED_COLUMN,) if self.soft else ()
        return (*self.columns, SEQ_COLUMN, TIME_COLUMN, *extra)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Counts of a merge; `deleted` includes the rows that a truncate removed."""

    events: int
    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge."""

    table: str
    version: int
    """The table's newest version; -1 if there is no table and no row for one."""
    skipped: bool = False
    """Whether the table already had the batch, so that nothing was merged."""


@dataclass(frozen=True, slots=True)
class MergedColumns:
    """A table's columns after a commit."""

    fields: list[Field]
    schema: pa.Schema
    changed: bool
    """Whether the commit must change the table's columns."""
    rewritten: bool = False
    """Whether the commit must rewrite every row, because existing files have outdated columns."""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.schema.names)


def merged_columns(
    have: Sequence[Field] | None,
    wanted: Sequence[Column],
    *,
    system: Sequence[Column],
    evolution: Evolution,
) -> MergedColumns:
    """Return the columns of a table after an order; `have` is None if there is no table.

    `system` are the columns that every merged table needs: they come last, and evolution never
    removes them. Raises ColumnConflictError.
    """
    want = [*fields_of(wanted), *fields_of(system)]
    if have is None:
        return _as_merged(want, changed=True)
    if evolution == "overwriteSchema":
        return _overwritten(have, want)
    if evolution == "none":
        want = want[len(wanted) :]
    merged = merge_fields(have, want)
    last = {column.name for column in system}
    fields = sorted(merged.fields, key=lambda f: f["name"] in last) if merged.changed else have
    return _as_merged(list(fields), changed=merged.changed)


def _overwritten(have: Sequence[Field], want: Sequence[Field]) -> MergedColumns:
    by_name = {f["name"]: f for f in have}
    # a comment that a user has written is kept, and is no reason to change the table
    fields = [
        old if (old := by_name.get(f["name"])) and old["type"] == f["type"] else f for f in want
    ]
    both = [(by_name[f["name"]], f) for f in fields if f["name"] in by_name]
    narrower = len(both) < len(by_name)
    return _as_merged(
        fields,
        changed=fields != list(have),
        rewritten=narrower or not all(_holds(old, new) for old, new in both),
    )


def _holds(old: Field, new: Field) -> bool:
    """Return whether files with the old column can be read as the new one."""
    try:
        merged = merge_fields([old], [new])
    except ColumnConflictError:
        return False
    return bool(merged.fields[0]["type"] == new["type"])


def _as_merged(fields: list[Field], *, changed: bool, rewritten: bool = False) -> MergedColumns:
    columns = columns_of(fields)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return MergedColumns(fields, schema, changed, rewritten)
