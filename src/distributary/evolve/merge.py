"""A table's columns and a writer's columns in; the new columns and the way into them out.

Policies are about changes of the table: what the table has a place for is stored, whatever they
say. A column whose field has a default holds it where a writer does not have the field, as Avro's
resolution asks, whether that writer is older or newer. Two types with something in common meet in
the smallest type that holds every value of both. A field whose type has nothing in common with its
column goes to a side column, `score__string`, which says so in its comment; inside a struct it goes
to a side field of that name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from distributary.config.evolution import Evolution
from distributary.evolve.fields import Fields
from distributary.evolve.place import fold, struct_places
from distributary.evolve.rename import known_as
from distributary.evolve.side import side_base
from distributary.evolve.types import is_list, is_map, is_struct, sql_name
from distributary.model.table import Change, ChangeKind, Column, Fill, Merged


def merge(
    table: tuple[Column, ...],
    writer: tuple[Column, ...],
    policy: Evolution,
    *,
    reserved: frozenset[str] = frozenset(),
) -> Merged:
    """Bring a table's columns up to date with a writer's; an empty table is created.

    `reserved` names the system columns: a writer's field of such a name is stored as `name__field`.
    `changes` holds what the table goes through, so it is empty when the same writer comes again.
    """
    if not table:
        return create(writer, reserved=reserved)
    level = Fields(table, policy, reserved=reserved)
    level.merge(writer)
    if level.refusals:
        return _refused(table, level)
    columns = tuple(level.columns) if level.changes else table
    return Merged(columns, _fills(level), tuple(level.changes))


def create(
    writer: tuple[Column, ...],
    *,
    system: tuple[Column, ...] = (),
    reserved: frozenset[str] = frozenset(),
) -> Merged:
    """The columns of a table that does not exist yet: `system` first, then the writer's."""
    level = Fields(system, Evolution(), reserved=reserved | {column.name for column in system})
    level.merge(writer)
    columns = tuple(level.columns)
    listed = ", ".join(f"{column.name} {sql_name(column.type)}" for column in columns)
    created = Change(ChangeKind.TABLE_CREATED, after=listed, action="create")
    return Merged(columns, _fills(level), (created,))


def _fills(level: Fields) -> tuple[Fill, ...]:
    columns = {column.name: column for column in level.columns}
    placed = [
        Fill(source, target, columns[target].type, inner_defaults=columns[target].inner_defaults)
        for source, target in level.placed
    ]
    unwritten = [
        Fill("", column.name, column.type, value=column.default) for column in level.unwritten()
    ]
    return (*placed, *unwritten)


def _refused(table: tuple[Column, ...], level: Fields) -> Merged:
    first = next((refusal for refusal in level.refusals if refusal.fatal), level.refusals[0])
    change = first.change
    what = f"{change.before} to {change.after}" if change.before else f"new field {change.after}"
    return Merged(
        columns=table,
        fills=(),
        changes=tuple(refusal.change for refusal in level.refusals),
        refused=first.code,
        fatal=first.fatal,
        reason=f"{change.column}: {what}; the policy is {change.action}",
    )


def missing(
    table: tuple[Column, ...],
    writer: tuple[Column, ...],
    *,
    reserved: frozenset[str] = frozenset(),
) -> tuple[Change, ...]:
    """The columns that a writer does not write: kept, and null in its rows.

    Give the columns as `merge` left them. An older writer misses what came after it, so this says
    "gone" for the newest writer only.
    """
    written = {fold(column.name) for column in writer}
    written |= {fold(name) for name in reserved}
    return tuple(
        Change(ChangeKind.COLUMN_MISSING, column.name, before=sql_name(column.type), action="keep")
        for column in table
        if fold(column.name) not in written
        and not side_base(column.comment)
        and not any(known_as(column, name.name) for name in writer)
    )


def ignored(writer: tuple[Column, ...], merged: Merged) -> tuple[Change, ...]:
    """The fields of a writer that are not stored, because the policy for new fields is `ignore`."""
    if merged.refused is not None:
        return ()
    stored = {fill.source: fill.type for fill in merged.fills}
    return tuple(
        Change(ChangeKind.FIELD_IGNORED, path, after=sql_name(type_), action="ignore")
        for column in writer
        for path, type_ in _unstored(column.name, column.type, stored.get(column.name))
    )


def _unstored(
    path: str, got: pa.DataType, have: pa.DataType | None
) -> Iterator[tuple[str, pa.DataType]]:
    if have is None:
        yield path, got
    elif is_struct(got):
        for field, place in zip(got, struct_places(got, have), strict=True):
            inner = None if place is None else have.field(place).type
            yield from _unstored(f"{path}.{field.name}", field.type, inner)
    elif is_list(got):
        yield from _unstored(f"{path}.element", got.value_type, have.value_type)
    elif is_map(got):
        yield from _unstored(f"{path}.value", got.item_type, have.item_type)
