"""Recognising a renamed field: the same protobuf number, or an Avro alias."""

from __future__ import annotations

from collections.abc import Sequence, Set

import pyarrow as pa

from distributary.evolve.place import fold
from distributary.evolve.types import is_list, is_map, is_struct, wider
from distributary.model.table import Column


def former_column(column: Column, table: Sequence[Column], taken: Set[int]) -> int | None:
    """The position of the column that a writer's column is a new name for, if there is one.

    `taken` are the positions that the writer fills by name, or that no writer may fill.
    """
    return next(
        (
            i
            for i, old in enumerate(table)
            if i not in taken and _one_field(column, old) and alike(column.type, old.type)
        ),
        None,
    )


def known_as(column: Column, name: str) -> bool:
    """Whether a column already counts this name as one of its own."""
    return fold(name) in {fold(alias) for alias in column.aliases}


def _one_field(new: Column, old: Column) -> bool:
    if new.number is not None and new.number == old.number:
        return True
    return known_as(new, old.name) or known_as(old, new.name)


def alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types can be the same thing under two names.

    A number that was given to a different field tells nothing: its type then has nothing in common.
    """
    if is_struct(one) and is_struct(other):
        mine = {fold(f.name): f.type for f in one}
        theirs = {fold(f.name): f.type for f in other}
        shared = mine.keys() & theirs.keys()
        return bool(shared) and all(alike(mine[key], theirs[key]) for key in shared)
    if is_list(one) and is_list(other):
        return alike(one.value_type, other.value_type)
    if is_map(one) and is_map(other):
        return alike(one.key_type, other.key_type) and alike(one.item_type, other.item_type)
    return wider(one, other) is not None
