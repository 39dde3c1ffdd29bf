"""The kind of each column of a table of JSON without a schema: decided once, by most values.

Tasks count of which kinds the values of each field are: a profile. The driver makes a document of
it, a JSON Schema. In the first batch with a field, the kind that most values have becomes the kind
of its column, and it stays. A single value of another kind has a column beside it: the document has
both in an `anyOf` with the mark `APART`, the plain column first. Where the evolution policy wants
no such column, and where an object or a list stands against a single value, the document does not
take the value: its record is a dead letter.

Profiles are added up, so that neither the order of records nor their split into tasks matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""`kinds`: values by kind; `fields`: profiles of an object's fields; `crowded`: too many fields."""

_INTEGERS = ("integer53", "integer64", "integer20", "integer38")
"""Integers that a double holds, of 64 bits, of 20 and of 38 digits."""
_DIGITS = "digits"
"""Numbers that neither a double nor a decimal holds with all their digits."""
_WIDE = "wide"
"""Objects of too many fields to be columns."""
_NUMBERS = (*_INTEGERS, "double", _DIGITS)
_ARRAY = "array:"
"""Lists, by the kind of their items; nothing behind the colon where there are none."""
_ANY = "any"
"""Of the items of a list: objects, lists, or several kinds."""
_FAMILIES = ("object", "array", "string", "number", "boolean")
"""Where two have as many values, the first of these is chosen."""


def family(kind: str) -> str:
    """Return the family of a kind: all numbers are one, and all lists."""
    if kind.startswith(_ARRAY):
        return "array"
    return "number" if kind in _NUMBERS else kind


# Counting.


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
    """Return what two looks say together: both are profiles, or both are shapes of changes."""
    return added(one, other) if "kinds" in one else widened(one, other)


def times(profile: Profile, factor: float) -> Profile:
    """Return what a sample stands for."""
    counts = {kind: max(1, round(count * factor)) for kind, count in profile["kinds"].items()}
    fields = {name: times(each, factor) for name, each in profile["fields"].items()}
    return {**profile, "kinds": counts, "fields": fields}


def is_of_one_kind(profile: Profile) -> bool:
    """Whether the values of each field are of one family."""
    families = {_family_of_lists(kind) for kind in profile["kinds"] if kind != _ARRAY}
    return len(families) < 2 and all(map(is_of_one_kind, profile["fields"].values()))


def _family_of_lists(kind: str) -> str:
    return (
        f"{_ARRAY}{family(kind.removeprefix(_ARRAY))}" if kind.startswith(_ARRAY) else family(kind)
    )


def profile_of(value: Any, level: int = 0) -> Profile:
    """Return the profile of one parsed value that lies so deep in a record."""
    kind = kind_of_value(value)
    if kind is None:
        return nothing()
    profile: Profile = {"kinds": {kind: 1}, "fields": {}}
    if kind == "object" and level < LEVELS:
        profile["fields"] = {
            name: _mixed(1)
            if name == MIXED and level == 0 and isinstance(each, list)
            else profile_of(each, level + 1)
            for name, each in value.items()
        }
    return profile


def _mixed(count: int) -> Profile:
    """Return the profile of lists that mix kinds by design, and are not looked into."""
    return {"kinds": {_ARRAY + _ANY: count} if count else {}, "fields": {}}


def kind_of_value(value: Any) -> str | None:
    """Return the kind of a parsed value; None of null."""
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
            return _ARRAY + _items_kind({kind_of_value(each) for each in value} - {None})
    return "object" if len(value) <= MAX_PROPERTIES else _WIDE


def _items_kind(found: set[Any]) -> str:
    """Return the kind of items of a list, given the kinds of each of them."""
    if not found:
        return ""
    if len({family(each) for each in found}) > 1 or not found <= {*_NUMBERS, "string", "boolean"}:
        return _ANY
    if not found & {*_NUMBERS}:
        return str(next(iter(found)))
    chosen = _number_kind(dict.fromkeys(found, 1))
    if chosen == "integer":
        return max(found & {*_INTEGERS}, key=_INTEGERS.index) if found <= {*_INTEGERS} else _ANY
    fits = found <= {"integer53", "double"}
    return "double" if chosen == "number" and fits else _ANY


def profile_of_array(array: pa.Array, level: int = 0) -> Profile:
    """Return the profile of values that Arrow has read, whose shape is known to be exact."""
    type_, count = array.type, len(array) - array.null_count
    if not count or kinds.is_null(type_):
        return nothing()
    if kinds.is_struct(type_):
        if type_.num_fields > MAX_PROPERTIES:
            return {"kinds": {"object": count}, "fields": {}, "crowded": True}
        fields = {}
        if level < LEVELS:
            for each, child in zip(type_, array.flatten(), strict=True):
                fields[each.name] = (
                    _mixed(len(child) - child.null_count)
                    if is_mixed(each, level)
                    else profile_of_array(child, level + 1)
                )
        return {"kinds": {"object": count}, "fields": fields}
    kind = _array_kind(array)
    if kinds.is_list(type_):
        filled = int(pc.sum(pc.greater(pc.list_value_length(array), 0)).as_py() or 0)
        some = {kind: filled} if filled else {}
        return {"kinds": some | ({_ARRAY: count - filled} if count > filled else {}), "fields": {}}
    return {"kinds": {kind: count}, "fields": {}}


def _array_kind(array: pa.Array) -> str:
    type_ = array.type
    if kinds.is_list(type_):
        below = array.flatten()
        if len(below) == below.null_count:
            return _ARRAY
        if kinds.is_struct(below.type) or kinds.is_list(below.type):
            return _ARRAY + _ANY
        return _ARRAY + _array_kind(below)
    if kinds.is_integer(type_):
        ends = pc.min_max(array).as_py()
        rank = integer_rank(ends["min"], ends["max"])
        return _INTEGERS[rank] if rank < len(_INTEGERS) else _DIGITS
    if kinds.is_floating(type_):
        return "double"
    return "boolean" if kinds.is_boolean(type_) else "string"


@dataclass(slots=True)
class Counting(Look):
    """What texts look like that were looked at so far, with a profile of them."""

    profile: Profile = field(default_factory=nothing)
    wide: Profile = field(default_factory=nothing)
    """The profile of records that have too many fields."""

    def take_array(self, values: pa.Array, shape: Shape) -> None:
        """Take in texts that Arrow has read."""
        self.profile = added(self.profile, profile_of_array(values))
        Look.take_array(self, values, shape)

    def take_value(self, value: Any) -> None:
        """Take in one parsed text."""
        profile = profile_of(value)
        if _WIDE in profile["kinds"]:
            self.wide = added(self.wide, profile)
        else:
            self.profile = added(self.profile, profile)
        Look.take_value(self, value)

    def may_skip(self) -> bool:
        """Whether texts that look like those before them are of the same kinds for certain."""
        return is_of_one_kind(self.profile)

    def skip(self, count: int, sample: int) -> None:
        """Count texts that look like the first ones as these were counted."""
        if sample:
            self.profile = added(self.profile, times(self.profile, count / sample))


def profile_texts(values: pa.BinaryArray, *, careful: bool = False) -> Profile | None:
    """Return the profile of JSON texts; None if nothing can be said about any of them.

    Of many texts the first are counted, and all that do not look like these; the others count
    as the first do.
    """
    look = Counting(parts=False, careful=careful)
    looked_at(values, look)
    found = look.profile if look.profile["kinds"] else look.wide
    return found if found["kinds"] else None


# Deciding.


@dataclass(frozen=True, slots=True)
class Doubt:
    """A column whose kind was decided on values of several kinds."""

    column: str
    kind: str
    values: Mapping[str, int]
    """Values by family."""


_MINORITY = 0.1
"""Share of the values of other kinds from which a decision is worth a second look."""


class Learner:
    """Extends the document of one table by profiles of its records."""

    def __init__(self, policy: Evolution, *, table: str = "") -> None:
        self._policy = policy
        self._table = table
        self.doubts: list[Doubt] = []
        """Decisions since this object was made that were close."""

    def extended(self, known: Shape, profile: Profile) -> Shape:
        """Return the document that holds after records of this profile were seen."""
        return self._extended(mended(known), profile, ())

    def _extended(self, known: Shape, profile: Profile, path: tuple[str, ...]) -> Shape:
        if not known:
            return known
        plain, aside = alternatives(known)
        types = _types(plain)
        if not types:
            return self._decided(profile, path, wanted=plain.get(_WANTED))
        if types == {"object"}:
            return self._with_fields(plain, profile, path)
        if types == {"array"}:
            return lists(self._items(plain["items"], profile))
        if len(types) > 1:
            # JSON text: what was decided by a version that mixed kinds, or for exact numbers
            more = {_json_type(kind) for kind in profile["kinds"]} - {""}
            return {**plain, "type": sorted({*types, *more, "null"})}
        return self._with_asides(plain, aside, profile, path)

    def _decided(self, profile: Profile, path: tuple[str, ...], wanted: str | None = None) -> Shape:
        """Choose the kind of a field that had no value before, or take the one that is wanted."""
        counts: dict[str, int] = {}
        for kind, count in profile["kinds"].items():
            counts[family(kind)] = counts.get(family(kind), 0) + count
        if wanted is not None and wanted not in counts:
            return {**NOTHING, _WANTED: wanted}
        if not counts:
            return NOTHING
        order = (*_FAMILIES, _WIDE)
        chosen = wanted or max(counts, key=lambda each: (counts[each], -order.index(each)))
        if wanted is None:
            self._doubt(counts, chosen, path)
        if chosen == _WIDE or (chosen == "object" and profile.get("crowded")):
            return ANYTHING
        if chosen == "object":
            made = self._with_fields(objects({}, len(path)), profile, path)
            # the table has no type for an object that nothing is known of: text, and for good
            return made if not path or any(map(_types, made.get("properties", {}).values())) else {}
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
        if others and others >= _MINORITY * sum(counts.values()):
            self.doubts.append(Doubt(".".join(path), chosen, dict(counts)))

    def _with_fields(self, plain: Shape, profile: Profile, path: tuple[str, ...]) -> Shape:
        known = plain.get("properties", {})
        new = profile["fields"].keys() - known.keys()
        if new and known and self._policy.new_field == "dead_letter":
            new = set()
        if len(known) + len(new) > MAX_PROPERTIES:
            new = set()
        fields = dict(known)
        for name, each in profile["fields"].items():
            if name in known or name in new:
                fields[name] = self._extended(known.get(name, NOTHING), each, (*path, name))
        return {**plain, "properties": fields}

    def _items(self, known: Shape, profile: Profile) -> Shape:
        """Return the shape of the items of lists: of one kind, or anything."""
        votes = {
            kind.removeprefix(_ARRAY): count
            for kind, count in profile["kinds"].items()
            if kind.startswith(_ARRAY) and kind != _ARRAY
        }
        if not known or not votes:
            return known
        types = _types(known)
        if not types:
            return self._chosen_items(votes)
        if types == {"integer"} and self._widens:
            ranks = [_INTEGERS.index(kind) for kind in votes if kind in _INTEGERS]
            return INTEGERS[max([_rank(known), *ranks])]
        return known

    @staticmethod
    def _chosen_items(votes: Mapping[str, int]) -> Shape:
        counts: dict[str, int] = {}
        for kind, count in votes.items():
            counts[family(kind)] = counts.get(family(kind), 0) + count
        order = (_ANY, *_FAMILIES)
        chosen = max(counts, key=lambda each: (counts[each], -order.index(each)))
        if chosen != "number":
            return _PLAIN.get(chosen, ANYTHING)
        kind = _number_kind({each: count for each, count in votes.items() if each in _NUMBERS})
        if kind == "integer":
            return INTEGERS[max(_INTEGERS.index(each) for each in votes if each in _INTEGERS)]
        return NUMBER if kind == "number" else ANYTHING

    @property
    def _widens(self) -> bool:
        return self._policy.wider_type == "widen" and not self._policy.same_kind

    def _with_asides(
        self,
        plain: Shape,
        aside: Mapping[str, Shape],
        profile: Profile,
        path: tuple[str, ...],
        *,
        first: bool = False,
    ) -> Shape:
        """Return a single value's shape with a place for the kinds that were seen."""
        (own,) = _types(plain)
        beside = dict(aside)
        for kind in sorted(profile["kinds"]):
            if own == "integer" and kind in _INTEGERS:
                rank = _INTEGERS.index(kind)
                if rank <= max(_rank(plain), 1) or first or self._widens:
                    plain = INTEGERS[max(_rank(plain), rank)]
                    continue
                if self._allows(self._policy.wider_type, own, kind, path):
                    beside["integer"] = INTEGERS[max(_rank(beside.get("integer", {})), rank)]
                continue
            place = _place(own, kind)
            if place == own or place is None or not path:
                continue
            if self._allows(self._policy.type_change, own, kind, path):
                beside[place] = _beside(beside.get(place), kind)
                if place == "number" and own != "integer":
                    # Arrow does not say which of several numbers were integers
                    beside["integer"] = _beside(beside.get("integer"), _INTEGERS[0])
        if not beside:
            return plain
        return {APART: True, "anyOf": [plain, *(beside[name] for name in sorted(beside))]}

    def _allows(self, action: str, own: str, kind: str, path: tuple[str, ...]) -> bool:
        """Whether the policy wants a column beside the one of a field."""
        if action == "fail":
            raise EvolutionError(
                "a value of another kind arrived, and evolution.type_change is fail",
                where=printable(f"{self._table}: {'.'.join(path)}"),
                evidence=f"{kind} where the column has {own}",
                next_step="set evolution.type_change to side_column or dead_letter",
            )
        # inside of an object it is one more field of it
        return action in ("side_column", "widen") and (
            len(path) < LEVELS or self._policy.new_field == "add"
        )


def adds_nothing(profile: Profile, known: Shape, policy: Evolution) -> bool:
    """Whether a document stays as it is after records of this profile."""
    try:
        return Learner(policy).extended(known, profile) == known
    except EvolutionError:
        return False


_PLAIN = {"string": STRING, "boolean": BOOLEAN}


def _number_kind(counts: Mapping[str, int]) -> Literal["integer", "number", "text"]:
    """Return the kind that holds most of some numbers: all of them, wherever there is one."""
    whole = sum(counts.get(kind, 0) for kind in _INTEGERS)
    digits, wide = counts.get(_DIGITS, 0), whole - counts.get("integer53", 0)
    in_double = counts.get("integer53", 0) + counts.get("double", 0)
    if digits > max(whole, in_double):
        return "text"
    if not counts.get("double", 0) and not digits:
        return "integer"
    if not wide and in_double:
        return "number"
    return "integer" if whole > in_double else "number"


def _place(own: str, kind: str) -> str | None:
    """Return the column for a single value: the plain one, or one beside it; None: there is none.

    `own` is what the plain column has, by its name in JSON Schema.
    """
    if family(kind) not in ("string", "number", "boolean"):
        return None
    if kind == _DIGITS:
        return "string" if own in ("integer", "number") else None
    if own == "number" and kind in ("integer53", "double"):
        return own
    return _json_type(kind)


def _json_type(kind: str) -> str:
    if kind in _INTEGERS:
        return "integer"
    return {"double": "number", _DIGITS: "number", "string": "string", "boolean": "boolean"}.get(
        kind, ""
    )


def _beside(known: Shape | None, kind: str) -> Shape:
    if kind in _INTEGERS:
        return INTEGERS[max(_rank(known or {}), _INTEGERS.index(kind), 1)]
    if kind == _DIGITS or (kind == "string" and known == EXACT):
        return EXACT
    return {"double": NUMBER, "string": STRING, "boolean": BOOLEAN}[kind]


def _rank(shape: Shape) -> int:
    return INTEGERS.index(shape) if shape in INTEGERS else 0


def _types(shape: Shape) -> set[str]:
    types = shape.get("type", ())
    return ({types} if isinstance(types, str) else {*types}) - {"null"}


def alternatives(shape: Shape) -> tuple[Shape, dict[str, Shape]]:
    """Return the shape of a field's plain column, and those beside it by their type."""
    if APART not in shape:
        return shape, {}
    plain, *others = shape["anyOf"]
    # of exact numbers and texts, by the column that they have together
    names = ("string" if each == EXACT else next(iter(_types(each))) for each in others)
    return plain, dict(zip(names, others, strict=True))


def kind_name(shape: Shape) -> str:
    """Return the kind of a field's plain column, as `retyped` calls it."""
    plain, _ = alternatives(shape)
    types = _types(plain)
    return next(iter(types)) if len(types) == 1 else str(plain.get(_WANTED, "json"))


def mended(known: Shape) -> Shape:
    """Return a document that an earlier version has mixed up, as one of objects again."""
    return of_one_kind(known) if len(_types(known)) > 1 else known


# Correcting.

_WANTED = "x-kind-wanted"
"""Of a field without values: the kind that its column will have, whatever comes first."""
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
"""The kinds that a column can be given."""


def retyped(document: Shape, path: Sequence[str], kind: str) -> Shape | None:
    """Return a document in which a field has another kind; None where there is no such field."""
    name, *rest = path
    fields = document.get("properties", {})
    if name not in fields:
        return None
    shape = retyped(fields[name], rest, kind) if rest else _RETYPED[kind]
    return None if shape is None else {**document, "properties": {**fields, name: shape}}
