"""The bronze table: every record that was read, its payload as it came, with its coordinates.

A record that could not be unwrapped is there whole, without a type. A dead letter is in bronze
already, so a replay adds nothing to it. It is written in hop one, before the shuffle: one file a
task and, if the lake is partitioned by it, day, sorted by type, so that a reader of one type skips
most of it. A folder per type would be a file per type and batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.parquet import write_file
from distributary.model.plan import Catalog, StageOrder
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column
from distributary.stage.files import file_fact, file_name
from distributary.stage.partitions import partition_facts, with_date
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
"""One column more, where other jobs read the table as their source."""

_SCHEMA = pa.schema([pa.field(c.name, c.type) for c in BRONZE_COLUMNS])
_PAYLOAD = _SCHEMA.get_field_index("payload")
_WHOLE_SCHEMA = _SCHEMA.append(pa.field(WHOLE.name, WHOLE.type))


class BronzeWriter:
    """Collects a task's unwrapped records and writes them as one file."""

    def __init__(self, catalog: Catalog, order: StageOrder) -> None:
        self._table = catalog.tables[catalog.bronze]
        self._order = order
        self._whole = catalog.whole
        self._schema = _WHOLE_SCHEMA if catalog.whole else _SCHEMA
        self._parts: list[pa.RecordBatch] = []
        self.unwrapped = 0
        """Records that are not dead letters by their wrapping; where they are kept whole, all."""

    def add(self, raw: pa.RecordBatch, unwrapped: Unwrapped) -> None:
        """Keep one raw batch."""
        count = raw.num_rows
        self.unwrapped += count if self._whole else len(unwrapped.rows)
        arrays = [
            *_in_place(raw, unwrapped),
            raw.column("key"),
            raw.column("headers"),
            raw.column("topic"),
            raw.column("partition"),
            raw.column("offset"),
            raw.column("timestamp"),
            pa.repeat(pa.scalar(self._order.now_us, TIMESTAMP), count),
            pa.repeat(pa.scalar(self._order.batch, pa.int64()), count),
        ]
        if self._whole:
            arrays.append(_wrapped(raw.column("value"), arrays[_PAYLOAD]))
        self._parts.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def finish(self) -> list[tuple[str, str]]:
        """Write the file; no facts when there was nothing to write."""
        table = pa.Table.from_batches(self._parts, self._schema)
        if not table.num_rows:
            return []
        table = table.sort_by("type")
        if self._table.partition_by:
            return partition_facts(
                with_date(table, table["_timestamp"], self._table),
                self._table,
                self._order,
                records=self.unwrapped,
                offsets=table["_offset"],
                schema_ids=table["schema_id"],
            )
        offsets = table["_offset"].to_numpy()
        staged = write_file(
            table,
            self._table.path,
            self._table.staged(file_name(self._order)),
            first_offset=int(offsets.min()),
            last_offset=int(offsets.max()),
            schema_ids=table["schema_id"].drop_null().unique().to_pylist(),
        )
        return [file_fact(self._table.name, self.unwrapped, staged)]


def _in_place(raw: pa.RecordBatch, unwrapped: Unwrapped) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Type, schema id and payload for every raw record, in the order of the raw records."""
    if len(unwrapped.rows) == raw.num_rows:
        return unwrapped.claims, unwrapped.schema_ids, unwrapped.payloads
    where = np.full(raw.num_rows, -1, dtype=np.int64)
    where[unwrapped.rows] = np.arange(len(unwrapped.rows))
    take = pa.array(where, mask=where < 0)
    claims, ids, payloads = (
        a.take(take) for a in (unwrapped.claims, unwrapped.schema_ids, unwrapped.payloads)
    )
    return claims, ids, pc.if_else(take.is_null(), raw.column("value"), payloads)


def _wrapped(values: pa.Array, payloads: pa.Array) -> pa.Array:
    """Values that the payloads are not; null where the payload is all there is."""
    same = pc.fill_null(pc.equal(values, payloads), fill_value=False)
    return pc.if_else(same, pa.scalar(None, values.type), values)
