"""From JSON to the lake's columns: parsed values column by column, and texts by Arrow's own reader.

Values have been validated before: what is refused here is what the schema takes and its column
cannot hold.
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
from distributary.decode.json.schema import Kind, Member, Value
from distributary.decode.json.text import render
from distributary.errors import ErrorCode
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP

# Dates and times of day in RFC 3339. A time without an offset from UTC is not one. Digits below a
# microsecond are cut off, and a leap second is the first second of the next minute.

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# what Arrow understands in the same way
_USUAL_INSTANT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
_USUAL_DATE = r"^\d{4}-\d\d-\d\d$"
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def microseconds(text: str) -> int | None:
    """Microseconds since 1970; None for what is not a moment of the years 1 to 9999."""
    found = _INSTANT.fullmatch(text)
    day = days(found[1]) if found else None
    if found is None or day is None:
        return None
    hours, minutes, seconds = int(found[2]), int(found[3]), int(found[4])
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    east = 0
    if found[6]:
        if int(found[7]) > 23 or int(found[8]) > 59:
            return None
        east = (int(found[7]) * 60 + int(found[8])) * (1 if found[6] == "+" else -1)
    fraction = int((found[5] or "0")[:6].ljust(6, "0"))
    whole = ((hours * 60 + minutes - east) * 60 + seconds) * 1_000_000
    moment = day * _DAY + whole + fraction
    return moment if _FIRST_DAY * _DAY <= moment < (_LAST_DAY + 1) * _DAY else None


def days(text: str) -> int | None:
    """Days since 1970; None for what is not a day of the years 1 to 9999."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        return None


def instants(texts: pa.StringArray) -> pa.Array:
    """The same for a whole array; null where a text is no moment."""
    ends = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
    return _read(texts, TIMESTAMP, pa.int64(), _USUAL_INSTANT, ends, microseconds)


def dates(texts: pa.StringArray) -> pa.Array:
    """The same for a whole array; null where a text is no day."""
    return _read(texts, pa.date32(), pa.int32(), _USUAL_DATE, (_FIRST_DAY, _LAST_DAY), days)


def _read(
    texts: pa.StringArray,
    type_: pa.DataType,
    storage: pa.DataType,
    usual: str,
    ends: tuple[int, int],
    read: Callable[[str], int | None],
) -> pa.Array:
    """Texts as a type: all at once where they are written as usual and lie between two ends."""
    try:
        if pc.all(pc.match_substring_regex(texts, usual), min_count=0).as_py():
            array = texts.cast(type_)
            least, most = pc.min_max(array.cast(storage)).as_py().values()
            if least is None or (least >= ends[0] and most <= ends[1]):
                return array
    except pa.ArrowInvalid:
        pass
    found = [None if text is None else read(text) for text in texts.to_pylist()]
    return pa.array(found, storage).cast(type_)


_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_STORAGE = {Kind.INSTANT: pa.int64(), Kind.DATE: pa.int32()}
"""The type of what values are converted to, where it is not that of the column."""


def mismatch(label: str, wanted: str) -> RefusedError:
    """A value that is not what its column was made for."""
    return RefusedError(ErrorCode.PAYLOAD_MISMATCH, f"{label or '/'} is not {wanted}")


def kind_of(content: Any) -> str:
    """What JSON calls a parsed value."""
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


_SIMPLE: dict[Kind, tuple[type, str]] = {
    Kind.BOOLEAN: (bool, "a boolean"),
    Kind.STRING: (str, "a string"),
}
_AS_THEY_ARE: dict[Kind, set[type]] = {Kind.INTEGER: {int}, Kind.NUMBER: {float}}
"""What needs no conversion; whole numbers without a fraction may be written with one."""
_CONVERSIONS: dict[Kind, Callable[[Any, str], Any]] = {
    Kind.INTEGER: _integer,
    Kind.DIGITS: lambda content, label: str(_whole(content, label)),
    Kind.NUMBER: _number,
    Kind.INSTANT: _instant,
    Kind.DATE: _date,
    Kind.TEXT: lambda content, label: render(content),
    Kind.VOID: _nothing,
}


# Columns of parsed values: all values of a column at once, which costs a tenth of one by one.


def array_of(value: Value, contents: Sequence[Any], label: str = "") -> pa.Array:
    """Parsed values as a column; null stays null. The label is what a failure calls the column."""
    kind = value.kind
    if kind is Kind.STRUCT:
        return _struct_of(value, contents, label)
    if value.item is not None:
        return _items_of(value, value.item, contents, label)
    found = {*map(type, contents)} - {type(None)}
    if kind in _SIMPLE:
        type_, wanted = _SIMPLE[kind]
        if not found <= {type_}:
            raise mismatch(label, wanted)
        return pa.array(contents, value.type)
    if found <= _AS_THEY_ARE.get(kind, set()):
        try:
            return pa.array(contents, value.type)
        except OverflowError:
            # one of them is an integer of more than 64 bits
            pass
    convert = _CONVERSIONS.get(kind) or _decimal(value.type.precision)
    made = [None if each is None else convert(each, label) for each in contents]
    array = pa.array(made, _STORAGE.get(kind, value.type))
    return array if array.type == value.type else array.cast(value.type)


def rows_of(row: Value, contents: Sequence[Any]) -> pa.RecordBatch:
    """Objects as rows; null is a row of nulls."""
    objects = [{} if each is None else each for each in contents]
    return pa.RecordBatch.from_struct_array(array_of(row, objects))


def _struct_of(value: Value, contents: Sequence[Any], label: str) -> pa.StructArray:
    found = {*map(type, contents)}
    if not found <= {dict, type(None)}:
        raise mismatch(label, "an object")
    mask = None
    if type(None) in found:
        mask = pa.array([each is None for each in contents])
        contents = [each or {} for each in contents]
    arrays: list[pa.Array] = []
    for m in value.members:
        if m.value.kind is not Kind.VOID:
            name = m.property
            column = [each.get(name) for each in contents]
            if m.value.asides:
                arrays += _apart(m.value, column, _below(label, m))
            else:
                arrays.append(array_of(m.value, column, _below(label, m)))
    if not arrays:
        return pa.array([None if each is None else {} for each in contents], value.type)
    return pa.StructArray.from_arrays(arrays, fields=list(value.type), mask=mask)


def _apart(value: Value, contents: Sequence[Any], label: str) -> list[pa.Array]:
    """Values of several kinds as the columns of these kinds; each value is in one of them."""
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
        if place.kind is Kind.DIGITS:
            texts = columns[number]
            columns[number] = [c if c is None or type(c) is str else render(c) for c in texts]
    plain = [
        replace(each, kind=Kind.STRING) if each.kind is Kind.DIGITS else each for each in places
    ]
    return [array_of(each, column, label) for each, column in zip(plain, columns, strict=True)]


_EXACT_IN_DOUBLE = 2**53


def _holds(value: Value, content: Any) -> bool:
    """Whether a column of a single kind holds a value with all its digits."""
    type_ = type(content)
    match value.kind:
        case Kind.BOOLEAN:
            return type_ is bool
        case Kind.STRING:
            return type_ is str
        case Kind.INTEGER:
            return type_ is int and _INT64_LEAST <= content <= _INT64_MOST
        case Kind.DECIMAL:
            return type_ is int and abs(content) < 10**value.type.precision
        case Kind.NUMBER:
            return type_ is float or (type_ is int and abs(content) < _EXACT_IN_DOUBLE)
        case Kind.DIGITS:
            return type_ in (str, int, float, Decimal)
    return False


def _items_of(value: Value, item: Value, contents: Sequence[Any], label: str) -> pa.Array:
    """Arrays, and objects as maps."""
    is_map = value.kind is Kind.MAP
    found = {*map(type, contents)}
    if not found <= {dict if is_map else list, type(None)}:
        raise mismatch(label, "an object" if is_map else "an array")
    mask = pa.array([each is None for each in contents]) if type(None) in found else None
    filled = [each or () for each in contents]
    offsets = np.zeros(len(filled) + 1, np.int32)
    np.cumsum([*map(len, filled)], out=offsets[1:])
    inside = [each.values() for each in filled if each] if is_map else filled
    items = array_of(item, [*chain.from_iterable(inside)], f"{label}/*")
    parts = [pa.array(offsets), items]
    if is_map:
        parts.insert(1, pa.array([*chain.from_iterable(filled)], pa.string()))
    made: Any = pa.MapArray if is_map else pa.ListArray
    return made.from_arrays(*parts, type=value.type, mask=mask)


def _below(label: str, member: Member) -> str:
    return f"{label}/{printable(member.property)}" if member.property else label


# The fast decoder: Arrow's own JSON reader, for schemas that ask for nothing but types.
#
# Arrow refuses an array when any value in it is of another type, has an unknown property or a name
# twice. It does not say which, does not tell a missing property from one that is null, and takes
# several values in a row for several rows.
#
# Texts that begin and end with the braces of an object are therefore read as lines. A text that
# ends in the middle of a value would have to go on with the brace of the next one, which no value
# does, nor has a string a line break in it: as many rows as texts are one row for each. Other texts
# are wrapped in an object of ours with a seal behind it: rows and seals come out as they went in,
# or the answer is not used.

_MOST_NAMES = 200
_BLOCK_BYTES = 2 * 1024 * 1024
"""What Arrow reads at once: more does not fit into the caches, and takes half as long again."""
_BEFORE = pa.scalar(b'{"v":', pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_END_OF_LINE = pa.scalar(b"\n", pa.binary())
_OPEN, _CLOSE = b"{}"


def read_texts(
    texts: pa.BinaryArray, type_: pa.DataType | None = None, *, unexpected: str = "ignore"
) -> pa.Array | None:
    """What texts hold, one element each, or no answer at all.

    Without a type Arrow finds one itself; `unexpected` is what it does with what has no place in a
    given type.
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
    """Whether objects are wanted, and every text begins and ends as one does."""
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
    # a secret, because a text that knows it could end with it
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
    """What Arrow makes of lines; None where it refuses them."""
    _, offsets, data = lines.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[0, len(lines)]].tolist()
    # in one block, because values may have line breaks in them
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
        # one of Arrow's own as well
        raise
    except pa.ArrowException:
        return None
    return table


def engine_supports(value: Value) -> bool:
    """Whether types, nulls and members are all that must be looked at."""
    if not value.plain or value.kind in (Kind.MAP, Kind.TEXT, Kind.DECIMAL, Kind.DIGITS):
        return False
    return all(map(engine_supports, value.below()))


def lake_array(array: pa.Array, value: Value, doubtful: list[int]) -> pa.Array:
    """Arrow's array as the plan wants it; `doubtful` takes the elements that must not be used."""
    match value.kind:
        case Kind.INSTANT | Kind.DATE:
            read = instants if value.kind is Kind.INSTANT else dates
            made = read(array)
            doubtful.extend(where(nulls(made) & ~nulls(array)))
            return made
        case Kind.NUMBER:
            doubtful.extend(where(pc.invert(pc.is_finite(array))))
        case Kind.STRING if value.allowed is not None:
            known = pc.is_in(array, pa.array([*value.allowed, None], pa.string()))
            doubtful.extend(where(pc.invert(known)))
        case Kind.LIST if value.item is not None:
            return _list(array, value, value.item, doubtful)
        case Kind.STRUCT:
            return _struct(array, value, doubtful)
    return array


def _list(array: pa.ListArray, value: Value, item: Value, doubtful: list[int]) -> pa.Array:
    below: list[int] = []
    values = lake_array(array.values, item, below)
    if not item.nullable:
        below.extend(where(nulls(values)))
    doubtful.extend(owners(array.offsets.to_numpy(), below))
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        value.type, len(array), buffers, array.null_count, array.offset, children=[values]
    )


def _struct(array: pa.StructArray, value: Value, doubtful: list[int]) -> pa.Array:
    missing = nulls(array)
    children = []
    for index, member in enumerate(value.members):
        child = lake_array(array.field(index), member.value, doubtful)
        if member.required and child.null_count:
            doubtful.extend(where(nulls(child) & ~missing))
        children.append(child)
        # Arrow refuses values of another kind: where it answers, there are none
        children += [pa.nulls(len(array), each.type) for each in member.value.asides]
    mask = pa.array(missing) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(value.type), mask=mask)


def reader_type(value: Value) -> pa.DataType:
    """What Arrow is asked to read a value as."""
    match value.kind:
        case Kind.INSTANT | Kind.DATE:
            return pa.string()
        case Kind.LIST if value.item is not None:
            return pa.list_(reader_type(value.item))
        case Kind.STRUCT:
            return pa.struct([(m.property, reader_type(m.value)) for m in value.members])
    return value.type


def _never_null(value: Value) -> set[str]:
    """Properties that may be missing and may not be null: Arrow cannot tell the difference."""
    own = {m.property for m in value.members if not m.required and not m.value.nullable}
    return own.union(*map(_never_null, value.below()))


def doubtful_null(value: Value) -> str:
    """An expression for texts with a null where the schema takes none, or not spelled plainly."""
    properties = _never_null(value)
    if not properties:
        return ""
    if len(properties) > _MOST_NAMES:
        return "null"
    names = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in properties)
    return rf"(?:{names})\s*:\s*null|\\[u/]"
