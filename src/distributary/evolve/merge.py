"""Merges a writer's columns into a table's columns, and maps each field to its column.

Policies are about changes of the table: a value that has a column is stored, whatever the policy.
Two types with something in common are joined to the smallest type that holds every value of both.
Otherwise the values go to a side column such as `score__string`, marked in its comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from distributary.config.lake import Evolution
from distributary.errors import ErrorCode
from distributary.evolve.types import (
    FieldSlot,
    fits,
    fold,
    homes,
    is_list,
    is_map,
    is_nested,
    is_struct,
    of_one_kind,
    ordinary_comment,
    same,
    settled,
    side,
    side_base,
    side_comment,
    sql_name,
    struct_places,
    wider,
)
from distributary.model.table import ChangeKind, Column, ColumnChange, Fill, Merged

# Recognition of a renamed field: the same protobuf number, or an Avro alias.


def former_column(column: Column, table: Sequence[Column], taken: Set[int]) -> int | None:
    """Return the position of the column that a writer's column is a new name for, or None.

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
    """Return True if a column has this name among its aliases."""
    return fold(name) in {fold(alias) for alias in column.aliases}


def _one_field(new: Column, old: Column) -> bool:
    if new.number is not None and new.number == old.number:
        return True
    return known_as(new, old.name) or known_as(old, new.name)


def alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return True if two types can be one field under two names.

    A field number may have been given to a different field, whose type then has nothing in common.
    """
    if is_struct(one) and is_struct(other):
        one_fields = {fold(field.name): field.type for field in one}
        other_fields = {fold(field.name): field.type for field in other}
        shared = one_fields.keys() & other_fields.keys()
        return bool(shared) and all(alike(one_fields[key], other_fields[key]) for key in shared)
    if is_list(one) and is_list(other):
        return alike(one.value_type, other.value_type)
    if is_map(one) and is_map(other):
        return alike(one.key_type, other.key_type) and alike(one.item_type, other.item_type)
    return wider(one, other) is not None


# Merging of a writer's fields into the fields of a table or of a struct inside it, at any depth.


@dataclass(frozen=True, slots=True)
class MergeRefusal:
    """One field for which the policy is `dead_letter` or `fail`."""

    code: ErrorCode
    fatal: bool
    change: ColumnChange


@dataclass(frozen=True, slots=True)
class MergeStep:
    """The type of a field after the merge, with the changes and refusals on the way."""

    type: pa.DataType
    changes: tuple[ColumnChange, ...] = ()
    refusals: tuple[MergeRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Clash:
    """The result for values that need a field of their own."""

    wider: bool
    """True if the field could be widened, but the policy does not allow it."""


class Fields:
    """The fields of one level, while a writer's fields are merged into them."""

    def __init__(
        self,
        columns: Sequence[Column],
        policy: Evolution,
        *,
        path: str = "",
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self.columns = list(columns)
        self.placed: list[tuple[str, str]] = []
        """Pairs of a writer's field and the field of this level that stores it."""
        self.changes: list[ColumnChange] = []
        self.refusals: list[MergeRefusal] = []
        self._policy = policy
        self._path = path
        self._reserved = {fold(name) for name in reserved}
        self._aliased = False
        """True if any field of either side has had another name."""
        self._taken: set[str] = set()
        self._filled: set[int] = set()

    def merge(self, writer: Sequence[Column]) -> None:
        """Find or add a field of this level for each field of a writer."""
        sides = [column for column in writer if column.side_of]
        writer = [column for column in writer if not column.side_of]
        slots = self._slots()
        field_homes = homes([column.name for column in writer], slots, self._reserved)
        self._taken = self._reserved | {fold(home.name) for home in field_homes}
        self._filled = {home.index for home in field_homes if home.index is not None}
        self._filled |= {i for i, slot in enumerate(slots) if slot.closed}
        self._aliased = any(column.aliases for column in (*self.columns, *writer))
        for column, home in zip(writer, field_homes, strict=True):
            if home.index is None:
                self._welcome(column, home.name)
            else:
                self._store(column, home.index)
        names = {column.name: home.name for column, home in zip(writer, field_homes, strict=True)}
        for column in sides:
            self._store_beside(column, names[column.side_of])

    def _store_beside(self, column: Column, name: str) -> None:
        """Find or add a field for values that a writer keeps in a side field."""
        existing = next((candidate for candidate in self.columns if candidate.name == name), None)
        if existing is None:
            # the policy ignores the field, and therefore its side field as well
            return
        filled = {target for _, target in self.placed}
        if name not in filled and fits(column.type, existing.type):
            self.placed.append((column.name, name))
        else:
            self._set_aside(column, existing, Clash(wider=False))

    def _slots(self) -> list[FieldSlot]:
        if self._path:
            # fields in a struct have no comments, so a side field is recognised by name and type
            return [FieldSlot(column.name, column.type) for column in self.columns]
        slots = []
        for column in self.columns:
            base = side_base(column.comment)
            closed = bool(base) or fold(column.name) in self._reserved
            slots.append(FieldSlot(column.name, column.type, base, closed))
        return slots

    def _store(self, column: Column, index: int) -> None:
        existing = self.columns[index]
        step = merge_type(existing.type, column.type, self._policy, self._at(existing.name))
        if isinstance(step, Clash):
            self._set_aside(column, existing, step)
            return
        self.changes += step.changes
        self.refusals += step.refusals
        if step.changes:
            self.columns[index] = replace(existing, type=step.type)
        self.placed.append((column.name, existing.name))

    def _set_aside(self, column: Column, existing: Column, clash: Clash) -> None:
        place = side(existing.name, column.type, self._slots(), self._taken)
        self._taken.add(fold(place.name))
        if place.index is None:
            action = self._policy.wider_type if clash.wider else self._policy.type_change
            before, after = sql_name(existing.type), sql_name(column.type)
            if action != "side_column":
                self._refuse(ErrorCode.TYPE_CHANGE_REFUSED, existing.name, before, after, action)
                return
            comment = side_comment(existing.name, column.comment)
            self._append(Column(place.name, settled(column.type), comment))
            self._note(ChangeKind.SIDE_COLUMN_ADDED, place.name, before, after, action)
        self.placed.append((column.name, place.name))

    def _welcome(self, column: Column, name: str) -> None:
        """Store a field without a column: as a renamed column, or as a new one."""
        former = None
        if self._aliased or column.number is not None:
            # Each field is compared with each column, which JSON without aliases and numbers can
            # skip.
            former = former_column(column, self.columns, self._filled)
        if former is not None and self._policy.renamed == "keep_name":
            self._keep_name(column, former)
            return
        action, after = self._policy.new_field, sql_name(column.type)
        if action == "ignore":
            return
        if action != "add":
            self._refuse(ErrorCode.NEW_FIELD_REFUSED, name, "", after, action)
            return
        comment = ordinary_comment(column.comment)
        self._append(replace(column, name=name, type=settled(column.type), comment=comment))
        self.placed.append((column.name, name))
        before, applied = "", str(action)
        if former is not None:
            before, applied = self._at(self.columns[former].name), self._policy.renamed
        self._note(ChangeKind.COLUMN_ADDED, name, before, after, applied)

    def _keep_name(self, column: Column, former: int) -> None:
        old = self.columns[former]
        self._filled.add(former)
        if not known_as(old, column.name):
            # saved as an alias, so that the rename is reported once
            self.columns[former] = replace(old, aliases=(*old.aliases, column.name))
            after = sql_name(column.type)
            self._note(ChangeKind.COLUMN_RENAMED, column.name, old.name, after, "keep_name")
        self._store(column, former)

    def _append(self, column: Column) -> None:
        self._filled.add(len(self.columns))
        self.columns.append(column)

    def _refuse(self, code: ErrorCode, name: str, before: str, after: str, action: str) -> None:
        change = ColumnChange(ChangeKind.REFUSED, self._at(name), before, after, action)
        self.refusals.append(MergeRefusal(code, action == "fail", change))

    def _note(self, kind: ChangeKind, name: str, before: str, after: str, action: str) -> None:
        self.changes.append(ColumnChange(kind, self._at(name), before, after, action))

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def merge_type(
    table_type: pa.DataType, writer_type: pa.DataType, policy: Evolution, path: str
) -> MergeStep | Clash:
    """Return the type of a field after a writer's type has been merged into it."""
    if same(table_type, writer_type):
        return MergeStep(table_type)
    if is_struct(table_type) and is_struct(writer_type):
        return _merge_struct(table_type, writer_type, policy, path)
    if is_list(table_type) and is_list(writer_type):
        element = merge_type(
            table_type.value_type, writer_type.value_type, policy, f"{path}.element"
        )
        if isinstance(element, Clash):
            return element
        new = (
            pa.list_(table_type.value_field.with_type(element.type))
            if element.changes
            else table_type
        )
        return replace(element, type=new)
    if is_map(table_type) and is_map(writer_type):
        return _merge_map(table_type, writer_type, policy, path)
    joined = wider(table_type, writer_type)
    if joined is None:
        return Clash(wider=False)
    if same(joined, table_type):
        return MergeStep(table_type)
    if policy.same_kind and not of_one_kind(table_type, joined):
        return Clash(wider=False)
    if policy.wider_type != "widen":
        return Clash(wider=True)
    names = sql_name(table_type), sql_name(joined)
    return MergeStep(
        joined, (ColumnChange(ChangeKind.COLUMN_WIDENED, path, *names, policy.wider_type),)
    )


def _merge_struct(
    table_type: pa.DataType, writer_type: pa.DataType, policy: Evolution, path: str
) -> MergeStep:
    level = Fields([Column(field.name, field.type) for field in table_type], policy, path=path)
    level.merge([Column(field.name, field.type) for field in writer_type])
    type_ = table_type
    if level.changes:
        kept = [field.with_type(level.columns[i].type) for i, field in enumerate(table_type)]
        added = [pa.field(column.name, column.type) for column in level.columns[len(kept) :]]
        type_ = pa.struct(kept + added)
    return MergeStep(type_, tuple(level.changes), tuple(level.refusals))


def _merge_map(
    table_type: pa.DataType, writer_type: pa.DataType, policy: Evolution, path: str
) -> MergeStep | Clash:
    if is_nested(table_type.key_type) or is_nested(writer_type.key_type):
        # keys are compared as a whole, so a key with other fields would be another key
        equal = same(table_type.key_type, settled(writer_type.key_type))
        key: MergeStep | Clash = MergeStep(table_type.key_type) if equal else Clash(wider=False)
    else:
        key = merge_type(table_type.key_type, writer_type.key_type, policy, f"{path}.key")
        if policy.same_kind and isinstance(key, MergeStep) and key.changes:
            # formats that are strict about kinds do not change the types of keys
            key = Clash(wider=False)
    value = merge_type(table_type.item_type, writer_type.item_type, policy, f"{path}.value")
    if isinstance(key, Clash) or isinstance(value, Clash):
        clashes = [step for step in (key, value) if isinstance(step, Clash)]
        return Clash(wider=all(clash.wider for clash in clashes))
    changes, refusals = key.changes + value.changes, key.refusals + value.refusals
    new = pa.map_(key.type, table_type.item_field.with_type(value.type)) if changes else table_type
    return MergeStep(new, changes, refusals)


def merge(
    table: tuple[Column, ...],
    writer: tuple[Column, ...],
    policy: Evolution,
    *,
    reserved: frozenset[str] = frozenset(),
) -> Merged:
    """Bring a table's columns up to date with a writer's; an empty table is created.

    `reserved` names the system columns: a writer's field of such a name is stored as `name__field`.
    `changes` holds the changes of the table, so it is empty when the same writer comes again.
    """
    if not table:
        return create(writer, reserved=reserved)
    level = Fields(table, policy, reserved=reserved)
    level.merge(writer)
    if level.refusals:
        return _refused(table, level)
    columns = tuple(level.columns) if level.changes else table
    return Merged(columns, _fills(level), tuple(level.changes))


def create(writer: tuple[Column, ...], *, reserved: frozenset[str] = frozenset()) -> Merged:
    """Return the columns of a table that does not exist yet."""
    level = Fields((), Evolution(), reserved=reserved)
    level.merge(writer)
    columns = tuple(level.columns)
    listed = ", ".join(f"{column.name} {sql_name(column.type)}" for column in columns)
    created = ColumnChange(ChangeKind.TABLE_CREATED, after=listed, action="create")
    return Merged(columns, _fills(level), (created,))


def _fills(level: Fields) -> tuple[Fill, ...]:
    columns = {column.name: column for column in level.columns}
    return tuple(Fill(source, target, columns[target].type) for source, target in level.placed)


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


def missing(table: tuple[Column, ...], writer: tuple[Column, ...]) -> tuple[ColumnChange, ...]:
    """Return the columns that a writer does not write: they are kept, and null in its rows.

    `table` must be the columns after `merge`. An older writer lacks columns that were added later,
    so only for the newest writer a missing column means a removed field.
    """
    written = {fold(column.name) for column in writer}
    return tuple(
        ColumnChange(
            ChangeKind.COLUMN_MISSING, column.name, before=sql_name(column.type), action="keep"
        )
        for column in table
        if fold(column.name) not in written
        and not side_base(column.comment)
        and not any(known_as(column, field.name) for field in writer)
    )


def ignored(writer: tuple[Column, ...], merged: Merged) -> tuple[ColumnChange, ...]:
    """Return the fields of a writer that are not stored because the policy is `ignore`."""
    if merged.refused is not None:
        return ()
    stored = {fill.source: fill.type for fill in merged.fills}
    return tuple(
        ColumnChange(ChangeKind.FIELD_IGNORED, path, after=sql_name(type_), action="ignore")
        for column in writer
        for path, type_ in _unstored(column.name, column.type, stored.get(column.name))
    )


def _unstored(
    path: str, writer_type: pa.DataType, table_type: pa.DataType | None
) -> Iterator[tuple[str, pa.DataType]]:
    if table_type is None:
        yield path, writer_type
    elif is_struct(writer_type):
        for field, place in zip(writer_type, struct_places(writer_type, table_type), strict=True):
            inner = None if place is None else table_type.field(place).type
            yield from _unstored(f"{path}.{field.name}", field.type, inner)
    elif is_list(writer_type):
        yield from _unstored(f"{path}.element", writer_type.value_type, table_type.value_type)
    elif is_map(writer_type):
        yield from _unstored(f"{path}.value", writer_type.item_type, table_type.item_type)
