"""SQL names of types, and rules for the types that hold the values of others."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count

import pyarrow as pa
from pyarrow import types as kinds

from distributary.errors import ErrorCode, EvolutionError
from distributary.model.names import quote_sql

_SCALARS = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# decimal digits that hold every value; 20 for int64, as Delta demands for widening to decimal
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MAX_DECIMAL_DIGITS = 38


def sql_name(type_: pa.DataType) -> str:
    """Return the type as Spark and Delta write it: `bigint`, `decimal(20,0)`, `struct<a: int>`."""
    if scalar := _SCALARS.get(type_):
        return scalar
    if is_struct(type_):
        return f"struct<{', '.join(f'{_quoted(f.name)}: {sql_name(f.type)}' for f in type_)}>"
    if is_list(type_):
        return f"array<{sql_name(type_.value_type)}>"
    if is_map(type_):
        return f"map<{sql_name(type_.key_type)}, {sql_name(type_.item_type)}>"
    if kinds.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if kinds.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    return str(type_)


def _quoted(name: str) -> str:
    # quoted, so that a field name cannot imitate another type: sql_name also compares types
    return name if _PLAIN.fullmatch(name) else quote_sql(name)


def side_suffix(type_: pa.DataType) -> str:
    """Return the end of a side column's name: `string`, `decimal_10_2`, `struct_3fa9c1`."""
    if is_list(type_) and not is_nested(type_.value_type):
        return f"array_{side_suffix(type_.value_type)}"
    if is_nested(type_):
        kind = "struct" if is_struct(type_) else "map" if is_map(type_) else "array"
        return f"{kind}_{hashlib.sha256(sql_name(type_).encode()).hexdigest()[:6]}"
    return re.sub(r"[^a-z0-9]+", "_", sql_name(type_).lower()).strip("_")


def same(one: pa.DataType, other: pa.DataType) -> bool:
    """Return True if a table has one type for both; nullability and item names do not count."""
    return one == other or sql_name(one) == sql_name(other)


def is_struct(type_: pa.DataType) -> bool:
    """Return True for a struct, whose fields are merged one by one."""
    return bool(kinds.is_struct(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return True for a list of any Arrow layout."""
    return bool(
        kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)
    )


def is_map(type_: pa.DataType) -> bool:
    """Return True for a map."""
    return bool(kinds.is_map(type_))


def is_nested(type_: pa.DataType) -> bool:
    """Return True for a type with inner types."""
    return is_struct(type_) or is_list(type_) or is_map(type_)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the smallest scalar type that holds every value of both exactly, or None."""
    if same(one, other):
        return one
    whole_numbers = [type_ for type_ in (one, other) if type_ in _INTEGER_DIGITS]
    floats = [type_ for type_ in (one, other) if kinds.is_floating(type_)]
    if len(whole_numbers) == 2:
        return max(whole_numbers, key=_INTEGER_DIGITS.__getitem__)
    if len(whole_numbers) + len(floats) == 2:
        # a double has 53 exact bits: enough for an int, not for a bigint
        return None if pa.int64() in whole_numbers else pa.float64()
    first, second = _decimal_digits(one), _decimal_digits(other)
    if first is None or second is None:
        return None
    whole_digits, scale = max(first[0], second[0]), max(first[1], second[1])
    digits = whole_digits + scale
    return pa.decimal128(digits, scale) if digits <= _MAX_DECIMAL_DIGITS else None


def of_one_kind(one: pa.DataType, other: pa.DataType) -> bool:
    """Return True if two number types differ only in size, not in digits after the point."""
    if kinds.is_decimal(one) and kinds.is_decimal(other):
        return bool(one.scale == other.scale)
    both = (one, other)
    return all(map(kinds.is_integer, both)) or all(map(kinds.is_floating, both))


def _decimal_digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Return the digits before and after the point that hold every value, or None."""
    if kinds.is_decimal(type_) and type_.scale >= 0:
        return type_.precision - type_.scale, type_.scale
    digits = _INTEGER_DIGITS.get(type_)
    return None if digits is None else (digits, 0)


# List and map arrays rebuilt with new values, without touching their offsets.


def compact(array: pa.Array) -> pa.Array:
    """Return the same lists in an array that holds no other values."""
    used = array.offsets[len(array)].as_py() if len(array) else 0
    if array.offset == 0 and used == len(array.values):
        return array
    # a slice keeps all values of its original array, and converting those would be wasted
    return pa.concat_arrays([array])


def with_values(array: pa.Array, type_: pa.DataType, values: pa.Array) -> pa.Array:
    """Return a compact array's lists and nulls with as many values of another type."""
    return pa.Array.from_buffers(
        type_, len(array), array.buffers()[:2], array.null_count, 0, [values]
    )


# Assignment of a writer's field to a field of the table, by name and type. `merge` uses it while a
# table changes, and `align` when values are moved. Names are compared without regard to case.


@dataclass(frozen=True, slots=True)
class FieldSlot:
    """A field of the table, as a candidate for a writer's field."""

    name: str
    type: pa.DataType
    side_of: str | None = None
    """The field whose other types it holds; empty for an ordinary field, None if unknown."""
    closed: bool = False
    """True for system columns and side columns, which no writer's field fills by name."""


@dataclass(frozen=True, slots=True)
class Home:
    """The field of the table for a writer's field, with its position if it exists already."""

    name: str
    index: int | None


@lru_cache(maxsize=1 << 14)
def fold(name: str) -> str:
    """Return a key that is equal for names which Spark may treat as the same, ignoring case."""
    # Java compares upper and lower case of each character, so dotless and dotted i are both "i"
    return name.upper().casefold().replace("i\u0307", "i")


def homes(
    names: Sequence[str], slots: Sequence[FieldSlot], blocked: Set[str] = frozenset()
) -> tuple[Home, ...]:
    """Return a different home for each of a writer's names.

    Names of one writer that differ only in case get their own columns, `E` and `e__case_3f7ab2`. A
    name of a closed slot, or with a blocked key, is stored as `name__field`.
    """
    by_key = {fold(slot.name): (i, slot) for i, slot in enumerate(slots)}
    exact = {slot.name for slot in slots}
    owners = _owners(names, {key: slot.name for key, (_, slot) in by_key.items()}, exact)
    closed = blocked | {key for key, (_, slot) in by_key.items() if slot.closed}
    natural = {
        name for name in names if owners.get(fold(name)) == name and fold(name) not in closed
    }
    claimed = {fold(name) for name in natural}
    result: list[Home] = []
    for name in names:
        key = fold(name)
        if name not in natural:
            derived = name if owners.get(key) == name else _case_name(name)
            while fold(derived) in claimed or fold(derived) in closed:
                derived += "__field"
            key = fold(derived)
            claimed.add(key)
            name = derived
        match = by_key.get(key)
        result.append(Home(name, None) if match is None else Home(match[1].name, match[0]))
    return tuple(result)


def _owners(
    names: Sequence[str], in_table: dict[str, str], exact: set[str]
) -> dict[str, str | None]:
    """Return, for each key, the name that gets the plain column; the others get a suffix."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(fold(name), []).append(name)
    owners: dict[str, str | None] = {}
    for key, group in groups.items():
        free = (name for name in sorted(group) if _case_name(name) not in exact)
        present = in_table.get(key)
        owners[key] = present if present in group else next(free, None)
    return owners


def _case_name(name: str) -> str:
    return f"{name}__case_{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:6]}"


def settled(type_: pa.DataType) -> pa.DataType:
    """Return a writer's type in the form that a table can hold.

    Every nested field is nullable, because a writer without it may come, and no two fields of a
    struct differ only in case.
    """
    if is_struct(type_):
        field_homes = homes([field.name for field in type_], ())
        pairs = zip(field_homes, type_, strict=True)
        return pa.struct([pa.field(home.name, settled(field.type)) for home, field in pairs])
    if is_list(type_):
        return pa.list_(pa.field("element", settled(type_.value_type)))
    if is_map(type_):
        return pa.map_(settled(type_.key_type), settled(type_.item_type))
    return type_


def side(base: str, type_: pa.DataType, slots: Sequence[FieldSlot], taken: set[str]) -> Home:
    """Return the side field for values of this type of the field `base`, existing or to be added.

    `taken` are the keys of the writer's own fields, which are never used.
    """
    type_ = settled(type_)
    by_key = {fold(slot.name): (i, slot) for i, slot in enumerate(slots)}
    for name in _side_names(base, type_):
        key = fold(name)
        if key in taken:
            continue
        match = by_key.get(key)
        if match is None:
            return Home(name, None)
        index, slot = match
        if same(slot.type, type_) and (slot.side_of is None or fold(slot.side_of) == fold(base)):
            return Home(slot.name, index)
    raise AssertionError("the candidates never end")


def _side_names(base: str, type_: pa.DataType) -> Iterator[str]:
    stem = f"{base}__{side_suffix(type_)}"
    return chain([stem], (f"{stem}_{n}" for n in count(2)))


def fits(writer_type: pa.DataType, table_type: pa.DataType) -> bool:
    """Return True if a table's field can store the writer's values without a change of type."""
    if is_struct(table_type) or is_struct(writer_type):
        return is_struct(table_type) and is_struct(writer_type)
    if is_list(table_type) and is_list(writer_type):
        return fits(writer_type.value_type, table_type.value_type)
    if is_map(table_type) and is_map(writer_type):
        return _key_fits(writer_type.key_type, table_type.key_type) and fits(
            writer_type.item_type, table_type.item_type
        )
    joined = wider(table_type, writer_type)
    return joined is not None and same(joined, table_type)


def _key_fits(writer_type: pa.DataType, table_type: pa.DataType) -> bool:
    # keys are compared as a whole, so a key with other fields would be another key
    return (
        same(settled(writer_type), table_type)
        if is_nested(table_type) or is_nested(writer_type)
        else fits(writer_type, table_type)
    )


def struct_places(writer_type: pa.DataType, table_type: pa.DataType) -> tuple[int | None, ...]:
    """Return, for each field of a writer's struct, its position in the table's struct.

    The position is None for a field that is not stored.
    """
    # which fields of a struct are side fields is not recorded
    slots = tuple(FieldSlot(field.name, field.type) for field in table_type)
    field_homes = homes([field.name for field in writer_type], slots)
    taken = {fold(home.name) for home in field_homes}
    places: list[int | None] = []
    for field, home in zip(writer_type, field_homes, strict=True):
        place = home
        if home.index is not None and not fits(field.type, slots[home.index].type):
            place = side(home.name, field.type, slots, taken)
            taken.add(fold(place.name))
            if place.index is None:
                raise no_place(field.name, field.type, slots[home.index].type)
        places.append(place.index)
    return tuple(places)


def no_place(name: str, writer_type: pa.DataType, table_type: pa.DataType) -> EvolutionError:
    """Build the error for types that were never merged, whose values would be lost."""
    return EvolutionError(
        "a writer's field has no place in the table",
        code=ErrorCode.INTERNAL,
        where=f"field {name}",
        evidence=f"{sql_name(writer_type)} does not fit {sql_name(table_type)}",
        next_step="merge the writer's columns into the table before aligning its values",
    )


# A side column names its base column in its comment, which the table keeps.

_MARK = "side column of "


def side_comment(base: str, comment: str) -> str:
    """Return the comment of a side column: its mark, then the writer's comment."""
    mark = _MARK + json.dumps(base)
    return f"{mark}; {comment}" if comment else mark


def side_base(comment: str) -> str:
    """Return the column that a side column belongs to; empty if the comment has no mark."""
    if not comment.startswith(_MARK):
        return ""
    try:
        base, _ = json.JSONDecoder().raw_decode(comment, len(_MARK))
    except ValueError:
        return ""
    return base if isinstance(base, str) else ""


def is_side_name(name: str, base: str, type_: pa.DataType) -> bool:
    """Return whether `name` is that of a side field of `base` with values of a type."""
    stem = re.escape(f"{fold(base)}__{side_suffix(type_)}")
    return re.fullmatch(rf"{stem}_*\d*", fold(name)) is not None


def ordinary_comment(comment: str) -> str:
    """Return a writer's comment in a form that cannot be taken for a side column's."""
    return f"field: {comment}" if side_base(comment) else comment
