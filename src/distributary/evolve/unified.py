"""The one table that holds every type: which of a type's columns are columns there.

`shared`: what at least two types have in common is a column, everything else is JSON text in one
column `_rest`, so a thousand types do not make ten thousand columns. `wide`: everything is a
column, merged by name, with side columns where types disagree. Either way a column stays a column,
and past `max_columns` the remainder goes to `_rest`. The order of the types does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from distributary.config.evolution import Evolution
from distributary.evolve.merge import merge
from distributary.evolve.place import fold, settled
from distributary.evolve.side import side_base
from distributary.evolve.types import same
from distributary.model.table import Column, Fill

REST = "_rest"

_STRICT = Evolution(type_change="dead_letter")
_ASIDE = Evolution(wider_type="side_column")


@dataclass(frozen=True, slots=True)
class Share:
    """How one type gets into the unified table."""

    fills: tuple[Fill, ...]
    rest: tuple[str, ...]
    """Its columns that become JSON text in `_rest`, in their order."""


@dataclass(frozen=True, slots=True)
class Unified:
    """The unified table's columns and each type's way into them."""

    columns: tuple[Column, ...]
    shares: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class _Candidate:
    column: Column
    types: int


def plan_unified(
    current: tuple[Column, ...],
    types: Mapping[str, tuple[Column, ...]],
    *,
    mode: Literal["shared", "wide"] = "shared",
    max_columns: int = 500,
    reserved: frozenset[str] = frozenset(),
) -> Unified:
    """Bring the unified table up to date with all types that it holds, not only those of a batch.

    `reserved` names the system columns in `current`, which no type fills.
    """
    closed = reserved | {REST}
    writers = {name: _bare(types[name]) for name in sorted(types)}
    has_rest = any(fold(column.name) == fold(REST) for column in current)
    room = max(0, max_columns - len(current) - (0 if has_rest else 1))
    grow = _grow_shared if mode == "shared" else _grow_wide
    columns = grow(current, writers, room, closed)
    shares = {name: share_of(columns, writer, closed) for name, writer in writers.items()}
    needed = mode == "shared" or any(share.rest for share in shares.values())
    if needed and not has_rest:
        comment = "fields without a column of their own, as JSON text"
        columns = (*columns, Column(REST, pa.string(), comment))
    return Unified(columns, shares)


def _bare(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    # field numbers and comments of one type mean nothing in another
    return tuple(Column(column.name, column.type) for column in columns)


def share_of(
    columns: tuple[Column, ...], writer: tuple[Column, ...], closed: frozenset[str]
) -> Share:
    """What of a type the table has a place for as it is; what would change it is the rest."""
    if not columns:
        return Share((), tuple(column.name for column in writer))
    types = {column.name: column.type for column in columns}
    fills = tuple(
        fill
        for fill in merge(columns, writer, _ASIDE, reserved=closed).fills
        if fill.target in types and same(fill.type, types[fill.target])
    )
    stored = {fill.source for fill in fills}
    return Share(fills, tuple(c.name for c in writer if c.name not in stored))


def _grow_wide(
    current: tuple[Column, ...],
    writers: Mapping[str, tuple[Column, ...]],
    room: int,
    closed: frozenset[str],
) -> tuple[Column, ...]:
    limit = len(current) + room
    columns = current
    for writer in writers.values():
        columns = merge(columns, writer, Evolution(), reserved=closed).columns[:limit]
    return columns


def _grow_shared(
    current: tuple[Column, ...],
    writers: Mapping[str, tuple[Column, ...]],
    room: int,
    closed: frozenset[str],
) -> tuple[Column, ...]:
    names = {fold(column.name): column.name for column in current}
    grouped: dict[str, list[Column]] = {}
    for writer in writers.values():
        for key, column in _one_per_key(writer, names).items():
            grouped.setdefault(key, []).append(column)
    blocked = {fold(name) for name in closed}
    columns = [
        column
        if side_base(column.comment) or fold(column.name) in blocked
        else _widened(column, grouped.get(fold(column.name), ()))
        for column in current
    ]
    candidates = [
        _most_common(group) for key, group in grouped.items() if key not in names.keys() | blocked
    ]
    promoted = [c for c in candidates if c.types >= 2 or len(writers) == 1]
    promoted.sort(key=lambda candidate: -candidate.types)
    columns += [candidate.column for candidate in promoted[:room]]
    return current if tuple(columns) == current else tuple(columns)


def _one_per_key(writer: tuple[Column, ...], names: Mapping[str, str]) -> dict[str, Column]:
    """A type's columns by key; of names that differ in case only, the one the table has."""
    chosen: dict[str, Column] = {}
    for column in sorted(writer, key=lambda c: (c.name != names.get(fold(c.name)), c.name)):
        chosen.setdefault(fold(column.name), column)
    # in the writer's own order, which is the order that columns are added in
    return {fold(c.name): c for c in writer if chosen[fold(c.name)] is c}


def _most_common(group: Iterable[Column]) -> _Candidate:
    """The type that most types agree on; the first of these by type name."""
    clusters: list[_Candidate] = []
    for column in group:
        for i, cluster in enumerate(clusters):
            joined = _joined(cluster.column, column)
            if joined is not None:
                clusters[i] = _Candidate(joined, cluster.types + 1)
                break
        else:
            clusters.append(_Candidate(Column(column.name, settled(column.type)), 1))
    return max(clusters, key=lambda cluster: cluster.types)


def _widened(column: Column, group: Iterable[Column]) -> Column:
    for other in group:
        column = _joined(column, other) or column
    return column


def _joined(one: Column, other: Column) -> Column | None:
    """One column for the values of both; None when their types have nothing in common."""
    if same(one.type, other.type):
        return one
    merged = merge((one,), (Column(one.name, other.type),), _STRICT)
    return None if merged.refused else merged.columns[0]
