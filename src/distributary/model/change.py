"""The columns that every change event has, in every format.

A log table has these columns, then the columns of the source table under their own names, then the
metadata of every row. A merged table has the source table's columns, `_seq` and `_source_ts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
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
"""The position of an event in the order of its source: compared field by field, never null.

`phase` is twice the number of the source's incarnation, plus one for changes that are not
backfilled, unless time alone decides. `ts` is the source's time in milliseconds, 0 where log
positions decide. `a`, `b`, `c` are the position in the source's log as numbers. `half` is 0 for the
row that a change of key removes, and 1 for all others. `tie` decides last: text that sorts in the
order of the source."""

READ_TIE = "~read"
"""The `tie` of rows that were read from the source beside its stream of changes."""

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
"""The columns that a change decoder puts before the columns of the source table, in this order."""

CHANGE_NAMES = tuple(column.name for column in CHANGE_COLUMNS)

SHARD = "_shard"
"""The column of the database that a row comes from, where a table has the rows of several."""

HEARTBEATS = "__debezium-heartbeat"
"""The default beginning of the topics of a connector's heartbeats."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest heartbeat of a Debezium connector that was read."""

    at: datetime
    """The time at which the connector sent it."""
    looked_at: datetime | None = None
    """The time of the last request to the source that found no newer heartbeat; None before it."""

    @property
    def silent_seconds(self) -> float | None:
        """Return how long the connector is known to be silent."""
        if self.looked_at is None:
            return None
        return max((self.looked_at - self.at).total_seconds(), 0.0)


def connector_name(topic: str) -> str:
    """Return the connector that sends heartbeats to a topic: its `topic.prefix`."""
    return topic.removeprefix(f"{HEARTBEATS}.")


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot, and how much of the log it holds back."""

    name: str
    active: bool
    bytes: int
    lost: bool = False
    """The database has removed log that the slot still needs."""
    database: str = ""
    """The database whose changes the slot decodes; empty for the slot of a standby."""


@dataclass(frozen=True, slots=True)
class SourceSlots:
    """The replication slots of a source database, as it reported them last."""

    at: datetime | None = None
    """The time of the database's last answer; None if it has never answered."""
    slots: tuple[Slot, ...] = ()
    """The slots, in descending order of the log that they hold back."""
    error: str = ""
    """The reason why the database has not answered since."""


# Counts of change events in a batch.

OPS = ("insert", "update", "delete", "read", "truncate")
"""The kinds of changes; the values of a log's `_op`."""
OP_COLUMNS = {op: f"{op}s" for op in OPS}
"""The column of the ledger that counts each kind of change."""


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Counts of the change events in a batch, and the time of the newest."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of events by `_op`."""
    newest: int | None = None
    """Source time of the newest change, in microseconds since 1970."""

    def __add__(self, other: ChangeFacts) -> ChangeFacts:
        times = [moment for moment in (self.newest, other.newest) if moment is not None]
        return ChangeFacts(Counter(self.counts) + Counter(other.counts), max(times, default=None))

    def __sub__(self, other: ChangeFacts) -> ChangeFacts:
        """Subtract events that were counted twice."""
        return ChangeFacts(Counter(self.counts) - Counter(other.counts), self.newest)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {"counts": dict(self.counts), "newest": self.newest}

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> ChangeFacts | None:
        """Build the facts from a dict of `as_dict`; None for None."""
        return None if data is None else cls(dict(data["counts"]), data["newest"])


# Settings of change decoders.


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """The settings with which the events of one pipeline are decoded."""

    format: str = "datastream"
    """The name of an entry of `CHANGE_FORMATS`."""
    source_type: str = ""
    """The kind of database, for events that do not name it; empty: inferred from the events."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """Whether a backfilled row loses against any change of it, or against later ones only."""
    tombstones: Literal["skip", "delete"] = "skip"
    """Whether a key without a value means a delete, where no other event reports it."""
    options: Hashable = None
    """Settings that only this format has."""
    from_files: bool = False
    """Whether records come from files, whose readers report errors in headers."""
