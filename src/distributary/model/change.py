"""The columns that every change event has, whichever system wrote it.

A log table has these columns, then the columns of the source table under their own names, then the
metadata of every row. A merged table has the source table's columns, `_seq` and `_source_ts`.
"""

from __future__ import annotations

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

`phase` is 0 for what was backfilled and 1 for what changed, or 0 for both where time alone decides;
`ts` the source's time in milliseconds, 0 where positions alone decide; `a`, `b`, `c` the position
in the source's log as numbers; `half` 0 for the row that a change of key removes and 1 for all
else; `tie` the source's own last word: text that sorts as the source ordered the events.
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
