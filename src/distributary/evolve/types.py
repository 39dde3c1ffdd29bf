"""How types are spelled for people, and which types hold the values of others."""

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

# decimal digits that hold every value; 20 for int64, as Delta asks for when it widens to decimal
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MAX_DECIMAL_DIGITS = 38


def sql_name(type_: pa.DataType) -> str:
    """The type as Spark and Delta spell it: `bigint`, `decimal(20,0)`, `struct<a: int>`."""
    if known := _SCALARS.get(type_):
        return known
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
    # quoted, so that no field name can imitate another type: sql_name also tells types apart
    return name if _PLAIN.fullmatch(name) else quote_sql(name)


def side_suffix(type_: pa.DataType) -> str:
    """What a side column's name ends with: `string`, `decimal_10_2`, `struct_3fa9c1`."""
    if is_list(type_) and not is_nested(type_.value_type):
        return f"array_{side_suffix(type_.value_type)}"
    if is_nested(type_):
        kind = "struct" if is_struct(type_) else "map" if is_map(type_) else "array"
        return f"{kind}_{hashlib.sha256(sql_name(type_).encode()).hexdigest()[:6]}"
    return re.sub(r"[^a-z0-9]+", "_", sql_name(type_).lower()).strip("_")


def same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a table cannot tell them apart: nullability and Arrow's item names do not count."""
    return one == other or sql_name(one) == sql_name(other)


def is_struct(type_: pa.DataType) -> bool:
    """A struct: its fields are merged one by one."""
    return bool(kinds.is_struct(type_))


def is_list(type_: pa.DataType) -> bool:
    """A list of any Arrow layout."""
    return bool(
        kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)
    )


def is_map(type_: pa.DataType) -> bool:
    """A map."""
    return bool(kinds.is_map(type_))


def is_nested(type_: pa.DataType) -> bool:
    """A type with types inside."""
    return is_struct(type_) or is_list(type_) or is_map(type_)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest scalar type that holds every value of both exactly; None when there is none."""
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
    whole, scale = max(first[0], second[0]), max(first[1], second[1])
    digits = whole + scale
    return pa.decimal128(digits, scale) if digits <= _MAX_DECIMAL_DIGITS else None


def of_one_kind(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two numbers differ in their size only: digits after the point are another kind."""
    if kinds.is_decimal(one) and kinds.is_decimal(other):
        return bool(one.scale == other.scale)
    both = (one, other)
    return all(map(kinds.is_integer, both)) or all(map(kinds.is_floating, both))


def _decimal_digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Digits before and after the point that hold every value of the type."""
    if kinds.is_decimal(type_) and type_.scale >= 0:
        return type_.precision - type_.scale, type_.scale
    digits = _INTEGER_DIGITS.get(type_)
    return None if digits is None else (digits, 0)


# List and map arrays rebuilt around new values, without touching their offsets.


def compact(array: pa.Array) -> pa.Array:
    """The same lists in an array that holds their values and no others."""
    used = array.offsets[len(array)].as_py() if len(array) else 0
    if array.offset == 0 and used == len(array.values):
        return array
    # a slice keeps all values of the array it was cut from: converting those would be wasted
    return pa.concat_arrays([array])


def with_values(array: pa.Array, type_: pa.DataType, values: pa.Array) -> pa.Array:
    """A compact array's lists and nulls, around as many values of another type."""
    return pa.Array.from_buffers(
        type_, len(array), array.buffers()[:2], array.null_count, 0, [values]
    )


# Which field of a table a writer's field belongs to, by name and type: `merge` asks it while a
# table changes and `align` when values are moved. Names are compared without regard to case.


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of the table, as far as placing is concerned."""

    name: str
    type: pa.DataType
    side_of: str | None = None
    """The field whose other types it holds; empty for an ordinary field, None when not known."""
    closed: bool = False
    """No writer's field reaches it by name: system columns and side columns."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a writer's field belongs: a name, and its position when the table has it already."""

    name: str
    index: int | None


@lru_cache(maxsize=1 << 14)
def fold(name: str) -> str:
    """A key that is equal for names which Spark's case-insensitive comparison may take as one."""
    # Java compares upper and lower case of each character, so dotless and dotted i are both "i"
    return name.upper().casefold().replace("i\u0307", "i")


def homes(
    names: Sequence[str], slots: Sequence[Slot], blocked: Set[str] = frozenset()
) -> tuple[Home, ...]:
    """One home for each of a writer's names; no two names share one.

    Names of one writer that differ in case only get columns of their own, `E` and `e__case_3f7ab2`.
    A name that belongs to a closed slot, or whose key is blocked, is stored as `name__field`.
    """
    by_key = {fold(slot.name): (i, slot) for i, slot in enumerate(slots)}
    exact = {slot.name for slot in slots}
    owners = _owners(names, {key: slot.name for key, (_, slot) in by_key.items()}, exact)
    closed = blocked | {key for key, (_, slot) in by_key.items() if slot.closed}
    natural = {n for n in names if owners.get(fold(n)) == n and fold(n) not in closed}
    claimed = {fold(n) for n in natural}
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
        at = by_key.get(key)
        result.append(Home(name, None) if at is None else Home(at[1].name, at[0]))
    return tuple(result)


def _owners(
    names: Sequence[str], in_table: dict[str, str], exact: set[str]
) -> dict[str, str | None]:
    """For each key the one name that has the plain column; the others get one with a suffix."""
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
    """A writer's type as a table can hold it.

    Every nested field is nullable, since a writer without it may come, and no two fields of a
    struct differ in case only.
    """
    if is_struct(type_):
        found = homes([f.name for f in type_], ())
        pairs = zip(found, type_, strict=True)
        return pa.struct([pa.field(home.name, settled(f.type)) for home, f in pairs])
    if is_list(type_):
        return pa.list_(pa.field("element", settled(type_.value_type)))
    if is_map(type_):
        return pa.map_(settled(type_.key_type), settled(type_.item_type))
    return type_


def side(base: str, type_: pa.DataType, slots: Sequence[Slot], taken: set[str]) -> Home:
    """The side field that holds values of this type for the field `base`, existing or to be added.

    `taken` are the keys that the writer's own fields have: those are never given away.
    """
    type_ = settled(type_)
    by_key = {fold(slot.name): (i, slot) for i, slot in enumerate(slots)}
    for name in _side_names(base, type_):
        key = fold(name)
        if key in taken:
            continue
        at = by_key.get(key)
        if at is None:
            return Home(name, None)
        index, slot = at
        if same(slot.type, type_) and (slot.side_of is None or fold(slot.side_of) == fold(base)):
            return Home(slot.name, index)
    raise AssertionError("the candidates never end")


def _side_names(base: str, type_: pa.DataType) -> Iterator[str]:
    stem = f"{base}__{side_suffix(type_)}"
    return chain([stem], (f"{stem}_{n}" for n in count(2)))


def fits(got: pa.DataType, have: pa.DataType) -> bool:
    """Whether values of one type can be stored in a field of the other as the table is now."""
    if is_struct(have) or is_struct(got):
        return is_struct(have) and is_struct(got)
    if is_list(have) and is_list(got):
        return fits(got.value_type, have.value_type)
    if is_map(have) and is_map(got):
        return _key_fits(got.key_type, have.key_type) and fits(got.item_type, have.item_type)
    joined = wider(have, got)
    return joined is not None and same(joined, have)


def _key_fits(got: pa.DataType, have: pa.DataType) -> bool:
    # a key is compared as a whole: one with fields added or left out would be another key
    return same(settled(got), have) if is_nested(have) or is_nested(got) else fits(got, have)


def struct_places(got: pa.DataType, have: pa.DataType) -> tuple[int | None, ...]:
    """For each field of a writer's struct its position in the table's struct; None: not stored."""
    # nothing records which fields of a struct are side fields
    slots = tuple(Slot(f.name, f.type) for f in have)
    found = homes([f.name for f in got], slots)
    taken = {fold(home.name) for home in found}
    places: list[int | None] = []
    for field, home in zip(got, found, strict=True):
        place = home
        if home.index is not None and not fits(field.type, slots[home.index].type):
            place = side(home.name, field.type, slots, taken)
            taken.add(fold(place.name))
            if place.index is None:
                raise no_place(field.name, field.type, slots[home.index].type)
        places.append(place.index)
    return tuple(places)


def no_place(name: str, got: pa.DataType, have: pa.DataType) -> EvolutionError:
    """Values would have to be lost: these types were never merged."""
    return EvolutionError(
        "a writer's field has no place in the table",
        code=ErrorCode.INTERNAL,
        where=f"field {name}",
        evidence=f"{sql_name(got)} does not fit {sql_name(have)}",
        next_step="merge the writer's columns into the table before aligning its values",
    )


# How a side column says whose values it holds: in its comment, which the table keeps.

_MARK = "side column of "


def side_comment(base: str, comment: str) -> str:
    """The comment of a side column: its mark, then where the values came from."""
    mark = _MARK + json.dumps(base)
    return f"{mark}; {comment}" if comment else mark


def side_base(comment: str) -> str:
    """The column a side column belongs to; empty when the comment carries no mark."""
    if not comment.startswith(_MARK):
        return ""
    try:
        base, _ = json.JSONDecoder().raw_decode(comment, len(_MARK))
    except ValueError:
        return ""
    return base if isinstance(base, str) else ""


def ordinary_comment(comment: str) -> str:
    """A writer's comment, unable to pass for a side column's."""
    return f"field: {comment}" if side_base(comment) else comment
