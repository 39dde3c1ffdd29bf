"""Where each row came from: the columns that every table carries beside its own."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from distributary.model.plan import StageOrder
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column
from distributary.stage.unwrap import Rows

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
    raw: pa.RecordBatch, rows: Rows, ids: Rows, names: Iterable[str], order: StageOrder
) -> list[tuple[str, pa.Array]]:
    """The values of these columns for some rows of a raw batch."""
    wanted = set(names)
    take = pa.array(rows)
    columns: list[tuple[str, pa.Array]] = []
    for name, column in METADATA.items():
        if name not in wanted:
            continue
        if name == "schema_id":
            values = pa.array(ids, pa.int64())
        elif name == "batch":
            values = pa.repeat(pa.scalar(order.batch, pa.int64()), len(rows))
        else:
            values = raw.column(_FROM_RAW[name]).take(take)
        columns.append((column.name, values))
    return columns
