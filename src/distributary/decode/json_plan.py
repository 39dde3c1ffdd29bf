"""From a JSON Schema to the plan of its columns.

A plan holds whatever the schema lets pass, save for what nobody means: a schema with `properties`
and without `type` stands for objects. Where a value can be of several types it is JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributary.decode import json_shape as shape
from distributary.decode.json_names import lake_names
from distributary.decode.json_scalars import integer, string, unlisted
from distributary.decode.json_shape import Member, Value
from distributary.registry.hostile import printable
from distributary.registry.json_documents import Documents, Node
from distributary.registry.json_facts import Facts, TooManyAlternativesError, facts_of

MAX_FIELDS = 5_000
"""Of one payload; beyond it fewer levels become columns."""
MAX_LEVELS = 50
"""Of objects and arrays in each other; what lies below is JSON text."""
_NO_LIMIT = 2**31
_DESCRIPTION_CHARACTERS = 200
_STRUCTURE = {"properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
# asks for more than a type can show
_ASKS = {
    "additionalItems",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "if",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "pattern",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "$dynamicRef",
    "$recursiveRef",
}

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
            row = self._row(items)
            if row is not None:
                return Payload(row, listed=True, bare=False)
            return Payload(self._bare(items), listed=True, bare=True)
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
        if value.kind is shape.Kind.VOID:
            value = replace(shape.TEXT, nullable=True)
        member = Member("value", "", value, required=True, note=value.unit)
        return shape.struct_of((member,), open=False, plain=True)

    def _value(self, union: Union, path: Path, level: int) -> Value:
        facts = self._alternatives(union)
        if facts is None:
            return replace(shape.TEXT, nullable=True)
        nullable = _nullable(facts)
        real = [f for f in facts if f.meant_atoms != {"null"}]
        types = frozenset().union(*(f.meant_atoms for f in real)) - {"null"}
        value = self._of_type(real, types, path, level)
        return replace(value, nullable=nullable, plain=value.plain and _exact(facts))

    def _of_type(
        self,
        facts: Sequence[Facts],
        types: frozenset[str],
        path: Path,
        level: int,
    ) -> Value:
        match sorted(types):
            case []:
                return shape.VOID
            case ["boolean"]:
                return replace(shape.BOOLEAN, plain=unlisted(facts))
            case ["integer"]:
                return integer(facts)
            case ["real"] | ["integer", "real"]:
                return replace(shape.NUMBER, plain=unlisted(facts))
            case ["string"]:
                return string(facts)
            case ["object"] | ["array"] as only:
                identity = _identity(facts)
                cut = path.count(identity) > self.recursion_depth or level >= self.levels
                if not cut:
                    build = self._struct_or_map if only == ["object"] else self._list
                    return build(facts, (*path, identity), level + 1)
        return shape.TEXT

    def _list(self, facts: Sequence[Facts], path: Path, level: int) -> Value:
        if any(f.tuple_like or not f.items for f in facts):
            return shape.TEXT
        return shape.list_of(self._value([f.items for f in facts], path, level), plain=True)

    def _struct_or_map(self, facts: Sequence[Facts], path: Path, level: int) -> Value:
        if any(f.names for f in facts):
            struct = self._struct(facts, path, level)
            return struct if struct.shown else shape.TEXT
        union: list[tuple[Node, ...]] = []
        for each in facts:
            if not each.closed and not each.others:
                return shape.TEXT
            union += [
                (self.documents.below(node, "patternProperties", pattern),)
                for node, patterns in each.words("patternProperties")
                for pattern in patterns
            ]
            union += [each.others] if not each.closed else []
        return shape.map_of(self._value(union, path, level)) if union else shape.TEXT

    def _struct(
        self, facts: Sequence[Facts], path: Path, level: int, *, top: bool = False
    ) -> Value:
        properties = dict.fromkeys(name for f in facts for name in f.names)
        names = lake_names(properties, top=top)
        members = tuple(self._member(facts, each, names[each], path, level) for each in properties)
        open_ = any(not f.closed or f.patterns for f in facts)
        return shape.struct_of(members, open=open_, plain=unlisted(facts))

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
