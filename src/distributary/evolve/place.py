"""Which field of a table a writer's field belongs to, by name and type.

`merge` asks it while a table changes and `align` asks it when values are moved, so both give the
same answer. Names are compared as Delta does: without regard to case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count

import pyarrow as pa

from distributary.errors import ErrorCode, EvolutionError
from distributary.evolve.types import (
    is_list,
    is_map,
    is_nested,
    is_struct,
    same,
    side_suffix,
    sql_name,
    wider,
)


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


def fold(name: str) -> str:
    """A key that is equal for names which Spark's case-insensitive comparison may take as one."""
    # Java compares upper and lower case of each character, so dotless and dotted i are both "i"
    return name.upper().casefold().replace("i\u0307", "i")


def struct_slots(type_: pa.DataType) -> tuple[Slot, ...]:
    """The fields of a struct; nothing records which of them are side fields."""
    return tuple(Slot(f.name, f.type) for f in type_)


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
        present = in_table.get(key)
        if present in group:
            owners[key] = present
        else:
            free = [name for name in sorted(group) if _case_name(name) not in exact]
            owners[key] = free[0] if free else None
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
    yield stem
    for n in count(2):
        yield f"{stem}_{n}"


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
    slots = struct_slots(have)
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
