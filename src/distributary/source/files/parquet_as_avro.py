"""Rows of Parquet as Avro: columns keep their types, and records have bytes of their own.

Each column is encoded as a whole, to a list with the bytes of each of its values; a row is the
concatenation of its values. A value may be null, whatever its column says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Context
from itertools import count, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ErrorCode
from distributary.registry.record_schemas import guid_of
from distributary.source.files.avro_files import in_frame
from distributary.source.files.file_bytes import FileEvents, FileFaultError, nameless_events

_NULL, _VALUE = b"\x00", b"\x02"
_DIGITS = Context(prec=80)
_MICROS = pa.timestamp("us")
is_ = pa.types


def read_rows(batch: pa.RecordBatch, name: str, keep: Callable[[bytes], None]) -> FileEvents:
    """Return the rows of a batch as Avro with the schema's fingerprint in front of each.

    `name` is that of the record; `keep` is called with its schema.
    """
    schema = schema_text(batch.schema, name).encode()
    keep(schema)
    columns = [_optional(column) for column in batch.columns]
    rows = map(b"".join, zip(*columns, strict=True)) if columns else [b""] * batch.num_rows
    return nameless_events(in_frame(guid_of(schema), pa.array(rows, pa.binary())))


def schema_text(schema: pa.Schema, name: str) -> str:
    """Return the Avro schema of a file's columns."""
    numbers = count(1)
    document = _record(name, schema, numbers)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


# Types.


def _record(name: str, fields: Sequence[pa.Field], numbers: count[int]) -> dict[str, Any]:
    inner = [{"name": f.name, "type": _nullable(f.type, numbers), "default": None} for f in fields]
    return {"type": "record", "name": name, "fields": inner}


def _nullable(type_: pa.DataType, numbers: count[int]) -> Any:
    return "null" if is_.is_null(type_) else ["null", _type(type_, numbers)]


def _type(type_: pa.DataType, numbers: count[int]) -> Any:
    if is_.is_dictionary(type_):
        return _type(type_.value_type, numbers)
    if isinstance(type_, pa.BaseExtensionType):
        return _type(type_.storage_type, numbers)
    if is_.is_struct(type_):
        return _record(f"r{next(numbers)}", list(type_), numbers)
    if is_.is_map(type_):
        pair = [pa.field("key", type_.key_type), pa.field("value", type_.item_type)]
        if _is_text(type_.key_type):
            return {"type": "map", "values": _nullable(type_.item_type, numbers)}
        return {"type": "array", "items": _record(f"r{next(numbers)}", pair, numbers)}
    if _is_list(type_):
        return {"type": "array", "items": _nullable(type_.value_type, numbers)}
    if is_.is_decimal(type_) or is_.is_uint64(type_):
        precision, scale = (20, 0) if is_.is_uint64(type_) else (type_.precision, type_.scale)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if is_.is_timestamp(type_):
        # a timestamp without a zone is taken as UTC, as pandas and most engines write it
        return {"type": "long", "logicalType": "timestamp-micros"}
    for test, avro in _SIMPLE:
        if test(type_):
            return avro
    reason = f"Parquet: a column of type {type_} cannot be read"
    raise FileFaultError(ErrorCode.UNUSABLE_SCHEMA, reason, b"")


def _is_text(type_: pa.DataType) -> bool:
    return any(test(type_) for test in (is_.is_string, is_.is_large_string, is_.is_string_view))


def _is_bytes(type_: pa.DataType) -> bool:
    tests = (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary)
    return any(test(type_) for test in tests)


def _is_list(type_: pa.DataType) -> bool:
    return any(test(type_) for test in (is_.is_list, is_.is_large_list, is_.is_fixed_size_list))


def _is_short(type_: pa.DataType) -> bool:
    return any(test(type_) for test in _SHORT)


_SHORT = (is_.is_int8, is_.is_int16, is_.is_int32, is_.is_uint8, is_.is_uint16)
_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (is_.is_boolean, "boolean"),
    (_is_short, "int"),
    (is_.is_integer, "long"),
    (is_.is_float64, "double"),
    (is_.is_floating, "float"),
    (_is_text, "string"),
    (_is_bytes, "bytes"),
    (is_.is_date, {"type": "int", "logicalType": "date"}),
    (is_.is_time, {"type": "long", "logicalType": "time-micros"}),
    (is_.is_duration, "long"),
)


# Values.


def _optional(array: pa.Array) -> list[bytes]:
    """Encode values that may be null."""
    if is_.is_null(array.type):
        return [b""] * len(array)
    values = _values(array)
    if not array.null_count:
        return [_VALUE + value for value in values]
    valid = array.is_valid().to_pylist()
    return [_VALUE + value if there else _NULL for value, there in zip(values, valid, strict=True)]


def _values(array: pa.Array) -> Sequence[bytes]:
    """Encode values; what stands for a null is arbitrary."""
    type_ = array.type
    if is_.is_dictionary(type_):
        return _values(array.dictionary_decode())
    if isinstance(type_, pa.BaseExtensionType):
        return _values(array.storage)
    if is_.is_struct(type_):
        children = [_optional(array.field(place)) for place in range(type_.num_fields)]
        return list(map(b"".join, zip(*children, strict=True))) if children else [b""] * len(array)
    if is_.is_map(type_) or _is_list(type_):
        return _items(array)
    if is_.is_boolean(type_):
        return [b"\x01" if value else b"\x00" for value in array.to_pylist()]
    if is_.is_decimal(type_) or is_.is_uint64(type_):
        scale = 0 if is_.is_uint64(type_) else type_.scale
        return [_decimal(value, scale) for value in array.to_pylist()]
    if _is_text(type_):
        return [_counted(text.encode()) for text in pc.fill_null(array, "").to_pylist()]
    if _is_bytes(type_):
        return [_counted(value or b"") for value in array.to_pylist()]
    if is_.is_floating(type_):
        wide = is_.is_float64(type_)
        floats = pc.fill_null(array.cast(pa.float64() if wide else pa.float32()), 0.0)
        data, size = floats.to_numpy().astype("<f8" if wide else "<f4").tobytes(), 8 if wide else 4
        return [data[at : at + size] for at in range(0, len(data), size)]
    return _numbers(_whole(array))


def _whole(array: pa.Array) -> pa.Int64Array:
    """Return numbers, days, times and durations as whole numbers."""
    type_ = array.type
    if is_.is_date(type_):
        array = array.cast(pa.date32()).view(pa.int32())
    elif is_.is_timestamp(type_):
        # tables have microseconds: the digits after them are dropped
        array = array.cast(pa.timestamp("us", type_.tz), safe=False).view(pa.int64())
    elif is_.is_time(type_):
        array = array.cast(pa.time64("us"), safe=False).view(pa.int64())
    elif is_.is_duration(type_):
        array = array.cast(pa.duration("us"), safe=False).view(pa.int64())
    return array.cast(pa.int64())


def _numbers(array: pa.Int64Array) -> list[bytes]:
    """Encode whole numbers; each that occurs often is encoded once."""
    coded = pc.fill_null(array, 0).dictionary_encode()
    texts = [_long(value) for value in coded.dictionary.to_pylist()]
    places = coded.indices.to_numpy()
    if len(texts) == 1:
        return texts * len(places)
    return list(itemgetter(*places.tolist())(texts)) if len(places) > 1 else texts


def _long(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    if left < 0x80:
        return bytes((left,))
    parts = bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    parts.append(left)
    return bytes(parts)


def _counted(data: bytes) -> bytes:
    return _long(len(data)) + data


def _decimal(value: Any, scale: int) -> bytes:
    number = 0 if value is None else int(_DIGITS.scaleb(value, scale))
    return _counted(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


def _items(array: pa.Array) -> list[bytes]:
    """Encode lists and maps: a block with the count of the items, and an empty block."""
    if is_.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    if is_.is_map(array.type):
        keys, values = array.keys[first:last], array.items[first:last]
        plain = _values if _is_text(array.type.key_type) else _optional
        items = [k + v for k, v in zip(plain(keys), _optional(values), strict=True)]
    else:
        items = _optional(array.values[first:last])
    bounds = (offsets - first).tolist()
    blocks = []
    for start, end in pairwise(bounds):
        block = _long(end - start) + b"".join(items[start:end]) if end > start else b""
        blocks.append(block + b"\x00")
    return blocks
