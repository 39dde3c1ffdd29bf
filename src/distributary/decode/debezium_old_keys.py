"""The key that a row had before, in the words of the log's columns.

A header has it as the connector shows it: a date may be a number, and a decimal its bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from distributary.decode.debezium_keys import fill
from distributary.decode.debezium_types import Plan


class OldKeys:
    """Reads old keys of the messages of one table."""

    def __init__(
        self, columns: Mapping[str, tuple[pa.DataType, Plan]], names: Mapping[str, str]
    ) -> None:
        """What the source's columns are read as, and what they are called in the log."""
        self._columns, self._names = columns, names

    def read(self, keys: Mapping[int, Any]) -> dict[int, Any]:
        """Keys by row; one that does not fit the columns stays as it came."""
        found = dict(keys)
        told = {row: key for row, key in keys.items() if self._is_key(key)}
        for row in told:
            found[row] = {}
        for column in dict.fromkeys(column for key in told.values() for column in key):
            rows = [row for row, key in told.items() if column in key]
            values = self._shown(column, [told[row][column] for row in rows])
            for row, value in zip(rows, values, strict=True):
                found[row][self._names[column]] = value
        return found

    def _is_key(self, key: Any) -> bool:
        return isinstance(key, dict) and bool(key) and self._columns.keys() >= key.keys()

    def _shown(self, column: str, values: Sequence[Any]) -> Sequence[Any]:
        type_, plan = self._columns[column]
        if pa.types.is_binary(type_):
            values = [_bytes(value) for value in values]
        raw = fill(pa.nulls(len(values), type_), range(len(values)), values)
        if raw is None and len(values) > 1:
            # one that does not fit is no reason to leave the others as they are
            return [shown for value in values for shown in self._shown(column, [value])]
        if raw is None:
            return values
        return [_shown(value) for value in plan.read(raw).array.to_pylist()]


def _bytes(value: Any) -> Any:
    """Avro has bytes as they are, a header their base64."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except ValueError:
        return value


def _shown(value: Any) -> Any:
    """A value as JSON that can be read again by its type."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
    return value
