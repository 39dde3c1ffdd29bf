"""A table as it is, as it will be, and how a writer's columns get into it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import pyarrow as pa

from distributary.errors import ErrorCode

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


def is_below(path: str) -> bool:
    """Whether a path, as somebody wrote it down, names something in the folder it starts from."""
    return bool(path) and not _ELSEWHERE.match(path) and ".." not in path.split("/")


@dataclass(frozen=True, slots=True)
class Origin:
    """The field that a column holds."""

    field: str
    """By its full name: `package.Message.field`, behind an envelope with the type before it; of
    change data `database.schema.table.column`."""
    topic: str = ""
    """Where records with the field come from; empty: where all records do."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a column that a writer schema gives.

    Types are the Arrow types that a Delta table can hold: bool, int32, int64, float32, float64,
    decimal128, string, binary, date32, timestamp(us, UTC), list, struct, map.
    """

    name: str
    type: pa.DataType
    comment: str = ""
    """Which field of which schema it came from; becomes the column's comment in the table."""
    number: int | None = None
    """Protobuf field number: how a rename is recognised."""
    aliases: tuple[str, ...] = ()
    """Avro aliases: likewise."""
    side_of: str = ""
    """Of a writer's column: the one that it stands beside, with values of another kind."""
    origin: Origin | None = field(default=None, compare=False)
    """Of a writer's column: its field; of a table's column, that of the writer who brought it."""


def commented_schema(columns: Iterable[Column]) -> pa.Schema:
    """The columns as a schema of Arrow, with their comments as metadata."""
    return pa.schema(
        [
            pa.field(c.name, c.type, metadata={"comment": c.comment} if c.comment else None)
            for c in columns
        ]
    )


@dataclass(frozen=True, slots=True)
class Fill:
    """How a writer column reaches the table: `source` is cast to `type`, stored as `target`."""

    source: str
    target: str
    type: pa.DataType


class ChangeKind(StrEnum):
    """What happened to a table's columns."""

    TABLE_CREATED = "table_created"
    COLUMN_ADDED = "column_added"
    """For a new field, or for another name of the field that the column `before` holds."""
    COLUMN_WIDENED = "column_widened"
    SIDE_COLUMN_ADDED = "side_column_added"
    COLUMN_RENAMED = "column_renamed"
    """The field has another name, `column`, and is stored in the column that it had, `before`."""
    COLUMN_MISSING = "column_missing"
    FIELD_IGNORED = "field_ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the schema history: what changed, and what was done about it."""

    kind: ChangeKind
    column: str = ""
    before: str = ""
    after: str = ""
    action: str = ""

    def describe(self) -> str:
        """`+ rating int`, `~ score int to bigint`: one line for people."""
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
}


@dataclass(frozen=True, slots=True)
class Merged:
    """The answer of `evolve`: the table's new columns and the way into them, or a refusal."""

    columns: tuple[Column, ...]
    fills: tuple[Fill, ...]
    changes: tuple[Change, ...] = ()
    refused: ErrorCode | None = None
    """Set when records of this schema go to the dead letters; `columns` is then unchanged."""
    fatal: bool = False
    """Set with `refused` when the policy says `fail`: the batch must stop."""
    reason: str = ""


STAGING = "_distributary/staging"
"""Where files wait in the folder of a table whose readers look at the folder itself."""
STAGED = ".staged"
"""How their names end: no pattern such as `**/*.parquet` may find them either."""


class Role(StrEnum):
    """Why a table exists."""

    BRONZE = "bronze"
    EACH = "each"
    UNIFIED = "unified"
    DEAD_LETTERS = "dead_letters"
    LOG = "log"
    """Every change of a source's table, as it came."""
    MERGED = "merged"
    """The rows of a source's table as they are now."""
    HISTORY = "history"
    """Every version of these rows."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table as the next commit will leave it."""

    name: str
    role: Role
    type: str
    """The record type it belongs to; empty for bronze, unified and dead letters."""
    path: str
    """The table's folder."""
    columns: tuple[Column, ...]
    exists: bool = False
    partition_by: tuple[str, ...] = field(default=())
    comment: str = ""
    format: str = "delta"
    """`delta`, `parquet` or `iceberg`."""

    def staged(self, name: str) -> str:
        """Where a file waits for its commit, as a path in the table's folder.

        A reader of Delta or Iceberg sees only what a commit names: the file can be in its place
        already.
        """
        return f"{STAGING}/{name}{STAGED}" if self.format == "parquet" else name
