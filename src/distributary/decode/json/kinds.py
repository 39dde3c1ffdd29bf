"""The kind of each column of a JSON table without a schema, decided once by most values.

Tasks count the values of each field by kind: a profile. The driver makes a document of the
profiles, a JSON Schema. In the first batch with a field, the kind of most values becomes the kind
of its column and stays. A single value of another kind gets a side column: the document lists both
in an `anyOf` with the mark `APART`, the plain column first. Where the evolution policy allows no
side column, and where an object or a list meets a column of single values, the document does not
accept the value and its record becomes a dead letter.

Profiles are added up, so neither the order of records nor their split into tasks matters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.config.lake import Evolution
from distributary.decode.json.infer import (
    ANYTHING,
    BOOLEAN,
    EXACT,
    INTEGERS,
    LEVELS,
    MAX_PROPERTIES,
    MIXED,
    NOTHING,
    NUMBER,
    STRING,
    Look,
    Shape,
    integer_rank,
    is_mixed,
    lists,
    looked_at,
    objects,
    of_one_kind,
    widened,
)
from distributary.decode.json.schema import APART
from distributary.errors import EvolutionError
from distributary.model.names import printable

Profile = dict[str, Any]
"""A dictionary of `kinds` (values by kind), `fields` (profiles of an object's fields) and `crowded`
(too many fields)."""

_INTEGERS = ("integer53", "integer64", "integer20", "integer38")
"""Integers that a double holds, of 64 bits, of 20 digits and of 38 digits."""
_DIGITS = "digits"
"""Numbers that neither a double nor a decimal holds with all their digits."""
_WIDE = "wide"
"""Objects with too many fields to be columns."""
_NUMBERS = (*_INTEGERS, "double", _DIGITS)
_ARRAY = "array:"
"""The prefix of kinds of lists, before the kind of their items; alone for empty lists."""
_ANY = "any"
"""The item kind of lists of objects, of lists, or of several kinds."""
_FAMILIES = ("object", "array", "string", "number", "boolean")
"""Families of kinds; where two have as many values, the first in this order is chosen."""


def family(kind: str) -> str:
    """Return the family of a kind: all numbers are one family, and so are all lists."""
    if kind.startswith(_ARRAY):
        return "array"
    return "number" if kind in _NUMBERS else kind


# Counting values by kind.


def nothing() -> Profile:
    """Return the profile of no values."""
    return {"kinds": {}, "fields": {}}


def added(one: Profile, other: Profile) -> Profile:
    """Add up two profiles."""
    counts = dict(one["kinds"])
    for kind, count in other["kinds"].items():
        counts[kind] = counts.get(kind, 0) + count
    total: Profile = {"kinds": counts, "fields": {}}
    if one.get("crowded") or other.get("crowded"):
        return total | {"crowded": True}
    fields = dict(one["fields"])
    for name, profile in other["fields"].items():
        fields[name] = added(fields[name], profile) if name in fields else profile
    if len(fields) > MAX_PROPERTIES:
        return total | {"crowded": True}
    return total | {"fields": fields}


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Combine the results of two tasks: both are profiles, or both are shapes of change events."""
    return added(one, other) if "kinds" in one else widened(one, other)


def times(profile: Profile, factor: float) -> Profile:
    """Scale a profile from a sample to all texts."""
    counts = {kind: max(1, round(count * factor)) for kind, count in profile["kinds"].items()}
    fields = {name: times(field, factor) for name, field in profile["fields"].items()}
    return {**profile, "kinds": counts, "fields": fields}


def is_of_one_kind(profile: Profile) -> bool:
    """Return True if the values of each field are of one family."""
    families = {_family_of_lists(kind) for kind in profile["kinds"] if kind != _ARRAY}
    return len(families) < 2 and all(map(is_of_one_kind, profile["fields"].values()))


def _family_of_lists(kind: str) -> str:
    return (
        f"{_ARRAY}{family(kind.removeprefix(_ARRAY))}" if kind.startswith(_ARRAY) else family(kind)
    )


def profile_of(value: Any, level: int = 0) -> Profile:
    """Return the profile of one parsed value at a level of a record."""
    kind = kind_of_value(value)
    if kind is None:
        return nothing()
    profile: Profile = {"kinds": {kind: 1}, "fields": {}}
    if kind == "object" and level < LEVELS:
        profile["fields"] = {
            name: _mixed(1)
            if name == MIXED and level == 0 and isinstance(inner, list)
            else profile_of(inner, level + 1)
            for name, inner in value.items()
        }
    return profile


def _mixed(count: int) -> Profile:
    """Return the profile of lists that mix kinds by design, whose items are not counted."""
    return {"kinds": {_ARRAY + _ANY: count} if count else {}, "fields": {}}


def kind_of_value(value: Any) -> str | None:
    """Return the kind of a parsed value, or None for null."""
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            rank = integer_rank(value, value)
            return _INTEGERS[rank] if rank < len(_INTEGERS) else _DIGITS
        case float():
            return "double"
        case Decimal():
            return _DIGITS
        case str():
            return "string"
        case list():
            return _ARRAY + _items_kind({kind_of_value(item) for item in value} - {None})
    return "object" if len(value) <= MAX_PROPERTIES else _WIDE


def _items_kind(item_kinds: set[Any]) -> str:
    """Return the item kind of a list, given the kinds of its items."""
    if not item_kinds:
        return ""
    if len({family(kind) for kind in item_kinds}) > 1 or not item_kinds <= {
        *_NUMBERS,
        "string",
        "boolean",
    }:
        return _ANY
    if not item_kinds & {*_NUMBERS}:
        return str(next(iter(item_kinds)))
    chosen = _number_kind(dict.fromkeys(item_kinds, 1))
    if chosen == "integer":
        return (
            max(item_kinds & {*_INTEGERS}, key=_INTEGERS.index)
            if item_kinds <= {*_INTEGERS}
            else _ANY
        )
    fits = item_kinds <= {"integer53", "double"}
    return "double" if chosen == "number" and fits else _ANY


def profile_of_array(array: pa.Array, level: int = 0) -> Profile:
    """Return the profile of values that Arrow has read with exact digits."""
    type_, count = array.type, len(array) - array.null_count
    if not count or kinds.is_null(type_):
        return nothing()
    if kinds.is_struct(type_):
        if type_.num_fields > MAX_PROPERTIES:
            return {"kinds": {"object": count}, "fields": {}, "crowded": True}
        fields = {}
        if level < LEVELS:
            for member, child in zip(type_, array.flatten(), strict=True):
                fields[member.name] = (
                    _mixed(len(child) - child.null_count)
                    if is_mixed(member, level)
                    else profile_of_array(child, level + 1)
                )
        return {"kinds": {"object": count}, "fields": fields}
    kind = _array_kind(array)
    if kinds.is_list(type_):
        filled = int(pc.sum(pc.greater(pc.list_value_length(array), 0)).as_py() or 0)
        counts = {kind: filled} if filled else {}
        return {
            "kinds": counts | ({_ARRAY: count - filled} if count > filled else {}),
            "fields": {},
        }
    return {"kinds": {kind: count}, "fields": {}}


def _array_kind(array: pa.Array) -> str:
    type_ = array.type
    if kinds.is_list(type_):
        items = array.flatten()
        if len(items) == items.null_count:
            return _ARRAY
        if kinds.is_struct(items.type) or kinds.is_list(items.type):
            return _ARRAY + _ANY
        return _ARRAY + _array_kind(items)
    if kinds.is_integer(type_):
        ends = pc.min_max(array).as_py()
        rank = integer_rank(ends["min"], ends["max"])
        return _INTEGERS[rank] if rank < len(_INTEGERS) else _DIGITS
    if kinds.is_floating(type_):
        return "double"
    return "boolean" if kinds.is_boolean(type_) else "string"


@dataclass(slots=True)
class Counting(Look):
    """The shape and the profile of all texts seen so far."""

    profile: Profile = field(default_factory=nothing)
    wide: Profile = field(default_factory=nothing)
    """The profile of the records with too many fields."""

    def take_array(self, values: pa.Array, shape: Shape) -> None:
        """Add the profile of texts that Arrow has read."""
        self.profile = added(self.profile, profile_of_array(values))
        Look.take_array(self, values, shape)

    def take_value(self, value: Any) -> None:
        """Add the profile of one parsed text."""
        profile = profile_of(value)
        if _WIDE in profile["kinds"]:
            self.wide = added(self.wide, profile)
        else:
            self.profile = added(self.profile, profile)
        Look.take_value(self, value)

    def may_skip(self) -> bool:
        """Return True if texts that match the earlier ones have the same kinds for certain."""
        return is_of_one_kind(self.profile)

    def skip(self, count: int, sample: int) -> None:
        """Count `count` matching texts in proportion to the first `sample` texts."""
        if sample:
            self.profile = added(self.profile, times(self.profile, count / sample))


def profile_texts(values: pa.BinaryArray, *, careful: bool = False) -> Profile | None:
    """Return the profile of JSON texts, or None if none of them has a value.

    Of many texts the first are counted, and all that do not match these. The other texts count in
    proportion to the first.
    """
    look = Counting(parts=False, careful=careful)
    looked_at(values, look)
    profile = look.profile if look.profile["kinds"] else look.wide
    return profile if profile["kinds"] else None


# Deciding the kinds of columns.


@dataclass(frozen=True, slots=True)
class Doubt:
    """A column whose kind was decided although values of several kinds were seen."""

    column: str
    kind: str
    values: Mapping[str, int]
    """The number of values, by family."""
    later: Mapping[str, int] = field(default_factory=dict)
    """The number of values of other kinds that came later, by the names that `retyped` accepts."""


_MINORITY = 0.1
"""The share of values of other kinds from which a decision is reported as close."""
_ENOUGH = 10
"""The number of values from which a decision is no longer in doubt for being made on too few."""


class Learner:
    """A builder that extends the document of one table by profiles of its records."""

    def __init__(self, policy: Evolution, *, table: str = "") -> None:
        self._policy = policy
        self._table = table
        self.doubts: list[Doubt] = []
        """Close decisions since this object was created, and those on few values."""
        self.later: dict[str, dict[str, int]] = {}
        """The number of values by kind whose column was decided for another one before."""

    def extended(self, document: Shape, profile: Profile) -> Shape:
        """Return the document extended by the fields and kinds of a profile."""
        return self._extended(mended(document), profile, ())

    def _extended(self, current: Shape, profile: Profile, path: tuple[str, ...]) -> Shape:
        if not current:
            return current
        plain, side_shapes = alternatives(current)
        types = _types(plain)
        if not types:
            return self._decided(profile, path, wanted=plain.get(_WANTED))
        self._count_others(types, profile, path)
        if types == {"object"}:
            return self._with_fields(plain, profile, path)
        if types == {"array"}:
            return lists(self._items(plain["items"], profile))
        if len(types) > 1:
            # JSON text, decided for exact numbers or by an earlier version that mixed kinds
            new_types = {_json_type(kind) for kind in profile["kinds"]} - {""}
            return {**plain, "type": sorted({*types, *new_types, "null"})}
        return self._with_asides(plain, side_shapes, profile, path)

    def _decided(self, profile: Profile, path: tuple[str, ...], wanted: str | None = None) -> Shape:
        """Choose the kind of a field that had no value before, or take the `wanted` kind."""
        counts: dict[str, int] = {}
        for kind, count in profile["kinds"].items():
            counts[family(kind)] = counts.get(family(kind), 0) + count
        if wanted is not None and wanted not in counts:
            return {**NOTHING, _WANTED: wanted}
        if not counts:
            return NOTHING
        order = (*_FAMILIES, _WIDE)
        chosen = wanted or max(counts, key=lambda name: (counts[name], -order.index(name)))
        if wanted is None:
            self._doubt(counts, chosen, path)
        if chosen == _WIDE or (chosen == "object" and profile.get("crowded")):
            return ANYTHING
        if chosen == "object":
            shape = self._with_fields(objects({}, len(path)), profile, path)
            # a lake has no struct without fields, so an object of unknown fields stays text for
            # good
            return (
                shape if not path or any(map(_types, shape.get("properties", {}).values())) else {}
            )
        if chosen == "array":
            items = self._items(NOTHING, profile)
            return lists(items if items != NOTHING else ANYTHING)
        plain = _PLAIN.get(chosen, NOTHING)
        if chosen == "number":
            kind = _number_kind(profile["kinds"])
            plain = {"integer": INTEGERS[0], "number": NUMBER, "text": EXACT}[kind]
            if kind == "text":
                return self._extended(plain, profile, path)
        return self._with_asides(plain, {}, profile, path, first=True)

    def _doubt(self, counts: Mapping[str, int], chosen: str, path: tuple[str, ...]) -> None:
        others = sum(counts.values()) - counts[chosen]
        total = sum(counts.values())
        if (others and others >= _MINORITY * total) or (path and total < _ENOUGH):
            self.doubts.append(Doubt(".".join(path), chosen, dict(counts)))

    def _count_others(
        self, types: Collection[str], profile: Profile, path: tuple[str, ...]
    ) -> None:
        """Count the values of a profile that are of another kind than their column."""
        own = {"number" if name == "integer" else name for name in types}
        counts: dict[str, int] = {}
        for kind, count in profile["kinds"].items():
            if family(kind) not in own and family(kind) in _FAMILIES:
                name = _json_type(kind) or family(kind)
                counts[name] = counts.get(name, 0) + count
        if path and counts and len(own) == 1:
            self.later[".".join(path)] = counts

    def _with_fields(self, plain: Shape, profile: Profile, path: tuple[str, ...]) -> Shape:
        current_fields = plain.get("properties", {})
        new = profile["fields"].keys() - current_fields.keys()
        if new and current_fields and self._policy.new_field == "dead_letter":
            new = set()
        if len(current_fields) + len(new) > MAX_PROPERTIES:
            new = set()
        fields = dict(current_fields)
        for name, field_profile in profile["fields"].items():
            if name in current_fields or name in new:
                fields[name] = self._extended(
                    current_fields.get(name, NOTHING), field_profile, (*path, name)
                )
        return {**plain, "properties": fields}

    def _items(self, current: Shape, profile: Profile) -> Shape:
        """Return the shape of list items: one kind, or anything."""
        votes = {
            kind.removeprefix(_ARRAY): count
            for kind, count in profile["kinds"].items()
            if kind.startswith(_ARRAY) and kind != _ARRAY
        }
        if not current or not votes:
            return current
        types = _types(current)
        if not types:
            return self._chosen_items(votes)
        if types == {"integer"} and self._widens:
            ranks = [_INTEGERS.index(kind) for kind in votes if kind in _INTEGERS]
            return INTEGERS[max([_rank(current), *ranks])]
        return current

    @staticmethod
    def _chosen_items(votes: Mapping[str, int]) -> Shape:
        counts: dict[str, int] = {}
        for kind, count in votes.items():
            counts[family(kind)] = counts.get(family(kind), 0) + count
        order = (_ANY, *_FAMILIES)
        chosen = max(counts, key=lambda name: (counts[name], -order.index(name)))
        if chosen != "number":
            return _PLAIN.get(chosen, ANYTHING)
        kind = _number_kind({name: count for name, count in votes.items() if name in _NUMBERS})
        if kind == "integer":
            return INTEGERS[max(_INTEGERS.index(name) for name in votes if name in _INTEGERS)]
        return NUMBER if kind == "number" else ANYTHING

    @property
    def _widens(self) -> bool:
        return self._policy.wider_type == "widen" and not self._policy.same_kind

    def _with_asides(
        self,
        plain: Shape,
        known_asides: Mapping[str, Shape],
        profile: Profile,
        path: tuple[str, ...],
        *,
        first: bool = False,
    ) -> Shape:
        """Return a single value's shape with a side column for each other kind in the profile."""
        (plain_type,) = _types(plain)
        asides = dict(known_asides)
        for kind in sorted(profile["kinds"]):
            if plain_type == "integer" and kind in _INTEGERS:
                rank = _INTEGERS.index(kind)
                if rank <= max(_rank(plain), 1) or first or self._widens:
                    plain = INTEGERS[max(_rank(plain), rank)]
                    continue
                if self._allows(self._policy.wider_type, plain_type, kind, path):
                    asides["integer"] = INTEGERS[max(_rank(asides.get("integer", {})), rank)]
                continue
            column_type = _place(plain_type, kind)
            if column_type == plain_type or column_type is None or not path:
                continue
            if self._allows(self._policy.type_change, plain_type, kind, path):
                asides[column_type] = _beside(asides.get(column_type), kind)
                if column_type == "number" and plain_type != "integer":
                    # Arrow does not report which of several numbers were integers
                    asides["integer"] = _beside(asides.get("integer"), _INTEGERS[0])
        if not asides:
            return plain
        return {APART: True, "anyOf": [plain, *(asides[name] for name in sorted(asides))]}

    def _allows(self, action: str, plain_type: str, kind: str, path: tuple[str, ...]) -> bool:
        """Return True if the policy allows a side column; raise if the policy is `fail`."""
        if action == "fail":
            raise EvolutionError(
                "a value of another kind arrived, and evolution.type_change is fail",
                where=printable(f"{self._table}: {'.'.join(path)}"),
                evidence=f"{kind} where the column has {plain_type}",
                next_step="set evolution.type_change to side_column or dead_letter",
            )
        # inside an object a side column is a new field of that object
        return action in ("side_column", "widen") and (
            len(path) < LEVELS or self._policy.new_field == "add"
        )


_PLAIN = {"string": STRING, "boolean": BOOLEAN}


def _number_kind(counts: Mapping[str, int]) -> Literal["integer", "number", "text"]:
    """Return the kind of column that holds all of the numbers, or else most of them."""
    integers = sum(counts.get(kind, 0) for kind in _INTEGERS)
    digits, large = counts.get(_DIGITS, 0), integers - counts.get("integer53", 0)
    in_double = counts.get("integer53", 0) + counts.get("double", 0)
    if digits > max(integers, in_double):
        return "text"
    if not counts.get("double", 0) and not digits:
        return "integer"
    if not large and in_double:
        return "number"
    return "integer" if integers > in_double else "number"


def _place(plain_type: str, kind: str) -> str | None:
    """Return the column type for a single value: the plain type, a side type, or None.

    `plain_type` is the JSON Schema type of the plain column. None means that no column can hold the
    value.
    """
    if family(kind) not in ("string", "number", "boolean"):
        return None
    if kind == _DIGITS:
        return "string" if plain_type in ("integer", "number") else None
    if plain_type == "number" and kind in ("integer53", "double"):
        return plain_type
    return _json_type(kind)


def _json_type(kind: str) -> str:
    if kind in _INTEGERS:
        return "integer"
    return {"double": "number", _DIGITS: "number", "string": "string", "boolean": "boolean"}.get(
        kind, ""
    )


def _beside(current: Shape | None, kind: str) -> Shape:
    if kind in _INTEGERS:
        return INTEGERS[max(_rank(current or {}), _INTEGERS.index(kind), 1)]
    if kind == _DIGITS or (kind == "string" and current == EXACT):
        return EXACT
    return {"double": NUMBER, "string": STRING, "boolean": BOOLEAN}[kind]


def _rank(shape: Shape) -> int:
    return INTEGERS.index(shape) if shape in INTEGERS else 0


def _types(shape: Shape) -> set[str]:
    types = shape.get("type", ())
    return ({types} if isinstance(types, str) else {*types}) - {"null"}


def alternatives(shape: Shape) -> tuple[Shape, dict[str, Shape]]:
    """Return the shape of a field's plain column, and the shapes of its side columns by type."""
    if APART not in shape:
        return shape, {}
    plain, *others = shape["anyOf"]
    # exact numbers share the side column of texts
    names = ("string" if other == EXACT else next(iter(_types(other))) for other in others)
    return plain, dict(zip(names, others, strict=True))


def kind_name(shape: Shape) -> str:
    """Return the kind of a field's plain column, by the names that `retyped` accepts."""
    plain, _ = alternatives(shape)
    types = _types(plain)
    return next(iter(types)) if len(types) == 1 else str(plain.get(_WANTED, "json"))


def mended(document: Shape) -> Shape:
    """Return a document of one kind, if an earlier version has mixed kinds at the top."""
    return of_one_kind(document) if len(_types(document)) > 1 else document


# Correcting the kind of a column.

_WANTED = "x-kind-wanted"
"""The kind that the column of a field without values will have, whatever value comes first."""
_RETYPED: Mapping[str, Shape] = {
    "boolean": BOOLEAN,
    "integer": INTEGERS[1],
    "number": NUMBER,
    "string": STRING,
    "json": ANYTHING,
    "object": {**NOTHING, _WANTED: "object"},
    "array": {**NOTHING, _WANTED: "array"},
}
KINDS = tuple(_RETYPED)
"""The kinds that `retyped` can give to a column."""


def retyped(document: Shape, path: Sequence[str], kind: str) -> Shape | None:
    """Return a document in which a field has another kind, or None if the field does not exist."""
    name, *rest = path
    fields = document.get("properties", {})
    if name not in fields:
        return None
    shape = retyped(fields[name], rest, kind) if rest else _RETYPED[kind]
    return None if shape is None else {**document, "properties": {**fields, name: shape}}
