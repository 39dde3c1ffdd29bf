"""The careful decoder: one record at a time, with the official runtime.

It takes what the engine cannot: messages with groups or very high field numbers, records in which a
oneof is set twice or a map key repeats, and whatever else the engine refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.protobuf_columns import Problem
from distributary.decode.protobuf_descriptors import (
    find_message,
    message_class,
    open_pool,
    with_open_enums,
)
from distributary.decode.protobuf_json import JsonText
from distributary.decode.protobuf_ranges import UnfitValueError, microseconds
from distributary.decode.protobuf_shape import Field, Kind, Value
from distributary.errors import ErrorCode

_ZERO_OF = {
    pa.string(): "",
    pa.binary(): b"",
    pa.bool_(): False,
    pa.float32(): 0.0,
    pa.float64(): 0.0,
}


class RowReader:
    """Reads payloads that the official parser accepts."""

    def __init__(self, body: bytes, message: Value, json_text: JsonText) -> None:
        pool = open_pool(body, message.message, change=with_open_enums)
        self._class = message_class(find_message(pool, message.message))
        self._message = message
        self._json = json_text

    def read(self, payloads: Iterable[bytes]) -> tuple[pa.RecordBatch, list[Problem]]:
        """A batch of the rows that could be read, and the payloads that could not."""
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        for index, payload in enumerate(payloads):
            try:
                rows.append(self._struct(self._class.FromString(payload), self._message))
            except UnfitValueError as error:
                problems.append(Problem(index, error.code, error.reason))
            except UnicodeDecodeError:
                # from the keys of a map: those the runtime does not give as bytes
                reason = "a map has keys that are not UTF-8"
                problems.append(Problem(index, ErrorCode.INVALID_UTF8, reason))
        return pa.RecordBatch.from_struct_array(pa.array(rows, self._message.type)), problems

    def _struct(self, message: Any, value: Value) -> dict[str, Any]:
        # fields are asked for by number: a name from outside may be that of a method
        given = {f.number: content for f, content in message.ListFields() if not f.is_extension}
        return {f.name: self._field(given.get(f.number), f) for f in value.fields}

    def _field(self, content: Any, field: Field) -> Any:
        if field.key is not None:
            return self._map(content or {}, field, field.key)
        if field.repeated:
            return [self._value(each, field.value, field.label) for each in content or ()]
        if content is None:
            return None if field.presence else self._zero(field.value)
        return self._value(content, field.value, field.label)

    def _map(self, content: Any, field: Field, key_value: Value) -> list[tuple[Any, Any]]:
        return [
            (
                self._value(key, key_value, field.label),
                self._value(content[key], field.value, field.label),
            )
            for key in content
        ]

    def _zero(self, value: Value) -> Any:
        if value.kind is Kind.ENUM:
            return value.names.get(0, "0")
        return _ZERO_OF.get(value.type, 0)

    def _value(self, content: Any, value: Value, label: str) -> Any:
        match value.kind:
            case Kind.STRUCT:
                return self._struct(content, value)
            case Kind.JSON | Kind.EMPTY:
                return self._json.render(value.message, content.SerializePartialToString())
            case Kind.TIMESTAMP | Kind.DURATION:
                return _micros(content, value, label)
            case Kind.FIELD_MASK:
                return ",".join(_utf8(path, label) for path in content.paths)
            case Kind.ENUM:
                return value.names.get(content, str(content))
            case _:
                return _scalar(content.value if value.wrapped else content, value, label)


def _scalar(content: Any, value: Value, label: str) -> Any:
    if value.kind is Kind.UINT64:
        return Decimal(content)
    return _utf8(content, label) if pa.types.is_string(value.type) else content


def _micros(content: Any, value: Value, label: str) -> int:
    micros, outside = microseconds(
        value.kind,
        np.array([content.seconds], np.int64),
        np.array([content.nanos], np.int32),
    )
    if outside[0]:
        reason = f"field {label} is outside the range of {value.message}"
        raise UnfitValueError(ErrorCode.VALUE_OUT_OF_RANGE, reason)
    return int(micros[0])


def _utf8(text: Any, label: str) -> Any:
    # the runtime gives text that is not UTF-8 as bytes
    if isinstance(text, bytes):
        raise UnfitValueError(ErrorCode.INVALID_UTF8, f"field {label} holds text that is not UTF-8")
    return text
