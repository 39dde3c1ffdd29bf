"""A table's columns and a writer's columns in; the new columns and the way into them out.

Policies are about changes of the table: what it has a place for is stored, whatever they say. Two
types with something in common meet in the smallest type that holds every value of both; else the
values go to a side column, `score__string`, which says so in its comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from distributary.config.lake import Evolution
from distributary.errors import ErrorCode
from distributary.evolve.types import (
    Slot,
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
from distributary.model.table import Change, ChangeKind, Column, Fill, Merged

# Recognising a renamed field: the same protobuf number, or an Avro alias.


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


# Merging a writer's fields into the fields of a table or of a struct inside it, at any depth.


@dataclass(frozen=True, slots=True)
class Refusal:
    """One field for which the policy says `dead_letter` or `fail`."""

    code: ErrorCode
    fatal: bool
    change: Change


@dataclass(frozen=True, slots=True)
class Step:
    """The type that a field has after the merge, and what happened on the way."""

    type: pa.DataType
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Clash:
    """The values need a field of their own."""

    wider: bool
    """The field could be widened, but the policy does not want it."""


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
        """(writer's field, field of this level) for each that is stored."""
        self.changes: list[Change] = []
        self.refusals: list[Refusal] = []
        self._policy = policy
        self._path = path
        self._reserved = {fold(name) for name in reserved}
        self._aliased = False
        """Whether any field of either side has had another name."""
        self._taken: set[str] = set()
        self._filled: set[int] = set()

    def merge(self, writer: Sequence[Column]) -> None:
        """Find or make a place for each field of a writer."""
        beside = [column for column in writer if column.side_of]
        writer = [column for column in writer if not column.side_of]
        slots = self._slots()
        found = homes([column.name for column in writer], slots, self._reserved)
        self._taken = self._reserved | {fold(home.name) for home in found}
        self._filled = {home.index for home in found if home.index is not None}
        self._filled |= {i for i, slot in enumerate(slots) if slot.closed}
        self._aliased = any(column.aliases for column in (*self.columns, *writer))
        for column, home in zip(writer, found, strict=True):
            if home.index is None:
                self._welcome(column, home.name)
            else:
                self._store(column, home.index)
        names = {column.name: home.name for column, home in zip(writer, found, strict=True)}
        for column in beside:
            self._store_beside(column, names[column.side_of])

    def _store_beside(self, column: Column, name: str) -> None:
        """Find or make a place for values that a writer keeps apart from those of a field."""
        have = next((each for each in self.columns if each.name == name), None)
        if have is None:
            # the policy ignores the field, and so its other values
            return
        filled = {target for _, target in self.placed}
        if name not in filled and fits(column.type, have.type):
            self.placed.append((column.name, name))
        else:
            self._set_aside(column, have, Clash(wider=False))

    def _slots(self) -> list[Slot]:
        if self._path:
            # nothing inside a struct carries a comment: a side field is known by name and type
            return [Slot(c.name, c.type) for c in self.columns]
        slots = []
        for column in self.columns:
            base = side_base(column.comment)
            closed = bool(base) or fold(column.name) in self._reserved
            slots.append(Slot(column.name, column.type, base, closed))
        return slots

    def _store(self, column: Column, index: int) -> None:
        have = self.columns[index]
        step = merge_type(have.type, column.type, self._policy, self._at(have.name))
        if isinstance(step, Clash):
            self._set_aside(column, have, step)
            return
        self.changes += step.changes
        self.refusals += step.refusals
        if step.changes:
            self.columns[index] = replace(have, type=step.type)
        self.placed.append((column.name, have.name))

    def _set_aside(self, column: Column, have: Column, clash: Clash) -> None:
        place = side(have.name, column.type, self._slots(), self._taken)
        self._taken.add(fold(place.name))
        if place.index is None:
            action = self._policy.wider_type if clash.wider else self._policy.type_change
            before, after = sql_name(have.type), sql_name(column.type)
            if action != "side_column":
                self._refuse(ErrorCode.TYPE_CHANGE_REFUSED, have.name, before, after, action)
                return
            comment = side_comment(have.name, column.comment)
            self._append(Column(place.name, settled(column.type), comment))
            self._note(ChangeKind.SIDE_COLUMN_ADDED, place.name, before, after, action)
        self.placed.append((column.name, place.name))

    def _welcome(self, column: Column, name: str) -> None:
        """A field without a column: renamed, or new."""
        former = None
        if self._aliased or column.number is not None:
            # each is compared with each, which JSON with its thousands of names can do without
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
        before, done = "", str(action)
        if former is not None:
            before, done = self._at(self.columns[former].name), self._policy.renamed
        self._note(ChangeKind.COLUMN_ADDED, name, before, after, done)

    def _keep_name(self, column: Column, former: int) -> None:
        old = self.columns[former]
        self._filled.add(former)
        if not known_as(old, column.name):
            # remembered, so that the rename is told once
            self.columns[former] = replace(old, aliases=(*old.aliases, column.name))
            after = sql_name(column.type)
            self._note(ChangeKind.COLUMN_RENAMED, column.name, old.name, after, "keep_name")
        self._store(column, former)

    def _append(self, column: Column) -> None:
        self._filled.add(len(self.columns))
        self.columns.append(column)

    def _refuse(self, code: ErrorCode, name: str, before: str, after: str, action: str) -> None:
        change = Change(ChangeKind.REFUSED, self._at(name), before, after, action)
        self.refusals.append(Refusal(code, action == "fail", change))

    def _note(self, kind: ChangeKind, name: str, before: str, after: str, action: str) -> None:
        self.changes.append(Change(kind, self._at(name), before, after, action))

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def merge_type(have: pa.DataType, got: pa.DataType, policy: Evolution, path: str) -> Step | Clash:
    """The type of one field after a writer's type has been merged into it."""
    if same(have, got):
        return Step(have)
    if is_struct(have) and is_struct(got):
        return _merge_struct(have, got, policy, path)
    if is_list(have) and is_list(got):
        element = merge_type(have.value_type, got.value_type, policy, f"{path}.element")
        if isinstance(element, Clash):
            return element
        new = pa.list_(have.value_field.with_type(element.type)) if element.changes else have
        return replace(element, type=new)
    if is_map(have) and is_map(got):
        return _merge_map(have, got, policy, path)
    joined = wider(have, got)
    if joined is None:
        return Clash(wider=False)
    if same(joined, have):
        return Step(have)
    if policy.same_kind and not of_one_kind(have, joined):
        return Clash(wider=False)
    if policy.wider_type != "widen":
        return Clash(wider=True)
    names = sql_name(have), sql_name(joined)
    return Step(joined, (Change(ChangeKind.COLUMN_WIDENED, path, *names, policy.wider_type),))


def _merge_struct(have: pa.DataType, got: pa.DataType, policy: Evolution, path: str) -> Step:
    level = Fields([Column(f.name, f.type) for f in have], policy, path=path)
    level.merge([Column(f.name, f.type) for f in got])
    type_ = have
    if level.changes:
        kept = [f.with_type(level.columns[i].type) for i, f in enumerate(have)]
        added = [pa.field(c.name, c.type) for c in level.columns[len(kept) :]]
        type_ = pa.struct(kept + added)
    return Step(type_, tuple(level.changes), tuple(level.refusals))


def _merge_map(have: pa.DataType, got: pa.DataType, policy: Evolution, path: str) -> Step | Clash:
    if is_nested(have.key_type) or is_nested(got.key_type):
        # a key is compared as a whole: one with fields added or left out would be another key
        equal = same(have.key_type, settled(got.key_type))
        key: Step | Clash = Step(have.key_type) if equal else Clash(wider=False)
    else:
        key = merge_type(have.key_type, got.key_type, policy, f"{path}.key")
        if policy.same_kind and isinstance(key, Step) and key.changes:
            # formats that are strict about kinds leave the types of keys alone
            key = Clash(wider=False)
    value = merge_type(have.item_type, got.item_type, policy, f"{path}.value")
    if isinstance(key, Clash) or isinstance(value, Clash):
        clashes = [step for step in (key, value) if isinstance(step, Clash)]
        return Clash(wider=all(clash.wider for clash in clashes))
    changes, refusals = key.changes + value.changes, key.refusals + value.refusals
    new = pa.map_(key.type, have.item_field.with_type(value.type)) if changes else have
    return Step(new, changes, refusals)


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


def create(writer: tuple[Column, ...], *, reserved: frozenset[str] = frozenset()) -> Merged:
    """The columns of a table that does not exist yet."""
    level = Fields((), Evolution(), reserved=reserved)
    level.merge(writer)
    columns = tuple(level.columns)
    listed = ", ".join(f"{column.name} {sql_name(column.type)}" for column in columns)
    created = Change(ChangeKind.TABLE_CREATED, after=listed, action="create")
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


def missing(table: tuple[Column, ...], writer: tuple[Column, ...]) -> tuple[Change, ...]:
    """The columns that a writer does not write: kept, and null in its rows.

    Give the columns as `merge` left them. An older writer misses what came after it, so this says
    "gone" for the newest writer only.
    """
    written = {fold(column.name) for column in writer}
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
