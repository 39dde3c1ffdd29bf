"""The bronze table: every record that was read, with its original payload and coordinates.

A record that could not be unwrapped is stored whole, without a type. A replayed dead letter is in
bronze already, so a replay adds nothing. Bronze is written in hop one, before the shuffle: one file
per task, which is sorted by type, so that a reader of one type skips most rows. If the lake is
partitioned by day, there is one file per task and day; if bronze is partitioned by type, one per
task and type, so that a reader of one type skips the files of others.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.facts import Fact
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.routing import StageOrder
from distributary.model.table import Column
from distributary.shape.raw_encryption import encrypted
from distributary.stage.rows.partitions import days, frequent_types, table_facts
from distributary.stage.task_outputs import DATE, TYPE
from distributary.stage.task_plan import TaskPlan
from distributary.stage.unwrap import Unwrapped

BRONZE_COLUMNS: tuple[Column, ...] = (
    Column("type", pa.string(), "type of the record (without an envelope: topic); null if unknown"),
    Column("schema_id", pa.int64(), "schema that the payload was written with; null if unknown"),
    Column("payload", pa.binary(), "the payload as it came; the whole value if it has no type"),
    Column("key", pa.binary(), "key of the source record"),
    Column("headers", pa.list_(HEADER), "headers of the source record"),
    Column("_topic", pa.string(), "topic of the source record"),
    Column("_partition", pa.int32(), "partition of the source record"),
    Column("_offset", pa.int64(), "offset of the source record"),
    Column("_timestamp", TIMESTAMP, "time of the source record"),
    Column("_arrived_at", TIMESTAMP, "when the batch read it"),
    Column("_batch", pa.int64(), "batch that read it"),
)

WHOLE = Column("value", pa.binary(), "the whole value, where the payload is only a part of it")
"""The additional column for tables that other jobs read as their source."""

_FROM_RAW = ("key", "headers", "topic", "partition", "offset", "timestamp")
_SCHEMA = pa.schema([pa.field(c.name, c.type) for c in BRONZE_COLUMNS])
_CONTENTS = ("payload", "key", "headers", WHOLE.name)
_COORDINATES = ("_topic", "_partition", "_offset")
_PAYLOAD = _SCHEMA.get_field_index("payload")
_WHOLE_SCHEMA = _SCHEMA.append(pa.field(WHOLE.name, WHOLE.type))


class BronzeWriter:
    """A writer that collects a task's unwrapped records and writes them as one file."""

    def __init__(self, plan: TaskPlan, order: StageOrder) -> None:
        self._table = plan.output.tables[plan.output.bronze]
        self._order = order
        self._whole = plan.output.whole
        self._schema = _WHOLE_SCHEMA if plan.output.whole else _SCHEMA
        self._encrypts = plan.output.raw_records == "encrypt"
        self._parts: list[pa.RecordBatch] = []
        self.unwrapped = 0
        """The number of records that were unwrapped; if whole records are kept, of all records."""

    def add(self, raw: pa.RecordBatch, unwrapped: Unwrapped) -> None:
        """Add one raw batch."""
        count = raw.num_rows
        self.unwrapped += count if self._whole else len(unwrapped.rows)
        arrays = [
            *_in_place(raw, unwrapped),
            *(raw.column(name) for name in _FROM_RAW),
            pa.repeat(pa.scalar(self._order.now_us, TIMESTAMP), count),
            pa.repeat(pa.scalar(self._order.batch, pa.int64()), count),
        ]
        if self._whole:
            arrays.append(_wrapped(raw.column("value"), arrays[_PAYLOAD]))
        self._parts.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def finish(self) -> list[Fact]:
        """Write the file; return no facts if there are no records."""
        table = pa.Table.from_batches(self._parts, self._schema)
        if not table.num_rows:
            return []
        table = table.sort_by("type")
        if self._encrypts:
            contents = [name for name in _CONTENTS if name in table.column_names]
            table = encrypted(table, contents, _COORDINATES, self._order.mask_key)
        by = self._table.partition_by
        if TYPE.name in by:
            dates = len(days(table["_timestamp"]).unique()) if DATE.name in by else 1
            table = table.append_column(TYPE.name, frequent_types(table["type"], days=dates))
        return table_facts(
            table,
            self._table,
            self._order,
            records=self.unwrapped,
            times=table["_timestamp"],
            offsets=table["_offset"],
            schema_ids=table["schema_id"],
        )


def _in_place(raw: pa.RecordBatch, unwrapped: Unwrapped) -> list[pa.Array]:
    """Return type, schema id and payload for every raw record, in the order of the raw records."""
    columns = [unwrapped.keys["claim"], unwrapped.keys["schema_id"], unwrapped.payloads]
    if len(unwrapped.rows) == raw.num_rows:
        return columns
    where = np.full(raw.num_rows, -1, dtype=np.int64)
    where[unwrapped.rows] = np.arange(len(unwrapped.rows))
    take = pa.array(where, mask=where < 0)
    claims, ids, payloads = (column.take(take) for column in columns)
    return [claims, ids, pc.if_else(take.is_null(), raw.column("value"), payloads)]


def _wrapped(values: pa.Array, payloads: pa.Array) -> pa.Array:
    """Return the values that differ from their payloads; null where both are equal."""
    same = pc.fill_null(pc.equal(values, payloads), fill_value=False)
    return pc.if_else(same, pa.scalar(None, values.type), values)
