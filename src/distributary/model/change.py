"""The columns that every change event has, whichever system wrote it.

A log table has these columns, then the columns of the source table under their own names, then the
metadata of every row. A merged table has the source table's columns, `_seq` and `_source_ts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from distributary.model.record import TIMESTAMP
from distributary.model.table import Column

SEQ = pa.struct(
    [
        pa.field("phase", pa.int32()),
        pa.field("ts", pa.int64()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        pa.field("c", pa.int64()),
        pa.field("half", pa.int32()),
        pa.field("tie", pa.string()),
    ]
)
"""The place of an event in the order of its source: compared field by field, never null.

`phase` is twice the number of the source's incarnation, and one more for what changed and was not
backfilled, unless time alone decides; `ts` the source's time in milliseconds, 0 where positions
decide; `a`, `b`, `c` the position in the source's log as numbers; `half` 0 for the row that a
change of key removes and 1 for all else; `tie` the source's own last word: text that sorts as the
source ordered the events.
"""

CHANGE_COLUMNS: tuple[Column, ...] = (
    Column("_op", pa.string(), "insert, update, delete, read (a snapshot's row) or truncate"),
    Column("_deleted", pa.bool_(), "whether the row is gone after this event"),
    Column("_key", pa.list_(pa.string()), "names of the key's columns; empty: no key"),
    Column("_seq", SEQ, "the event's place in the order of its source"),
    Column("_source_ts", TIMESTAMP, "when the source made the change"),
    Column("_backfill", pa.bool_(), "whether the row was read, not changed"),
    Column("_uuid", pa.string(), "the event's own id; empty: it has none"),
    Column("_hash", pa.int64(), "of the whole event: tells a re-delivery from another event"),
    Column("_unchanged", pa.list_(pa.string()), "columns whose value the event leaves out"),
    Column("_envelope", pa.string(), "everything else that came with the row, as JSON"),
)
"""What a change decoder puts before the columns of the source table, in this order."""

CHANGE_NAMES = tuple(column.name for column in CHANGE_COLUMNS)


# What kinds of changes a batch has brought to a log, and how new the newest of them is.

OPS = ("insert", "update", "delete", "read", "truncate")
"""What a change can be; the values of a log's `_op`."""
OP_COLUMNS = {op: f"{op}s" for op in OPS}
"""For each kind of change, the column of the ledger that counts it."""


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Counted where the rows of a log are written."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Events by `_op`."""
    newest: int | None = None
    """When the source made its newest change: microseconds since 1970."""

    def __add__(self, other: ChangeFacts) -> ChangeFacts:
        known = [moment for moment in (self.newest, other.newest) if moment is not None]
        return ChangeFacts(Counter(self.counts) + Counter(other.counts), max(known, default=None))

    def __sub__(self, other: ChangeFacts) -> ChangeFacts:
        """Less what was counted twice."""
        return ChangeFacts(Counter(self.counts) - Counter(other.counts), self.newest)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"counts": dict(self.counts), "newest": self.newest}

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> ChangeFacts | None:
        """The inverse of `as_dict`; None where nothing was said."""
        return None if data is None else cls(dict(data["counts"]), data["newest"])


# What a change decoder must be told beside the schema of its events.


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """How the events of one pipeline are to be understood."""

    format: Literal["datastream", "debezium"] = "datastream"
    """What the events look like."""
    source_type: str = ""
    """The kind of database, for events that do not say it; empty: as the events look."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """Whether a row that was backfilled loses against any change of it, or only against later ones.
    """
    tombstones: Literal["skip", "delete"] = "skip"
    """Whether a key without a value tells that a row is gone, where nothing else does."""

    @property
    def related(self) -> bool:
        """Whether events must be seen together: both halves of a change of key, and copies."""
        return self.format == "datastream"
