"""The keys of records as columns of a table: a record without a value names its row by its key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.evolve.types import fold, sql_name
from distributary.model.deadletter import Failure
from distributary.model.table import Column

_WHOLE = re.compile(r"-?[0-9]{1,40}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?", re.ASCII)
_FRAME = b"\x00"
"""The first byte of a key that was written with a schema of the registry."""


def read_keys(
    keys: pa.ChunkedArray, columns: Sequence[Column]
) -> tuple[pa.RecordBatch, list[int], list[Failure]]:
    """Return the values of a table's key columns, the keys that they came from, and the failures.

    A key is an object of JSON with the columns, or the value of the only column, as text or JSON.
    """
    values: list[dict[str, Any]] = []
    kept: list[int] = []
    failures: list[Failure] = []
    for number, key in enumerate(keys.to_pylist()):
        row = _row_of(key, columns)
        if row is None:
            names = ", ".join(f"{column.name} ({sql_name(column.type)})" for column in columns)
            reason = f"it has no value, and its key cannot be read as {names}"
            failures.append(Failure(number, ErrorCode.KEY_NOT_IN_PAYLOAD, reason))
        else:
            values.append(row)
            kept.append(number)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return pa.RecordBatch.from_pylist(values, schema), kept, failures


def _row_of(key: bytes | None, columns: Sequence[Column]) -> dict[str, Any] | None:
    """Return the values of a key by column; None if it does not have all of them."""
    if not key or key.startswith(_FRAME):
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    found: Any = {columns[0].name: text}
    if text[0] in '{"':
        try:
            found = json.loads(text, parse_float=Decimal, parse_constant=_refused)
        except (ValueError, RecursionError):
            return None
        if isinstance(found, str):
            found = {columns[0].name: found}
    elif len(columns) > 1:
        return None
    by_name = {fold(name): value for name, value in found.items()}
    if len(by_name) < len(found):
        return None
    row = {column.name: _cast(by_name.get(fold(column.name)), column.type) for column in columns}
    return None if None in row.values() else row


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _cast(value: Any, type_: pa.DataType) -> Any:
    """Convert a value to a column's type; return None if it does not fit exactly."""
    if value is None or isinstance(value, (dict, list)):
        return None
    kinds = pa.types
    if isinstance(value, bool) and not kinds.is_boolean(type_):
        return None
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        if not (kinds.is_integer(type_) or kinds.is_decimal(type_) or kinds.is_floating(type_)):
            return None
        value = str(value)
    if isinstance(value, str) and kinds.is_integer(type_) and not _WHOLE.fullmatch(value):
        return None
    try:
        if kinds.is_decimal(type_):
            # Arrow's own cast of a text with too many digits gives another number
            return pa.scalar(Decimal(value), type_).as_py() if _NUMBER.fullmatch(value) else None
        found = pa.scalar(value).cast(type_).as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return None
    return None if isinstance(found, float) and not math.isfinite(found) else found
