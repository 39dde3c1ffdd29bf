"""Columns from JSON: from parsed values, column by column, and from texts, with Arrow's reader.

The values have been validated against the schema. This module refuses only values that the schema
accepts and the column cannot hold.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from distributary.decode.base import RefusedError, nulls, owners, where
from distributary.decode.json.json_text import render
from distributary.decode.json.schema import JsonKind, JsonMember, JsonValue
from distributary.errors import ErrorCode
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP

# Timestamps and dates in RFC 3339. A timestamp needs an offset from UTC. Digits below a microsecond
# are cut off, and a leap second is the first second of the next minute.

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# the forms that Arrow reads in the same way
_USUAL_INSTANT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
_USUAL_DATE = r"^\d{4}-\d\d-\d\d$"
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def microseconds(text: str) -> int | None:
    """Return the microseconds since 1970, or None if a text is no timestamp in years 1 to 9999."""
    match = _INSTANT.fullmatch(text)
    day = days(match[1]) if match else None
    if match is None or day is None:
        return None
    hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4])
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    east = 0
    if match[6]:
        if int(match[7]) > 23 or int(match[8]) > 59:
            return None
        east = (int(match[7]) * 60 + int(match[8])) * (1 if match[6] == "+" else -1)
    fraction = int((match[5] or "0")[:6].ljust(6, "0"))
    whole = ((hours * 60 + minutes - east) * 60 + seconds) * 1_000_000
    moment = day * _DAY + whole + fraction
    return moment if _FIRST_DAY * _DAY <= moment < (_LAST_DAY + 1) * _DAY else None


def days(text: str) -> int | None:
    """Return the days since 1970, or None if a text is no date in years 1 to 9999."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def instants(texts: pa.StringArray) -> pa.Array:
    """Convert texts to timestamps, with null where a text is none."""
    ends = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
    return _read(texts, TIMESTAMP, pa.int64(), _USUAL_INSTANT, ends, microseconds)


def dates(texts: pa.StringArray) -> pa.Array:
    """Convert texts to dates, with null where a text is none."""
    return _read(texts, pa.date32(), pa.int32(), _USUAL_DATE, (_FIRST_DAY, _LAST_DAY), days)


def _read(
    texts: pa.StringArray,
    type_: pa.DataType,
    storage: pa.DataType,
    usual: str,
    ends: tuple[int, int],
    read: Callable[[str], int | None],
) -> pa.Array:
    """Convert texts to a type: all at once if every text is in the usual form and within `ends`."""
    try:
        if pc.all(pc.match_substring_regex(texts, usual), min_count=0).as_py():
            array = texts.cast(type_)
            least, most = pc.min_max(array.cast(storage)).as_py().values()
            if least is None or (least >= ends[0] and most <= ends[1]):
                return array
    except pa.ArrowInvalid:
        pass
    numbers = [None if text is None else read(text) for text in texts.to_pylist()]
    return pa.array(numbers, storage).cast(type_)


_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_STORAGE = {JsonKind.INSTANT: pa.int64(), JsonKind.DATE: pa.int32()}
"""The type that values are converted to first, where it differs from the column's type."""


def mismatch(label: str, wanted: str) -> RefusedError:
    """Build the error for a value that does not fit its column."""
    return RefusedError(ErrorCode.PAYLOAD_MISMATCH, f"{label or '/'} is not {wanted}")


def kind_of(content: Any) -> str:
    """Return the JSON name of a parsed value's type."""
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(content), "number")


def _whole(content: Any, label: str) -> int:
    if type(content) is int:
        return content
    if type(content) in (float, Decimal) and content == int(content):
        return int(content)
    raise mismatch(label, "an integer")


def _integer(content: Any, label: str) -> int:
    number = content if type(content) is int else _whole(content, label)
    if _INT64_LEAST <= number <= _INT64_MOST:
        return number
    reason = f"{label} is an integer of more than 64 bits"
    raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason)


def _decimal(digits: int) -> Callable[[Any, str], Decimal]:
    def convert(content: Any, label: str) -> Decimal:
        number = _whole(content, label)
        if abs(number) < 10**digits:
            return Decimal(number)
        reason = f"{label} is an integer of more than {digits} digits"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason)

    return convert


def _number(content: Any, label: str) -> float:
    if type(content) is float:
        return content
    if type(content) not in (int, Decimal):
        raise mismatch(label, "a number")
    try:
        return float(content)
    except OverflowError:
        reason = f"{label} is beyond what a double can hold"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason) from None


def _instant(content: Any, label: str) -> int:
    moment = microseconds(content) if type(content) is str else None
    if moment is None:
        raise mismatch(label, "a date-time with an offset from UTC, of the years 1 to 9999")
    return moment


def _date(content: Any, label: str) -> int:
    day = days(content) if type(content) is str else None
    if day is None:
        raise mismatch(label, "a date of the years 1 to 9999")
    return day


def _nothing(content: Any, label: str) -> None:
    raise mismatch(label, "null")


_SIMPLE: dict[JsonKind, tuple[type, str]] = {
    JsonKind.BOOLEAN: (bool, "a boolean"),
    JsonKind.STRING: (str, "a string"),
}
_AS_THEY_ARE: dict[JsonKind, set[type]] = {JsonKind.INTEGER: {int}, JsonKind.NUMBER: {float}}
"""Python types that need no conversion, by kind; an integer may also be written with a fraction of
zero."""
_CONVERSIONS: dict[JsonKind, Callable[[Any, str], Any]] = {
    JsonKind.INTEGER: _integer,
    JsonKind.DIGITS: lambda content, label: str(_whole(content, label)),
    JsonKind.NUMBER: _number,
    JsonKind.INSTANT: _instant,
    JsonKind.DATE: _date,
    JsonKind.TEXT: lambda content, label: render(content),
    JsonKind.VOID: _nothing,
}


# Columns from parsed values: all values of a column at once, at a tenth of the cost of one by one.


def array_of(value: JsonValue, contents: Sequence[Any], label: str = "") -> pa.Array:
    """Convert parsed values to a column; null stays null. `label` names the column in failures."""
    kind = value.kind
    if kind is JsonKind.STRUCT:
        return _struct_of(value, contents, label)
    if value.item is not None:
        return _items_of(value, value.item, contents, label)
    types = {*map(type, contents)} - {type(None)}
    if kind in _SIMPLE:
        type_, wanted = _SIMPLE[kind]
        if not types <= {type_}:
            raise mismatch(label, wanted)
        return pa.array(contents, value.type)
    if types <= _AS_THEY_ARE.get(kind, set()):
        try:
            return pa.array(contents, value.type)
        except OverflowError:
            # one value is an integer of more than 64 bits
            pass
    convert = _CONVERSIONS.get(kind) or _decimal(value.type.precision)
    converted = [None if content is None else convert(content, label) for content in contents]
    array = pa.array(converted, _STORAGE.get(kind, value.type))
    return array if array.type == value.type else array.cast(value.type)


def rows_of(row: JsonValue, contents: Sequence[Any]) -> pa.RecordBatch:
    """Convert objects to rows; null becomes a row of nulls."""
    objects = [{} if content is None else content for content in contents]
    return pa.RecordBatch.from_struct_array(array_of(row, objects))


def _struct_of(value: JsonValue, contents: Sequence[Any], label: str) -> pa.StructArray:
    types = {*map(type, contents)}
    if not types <= {dict, type(None)}:
        raise mismatch(label, "an object")
    mask = None
    if type(None) in types:
        mask = pa.array([content is None for content in contents])
        contents = [content or {} for content in contents]
    arrays: list[pa.Array] = []
    for member in value.members:
        if member.value.kind is not JsonKind.VOID:
            name = member.property
            column = [content.get(name) for content in contents]
            if member.value.asides:
                arrays += _apart(member.value, column, _below(label, member))
            else:
                arrays.append(array_of(member.value, column, _below(label, member)))
    if not arrays:
        return pa.array([None if content is None else {} for content in contents], value.type)
    return pa.StructArray.from_arrays(arrays, fields=list(value.type), mask=mask)


def _apart(value: JsonValue, contents: Sequence[Any], label: str) -> list[pa.Array]:
    """Put each value into the first column whose kind holds it, and return all columns."""
    places = (value, *value.asides)
    columns: list[list[Any]] = [[None] * len(contents) for _ in places]
    for row, content in enumerate(contents):
        if content is None:
            continue
        for number, place in enumerate(places):
            if _holds(place, content):
                columns[number][row] = content
                break
        else:
            raise mismatch(label, f"a value that one of its columns holds, but {kind_of(content)}")
    for number, place in enumerate(places):
        if place.kind is JsonKind.DIGITS:
            texts = columns[number]
            columns[number] = [
                text if text is None or type(text) is str else render(text) for text in texts
            ]
    plain = [
        replace(place, kind=JsonKind.STRING) if place.kind is JsonKind.DIGITS else place
        for place in places
    ]
    return [array_of(place, column, label) for place, column in zip(plain, columns, strict=True)]


_EXACT_IN_DOUBLE = 2**53


def _holds(value: JsonValue, content: Any) -> bool:
    """Return True if a column of one kind holds a value with all its digits."""
    type_ = type(content)
    match value.kind:
        case JsonKind.BOOLEAN:
            return type_ is bool
        case JsonKind.STRING:
            return type_ is str
        case JsonKind.INTEGER:
            return type_ is int and _INT64_LEAST <= content <= _INT64_MOST
        case JsonKind.DECIMAL:
            return type_ is int and abs(content) < 10**value.type.precision
        case JsonKind.NUMBER:
            return type_ is float or (type_ is int and abs(content) < _EXACT_IN_DOUBLE)
        case JsonKind.DIGITS:
            return type_ in (str, int, float, Decimal)
    return False


def _items_of(value: JsonValue, item: JsonValue, contents: Sequence[Any], label: str) -> pa.Array:
    """Convert arrays to lists, or objects to maps."""
    is_map = value.kind is JsonKind.MAP
    types = {*map(type, contents)}
    if not types <= {dict if is_map else list, type(None)}:
        raise mismatch(label, "an object" if is_map else "an array")
    mask = pa.array([content is None for content in contents]) if type(None) in types else None
    filled = [content or () for content in contents]
    offsets = np.zeros(len(filled) + 1, np.int32)
    np.cumsum([*map(len, filled)], out=offsets[1:])
    item_groups = [content.values() for content in filled if content] if is_map else filled
    items = array_of(item, [*chain.from_iterable(item_groups)], f"{label}/*")
    parts = [pa.array(offsets), items]
    if is_map:
        parts.insert(1, pa.array([*chain.from_iterable(filled)], pa.string()))
    array_class: Any = pa.MapArray if is_map else pa.ListArray
    return array_class.from_arrays(*parts, type=value.type, mask=mask)


def _below(label: str, member: JsonMember) -> str:
    return f"{label}/{printable(member.property)}" if member.property else label


# The fast decoder: Arrow's JSON reader, for schemas that check nothing but types.
#
# Arrow refuses an array when any value in it has another type, an unknown property or a name twice.
# It does not report which value, does not distinguish a missing property from null, and takes
# several values in a row for several rows.
#
# Texts that begin and end with the braces of an object are therefore read as lines. A text that
# ends inside a value would have to continue with the brace of the next text, which no value does,
# and no string contains a line break. So a result with one row for each text is correct. Other
# texts are wrapped in an object with a seal after the value. The result is used only if all rows
# and seals come out unchanged.

_MOST_NAMES = 200
_BLOCK_BYTES = 2 * 1024 * 1024
"""The bytes that Arrow reads at once; more do not fit the CPU caches and take half as long
again."""
_BEFORE = pa.scalar(b'{"v":', pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_END_OF_LINE = pa.scalar(b"\n", pa.binary())
_OPEN, _CLOSE = b"{}"


def read_texts(
    texts: pa.BinaryArray, type_: pa.DataType | None = None, *, unexpected: str = "ignore"
) -> pa.Array | None:
    """Read texts with Arrow, one element each; return None where Arrow refuses any of them.

    Without a type Arrow infers one. `unexpected` is Arrow's behaviour for properties that the given
    type does not have.
    """
    count, size = len(texts), texts.nbytes
    if type_ is None:
        return _read_sealed(texts, None, unexpected)
    if size <= _BLOCK_BYTES:
        return _read_block(texts, type_, unexpected)
    step = max(1, count * _BLOCK_BYTES // size)
    parts = []
    for start in range(0, count, step):
        part = _read_block(texts[start : start + step], type_, unexpected)
        if part is None:
            return None
        parts.append(part)
    return pa.concat_arrays(parts)


def _read_block(texts: pa.BinaryArray, type_: pa.DataType, unexpected: str) -> pa.Array | None:
    read = _read_lines if _are_objects(texts, type_) else _read_sealed
    return read(texts, type_, unexpected)


def _are_objects(texts: pa.BinaryArray, type_: pa.DataType) -> bool:
    """Return True if the type is an object, and every text begins and ends with its braces."""
    if not pa.types.is_struct(type_) or not type_.num_fields or not len(texts):
        return False
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    if (np.diff(offsets) < 2).any():
        return False
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    begin, end = data[offsets[:-1]] == _OPEN, data[offsets[1:] - 1] == _CLOSE
    return bool(begin.all() and end.all())


def _read_lines(texts: pa.BinaryArray, type_: pa.DataType, unexpected: str) -> pa.Array | None:
    lines = pc.binary_join_element_wise(texts, _END_OF_LINE, _NOTHING)
    table = _read_table(lines, pa.schema(list(type_)), unexpected)
    if table is None or table.num_rows != len(texts):
        return None
    columns = [column.combine_chunks() for column in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _read_sealed(
    texts: pa.BinaryArray, type_: pa.DataType | None, unexpected: str
) -> pa.Array | None:
    # the seal is random, because a text that contained it could end early unnoticed
    seal = secrets.token_hex(8)
    behind = pa.scalar(f',"s":"{seal}"}}\n'.encode(), pa.binary())
    wrapped = pc.binary_join_element_wise(_BEFORE, texts, behind, _NOTHING)
    schema = None if type_ is None else pa.schema([("v", type_), ("s", pa.string())])
    table = _read_table(wrapped, schema, unexpected)
    if table is None or table.num_rows != len(texts) or "s" not in table.column_names:
        return None
    if not pc.all(pc.equal(table.column("s"), seal), skip_nulls=False).as_py():
        return None
    values: pa.Array = table.column("v").combine_chunks()
    return values


def _read_table(
    lines: pa.BinaryArray, schema: pa.Schema | None, unexpected: str
) -> pa.Table | None:
    """Return the table that Arrow reads from lines, or None if it refuses them."""
    _, offsets, data = lines.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[0, len(lines)]].tolist()
    # read in one block, because values may contain line breaks
    reading = arrow_json.ReadOptions(use_threads=False, block_size=end - start + 1)
    parsing = arrow_json.ParseOptions(
        explicit_schema=schema,
        unexpected_field_behavior="infer" if schema is None else unexpected,
    )
    try:
        source = pa.BufferReader(data.slice(start, end - start))
        table = arrow_json.read_json(source, reading, parsing)
        table.validate(full=True)
    except MemoryError:
        # Arrow's own error for a lack of memory is a MemoryError too
        raise
    except pa.ArrowException:
        return None
    return table


def engine_supports(value: JsonValue) -> bool:
    """Return True if only types, nulls and members have to be checked."""
    if not value.plain or value.kind in (
        JsonKind.MAP,
        JsonKind.TEXT,
        JsonKind.DECIMAL,
        JsonKind.DIGITS,
    ):
        return False
    return all(map(engine_supports, value.below()))


def lake_array(array: pa.Array, value: JsonValue, doubtful: list[int]) -> pa.Array:
    """Convert Arrow's array to the planned type; add doubtful elements to `doubtful`."""
    match value.kind:
        case JsonKind.INSTANT | JsonKind.DATE:
            read = instants if value.kind is JsonKind.INSTANT else dates
            converted = read(array)
            doubtful.extend(where(nulls(converted) & ~nulls(array)))
            return converted
        case JsonKind.NUMBER:
            doubtful.extend(where(pc.invert(pc.is_finite(array))))
        case JsonKind.STRING if value.allowed is not None:
            allowed = pc.is_in(array, pa.array([*value.allowed, None], pa.string()))
            doubtful.extend(where(pc.invert(allowed)))
        case JsonKind.LIST if value.item is not None:
            return _list(array, value, value.item, doubtful)
        case JsonKind.STRUCT:
            return _struct(array, value, doubtful)
    return array


def _list(array: pa.ListArray, value: JsonValue, item: JsonValue, doubtful: list[int]) -> pa.Array:
    below: list[int] = []
    values = lake_array(array.values, item, below)
    if not item.nullable:
        below.extend(where(nulls(values)))
    doubtful.extend(owners(array.offsets.to_numpy(), below))
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        value.type, len(array), buffers, array.null_count, array.offset, children=[values]
    )


def _struct(array: pa.StructArray, value: JsonValue, doubtful: list[int]) -> pa.Array:
    missing = nulls(array)
    children = []
    for index, member in enumerate(value.members):
        child = lake_array(array.field(index), member.value, doubtful)
        if member.required and child.null_count:
            doubtful.extend(where(nulls(child) & ~missing))
        children.append(child)
        # Arrow refuses values of another kind, so the side columns are empty
        children += [pa.nulls(len(array), aside.type) for aside in member.value.asides]
    mask = pa.array(missing) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(value.type), mask=mask)


def reader_type(value: JsonValue) -> pa.DataType:
    """Return the Arrow type with which a value is read from JSON."""
    match value.kind:
        case JsonKind.INSTANT | JsonKind.DATE:
            return pa.string()
        case JsonKind.LIST if value.item is not None:
            return pa.list_(reader_type(value.item))
        case JsonKind.STRUCT:
            return pa.struct(
                [(member.property, reader_type(member.value)) for member in value.members]
            )
    return value.type


def _never_null(value: JsonValue) -> set[str]:
    """Return the properties that may be missing but not null, which Arrow does not distinguish."""
    own_properties = {
        member.property
        for member in value.members
        if not member.required and not member.value.nullable
    }
    return own_properties.union(*map(_never_null, value.below()))


def doubtful_null(value: JsonValue) -> str:
    """Return a regular expression for texts that may have a null where the schema accepts none."""
    properties = _never_null(value)
    if not properties:
        return ""
    if len(properties) > _MOST_NAMES:
        return "null"
    names = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in properties)
    return rf"(?:{names})\s*:\s*null|\\[u/]"
