"""The bronze table: every payload as it came, with its coordinates.

It is written in hop one, before the shuffle: one file a task, sorted by type, so that a reader of
one type skips most of it. A folder per type would be a file per type and batch.
"""

from __future__ import annotations

import pyarrow as pa

from distributary.model.manifest import StagedFile
from distributary.model.plan import Catalog, StageOrder
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column
from distributary.stage.names import file_name
from distributary.stage.parquet import write_file
from distributary.stage.unwrap import Unwrapped

BRONZE_COLUMNS: tuple[Column, ...] = (
    Column("type", pa.string(), "type of the record; the topic where there is no envelope"),
    Column("schema_id", pa.int64(), "schema that the payload was written with"),
    Column("payload", pa.binary(), "the payload as it came, without envelope and header"),
    Column("key", pa.binary(), "key of the source record"),
    Column("headers", pa.list_(HEADER), "headers of the source record"),
    Column("_topic", pa.string(), "topic of the source record"),
    Column("_partition", pa.int32(), "partition of the source record"),
    Column("_offset", pa.int64(), "offset of the source record"),
    Column("_timestamp", TIMESTAMP, "time of the source record"),
    Column("_arrived_at", TIMESTAMP, "when the batch read it"),
    Column("_batch", pa.int64(), "batch that read it"),
)

_SCHEMA = pa.schema([pa.field(c.name, c.type) for c in BRONZE_COLUMNS])


class BronzeWriter:
    """Collects a task's unwrapped records and writes them as one file."""

    def __init__(self, catalog: Catalog, order: StageOrder) -> None:
        self._folder = catalog.tables[catalog.bronze].path
        self._order = order
        self._parts: list[pa.RecordBatch] = []

    def add(self, raw: pa.RecordBatch, unwrapped: Unwrapped) -> None:
        """Keep what one raw batch gave."""
        rows = raw.take(pa.array(unwrapped.rows))
        count = rows.num_rows
        arrays = [
            unwrapped.claims,
            unwrapped.schema_ids,
            unwrapped.payloads,
            rows.column("key"),
            rows.column("headers"),
            rows.column("topic"),
            rows.column("partition"),
            rows.column("offset"),
            rows.column("timestamp"),
            pa.repeat(pa.scalar(self._order.now_us, TIMESTAMP), count),
            pa.repeat(pa.scalar(self._order.batch, pa.int64()), count),
        ]
        self._parts.append(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))

    def finish(self) -> StagedFile | None:
        """Write the file; None when there was nothing to write."""
        table = pa.Table.from_batches(self._parts, _SCHEMA)
        if not table.num_rows:
            return None
        table = table.sort_by("type")
        offsets = table["_offset"].to_numpy()
        return write_file(
            table,
            self._folder,
            file_name(self._order),
            first_offset=int(offsets.min()),
            last_offset=int(offsets.max()),
            schema_ids=table["schema_id"].unique().to_pylist(),
        )
