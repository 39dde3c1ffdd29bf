"""What each of the types of Debezium and Kafka Connect becomes in the lake.

| in the event | lake |
|---|---|
| boolean, string, bytes, float, double, int64 | as they are |
| int8, int16, int32, `Year` | int |
| `Date` of both, `IsoDate` | date |
| `Timestamp` of both, `MicroTimestamp`, `NanoTimestamp`, `IsoTimestamp` | timestamp in UTC |
| `ZonedTimestamp` | timestamp in UTC |
| `Time` of both, `MicroTime`, `NanoTime`, `IsoTime` | text `HH:MM:SS.ffffff` |
| `ZonedTime` | text, with `Z` |
| `MicroDuration`, `NanoDuration` | text `[-]HH:MM:SS.ffffff`, of as many hours as needed |
| `Decimal` | decimal, of 38 digits if none are told; text beyond |
| `VariableScaleDecimal` | text with every digit |
| `Json`, `Xml`, `Uuid`, `Enum`, `EnumSet`, `Ltree`, `Tsvector`, `Interval` | text |
| `Bits` | text of 0 and 1 |
| `geometry.*`, `SparseVector`, maps with other keys than texts | JSON text |
| array, map, other structs | list, map, struct |

A value that its column cannot hold, such as PostgreSQL's infinity, is null in the column and given
back beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode import datastream_values as values
from distributary.decode import debezium_values as readers
from distributary.decode import json_moments
from distributary.decode.datastream_arrays import json_texts
from distributary.decode.datastream_values import Read, Reading
from distributary.decode.debezium_schema import DECIMAL, PRECISION, Type
from distributary.evolve.lists import compact, with_values
from distributary.model.record import TIMESTAMP

MOST_DIGITS = 38
_CONNECT = "org.apache.kafka.connect.data."
_TIME = "io.debezium.time."
_DATA = "io.debezium.data."
_AS_JSON = (f"{_DATA}geometry.", f"{_DATA}SparseVector", f"{_DATA}vector.SparseVector")

_PLAIN = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How the values of a column are read."""

    read: Read
    type: pa.DataType
    note: str = ""


def plan(type_: Type, raw: pa.DataType) -> Plan:
    """How values of a type become a column; `raw` is what the decoder inside makes of them."""
    if type_.kind == "other" or not _agrees(type_, raw):
        return Plan(values.same, raw)
    named = _NAMED.get((type_.kind, type_.name))
    if named is not None:
        return named
    if type_.kind == "bytes" and type_.name == DECIMAL:
        return _decimal(type_.parameters)
    if type_.kind == "bytes" and type_.name == f"{_DATA}Bits":
        return Plan(readers.bits(type_.parameters.get("length", "")), pa.string(), "bits")
    match type_.kind:
        case "struct":
            return _struct(type_, raw)
        case "array" | "map" if type_.item is not None:
            return _collection(type_.item, raw)
    return Plan(_PLAIN_READS[type_.kind], _PLAIN[type_.kind])


def _agrees(type_: Type, raw: pa.DataType) -> bool:
    """Whether the decoder inside kept the shape: it writes as JSON what is too deep or too wide."""
    match type_.kind:
        case "struct":
            return bool(pa.types.is_struct(raw)) and raw.num_fields == len(type_.fields)
        case "array":
            return bool(pa.types.is_list(raw))
        case "map":
            return bool(pa.types.is_map(raw))
    return True


def _decimal(parameters: Mapping[str, str]) -> Plan:
    scale, precision = (readers.integer(parameters.get(key, "")) for key in ("scale", PRECISION))
    scale = scale or 0
    digits = MOST_DIGITS if precision is None else precision
    if not 0 <= scale <= digits <= MOST_DIGITS or digits < 1:
        note = f"decimal({precision or '?'},{scale}) as text"
        return Plan(readers.after_binary(readers.digits(scale)), pa.string(), note)
    return Plan(readers.after_binary(values.decimals(digits, scale)), pa.decimal128(digits, scale))


def _struct(type_: Type, raw: pa.DataType) -> Plan:
    if type_.name == f"{_DATA}VariableScaleDecimal" and len(type_.fields) == 2:
        return Plan(readers.variable, pa.string(), "number as text")
    if type_.name.startswith(_AS_JSON):
        return Plan(lambda array: Reading(json_texts(array)), pa.string(), "JSON text")
    plans = [plan(f.type, raw.field(i).type) for i, f in enumerate(type_.fields)]
    names = [raw.field(i).name for i in range(raw.num_fields)]
    made = pa.struct([pa.field(n, p.type) for n, p in zip(names, plans, strict=True)])

    def read(array: pa.StructArray) -> Reading:
        readings = [p.read(child) for p, child in zip(plans, array.flatten(), strict=True)]
        lost: dict[int, Any] = {}
        for name, each in zip(names, readings, strict=True):
            for row, value in each.lost.items():
                lost.setdefault(row, {})[name] = value
        children = [each.array for each in readings]
        mask = array.is_null() if array.null_count else None
        return Reading(pa.StructArray.from_arrays(children, fields=list(made), mask=mask), lost)

    return Plan(read, made)


def _collection(item: Type, raw: pa.DataType) -> Plan:
    is_map = pa.types.is_map(raw)
    inner = plan(item, raw.item_type if is_map else raw.value_type)
    made = pa.map_(pa.string(), inner.type) if is_map else pa.list_(inner.type)

    def read(array: pa.Array) -> Reading:
        lists = compact(array)
        reading = inner.read(lists.items if is_map else lists.values)
        content = reading.array
        if is_map:
            entries = [made.key_field, made.item_field]
            content = pa.StructArray.from_arrays([lists.keys, content], fields=entries)
        found = with_values(lists, made, content)
        rows = np.searchsorted(lists.offsets.to_numpy(), [*reading.lost], side="right") - 1
        lost: dict[int, Any] = {}
        for row, value in zip(rows.tolist(), reading.lost.values(), strict=True):
            lost.setdefault(row, []).append(value)
        return Reading(found, lost)

    return Plan(read, made, inner.note)


_DAYS = Plan(values.dates, pa.date32())
_WALL = "wall clock, said to be UTC"
_MILLIS = Plan(readers.instants(factor=1_000), TIMESTAMP, _WALL)
_CLOCK = "time of day"
_SPAN = "hours, minutes and seconds"
_NAMED: Mapping[tuple[str, str], Plan] = {
    ("int32", f"{_TIME}Date"): _DAYS,
    ("int32", f"{_CONNECT}Date"): _DAYS,
    ("string", f"{_TIME}IsoDate"): Plan(
        readers.moments(json_moments.dates, suffix="Z"), pa.date32()
    ),
    ("int64", f"{_TIME}Timestamp"): _MILLIS,
    ("int64", f"{_CONNECT}Timestamp"): _MILLIS,
    ("int64", f"{_TIME}MicroTimestamp"): Plan(readers.instants(), TIMESTAMP, _WALL),
    ("int64", f"{_TIME}NanoTimestamp"): Plan(readers.instants(parts=1_000), TIMESTAMP, _WALL),
    ("string", f"{_TIME}IsoTimestamp"): Plan(
        readers.moments(json_moments.instants), TIMESTAMP, _WALL
    ),
    ("string", f"{_TIME}ZonedTimestamp"): Plan(readers.moments(json_moments.instants), TIMESTAMP),
    **{
        ("int32", f"{space}Time"): Plan(readers.scaled(values.spans, by=1_000), pa.string(), _CLOCK)
        for space in (_TIME, _CONNECT)
    },
    ("int64", f"{_TIME}MicroTime"): Plan(values.spans, pa.string(), _CLOCK),
    ("int64", f"{_TIME}NanoTime"): Plan(
        readers.scaled(values.spans, parts=1_000), pa.string(), _CLOCK
    ),
    ("string", f"{_TIME}IsoTime"): Plan(readers.without_zone, pa.string(), _CLOCK),
    ("int64", f"{_TIME}MicroDuration"): Plan(values.spans, pa.string(), _SPAN),
    ("int64", f"{_TIME}NanoDuration"): Plan(
        readers.scaled(values.spans, parts=1_000), pa.string(), _SPAN
    ),
    ("string", f"{_DATA}Json"): Plan(values.same, pa.string(), "JSON text"),
}
_PLAIN_READS: Mapping[str, Read] = {
    **{kind: readers.cast(type_) for kind, type_ in _PLAIN.items()},
    "bytes": readers.binary,
}
