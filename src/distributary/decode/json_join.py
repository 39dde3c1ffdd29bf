"""Shapes of JSON values: JSON Schemas that can be joined.

Joining is what a least upper bound is: the order, the grouping and repetitions do not matter, and
the outcome takes all that the parts take. Names of properties stay in the order of their coming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

LEVELS = 2
"""Of objects in each other whose properties are told one by one: an event and its parts."""
MAX_PROPERTIES = 5_000
"""Of one object; one with more can be anything."""
MIXED = "sort_keys"
"""A list of Datastream's that mixes texts and numbers by design: its items can be anything."""

Shape = dict[str, Any]
NOTHING: Shape = {"type": "null"}
"""The shape of no value at all; null itself is taken by every shape."""
ANYTHING: Shape = {}

_RANKS = (2**53, 2**63, 10**20, 10**38)
"""Integers below these in size: exact in a double, in 64 bits, in decimals of the lake."""
_INT64, _TEXT = 1, len(_RANKS)
_SCALARS = frozenset(("boolean", "integer", "number", "string"))
_KINDS = (frozenset(("object",)), frozenset(("array",)), _SCALARS)
"""What records of one table are at the top."""


@dataclass(slots=True)
class _Parts:
    """A shape taken apart."""

    types: set[str]
    rank: int = 0
    """Of integers: how many bits or digits they need."""
    properties: dict[str, Shape] = field(default_factory=dict)
    items: Shape = field(default_factory=lambda: NOTHING)


def join(one: Shape, other: Shape) -> Shape:
    """The shape that takes what either takes."""
    if one == other:
        return one
    if not one or not other:
        return ANYTHING
    a, b = _parts(one), _parts(other)
    properties = dict(a.properties)
    for name, shape in b.properties.items():
        properties[name] = join(properties[name], shape) if name in properties else shape
    return _shape(
        _Parts(a.types | b.types, max(a.rank, b.rank), properties, join(a.items, b.items))
    )


def widened(one: Shape, other: Shape, *, parts: bool = False) -> Shape:
    """The shapes joined, but an object whose properties are told never becomes just anything.

    With `parts` that holds for the objects in it as well, as for the images of a row.
    """
    joined = join(one, other)
    if not joined:
        return next((each for each in (one, other) if "properties" in each), ANYTHING)
    inner = joined.get("properties", {})
    if not parts or all(inner.values()):
        return joined
    either = [each.get("properties", {}) for each in (one, other)]
    kept = {
        name: shape or widened(*(each.get(name, NOTHING) for each in either))
        for name, shape in inner.items()
    }
    return {**joined, "properties": kept}


def grown(known: Shape, shape: Shape, *, changes: bool = False) -> Shape:
    """What is known and what a shape adds to it, which is nothing if it is of another kind.

    Where nothing is known yet, objects go before arrays, and those before single values. Change
    events are always objects.
    """
    joined = widened(known, shape, parts=changes)
    if changes:
        return objects_only(joined)
    if not known or not joined:
        return ANYTHING
    types = _parts(known).types or _parts(joined).types
    return _only(joined, next((kind for kind in _KINDS if kind & types), frozenset()))


def objects_only(shape: Shape) -> Shape:
    """What of a shape is objects; nothing, if no objects are."""
    return _only(shape, _KINDS[0]) if shape else shape


def _only(shape: Shape, kind: frozenset[str]) -> Shape:
    parts = _parts(shape)
    parts.types &= kind
    if "object" not in parts.types:
        parts.properties = {}
    if not parts.types & _SCALARS:
        parts.rank = 0
    return _shape(parts)


def shape_of(value: Any, level: int = 0) -> Shape:
    """The shape of one parsed value that lies so deep in an event."""
    match value:
        case None:
            return NOTHING
        case str():
            return STRING
        case bool():
            return BOOLEAN
        case int():
            return integers(value, value)
        case float():
            return NUMBER
        case Decimal():
            # a double would lose digits of it
            return _EXACT
        case list():
            items = NOTHING
            for each in value:
                items = join(items, shape_of(each, LEVELS))
            return lists(items)
        case dict():
            return objects({n: _property(n, v, level) for n, v in value.items()}, level)
    raise TypeError(type(value))


def _property(name: str, value: Any, level: int) -> Shape:
    if name == MIXED and level == 0 and isinstance(value, list):
        return lists(ANYTHING)
    return shape_of(value, level + 1)


def integers(least: int, most: int) -> Shape:
    """Integers between two."""
    # of 64 bits there is one more below zero than above
    size = max(most, -least - (least == -(2**63)))
    return _INTEGERS[next((i for i, limit in enumerate(_RANKS) if size < limit), _TEXT)]


def lists(items: Shape) -> Shape:
    """Lists of items of a shape; lists and objects in lists can be anything."""
    return _shape(_Parts({"array"}, items=items))


def objects(properties: Mapping[str, Shape], level: int) -> Shape:
    """Objects with properties; those that lie too deep can be anything."""
    if level >= LEVELS:
        return ANYTHING
    return _shape(_Parts({"object"}, properties=dict(properties)))


def _parts(shape: Shape) -> _Parts:
    types = shape["type"]
    found = set(types) if isinstance(types, list) else {types}
    rank = 0
    if "maximum" in shape:
        rank = _RANKS.index(shape["maximum"] + 1)
    elif "format" in shape:
        rank = _INT64
    return _Parts(
        found - {"null"}, rank, dict(shape.get("properties", {})), shape.get("items", NOTHING)
    )


def _shape(parts: _Parts) -> Shape:
    types = set(parts.types)
    # what neither a double nor a decimal of the lake can hold is kept as text
    if parts.rank == _TEXT or ("number" in types and parts.rank >= _INT64):
        types.add("string")
    if "number" in types:
        types.discard("integer")
    if len(parts.properties) > MAX_PROPERTIES:
        return ANYTHING
    shape: dict[str, Any] = {"type": sorted({*types, "null"}) if types else "null"}
    if "integer" in types and "string" not in types and parts.rank:
        shape |= _ranked(parts.rank)
    if "object" in types:
        shape |= {"properties": parts.properties, "additionalProperties": False}
    if "array" in types:
        shape["items"] = parts.items
    return shape


def _ranked(rank: int) -> dict[str, Any]:
    if rank == _INT64:
        return {"format": "int64"}
    most = _RANKS[rank] - 1
    return {"minimum": -most, "maximum": most}


STRING = _shape(_Parts({"string"}))
BOOLEAN = _shape(_Parts({"boolean"}))
NUMBER = _shape(_Parts({"number"}))
"""Numbers that a double holds with all their digits."""
_EXACT = _shape(_Parts({"number", "string"}))
_INTEGERS = tuple(_shape(_Parts({"integer"}, rank)) for rank in range(_TEXT + 1))
