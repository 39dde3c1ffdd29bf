"""From a JSON Schema to the plan of its columns.

A plan holds whatever the schema lets pass, save for what nobody means: a schema with `properties`
and without `type` stands for objects. Where a value can be of several types it is JSON text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import pyarrow as pa

from distributary.evolve.types import side_suffix
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.registry.compile.json import Facts, TooManyAlternativesError, facts_of
from distributary.registry.compile.json_documents import Documents, Node

# What the plan of a JSON Schema is made of.

APART = "x-kinds-apart"
"""Marks an `anyOf` whose first schema is the plain column, and the others are columns beside it."""

MAX_DECIMAL_DIGITS = 38


class Kind(Enum):
    """What a value is."""

    VOID = auto()
    """Never anything but null, or never there."""
    BOOLEAN = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """An integer that a schema lets grow beyond 64 bits."""
    DIGITS = auto()
    """An integer that no decimal can hold: text."""
    NUMBER = auto()
    STRING = auto()
    INSTANT = auto()
    DATE = auto()
    LIST = auto()
    MAP = auto()
    STRUCT = auto()
    TEXT = auto()
    """Anything else: kept as JSON text."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its type in the lake, and what must be known to read it."""

    kind: Kind
    type: pa.DataType
    unit: str = ""
    """What people should know about texts, for the column's comment."""
    nullable: bool = False
    """Whether the schema takes an explicit null."""
    allowed: tuple[str, ...] | None = None
    """Of a string: the only values there are."""
    item: Value | None = None
    """Of a list or a map."""
    members: tuple[Member, ...] = ()
    open: bool = False
    """Of a struct: it may have properties that are no members."""
    plain: bool = False
    """Whether its type, its nulls and its members are all that the schema asks for."""
    asides: tuple[Value, ...] = ()
    """Of a member: what values of other kinds are, each in a column beside this one."""

    @property
    def shown(self) -> tuple[Member, ...]:
        """The members that have a place in the lake, each with those beside it."""
        shown = [m for m in self.members if m.value.kind is not Kind.VOID]
        if not any(m.value.asides for m in shown):
            return tuple(shown)
        taken = {m.name.casefold() for m in shown}
        return tuple(each for m in shown for each in (m, *_beside(m, taken)))

    @property
    def leaves_rest(self) -> bool:
        """Whether something in it can be left that has no place in its type."""
        return self.open or any(each.leaves_rest for each in self.below())

    def below(self) -> list[Value]:
        """The values that it is made of."""
        return [m.value for m in self.members] + ([self.item] if self.item is not None else [])


@dataclass(frozen=True, slots=True)
class Member:
    """A property of an object."""

    name: str
    """In the lake."""
    property: str
    """In the payload."""
    value: Value
    required: bool
    note: str = ""
    side_of: str = ""
    """The member that this one stands beside, and holds values of another kind for."""


def _beside(member: Member, taken: set[str]) -> Iterator[Member]:
    for value in member.value.asides:
        name = f"{member.name}__{side_suffix(value.type)}"
        while name.casefold() in taken:
            name += "_"
        taken.add(name.casefold())
        yield Member(name, member.property, value, False, value.unit, side_of=member.name)


BOOLEAN = Value(Kind.BOOLEAN, pa.bool_())
INTEGER = Value(Kind.INTEGER, pa.int64())
NUMBER = Value(Kind.NUMBER, pa.float64())
STRING = Value(Kind.STRING, pa.string())
INSTANT = Value(Kind.INSTANT, TIMESTAMP)
DATE = Value(Kind.DATE, pa.date32())
TEXT = Value(Kind.TEXT, pa.string(), unit="JSON text")
VOID = Value(Kind.VOID, pa.string())


def struct_of(members: tuple[Member, ...], *, open: bool, plain: bool) -> Value:
    """An object with columns of its own."""
    shown = Value(Kind.STRUCT, pa.struct([]), members=members).shown
    type_ = pa.struct([pa.field(m.name, m.value.type) for m in shown])
    plain = plain and all(m.value.plain and m.value.kind is not Kind.VOID for m in members)
    return Value(Kind.STRUCT, type_, members=members, open=open, plain=plain)


# The plan of single values: numbers and texts of a JSON Schema.

_INT64 = range(-(2**63), 2**63)
_FORMATS = {"date-time": INSTANT, "date": DATE}


def unlisted(facts: Iterable[Facts]) -> bool:
    """Whether the values are not told one by one."""
    return all(f.values is None for f in facts)


def integer(facts: Sequence[Facts]) -> Value:
    """An integer, of as many bits or digits as the schema lets it have."""
    bounds = [bound for f in facts for bound in _bounds(f)]
    if all(bound in _INT64 for bound in bounds):
        return replace(INTEGER, plain=unlisted(facts))
    digits = max(len(str(abs(bound))) for bound in bounds)
    for most in (20, MAX_DECIMAL_DIGITS):
        if digits <= most:
            return Value(Kind.DECIMAL, pa.decimal128(most, 0))
    return Value(Kind.DIGITS, pa.string(), unit="integer as text")


def _bounds(facts: Facts) -> Iterable[int]:
    """How far a schema says that its integers may go."""
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        for _, bound in facts.words(word):
            # in draft 4 the exclusive ones are switches
            if isinstance(bound, int | float) and not isinstance(bound, bool):
                yield int(bound)
    for text in facts.values or ():
        if text.lstrip("-").isdigit():
            yield int(text)


def string(facts: Sequence[Facts]) -> Value:
    """A text, or what its format says that it is."""
    if not unlisted(facts):
        listed = [f.values for f in facts]
        if len(facts) == 1 and listed[0] is not None:
            texts = [t for t in map(json.loads, sorted(listed[0])) if isinstance(t, str)]
            return replace(STRING, allowed=tuple(texts), plain=True)
        return STRING
    formats = {said for f in facts for _, said in f.words("format") if isinstance(said, str)}
    told = all(any(f.words("format")) for f in facts)
    known = _FORMATS.get(next(iter(formats))) if told and len(formats) == 1 else None
    return replace(known or STRING, plain=True)


# What the properties of an object are called in the lake.

MAX_CHARACTERS = 128
_NOT_WORD = re.compile(r"\W")


def lake_names(properties: Iterable[str], *, top: bool) -> dict[str, str]:
    """A name for each property, made of letters, digits and underscores.

    A lake's names do not differ by case, and names with a leading underscore belong to the
    pipeline's own columns at the top. Where several properties would get one name, the plainest
    has it, whatever the order; the others end in a digest of their own name, so that one more of
    them does not rename the rest.
    """
    wanted = {name: _plain(name, top=top) for name in properties}
    owners: dict[str, str] = {}
    for name, new in wanted.items():
        folded = new.casefold()
        owners[folded] = min(owners.get(folded, name), name, key=lambda n: _effort(n, wanted[n]))
    given: dict[str, str] = {}
    taken = set(owners)
    for name, new in wanted.items():
        given[name] = new
        if owners[new.casefold()] != name:
            given[name] = f"{new}_{_digest(name)}"
            while given[name].casefold() in taken:
                given[name] += "_"
            taken.add(given[name].casefold())
    return given


def _effort(name: str, new: str) -> tuple[bool, bool, str]:
    """How much had to be done to a name; ties are broken by the name itself."""
    return new != name, name != name.casefold(), name


def _plain(name: str, *, top: bool) -> str:
    plain = _NOT_WORD.sub("_", name)
    if not plain.strip("_") or (top and plain.startswith("_")):
        plain = f"field{plain if plain.startswith('_') else f'_{plain}'}"
    if len(plain) > MAX_CHARACTERS:
        plain = f"{plain[: MAX_CHARACTERS - 9]}_{_digest(name)}"
    return plain


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]


MAX_FIELDS = 5_000
"""Of one payload; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of objects and arrays in each other; what lies below is JSON text."""
_NO_LIMIT = 2**31
_DESCRIPTION_CHARACTERS = 200
_STRUCTURE = {"properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
# asks for more than a type can show
_ASKS = frozenset(
    (
        "additionalItems contains contentEncoding contentMediaType dependencies "
        "dependentRequired dependentSchemas else exclusiveMaximum exclusiveMinimum if maxItems "
        "maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf not "
        "pattern patternProperties prefixItems propertyNames then unevaluatedItems "
        "unevaluatedProperties uniqueItems $dynamicRef $recursiveRef"
    ).split()
)

Union = Sequence[tuple[Node, ...]]
"""A value that matches all schemas of at least one of these."""
Path = tuple[frozenset[str], ...]
"""The objects and arrays around a value, by what gives them their members."""


class _TooManyFieldsError(Exception):
    """A plan has more fields than a table can hold."""


@dataclass(frozen=True, slots=True)
class Payload:
    """How a payload becomes rows."""

    row: Value
    """A struct; the columns are its members."""
    listed: bool
    """The payload is an array of rows."""
    bare: bool
    """A row is no object: it is the one member's value itself."""


def plan_payload(documents: Documents, *, recursion_depth: int) -> Payload:
    """Plan the payloads of a schema.

    Schemas that contain each other can unfold into more columns than a table can hold: then
    recursion, and after that nesting, is followed less far, and the rest stays JSON text.
    """
    tries = [(depth, MAX_LEVELS) for depth in range(recursion_depth, -1, -1)]
    tries += [(0, levels) for levels in (20, 10, 5, 3, 2)]
    for depth, levels in tries:
        try:
            return _Planner(documents, depth, levels, MAX_FIELDS).payload()
        except _TooManyFieldsError:
            continue
    return _Planner(documents, 0, 1, _NO_LIMIT).payload()


@dataclass(slots=True)
class _Planner:
    documents: Documents
    recursion_depth: int
    levels: int
    fields_left: int

    def payload(self) -> Payload:
        root: Union = [(self.documents.root,)]
        row = self._row(root)
        if row is not None:
            return Payload(row, listed=False, bare=False)
        facts = self._alternatives(root) or ()
        if facts and all(f.meant_atoms == {"array"} and not f.tuple_like for f in facts):
            items: Union = [f.items for f in facts]
            found = self._row(items)
            row = found or self._bare(items)
            # what the array itself must be, no row of it can show
            plain = row.plain and _exact(facts) and unlisted(facts)
            return Payload(replace(row, plain=plain), listed=True, bare=found is None)
        return Payload(self._bare(root), listed=False, bare=True)

    def _row(self, union: Union) -> Value | None:
        """An object with properties as a row; None for anything else."""
        facts = self._alternatives(union)
        if facts is None:
            return None
        objects = [f for f in facts if f.meant_atoms != {"null"}]
        if not any(f.names for f in objects):
            return None
        if any(f.meant_atoms - {"null"} != {"object"} for f in objects):
            return None
        row = self._struct(objects, (_identity(objects),), 0, top=True)
        return replace(row, nullable=_nullable(facts), plain=row.plain and _exact(facts))

    def _bare(self, union: Union) -> Value:
        value = self._value(union, (), 0)
        if value.kind is Kind.VOID:
            value = replace(TEXT, nullable=True)
        member = Member("value", "", value, required=True, note=value.unit)
        return struct_of((member,), open=False, plain=True)

    def _value(self, union: Union, path: Path, level: int) -> Value:
        if apart := self._apart(union):
            plain, *others = (self._value([(node,)], path, level) for node in apart)
            # Arrow rounds what a double does not hold: then each number has to be looked at
            numbers = plain.kind is Kind.NUMBER and any(v.kind in _OF_NUMBERS for v in others)
            asides = tuple(_exact_text(each) for each in others)
            return replace(plain, nullable=True, plain=plain.plain and not numbers, asides=asides)
        facts = self._alternatives(union)
        if facts is None:
            return replace(TEXT, nullable=True)
        nullable = _nullable(facts)
        real = [f for f in facts if f.meant_atoms != {"null"}]
        types = frozenset().union(*(f.meant_atoms for f in real)) - {"null"}
        value = self._of_type(real, types, path, level)
        return replace(value, nullable=nullable, plain=value.plain and _exact(facts))

    def _apart(self, union: Union) -> list[Node]:
        """The alternatives of a schema that has a column for each of them; else none."""
        if len(union) != 1 or len(union[0]) != 1 or APART not in union[0][0].keywords:
            return []
        node = union[0][0]
        return [self.documents.below(node, "anyOf", i) for i in range(len(node.content["anyOf"]))]

    def _of_type(
        self, facts: Sequence[Facts], types: frozenset[str], path: Path, level: int
    ) -> Value:
        match sorted(types):
            case []:
                return VOID
            case ["boolean"]:
                return replace(BOOLEAN, plain=unlisted(facts))
            case ["integer"]:
                return integer(facts)
            case ["real"] | ["integer", "real"]:
                return replace(NUMBER, plain=unlisted(facts))
            case ["string"]:
                return string(facts)
            case ["object"] | ["array"] as only:
                identity = _identity(facts)
                cut = path.count(identity) > self.recursion_depth or level >= self.levels
                if not cut:
                    build = self._struct_or_map if only == ["object"] else self._list
                    return build(facts, (*path, identity), level + 1)
        return TEXT

    def _list(self, facts: Sequence[Facts], path: Path, level: int) -> Value:
        if any(f.tuple_like or not f.items for f in facts):
            return TEXT
        item = self._value([f.items for f in facts], path, level)
        plain = item.plain and unlisted(facts)
        return Value(Kind.LIST, pa.list_(item.type), item=item, plain=plain)

    def _struct_or_map(self, facts: Sequence[Facts], path: Path, level: int) -> Value:
        if any(f.names for f in facts):
            struct = self._struct(facts, path, level)
            return struct if struct.shown else TEXT
        union: list[tuple[Node, ...]] = []
        for each in facts:
            if not each.closed and not each.others:
                return TEXT
            union += [
                (self.documents.below(node, "patternProperties", pattern),)
                for node, patterns in each.words("patternProperties")
                for pattern in patterns
            ]
            union += [each.others] if not each.closed else []
        if not union:
            return TEXT
        item = self._value(union, path, level)
        return Value(Kind.MAP, pa.map_(pa.string(), item.type), item=item)

    def _struct(
        self, facts: Sequence[Facts], path: Path, level: int, *, top: bool = False
    ) -> Value:
        properties = dict.fromkeys(name for f in facts for name in f.names)
        names = lake_names(properties, top=top)
        members = tuple(self._member(facts, each, names[each], path, level) for each in properties)
        open_ = any(not f.closed or f.patterns for f in facts)
        # Arrow sees members only: it does not miss what must be there and is none of them
        plain = unlisted(facts) and all(f.required <= set(f.names) for f in facts)
        return struct_of(members, open=open_, plain=plain)

    def _member(
        self, facts: Sequence[Facts], property_: str, name: str, path: Path, level: int
    ) -> Member:
        self.fields_left -= 1
        if self.fields_left < 0:
            raise _TooManyFieldsError
        union = [f.property(property_) for f in facts if property_ in f.names]
        value = self._value(union, path, level)
        notes = [value.unit, f"renamed from {printable(property_)}" if name != property_ else ""]
        notes.append(_description(union))
        return Member(
            name,
            property_,
            value,
            required=all(property_ in f.required for f in facts),
            note="; ".join(filter(None, notes)),
        )

    def _alternatives(self, union: Union) -> tuple[Facts, ...] | None:
        """Everything that a value can be; None when that is too much."""
        try:
            return tuple(
                each for nodes in union for each in facts_of(self.documents, nodes).alternatives()
            )
        except TooManyAlternativesError:
            return None


_OF_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT)


def _exact_text(value: Value) -> Value:
    """A column beside another that holds texts as they are, and numbers by their digits."""
    return Value(Kind.DIGITS, pa.string()) if value.kind is Kind.TEXT else value


def _identity(facts: Iterable[Facts]) -> frozenset[str]:
    """What says that an object is of the same make as another: the schemas that give it members."""
    return frozenset(n.key for f in facts for n in f.nodes if _STRUCTURE & n.keywords.keys())


def _nullable(facts: Iterable[Facts]) -> bool:
    return any("null" in f.meant_atoms for f in facts)


def _exact(facts: Sequence[Facts]) -> bool:
    """Whether types, members and listed texts are all that the schemas ask for."""
    if sum(f.meant_atoms != {"null"} for f in facts) > 1 or len(facts) > 2:
        return False
    if len(facts) == 2 and any(f.meant_atoms > {"null"} for f in facts):
        # both branches of a oneOf take null, so that null is not taken at all
        return False
    nodes = [node for f in facts for node in f.nodes]
    if any(_ASKS & node.keywords.keys() for node in nodes):
        return False
    documents = facts[0].documents if facts else None
    blind = [n for n in nodes if "$ref" in n.keywords and documents and not documents.target(n)]
    return not blind


def _description(union: Union) -> str:
    said: Mapping[str, Any] = union[0][0].keywords if union and union[0] else {}
    text = said.get("description")
    if not isinstance(text, str):
        return ""
    return printable(" ".join(text.split())[:_DESCRIPTION_CHARACTERS])
