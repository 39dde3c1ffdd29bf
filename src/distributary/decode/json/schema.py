"""Plans of columns made from JSON Schemas.

A plan holds every value that the schema accepts, with one exception: a schema with `properties` and
without `type` counts as a schema of objects. A value of several types becomes JSON text.
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
from distributary.registry.compile.json_compiler import Facts, TooManyAlternativesError, facts_of
from distributary.registry.compile.json_documents import Documents, JsonNode

# The classes of a plan.

APART = "x-kinds-apart"
"""Marks an `anyOf` whose first schema is the plain column and whose other schemas are side
columns."""

MAX_DECIMAL_DIGITS = 38


class JsonKind(Enum):
    """The kind of a JSON value, which decides its column type."""

    VOID = auto()
    """A value that is always null or missing."""
    BOOLEAN = auto()
    INTEGER = auto()
    DECIMAL = auto()
    """An integer that the schema allows to exceed 64 bits."""
    DIGITS = auto()
    """An integer that no decimal can hold, kept as text."""
    NUMBER = auto()
    STRING = auto()
    INSTANT = auto()
    DATE = auto()
    LIST = auto()
    MAP = auto()
    STRUCT = auto()
    TEXT = auto()
    """Any other value, kept as JSON text."""


@dataclass(frozen=True, slots=True)
class JsonValue:
    """The plan of one value: its type in the lake, and the checks that reading it needs."""

    kind: JsonKind
    type: pa.DataType
    unit: str = ""
    """A note on the form of texts, for the column's comment."""
    nullable: bool = False
    """True if the schema accepts an explicit null."""
    allowed: tuple[str, ...] | None = None
    """The only values of a string, if the schema lists them."""
    item: JsonValue | None = None
    """The item of a list or a map."""
    members: tuple[JsonMember, ...] = ()
    open: bool = False
    """True for a struct that may have properties which are no members."""
    plain: bool = False
    """True if the schema checks nothing but the type, nulls and members of the value."""
    asides: tuple[JsonValue, ...] = ()
    """The side columns of a member, for values of other kinds."""

    @property
    def shown(self) -> tuple[JsonMember, ...]:
        """Return the members that have a column, each followed by its side columns."""
        shown = [member for member in self.members if member.value.kind is not JsonKind.VOID]
        if not any(member.value.asides for member in shown):
            return tuple(shown)
        taken = {member.name.casefold() for member in shown}
        return tuple(column for member in shown for column in (member, *_beside(member, taken)))

    @property
    def leaves_rest(self) -> bool:
        """Return True if a value can have properties without a column."""
        return self.open or any(inner.leaves_rest for inner in self.below())

    def below(self) -> list[JsonValue]:
        """Return the values directly inside this one."""
        return [member.value for member in self.members] + (
            [self.item] if self.item is not None else []
        )


@dataclass(frozen=True, slots=True)
class JsonMember:
    """The plan of one property of an object."""

    name: str
    """Name in the lake."""
    property: str
    """Name in the payload."""
    value: JsonValue
    required: bool
    note: str = ""
    side_of: str = ""
    """The name of the plain column, if this member is its side column."""


def _beside(member: JsonMember, taken: set[str]) -> Iterator[JsonMember]:
    for value in member.value.asides:
        name = f"{member.name}__{side_suffix(value.type)}"
        while name.casefold() in taken:
            name += "_"
        taken.add(name.casefold())
        yield JsonMember(name, member.property, value, False, value.unit, side_of=member.name)


BOOLEAN = JsonValue(JsonKind.BOOLEAN, pa.bool_())
INTEGER = JsonValue(JsonKind.INTEGER, pa.int64())
NUMBER = JsonValue(JsonKind.NUMBER, pa.float64())
STRING = JsonValue(JsonKind.STRING, pa.string())
INSTANT = JsonValue(JsonKind.INSTANT, TIMESTAMP)
DATE = JsonValue(JsonKind.DATE, pa.date32())
TEXT = JsonValue(JsonKind.TEXT, pa.string(), unit="JSON text")
VOID = JsonValue(JsonKind.VOID, pa.string())


def struct_of(members: tuple[JsonMember, ...], *, open: bool, plain: bool) -> JsonValue:
    """Plan an object as a struct with one field for each column."""
    shown = JsonValue(JsonKind.STRUCT, pa.struct([]), members=members).shown
    type_ = pa.struct([pa.field(member.name, member.value.type) for member in shown])
    plain = plain and all(
        member.value.plain and member.value.kind is not JsonKind.VOID for member in members
    )
    return JsonValue(JsonKind.STRUCT, type_, members=members, open=open, plain=plain)


# Plans of single values: numbers and texts.

_INT64 = range(-(2**63), 2**63)
_FORMATS = {"date-time": INSTANT, "date": DATE}


def unlisted(facts: Iterable[Facts]) -> bool:
    """Return True if no schema lists its values one by one."""
    return all(fact.values is None for fact in facts)


def integer(facts: Sequence[Facts]) -> JsonValue:
    """Plan an integer with as many bits or digits as the schema allows."""
    bounds = [bound for fact in facts for bound in _bounds(fact)]
    if all(bound in _INT64 for bound in bounds):
        return replace(INTEGER, plain=unlisted(facts))
    digits = max(len(str(abs(bound))) for bound in bounds)
    for most in (20, MAX_DECIMAL_DIGITS):
        if digits <= most:
            return JsonValue(JsonKind.DECIMAL, pa.decimal128(most, 0))
    return JsonValue(JsonKind.DIGITS, pa.string(), unit="integer as text")


def _bounds(facts: Facts) -> Iterable[int]:
    """Yield the bounds and the listed values of the integers of a schema."""
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        for _, bound in facts.words(word):
            # in draft 4 the exclusive bounds are booleans
            if isinstance(bound, int | float) and not isinstance(bound, bool):
                yield int(bound)
    for text in facts.values or ():
        if text.lstrip("-").isdigit():
            yield int(text)


def string(facts: Sequence[Facts]) -> JsonValue:
    """Plan a text, or the type that its format names."""
    if not unlisted(facts):
        listed = [fact.values for fact in facts]
        if len(facts) == 1 and listed[0] is not None:
            texts = [text for text in map(json.loads, sorted(listed[0])) if isinstance(text, str)]
            return replace(STRING, allowed=tuple(texts), plain=True)
        return STRING
    formats = {
        format_ for fact in facts for _, format_ in fact.words("format") if isinstance(format_, str)
    }
    all_have_format = all(any(fact.words("format")) for fact in facts)
    format_value = (
        _FORMATS.get(next(iter(formats))) if all_have_format and len(formats) == 1 else None
    )
    return replace(format_value or STRING, plain=True)


# Names of columns for the properties of an object.

MAX_CHARACTERS = 128
_NOT_WORD = re.compile(r"\W")


def lake_names(properties: Iterable[str], *, top: bool) -> dict[str, str]:
    """Return a name for each property, of letters, digits and underscores.

    Names in a lake do not differ by case, and at the top a leading underscore is reserved for the
    pipeline's own columns. Where several properties would get one name, the plainest gets it,
    whatever their order. The others end in a digest of their own name, so that a further property
    does not rename them.
    """
    wanted = {name: _plain(name, top=top) for name in properties}
    owners: dict[str, str] = {}
    for name, new in wanted.items():
        folded = new.casefold()
        owners[folded] = min(
            owners.get(folded, name),
            name,
            key=lambda property_: _effort(property_, wanted[property_]),
        )
    names: dict[str, str] = {}
    taken = set(owners)
    for name, new in wanted.items():
        names[name] = new
        if owners[new.casefold()] != name:
            names[name] = f"{new}_{_digest(name)}"
            while names[name].casefold() in taken:
                names[name] += "_"
            taken.add(names[name].casefold())
    return names


def _effort(name: str, new: str) -> tuple[bool, bool, str]:
    """Return a sort key that puts names with fewer changes first, and breaks ties by the name."""
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
"""The largest number of fields of one payload; above it fewer levels become columns."""
MAX_LEVELS = 50
"""The deepest nesting of objects and arrays; deeper values are JSON text."""
_NO_LIMIT = 2**31
_DESCRIPTION_CHARACTERS = 200
_STRUCTURE = {"properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
# keywords that check more than types
_CHECKS_MORE = frozenset(
    (
        "additionalItems contains contentEncoding contentMediaType dependencies "
        "dependentRequired dependentSchemas else exclusiveMaximum exclusiveMinimum if maxItems "
        "maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf not "
        "pattern patternProperties prefixItems propertyNames then unevaluatedItems "
        "unevaluatedProperties uniqueItems $dynamicRef $recursiveRef"
    ).split()
)

Union = Sequence[tuple[JsonNode, ...]]
"""Alternatives of a value, which must match all schemas of at least one of them."""
Path = tuple[frozenset[str], ...]
"""The objects and arrays around a value, each identified by the schemas that give it members."""


class _TooManyFieldsError(Exception):
    """A plan with more fields than a table can hold."""


@dataclass(frozen=True, slots=True)
class JsonPayload:
    """The plan by which a payload becomes rows."""

    row: JsonValue
    """A struct whose members are the columns."""
    listed: bool
    """True if the payload is an array of rows."""
    bare: bool
    """True if a row is no object but the value of its one member."""


def plan_payload(documents: Documents, *, recursion_depth: int) -> JsonPayload:
    """Plan the columns of the payloads of a schema.

    Schemas that contain each other can unfold into more columns than a table can hold. Then fewer
    levels of recursion, and after that of nesting, become columns, and the rest stays JSON text.
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

    def payload(self) -> JsonPayload:
        root: Union = [(self.documents.root,)]
        row = self._row(root)
        if row is not None:
            return JsonPayload(row, listed=False, bare=False)
        facts = self._alternatives(root) or ()
        if facts and all(fact.meant_atoms == {"array"} and not fact.tuple_like for fact in facts):
            items: Union = [fact.items for fact in facts]
            object_row = self._row(items)
            row = object_row or self._bare(items)
            # a row does not show the checks on the array around it
            plain = row.plain and _exact(facts) and unlisted(facts)
            return JsonPayload(replace(row, plain=plain), listed=True, bare=object_row is None)
        return JsonPayload(self._bare(root), listed=False, bare=True)

    def _row(self, union: Union) -> JsonValue | None:
        """Plan an object with properties as a row; return None for any other type."""
        facts = self._alternatives(union)
        if facts is None:
            return None
        objects = [fact for fact in facts if fact.meant_atoms != {"null"}]
        if not any(fact.names for fact in objects):
            return None
        if any(fact.meant_atoms - {"null"} != {"object"} for fact in objects):
            return None
        row = self._struct(objects, (_identity(objects),), 0, top=True)
        return replace(row, nullable=_nullable(facts), plain=row.plain and _exact(facts))

    def _bare(self, union: Union) -> JsonValue:
        value = self._value(union, (), 0)
        if value.kind is JsonKind.VOID:
            value = replace(TEXT, nullable=True)
        member = JsonMember("value", "", value, required=True, note=value.unit)
        return struct_of((member,), open=False, plain=True)

    def _value(self, union: Union, path: Path, level: int) -> JsonValue:
        if apart := self._apart(union):
            plain, *others = (self._value([(node,)], path, level) for node in apart)
            # Arrow rounds integers that a double does not hold, so each number must be checked
            numbers = plain.kind is JsonKind.NUMBER and any(
                other.kind in _NUMBER_KINDS for other in others
            )
            asides = tuple(_exact_text(other) for other in others)
            return replace(plain, nullable=True, plain=plain.plain and not numbers, asides=asides)
        facts = self._alternatives(union)
        if facts is None:
            return replace(TEXT, nullable=True)
        nullable = _nullable(facts)
        real = [fact for fact in facts if fact.meant_atoms != {"null"}]
        types = frozenset().union(*(fact.meant_atoms for fact in real)) - {"null"}
        value = self._of_type(real, types, path, level)
        return replace(value, nullable=nullable, plain=value.plain and _exact(facts))

    def _apart(self, union: Union) -> list[JsonNode]:
        """Return the alternatives of a schema with side columns, or an empty list."""
        if len(union) != 1 or len(union[0]) != 1 or APART not in union[0][0].keywords:
            return []
        node = union[0][0]
        return [self.documents.below(node, "anyOf", i) for i in range(len(node.content["anyOf"]))]

    def _of_type(
        self, facts: Sequence[Facts], types: frozenset[str], path: Path, level: int
    ) -> JsonValue:
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

    def _list(self, facts: Sequence[Facts], path: Path, level: int) -> JsonValue:
        if any(fact.tuple_like or not fact.items for fact in facts):
            return TEXT
        item = self._value([fact.items for fact in facts], path, level)
        plain = item.plain and unlisted(facts)
        return JsonValue(JsonKind.LIST, pa.list_(item.type), item=item, plain=plain)

    def _struct_or_map(self, facts: Sequence[Facts], path: Path, level: int) -> JsonValue:
        if any(fact.names for fact in facts):
            struct = self._struct(facts, path, level)
            return struct if struct.shown else TEXT
        union: list[tuple[JsonNode, ...]] = []
        for fact in facts:
            if not fact.closed and not fact.others:
                return TEXT
            union += [
                (self.documents.below(node, "patternProperties", pattern),)
                for node, patterns in fact.words("patternProperties")
                for pattern in patterns
            ]
            union += [fact.others] if not fact.closed else []
        if not union:
            return TEXT
        item = self._value(union, path, level)
        return JsonValue(JsonKind.MAP, pa.map_(pa.string(), item.type), item=item)

    def _struct(
        self, facts: Sequence[Facts], path: Path, level: int, *, top: bool = False
    ) -> JsonValue:
        properties = dict.fromkeys(name for fact in facts for name in fact.names)
        names = lake_names(properties, top=top)
        members = tuple(
            self._member(facts, property_, names[property_], path, level)
            for property_ in properties
        )
        open_ = any(not fact.closed or fact.patterns for fact in facts)
        # Arrow does not notice that a required property is missing which has no member
        plain = unlisted(facts) and all(fact.required <= set(fact.names) for fact in facts)
        return struct_of(members, open=open_, plain=plain)

    def _member(
        self, facts: Sequence[Facts], property_: str, name: str, path: Path, level: int
    ) -> JsonMember:
        self.fields_left -= 1
        if self.fields_left < 0:
            raise _TooManyFieldsError
        union = [fact.property(property_) for fact in facts if property_ in fact.names]
        value = self._value(union, path, level)
        notes = [value.unit, f"renamed from {printable(property_)}" if name != property_ else ""]
        notes.append(_description(union))
        return JsonMember(
            name,
            property_,
            value,
            required=all(property_ in fact.required for fact in facts),
            note="; ".join(filter(None, notes)),
        )

    def _alternatives(self, union: Union) -> tuple[Facts, ...] | None:
        """Return all alternatives of a value, or None if there are too many."""
        try:
            return tuple(
                fact for nodes in union for fact in facts_of(self.documents, nodes).alternatives()
            )
        except TooManyAlternativesError:
            return None


_NUMBER_KINDS = (JsonKind.INTEGER, JsonKind.DECIMAL, JsonKind.TEXT)


def _exact_text(value: JsonValue) -> JsonValue:
    """Return the plan of a side column in which texts stay texts and numbers keep their digits."""
    return JsonValue(JsonKind.DIGITS, pa.string()) if value.kind is JsonKind.TEXT else value


def _identity(facts: Iterable[Facts]) -> frozenset[str]:
    """Return the keys of the schemas that give an object its members, to recognise recursion."""
    return frozenset(
        node.key for fact in facts for node in fact.nodes if _STRUCTURE & node.keywords.keys()
    )


def _nullable(facts: Iterable[Facts]) -> bool:
    return any("null" in fact.meant_atoms for fact in facts)


def _exact(facts: Sequence[Facts]) -> bool:
    """Return True if the schemas check nothing but types, members and listed texts."""
    if sum(fact.meant_atoms != {"null"} for fact in facts) > 1 or len(facts) > 2:
        return False
    if len(facts) == 2 and any(fact.meant_atoms > {"null"} for fact in facts):
        # if both branches of a `oneOf` accept null, a null matches twice and is refused
        return False
    nodes = [node for fact in facts for node in fact.nodes]
    if any(_CHECKS_MORE & node.keywords.keys() for node in nodes):
        return False
    documents = facts[0].documents if facts else None
    unresolved = [
        node
        for node in nodes
        if "$ref" in node.keywords and documents and not documents.target(node)
    ]
    return not unresolved


def _description(union: Union) -> str:
    keywords: Mapping[str, Any] = union[0][0].keywords if union and union[0] else {}
    text = keywords.get("description")
    if not isinstance(text, str):
        return ""
    return printable(" ".join(text.split())[:_DESCRIPTION_CHARACTERS])
