"""Which columns a table has after an order, as evolution allows, in the words of its log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from distributary.delta.columns import (
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

# What a table is to be merged from, and what became of it: plain facts that travel to tasks.

Deletes = Literal["hard", "soft"]
DeletesAs = Literal["rewrite", "vectors"]
Evolution = Literal["mergeSchema", "overwriteSchema", "none"]

Arrival = Literal["partitions", "files", "unknown"]
"""What the order of arrival says. partitions: the changes of a row come in their order; files:
they come in any order; unknown: nothing, as of dead letters that are sent again."""
Undecided = Literal["refuse", "replaced", "repeated"]
"""What a source was that goes back without a clear reason, by the word of an operator."""

HORIZON_SECONDS = 7 * 24 * 3600
"""How long it is remembered what was removed, unless somebody says otherwise."""

_CHANGE = {column.name: column for column in CHANGE_COLUMNS}
SEQ_COLUMN, TIME_COLUMN = _CHANGE["_seq"], _CHANGE["_source_ts"]
DELETED_COLUMN = Column("_deleted", _CHANGE["_deleted"].type, "whether the source deleted the row")


class RebuildNeededError(PublishError):
    """The rows of a table are in another order than events will be: its log has to be merged anew.

    That is so where the source's times decided once, and where files show late that a server had
    taken over while they were written.
    """

    retryable = False


class TombstonesBehindError(PublishError):
    """The tombstones of a table are older than the table: its log says what was deleted."""

    retryable = False


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
    role: Role = Role.MERGED
    deletes: Deletes = "hard"
    deletes_as: DeletesAs = "rewrite"
    """How rows leave a large file: it is written again, or they are named in a vector."""
    evolution: Evolution = "mergeSchema"
    horizon: int = HORIZON_SECONDS
    """Seconds for which a row that was removed cannot come back with an older event."""
    source_hash: str = ""
    comment: str = ""
    log: str = ""
    """The folder of the log; empty where none is kept."""
    current: str = ""
    """Of a history: the folder of the merged table, which knows the source's incarnations."""
    arrival: Arrival = "unknown"
    undecided: Undecided = "refuse"

    @property
    def mark(self) -> Mark:
        """Return the mark of the commit, by which a second attempt recognises the first."""
        return Mark(self.app_id, self.batch, self.source_hash)

    @property
    def soft(self) -> bool:
        """Return whether deleted rows stay, marked."""
        return self.deletes == "soft"

    def wanted(self) -> tuple[Column, ...]:
        """The columns of the merged table as this order would make it."""
        extra = (DELETED_COLUMN,) if self.soft else ()
        return (*self.columns, SEQ_COLUMN, TIME_COLUMN, *extra)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What the events of a batch did; `deleted` also counts what a truncate removed."""

    events: int
    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The merged table after an order."""

    table: str
    version: int
    """The table's newest version; -1 when there is no table yet, and nothing to put in one."""
    skipped: bool = False
    """The table's mark was at or past the batch."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns after a commit."""

    fields: list[Field]
    schema: pa.Schema
    changed: bool
    """The table has to be told of its columns."""
    rewritten: bool = False
    """Files that are there do not fit: every row is written again, in the same commit."""

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self.schema.names)


def shape(
    have: Sequence[Field] | None,
    wanted: Sequence[Column],
    *,
    system: Sequence[Column],
    evolution: Evolution,
) -> Shape:
    """The columns of a table that has some (None: there is no table) after an order wants some.

    `system` are columns without which no table can be merged: they come last, and are there
    whatever evolution says. Raises ColumnConflictError.
    """
    want = [*fields_of(wanted), *fields_of(system)]
    if have is None:
        return _shape(want, changed=True)
    if evolution == "overwriteSchema":
        return _overwritten(have, want)
    if evolution == "none":
        want = want[len(wanted) :]
    merged = merge_fields(have, want)
    last = {column.name for column in system}
    fields = sorted(merged.fields, key=lambda f: f["name"] in last) if merged.changed else have
    return _shape(list(fields), changed=merged.changed)


def _overwritten(have: Sequence[Field], want: Sequence[Field]) -> Shape:
    by_name = {f["name"]: f for f in have}
    # a comment that somebody wrote is no reason to change a table
    fields = [
        old if (old := by_name.get(f["name"])) and old["type"] == f["type"] else f for f in want
    ]
    both = [(by_name[f["name"]], f) for f in fields if f["name"] in by_name]
    narrower = len(both) < len(by_name)
    return _shape(
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


def _shape(fields: list[Field], *, changed: bool, rewritten: bool = False) -> Shape:
    columns = columns_of(fields)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return Shape(fields, schema, changed, rewritten)
