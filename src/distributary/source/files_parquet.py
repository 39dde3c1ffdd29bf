"""Parquet files, in which a row is an event: given as JSON, because no row has bytes of its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.errors import ErrorCode
from distributary.source.files_bytes import MOST_LETTER_BYTES, FileFaultError
from distributary.source.files_events import BYTES_PER_BATCH, Events, Fault, parsed_events

_MAGIC = b"PAR1"
_MOST_ROWS = 4096


def read_parquet(file: BinaryIO, wait: Callable[[], bool]) -> Iterator[Events | Fault]:
    """The rows of a file; while it is not whole and `wait` says so, it may become whole."""
    # the footer is written last: without it the file is only begun
    while not (whole := _is_whole(file)) and wait():
        pass
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in _batches(parquet):
                rows = batch.to_pylist()
                yield parsed_events([as_json(row).encode() for row in rows], rows)
    except (OSError, ValueError, ArithmeticError, RecursionError, pa.ArrowException) as error:
        # where the store is at fault, and not the file, this fails too
        file.seek(0)
        data = file.read(MOST_LETTER_BYTES)
        begun = data.startswith(_MAGIC) and not whole
        code = ErrorCode.FILE_TRUNCATED if begun else ErrorCode.FILE_CORRUPT
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileFaultError(code, f"Parquet: {reason}", data) from error


def _is_whole(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(_MAGIC)))
    return file.read() == _MAGIC


def _batches(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """One group of rows after the other: damage in one does not hide those before it."""
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        size = max(1, group.total_byte_size // max(1, group.num_rows))
        rows = max(1, min(_MOST_ROWS, BYTES_PER_BATCH // size))
        yield from parquet.iter_batches(rows, row_groups=[number])


def as_json(value: object) -> str:
    """A value of a row as JSON text; decimals are numbers of all their digits, bytes are hex."""
    match value:
        case None | bool() | int() | str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return json.dumps(value) if math.isfinite(value) else f'"{value}"'
        case Decimal():
            return f"{value:f}"
        case bytes():
            return f'"{value.hex()}"'
        case dict():
            inner = (f"{json.dumps(k, ensure_ascii=False)}:{as_json(v)}" for k, v in value.items())
            return "{" + ",".join(inner) + "}"
        case list():
            return "[" + ",".join(map(as_json, value)) + "]"
        case tuple():
            return as_json(list(value))
        case timedelta():
            return str(value // timedelta(microseconds=1))
        case datetime() | date() | time():
            return f'"{value.isoformat()}"'
    raise ValueError(f"a value of type {type(value).__name__} has no JSON")
