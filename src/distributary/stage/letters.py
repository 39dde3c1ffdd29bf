"""Rows for the dead-letter table: the whole record, untouched, and why it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus, dead_letter_id
from distributary.model.plan import StageOrder

_LONGEST_TYPE = 200
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class Letter:
    """Why the record at one position of a raw batch is a dead letter."""

    row: int
    code: ErrorCode
    message: str
    stage: str
    position: int | None = None
    type: str | None = None
    schema_id: int | None = None


def letters_batch(
    raw: pa.RecordBatch | pa.Table, letters: Sequence[Letter], order: StageOrder
) -> pa.RecordBatch:
    """Dead-letter rows for some of the raw records."""
    rows = raw.take(pa.array([letter.row for letter in letters], pa.int64()))
    count = len(letters)
    topics, partitions, offsets = (
        rows.column(name).to_pylist() for name in ("topic", "partition", "offset")
    )
    now = pa.repeat(pa.scalar(order.now_us, DEAD_LETTER_SCHEMA.field("first_seen").type), count)
    columns = {
        "id": [
            dead_letter_id(order.pipeline, order.identities.get(where[0]) or order.life, *where)
            for where in zip(topics, partitions, offsets, strict=True)
        ],
        "pipeline": [order.pipeline] * count,
        **{name: rows.column(name) for name in rows.schema.names},
        "type": [None if x.type is None else x.type[:_LONGEST_TYPE] for x in letters],
        "schema_id": [x.schema_id for x in letters],
        "stage": [x.stage for x in letters],
        "error_code": [str(x.code) for x in letters],
        "error_message": [x.message[:_LONGEST_MESSAGE] for x in letters],
        "error_position": [x.position for x in letters],
        "batch": [order.batch] * count,
        "first_seen": now,
        "last_seen": now,
        "attempts": [1] * count,
        "status": [str(DeadLetterStatus.OPEN)] * count,
        "note": [None] * count,
    }
    arrays = [_one_array(columns[f.name], f.type) for f in DEAD_LETTER_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA)


def _one_array(values: Any, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, type_)
