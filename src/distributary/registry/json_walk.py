"""Looks at every part of a JSON Schema that can come into play, before anything relies on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distributary.registry.json_documents import Documents, Node

MAX_PARTS = 50_000
"""Schemas within one schema."""
MAX_WEIGHT = 10_000
"""How often one value may be looked at, through schemas that hold for the same value."""

_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_OTHER_VALUE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_OTHER_VALUE_LISTS = ("items", "prefixItems")
_OTHER_VALUE_MAPS = ("properties", "patternProperties")


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_schema, value))


def _named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_schema, value.values()))


def _schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "additionalProperties": _schema,
    "allOf": _schemas,
    "anyOf": _schemas,
    "enum": lambda value: isinstance(value, list),
    "items": lambda value: _schema(value) or value == [] or _schemas(value),
    "oneOf": _schemas,
    "patternProperties": _named_schemas,
    "properties": _named_schemas,
    "required": _strings,
    "type": lambda value: isinstance(value, str) or _strings(value),
}


class UnfitSchemaError(Exception):
    """A part of a schema cannot be used; the message says which and why."""


def check_parts(documents: Documents) -> None:
    """Look at every part that the schema leads to.

    A reference may lead to a place that no meta-schema describes, and schemas that refer to each
    other may take longer over one value than anybody has.

    Raises:
        UnfitSchemaError: When a part is not a schema, or the whole is too much.
    """
    seen: set[str] = set()
    weights: dict[str, int] = {}
    waiting = [documents.root]
    while waiting:
        node = waiting.pop()
        if node.key in seen:
            continue
        seen.add(node.key)
        if len(seen) > MAX_PARTS:
            raise UnfitSchemaError(f"it has more than {MAX_PARTS} parts")
        _check_shape(node)
        if _weight(documents, node, weights) > MAX_WEIGHT:
            text = f"{node.key} looks at one value more than {MAX_WEIGHT} times"
            raise UnfitSchemaError(text)
        waiting += [*_same(documents, node), *_others(documents, node)]


def _check_shape(node: Node) -> None:
    if not _schema(node.content):
        raise UnfitSchemaError(f"{node.key} is not a schema")
    for word, fits in _SHAPES.items():
        if word in node.keywords and not fits(node.keywords[word]):
            raise UnfitSchemaError(f"{node.key} has a wrong value for {word}")


def _weight(documents: Documents, node: Node, weights: dict[str, int]) -> int:
    """How many schemas a value meets here; a schema within itself counts once."""
    known = weights.get(node.key)
    if known is None:
        weights[node.key] = 0
        total = 1
        for part in _same(documents, node):
            total += _weight(documents, part, weights)
        known = weights[node.key] = min(total, MAX_WEIGHT + 1)
    return known


def _same(documents: Documents, node: Node) -> Iterator[Node]:
    """The parts that look at the same value."""
    words = node.keywords
    target = documents.target(node)
    if target is not None:
        yield target
    for word in _SAME_VALUE_LISTS:
        for index in range(len(words.get(word, ()))):
            yield documents.below(node, word, index)
    for word in _SAME_VALUE:
        if word in words:
            yield documents.below(node, word)
    for word in _SAME_VALUE_MAPS:
        yield from _in_map(documents, node, word)


def _others(documents: Documents, node: Node) -> Iterator[Node]:
    """The parts that look at properties or items of the value."""
    words = node.keywords
    for word in _OTHER_VALUE:
        if _schema(words.get(word)):
            yield documents.below(node, word)
    for word in _OTHER_VALUE_LISTS:
        if isinstance(words.get(word), list):
            for index in range(len(words[word])):
                yield documents.below(node, word, index)
    for word in _OTHER_VALUE_MAPS:
        yield from _in_map(documents, node, word)


def _in_map(documents: Documents, node: Node, word: str) -> Iterator[Node]:
    named = node.keywords.get(word)
    if isinstance(named, dict):
        for name, part in named.items():
            if _schema(part):
                yield documents.below(node, word, name)
