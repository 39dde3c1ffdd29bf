"""Where each row came from: the columns that every table carries beside its own."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from distributary.model.plan import StageOrder
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column

METADATA: dict[str, Column] = {
    "key": Column("_key", pa.binary(), "key of the source record"),
    "headers": Column("_headers", pa.list_(HEADER), "headers of the source record"),
    "topic": Column("_topic", pa.string(), "topic of the source record"),
    "partition": Column("_partition", pa.int32(), "partition of the source record"),
    "offset": Column("_offset", pa.int64(), "offset of the source record"),
    "timestamp": Column("_timestamp", TIMESTAMP, "time of the source record"),
    "schema_id": Column("_schema_id", pa.int64(), "schema that the record was written with"),
    "batch": Column("_batch", pa.int64(), "batch that read the record"),
    "raw": Column("_raw", pa.binary(), "the whole value of the source record, untouched"),
}
"""What `tables.metadata` may name, in the order of the columns."""

DATE = Column("_date", pa.date32(), "day (UTC) of the source record's time; null if unknown")
"""What tables may be partitioned by besides."""

_FROM_RAW = {
    "key": "key",
    "headers": "headers",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "raw": "value",
}


def metadata_plan(names: Iterable[str]) -> tuple[Column, ...]:
    """The columns for a selection of names, in a fixed order."""
    wanted = set(names)
    return tuple(column for name, column in METADATA.items() if name in wanted)


def metadata_columns(
    raw: pa.Table, schema_ids: pa.Int64Array, names: Iterable[str], order: StageOrder
) -> list[tuple[str, pa.Array | pa.ChunkedArray]]:
    """The values of these columns for raw records and the schemas they were written with."""
    wanted = set(names)
    columns: list[tuple[str, pa.Array | pa.ChunkedArray]] = []
    for name, column in METADATA.items():
        if name not in wanted:
            continue
        if name == "schema_id":
            values = schema_ids
        elif name == "batch":
            values = pa.repeat(pa.scalar(order.batch, pa.int64()), raw.num_rows)
        else:
            values = raw.column(_FROM_RAW[name])
        columns.append((column.name, values))
    return columns
