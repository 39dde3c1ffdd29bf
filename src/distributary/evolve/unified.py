"""The unified table of all types: selects the columns of each type that are columns there.

`shared`: fields that at least two types have in common are columns, all others are JSON text in the
column `_rest`. `wide`: all fields are columns, merged by name, with side columns where types
disagree. In both modes a column stays a column, and fields beyond `max_columns` go to `_rest`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.config.lake import Evolution
from distributary.evolve.merge import merge
from distributary.evolve.types import (
    compact,
    fold,
    is_list,
    is_map,
    is_struct,
    same,
    settled,
    side_base,
    with_values,
)
from distributary.model.table import Column, Fill

REST = "_rest"
_CLOSED = frozenset({REST})
"""Columns that no type fills."""

_Columns = tuple[Column, ...]

_ASIDE = Evolution(wider_type="side_column")


@dataclass(frozen=True, slots=True)
class Contribution:
    """One type's columns in the unified table, and its columns in `_rest`."""

    fills: tuple[Fill, ...]
    rest: tuple[str, ...]
    """The columns that become JSON text in `_rest`, in their order."""


@dataclass(frozen=True, slots=True)
class Unified:
    """The unified table's columns, and the contribution of each type."""

    columns: tuple[Column, ...]
    shares: Mapping[str, Contribution]


def plan_unified(
    current: tuple[Column, ...],
    types: Mapping[str, tuple[Column, ...]],
    *,
    mode: Literal["shared", "wide"] = "shared",
    max_columns: int = 500,
    policy: type[Evolution] = Evolution,
) -> Unified:
    """Bring the unified table up to date with all types that it holds, not only with a batch's.

    `policy` states what the table's format allows. A pipeline's evolution settings for its tables
    per type do not apply here.
    """
    # field numbers and comments of one type have no meaning in another
    writers = {
        name: tuple(Column(column.name, column.type) for column in types[name])
        for name in sorted(types)
    }
    has_rest = any(fold(column.name) == fold(REST) for column in current)
    room = max(0, max_columns - len(current) - (0 if has_rest else 1))
    grow = _grow_shared if mode == "shared" else _grow_wide
    columns = grow(current, tuple(writers.values()), room, policy)
    shares = {name: share_of(columns, writer, _CLOSED) for name, writer in writers.items()}
    needed = mode == "shared" or any(share.rest for share in shares.values())
    if needed and not has_rest:
        comment = "fields without a column of their own, as JSON text"
        columns = (*columns, Column(REST, pa.string(), comment))
    return Unified(columns, shares)


def share_of(
    columns: tuple[Column, ...], writer: tuple[Column, ...], closed: frozenset[str]
) -> Contribution:
    """Return the columns of a type that the table can hold unchanged; the others are the rest."""
    if not columns:
        return Contribution((), tuple(column.name for column in writer))
    types = {column.name: column.type for column in columns}
    fills = tuple(
        fill
        for fill in merge(columns, writer, _ASIDE, reserved=closed).fills
        if fill.target in types and same(fill.type, types[fill.target])
    )
    stored = {fill.source for fill in fills}
    return Contribution(fills, tuple(column.name for column in writer if column.name not in stored))


def _grow_wide(
    current: _Columns, writers: Sequence[_Columns], room: int, policy: type[Evolution]
) -> _Columns:
    limit, columns = len(current) + room, current
    for writer in writers:
        columns = merge(columns, writer, policy(), reserved=_CLOSED).columns[:limit]
    return columns


def _grow_shared(
    current: _Columns, writers: Sequence[_Columns], room: int, policy: type[Evolution]
) -> _Columns:
    strict = policy(type_change="dead_letter")
    names = {fold(column.name): column.name for column in current}
    grouped: dict[str, list[Column]] = {}
    for writer in writers:
        for key, column in _one_per_key(writer, names).items():
            grouped.setdefault(key, []).append(column)
    columns = [
        column
        if side_base(column.comment) or fold(column.name) == fold(REST)
        else reduce(
            lambda a, b: _joined(a, b, strict) or a, grouped.get(fold(column.name), ()), column
        )
        for column in current
    ]
    candidates = [
        _most_common(group, strict)
        for key, group in grouped.items()
        if key not in names and key != fold(REST)
    ]
    promoted = [(column, types) for column, types in candidates if types > 1 or len(writers) == 1]
    promoted.sort(key=lambda candidate: -candidate[1])
    columns += [column for column, _ in promoted[:room]]
    return current if tuple(columns) == current else tuple(columns)


def _one_per_key(writer: tuple[Column, ...], names: Mapping[str, str]) -> dict[str, Column]:
    """Return a type's columns by key; of names that differ only in case, the table's name."""
    chosen: dict[str, Column] = {}
    for column in sorted(
        writer, key=lambda column: (column.name != names.get(fold(column.name)), column.name)
    ):
        chosen.setdefault(fold(column.name), column)
    # in the writer's order, because columns are added in that order
    return {fold(column.name): column for column in writer if chosen[fold(column.name)] is column}


def _most_common(group: Iterable[Column], strict: Evolution) -> tuple[Column, int]:
    """Return the column that most types agree on, and how many; ties go to the first type name."""
    clusters: list[tuple[Column, int]] = []
    for column in group:
        for i, (cluster_column, types) in enumerate(clusters):
            if (joined := _joined(cluster_column, column, strict)) is not None:
                clusters[i] = (joined, types + 1)
                break
        else:
            clusters.append((Column(column.name, settled(column.type)), 1))
    return max(clusters, key=lambda cluster: cluster[1])


def _joined(one: Column, other: Column, strict: Evolution) -> Column | None:
    """Return one column for the values of both, or None if their types have nothing in common."""
    if same(one.type, other.type):
        return one
    merged = merge((one,), (Column(one.name, other.type),), strict)
    return None if merged.refused else merged.columns[0]


# Columns as JSON text, one object per row, computed column by column.
#
# Nulls are left out of objects and kept in lists. Numbers keep all their digits; NaN and the
# infinities are strings, as are timestamps (ISO-8601, UTC), dates and binary values (base64).

_NULL = pa.scalar(None, pa.string())
_TEXTS = pa.list_(pa.string())
_ESCAPED = {"\\": "\\\\", '"': '\\"'} | {
    chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)
}
_ORDINARY = bytes(set(range(256)) - {ord(character) for character in _ESCAPED})


def rest_as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
    """Return the given columns of each row as a JSON object; null if all of them are null."""
    columns = [(name, batch.column(name)) for name in names]
    if not columns:
        return pa.nulls(batch.num_rows, pa.string())
    text = _object(columns)
    filled = _any_valid([array for _, array in columns])
    return text if filled is None else pc.if_else(filled, text, _NULL)


def _object(members: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    parts = [json_texts(array, before=json.dumps(name) + ":") for name, array in members]
    filled = _any_valid(parts)
    if filled is not None:
        # Arrow's join omits a row in which it skips every part, so such a row gets an empty part
        parts[0] = pc.if_else(filled, parts[0], "")
    inside = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inside, "}", "")


def _any_valid(arrays: Sequence[pa.Array]) -> pa.Array | None:
    """Return a mask of the rows with a value in any of the arrays, or None if all have one."""
    if any(array.null_count == 0 for array in arrays):
        return None
    return reduce(pc.or_, (array.is_valid() for array in arrays))


def json_texts(array: pa.Array, *, before: str = "") -> pa.Array:
    """Return each value as JSON text after the text `before`; null stays null."""
    type_ = array.type
    if is_struct(type_):
        text = _struct_json(array)
    elif is_map(type_):
        text = _map_json(array)
    elif is_list(type_):
        text = _list_json(array)
    elif kinds.is_floating(type_):
        text = _float_json(array)
    elif kinds.is_integer(type_) or kinds.is_decimal(type_) or kinds.is_boolean(type_):
        text = array.cast(pa.string())
    else:
        return pc.binary_join_element_wise(before + '"', _plain_text(array), '"', "")
    return pc.binary_join_element_wise(before, text, "") if before else text


def _plain_text(array: pa.Array) -> pa.Array:
    type_ = array.type
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        # Arrow has no function for base64
        texts = [
            None if value is None else base64.b64encode(value).decode()
            for value in array.to_pylist()
        ]
        return pa.array(texts, pa.string())
    text = array if kinds.is_string(type_) else array.cast(pa.string())
    if kinds.is_timestamp(type_):
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    return _escaped(text)


def _escaped(text: pa.Array) -> pa.Array:
    present = _special_characters(text)
    # the backslash comes first, so that the other escapes are not escaped again
    for character, escape in _ESCAPED.items():
        if character in present:
            text = pc.replace_substring(text, character, escape)
    return text


def _special_characters(text: pa.Array) -> set[str]:
    """Return the characters to escape that occur in any value, searching all bytes at once."""
    data = text.buffers()[2]
    if data is not None and data.size > text.nbytes:
        # a slice shares the bytes of the whole array, so only its own bytes are copied and searched
        data = pa.concat_arrays([text]).buffers()[2]
    if data is None:
        return set()
    return set(data.to_pybytes().translate(None, _ORDINARY).decode())


def _float_json(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite, min_count=0).as_py():
        return text
    special = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    special = pc.if_else(pc.is_nan(array), '"NaN"', special)
    return pc.if_else(finite, text, special)


def _struct_json(array: pa.Array) -> pa.Array:
    members = [(field.name, array.field(i)) for i, field in enumerate(array.type)]
    text = _object(members) if members else pa.repeat(pa.scalar("{}"), len(array))
    return pc.if_else(array.is_valid(), text, _NULL) if array.null_count else text


def _list_json(array: pa.Array) -> pa.Array:
    plain = kinds.is_list(array.type)
    lists = compact(array if plain else array.cast(pa.list_(array.type.value_field)))
    return _rest_joined(lists, pc.fill_null(json_texts(lists.values), "null"), "[", "]")


def _map_json(array: pa.Array) -> pa.Array:
    entries = compact(array)
    values = pc.fill_null(json_texts(entries.items), "null")
    members = pc.binary_join_element_wise(_key_json(entries.keys), values, ":")
    return _rest_joined(entries, members, "{", "}")


def _key_json(keys: pa.Array) -> pa.Array:
    """Return keys as JSON strings: a number, list or struct becomes its JSON text in quotes."""
    text = json_texts(keys)
    if pc.all(pc.starts_with(text, '"'), min_count=0).as_py():
        return text
    return pc.binary_join_element_wise('"', _escaped(text), '"', "")


def _rest_joined(lists: pa.Array, texts: pa.Array, opening: str, closing: str) -> pa.Array:
    inside = pc.binary_join(with_values(lists, _TEXTS, texts), ",")
    return pc.binary_join_element_wise(opening, inside, closing, "")
