"""What types of Debezium and Kafka Connect become in the lake; `_NAMED` has those with a meaning.

A value that its column cannot hold, such as PostgreSQL's infinity, is null in the column and given
back beside it.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.base import Mask, nulls, owners, truths, where
from distributary.decode.change import change_values
from distributary.decode.change.base import with_members
from distributary.decode.change.change_values import Read, ValueReading
from distributary.decode.change.debezium.connect_schema import DECIMAL, PRECISION, Parts, Type
from distributary.decode.change.order.place import Place
from distributary.decode.json import columns
from distributary.evolve.types import compact, with_values
from distributary.evolve.unified import json_texts, rest_as_json
from distributary.model.record import TIMESTAMP

_LONGEST_BITS = 100_000
_LONGEST_NUMBER = 60_000
"""Bytes; PostgreSQL's numbers have at most 131,072 digits before the point."""
_LARGEST_SCALE = 20_000
_EXACT = Context(prec=200_000)


def binary(array: pa.Array) -> ValueReading:
    """Return bytes, which JSON holds as base64."""
    if pa.types.is_binary(array.type):
        return ValueReading(array)
    read = partial(binascii.a2b_base64, strict_mode=True)
    return change_values.one_by_one(array, read, pa.binary())


def after_binary(read: Read) -> Read:
    """Reads bytes that may still be base64."""

    def reading(array: pa.Array) -> ValueReading:
        first = binary(array)
        second = read(first.array)
        return ValueReading(second.array, first.lost | second.lost)

    return reading


def cast(type_: pa.DataType) -> Read:
    """Reads values of another width."""

    def read(array: pa.Array) -> ValueReading:
        try:
            return ValueReading(array if array.type == type_ else array.cast(type_))
        except pa.ArrowInvalid:

            def fitting(value: Any) -> Any:
                return pa.scalar(value, array.type).cast(type_).as_py()

            return change_values.one_by_one(array, fitting, type_)

    return read


def scaled(read: Read, *, by: int = 1, parts: int = 1) -> Read:
    """Reads numbers of units that are so many microseconds, or of which so many are one."""

    def reading(array: pa.Array) -> ValueReading:
        whole = array.cast(pa.int64())
        if parts > 1:
            # rounds down, also for times before 1970
            whole = pa.array(whole.fill_null(0).to_numpy() // parts, mask=nulls(array))
        done = read(pc.multiply(whole, by) if by > 1 else whole)
        return ValueReading(done.array, {row: array[row].as_py() for row in done.lost})

    return reading


def instants(*, factor: int = 1, parts: int = 1) -> Read:
    """Reads moments in units of so many microseconds, or of which so many are one."""

    def read(array: pa.Array) -> ValueReading:
        done = scaled(change_values.instants(factor), parts=parts)(array)
        rescued = {
            row: change_values.INFINITIES.get(v * factor // parts, v)
            for row, v in done.lost.items()
        }
        return ValueReading(done.array, rescued)

    return read


def moments(read: Callable[[pa.Array], pa.Array], *, suffix: str = "") -> Read:
    """Return a reader of texts as times; other texts become null and are kept as rescued values."""

    def reading(array: pa.Array) -> ValueReading:
        found = read(pc.utf8_rtrim(array, suffix) if suffix else array)
        bad = nulls(found) & ~nulls(array)
        return ValueReading(found, {row: array[row].as_py() for row in where(bad)})

    return reading


def without_zone(array: pa.Array) -> ValueReading:
    """Remove the Z from times of day, which Debezium adds to times without a zone."""
    return ValueReading(pc.utf8_rtrim(array, "Z"))


def integer(text: str) -> int | None:
    """Return a whole number that a schema has as text."""
    try:
        return int(text)
    except ValueError:
        return None


def digits(scale: int) -> Read:
    """Reads big-endian numbers of any length as text."""
    return lambda array: _numbers(array, pa.repeat(pa.scalar(scale), len(array)))


def variable(array: pa.StructArray) -> ValueReading:
    """Convert records of a scale and an unscaled number."""
    scales, numbers = array.flatten()
    first = binary(numbers)
    second = _numbers(first.array, scales)
    return ValueReading(second.array, first.lost | second.lost)


def _numbers(array: pa.Array, scales: pa.Array) -> ValueReading:
    texts: list[str | None] = []
    lost: dict[int, Any] = {}
    for row, (data, scale) in enumerate(zip(array.to_pylist(), scales.to_pylist(), strict=True)):
        text = None
        if data is not None and scale is not None:
            text = _number(data, scale)
            if text is None:
                lost[row] = [scale, data.hex()]
        texts.append(text)
    return ValueReading(pa.array(texts, pa.string()), lost)


def _number(data: bytes, scale: int) -> str | None:
    if len(data) > _LONGEST_NUMBER or abs(scale) > _LARGEST_SCALE:
        return None
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return format(unscaled.scaleb(-scale, _EXACT), "f")


def bits(length: str) -> Read:
    """Return little-endian bytes as the digits 0 and 1, as many as the column has."""
    wanted = integer(length) or 0
    width = wanted if 0 < wanted < _LONGEST_BITS else 1

    def read(array: pa.Array) -> ValueReading:
        numbers = (None if b is None else int.from_bytes(b, "little") for b in array.to_pylist())
        texts = [None if number is None else f"{number:0{width}b}" for number in numbers]
        return ValueReading(pa.array(texts, pa.string()))

    return after_binary(read)


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
class ValuePlan:
    """How the values of a column are read."""

    read: Read
    type: pa.DataType
    note: str = ""


def plan(type_: Type, raw: pa.DataType) -> ValuePlan:
    """Return how values of a type become a column; `raw` is the inner decoder's type."""
    if type_.kind == "other" or not _agrees(type_, raw):
        return ValuePlan(change_values.same, raw)
    named = _NAMED.get((type_.kind, type_.name))
    if named is not None:
        return named
    if type_.kind == "bytes" and type_.name == DECIMAL:
        return _decimal(type_.parameters)
    if type_.kind == "bytes" and type_.name == f"{_DATA}Bits":
        return ValuePlan(bits(type_.parameters.get("length", "")), pa.string(), "bits")
    match type_.kind:
        case "struct":
            return _struct(type_, raw)
        case "array" | "map" if type_.item is not None:
            return _collection(type_.item, raw)
    return ValuePlan(_PLAIN_READS[type_.kind], _PLAIN[type_.kind])


def _agrees(type_: Type, raw: pa.DataType) -> bool:
    """Return whether the inner decoder kept the structure, and did not write JSON."""
    match type_.kind:
        case "struct":
            return bool(pa.types.is_struct(raw)) and raw.num_fields == len(type_.fields)
        case "array":
            return bool(pa.types.is_list(raw))
        case "map":
            return bool(pa.types.is_map(raw))
    return True


def _decimal(parameters: Mapping[str, str]) -> ValuePlan:
    scale, precision = (integer(parameters.get(key, "")) for key in ("scale", PRECISION))
    scale = scale or 0
    width = MOST_DIGITS if precision is None else precision
    if not 0 <= scale <= width <= MOST_DIGITS or width < 1:
        note = f"decimal({precision or '?'},{scale}) as text"
        return ValuePlan(after_binary(digits(scale)), pa.string(), note)
    return ValuePlan(
        after_binary(change_values.decimals(width, scale)), pa.decimal128(width, scale)
    )


def _struct(type_: Type, raw: pa.DataType) -> ValuePlan:
    if type_.name == f"{_DATA}VariableScaleDecimal" and len(type_.fields) == 2:
        return ValuePlan(variable, pa.string(), "number as text")
    if type_.name.startswith(_AS_JSON):
        return ValuePlan(lambda array: ValueReading(json_texts(array)), pa.string(), "JSON text")
    plans = [plan(f.type, raw.field(i).type) for i, f in enumerate(type_.fields)]
    names = [raw.field(i).name for i in range(raw.num_fields)]
    made = pa.struct([pa.field(n, p.type) for n, p in zip(names, plans, strict=True)])

    def read(array: pa.StructArray) -> ValueReading:
        readings = [p.read(child) for p, child in zip(plans, array.flatten(), strict=True)]
        lost: dict[int, Any] = {}
        for name, each in zip(names, readings, strict=True):
            for row, value in each.lost.items():
                lost.setdefault(row, {})[name] = value
        children = [each.array for each in readings]
        mask = array.is_null() if array.null_count else None
        return ValueReading(
            pa.StructArray.from_arrays(children, fields=list(made), mask=mask), lost
        )

    return ValuePlan(read, made)


def _collection(item: Type, raw: pa.DataType) -> ValuePlan:
    is_map = pa.types.is_map(raw)
    inner = plan(item, raw.item_type if is_map else raw.value_type)
    made = pa.map_(pa.string(), inner.type) if is_map else pa.list_(inner.type)

    def read(array: pa.Array) -> ValueReading:
        lists = compact(array)
        reading = inner.read(lists.items if is_map else lists.values)
        content = reading.array
        if is_map:
            entries = [made.key_field, made.item_field]
            content = pa.StructArray.from_arrays([lists.keys, content], fields=entries)
        found = with_values(lists, made, content)
        rows = owners(lists.offsets.to_numpy(), [*reading.lost])
        lost: dict[int, Any] = {}
        for row, value in zip(rows, reading.lost.values(), strict=True):
            lost.setdefault(row, []).append(value)
        return ValueReading(found, lost)

    return ValuePlan(read, made, inner.note)


_DAYS = ValuePlan(change_values.dates, pa.date32())
_WALL = "wall clock, said to be UTC"
_MILLIS = ValuePlan(instants(factor=1_000), TIMESTAMP, _WALL)
_CLOCK = "time of day"
_SPAN = "hours, minutes and seconds"
_NAMED: Mapping[tuple[str, str], ValuePlan] = {
    ("int32", f"{_TIME}Date"): _DAYS,
    ("int32", f"{_CONNECT}Date"): _DAYS,
    ("string", f"{_TIME}IsoDate"): ValuePlan(moments(columns.dates, suffix="Z"), pa.date32()),
    ("int64", f"{_TIME}Timestamp"): _MILLIS,
    ("int64", f"{_CONNECT}Timestamp"): _MILLIS,
    ("int64", f"{_TIME}MicroTimestamp"): ValuePlan(instants(), TIMESTAMP, _WALL),
    ("int64", f"{_TIME}NanoTimestamp"): ValuePlan(instants(parts=1_000), TIMESTAMP, _WALL),
    ("string", f"{_TIME}IsoTimestamp"): ValuePlan(moments(columns.instants), TIMESTAMP, _WALL),
    ("string", f"{_TIME}ZonedTimestamp"): ValuePlan(moments(columns.instants), TIMESTAMP),
    **{
        ("int32", f"{space}Time"): ValuePlan(
            scaled(change_values.spans, by=1_000), pa.string(), _CLOCK
        )
        for space in (_TIME, _CONNECT)
    },
    ("int64", f"{_TIME}MicroTime"): ValuePlan(change_values.spans, pa.string(), _CLOCK),
    ("int64", f"{_TIME}NanoTime"): ValuePlan(
        scaled(change_values.spans, parts=1_000), pa.string(), _CLOCK
    ),
    ("string", f"{_TIME}IsoTime"): ValuePlan(without_zone, pa.string(), _CLOCK),
    ("int64", f"{_TIME}MicroDuration"): ValuePlan(change_values.spans, pa.string(), _SPAN),
    ("int64", f"{_TIME}NanoDuration"): ValuePlan(
        scaled(change_values.spans, parts=1_000), pa.string(), _SPAN
    ),
    ("string", f"{_DATA}Json"): ValuePlan(change_values.same, pa.string(), "JSON text"),
}
_PLAIN_READS: Mapping[str, Read] = {
    **{kind: cast(type_) for kind, type_ in _PLAIN.items()},
    "bytes": binary,
}


# The data of an event beside its row: its time, its half of a change of key, and the rest.

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the two halves of a change of key: of the delete and of the insert."""

_UNITS = (
    ("ts_us", instants()),
    ("ts_ns", instants(parts=1_000)),
    ("ts_ms", instants(factor=1_000)),
)
Headers = Mapping[int, bytes]


def source_times(parts: Parts, arrived: pa.Array) -> pa.Array:
    """Return the source's time of each change; the time of writing for one without it."""
    times: pa.Array = pa.nulls(len(arrived), TIMESTAMP)
    rest = {name.removeprefix("__"): array for name, array in parts.rest}
    # the source's time in flattened events, in any unit, precedes the connector's own time
    own = {name.removeprefix("source_"): rest[name] for name in rest if name.startswith("source_")}
    for fields in (own, parts.source, rest):
        for name, read in _UNITS:
            array = fields.get(name)
            if array is not None and kinds.is_integer(array.type) and times.null_count:
                times = pc.coalesce(times, read(array).array)
    return pc.coalesce(times, arrived.cast(TIMESTAMP)) if times.null_count else times


def headers_of(headers: pa.ListArray, name: str) -> Headers:
    """Return the values of a header, by row."""
    if headers.null_count == len(headers):
        return {}
    keys, values = headers.flatten().flatten()
    found = np.flatnonzero(truths(pc.equal(keys, name)))
    if not len(found):
        return {}
    rows = pc.list_parent_indices(headers).to_numpy()[found]
    return dict(zip(rows.tolist(), values.take(pa.array(found)).to_pylist(), strict=True))


def envelopes(
    parts: Parts,
    *,
    new_keys: Mapping[int, Any],
    old_keys: Mapping[int, Any],
    lost: Mapping[str, Mapping[int, Any]],
) -> pa.StringArray:
    """Build the envelope of each event as JSON, without the parts that have columns."""
    members = {name: array for name, array in parts.rest if array.null_count < len(array)}
    count = len(parts.codes)
    texts: pa.Array = pa.repeat(pa.scalar("{}", pa.string()), count)
    if members:
        batch = pa.RecordBatch.from_arrays([*members.values()], names=[*members])
        texts = pc.fill_null(rest_as_json(batch, [*members]), "{}")
    keys = [(("new_key",), new_keys), (("old_key",), old_keys)]
    return with_members(texts, keys + [(("rescued", column), lost[column]) for column in lost])


def contents(headers: Headers) -> dict[int, Any]:
    """Return the contents of headers: JSON, or a readable form."""
    return {row: _content(value) for row, value in headers.items()}


def _content(value: bytes | None) -> Any:
    try:
        content = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return (value or b"").decode("utf-8", "replace")
    framed = isinstance(content, dict) and content.keys() == {"schema", "payload"}
    return content["payload"] if framed else content


def halves(deletes: Mask, new_keys: Headers, place: Place) -> Any:
    """Return 0 for the row that a change of key removes, 1 for all else.

    If no position joins the two halves, the order of the topic decides which is first.
    """
    half = np.ones(len(deletes), np.int64)
    half[[*new_keys]] = 0
    nowhere = (place.a == 0) & (place.b == 0) & (place.c == 0)
    return np.where(deletes & ~nowhere, half, 1)
