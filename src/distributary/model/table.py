"""The model of a table: its columns, their changes, and the plan of the next commit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.table_format import TABLE_FORMATS

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


def is_below(path: str) -> bool:
    """Return true when a relative path stays inside the folder where it starts."""
    return bool(path) and not _ELSEWHERE.match(path) and ".." not in path.split("/")


@dataclass(frozen=True, slots=True)
class Origin:
    """The field whose values a column holds."""

    field: str
    """Full name of the field: `package.Message.field`, with the type in front if there is an
    envelope; for change data `database.schema.table.column`."""
    topic: str = ""
    """The topic of records with the field; empty when all records have the same topics."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a column of a writer's schema.

    Types are the Arrow types that a Delta table can hold: bool, int32, int64, float32, float64,
    decimal128, string, binary, date32, timestamp(us, UTC), list, struct, map.
    """

    name: str
    type: pa.DataType
    comment: str = ""
    """The field and schema of the column; it becomes the column's comment in the table."""
    number: int | None = None
    """Protobuf field number, by which a renamed field is recognised."""
    aliases: tuple[str, ...] = ()
    """Avro aliases, by which a renamed field is recognised."""
    side_of: str = ""
    """For a writer's column, the writer's other column for the same field, with values of another
    type."""
    origin: Origin | None = field(default=None, compare=False)
    """For a writer's column, its field; for a table's column, the field of the writer that added
    it."""


def commented_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the columns as an Arrow schema, with their comments as metadata."""
    return pa.schema(
        [
            pa.field(c.name, c.type, metadata={"comment": c.comment} if c.comment else None)
            for c in columns
        ]
    )


@dataclass(frozen=True, slots=True)
class Fill:
    """A step from a writer's column to the table: `source`, cast to `type`, becomes `target`."""

    source: str
    target: str
    type: pa.DataType


class ChangeKind(StrEnum):
    """The kinds of changes to a table's columns."""

    TABLE_CREATED = "table_created"
    COLUMN_ADDED = "column_added"
    """A column for a new field, or for a new name of the field in the column `before`."""
    COLUMN_WIDENED = "column_widened"
    SIDE_COLUMN_ADDED = "side_column_added"
    COLUMN_RENAMED = "column_renamed"
    """The field has the new name `column`, and is still stored in the column `before`."""
    COLUMN_MISSING = "column_missing"
    FIELD_IGNORED = "field_ignored"
    REFUSED = "refused"
    SHAPE_LIMITED = "shape_limited"
    """An expression of `shape` that is not applied, or reads a column as null; in `after`, why."""
    AGGREGATE_LIMITED = "aggregate_limited"
    """A column of an aggregate table that is not computed, or the whole table; in `after`, why."""


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One line of the schema history: a change, and the action that was taken."""

    kind: ChangeKind
    column: str = ""
    before: str = ""
    after: str = ""
    action: str = ""

    def describe(self) -> str:
        """Format the change in one line: `+ rating int`, `~ score int to bigint`."""
        if self.kind is ChangeKind.TABLE_CREATED and not self.after:
            return "+ table"
        if self.kind is ChangeKind.COLUMN_ADDED and self.before:
            return f"+ {self.column} {self.after} (another name of {self.before}; a new column)"
        return _DESCRIPTIONS[self.kind].format_map(asdict(self))


_DESCRIPTIONS = {
    ChangeKind.TABLE_CREATED: "+ table ({after})",
    ChangeKind.COLUMN_ADDED: "+ {column} {after}",
    ChangeKind.SIDE_COLUMN_ADDED: "+ {column} {after} (side column; was {before})",
    ChangeKind.COLUMN_WIDENED: "~ {column} {before} to {after}",
    ChangeKind.COLUMN_RENAMED: "~ {column} is stored in {before} (renamed field)",
    ChangeKind.COLUMN_MISSING: "- {column} (no longer written; kept, null)",
    ChangeKind.FIELD_IGNORED: "  {column} {after} (ignored)",
    ChangeKind.REFUSED: "! {column} {before} to {after} (refused)",
    ChangeKind.SHAPE_LIMITED: "! shape {column}: {after}",
    ChangeKind.AGGREGATE_LIMITED: "! aggregate {column}: {after}",
}


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of `evolve`: the table's new columns and the fills for them, or a refusal."""

    columns: tuple[Column, ...]
    fills: tuple[Fill, ...]
    changes: tuple[ColumnChange, ...] = ()
    refused: ErrorCode | None = None
    """The reason why records of this schema become dead letters; `columns` is then unchanged."""
    fatal: bool = False
    """Whether the policy of a refusal is `fail`: the batch must stop."""
    reason: str = ""


STAGING = "_distributary/staging"
"""The folder for files before their commit, for formats whose readers list the table's folder."""
STAGED = ".staged"
"""The suffix of such files, so that no pattern such as `**/*.parquet` finds them."""


class Role(StrEnum):
    """The purpose of a table."""

    BRONZE = "bronze"
    EACH = "each"
    UNIFIED = "unified"
    DEAD_LETTERS = "dead_letters"
    LOG = "log"
    """Every change of a source's table, unchanged."""
    MERGED = "merged"
    """The current rows of a source's table."""
    HISTORY = "history"
    """Every version of these rows."""
    AGGREGATE = "aggregate"
    """A row for each group of another table's rows."""


def counts_records(role: str, primary: str) -> bool:
    """Return whether a record counts as written in a table with this role.

    Tables of one type each are those in which records count, and some of them may be logs, from
    which rows are merged by key.
    """
    return role == primary or (role == Role.LOG and primary == Role.EACH)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table in its state after the next commit."""

    name: str
    role: Role
    type: str
    """The type of its records; empty for bronze, unified and dead letters."""
    path: str
    """The table's folder."""
    columns: tuple[Column, ...]
    exists: bool = False
    partition_by: tuple[str, ...] = field(default=())
    comment: str = ""
    format: str = "delta"
    """A name in `TABLE_FORMATS`."""
    source: str = ""
    """Of an aggregate table: the name of the table whose rows it groups."""
    aggregate: str = ""
    """Of an aggregate table: the `name` of its entry in the pipeline file."""

    def staged(self, name: str) -> str:
        """Return the path of a file before its commit, relative to the table's folder.

        Where readers see only files that a commit names, the file can be in its final place.
        """
        apart = TABLE_FORMATS[self.format].stages_apart
        return f"{STAGING}/{name}{STAGED}" if apart else name
