"""What one place of a JSON Schema says, with `$ref` and `allOf` folded in.

Types are counted in atoms, so that they can be compared as sets: `number` is `integer` and `real`.
What only some values must match (`if`, `not`, dependencies) is left out here: a value that matches
the schema matches what is told here, but not the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jsonschema_rs

from distributary.registry.json_documents import PATTERNS, Documents, Node

ATOMS = frozenset({"null", "boolean", "integer", "real", "string", "array", "object"})
_TYPES = {name: frozenset({name}) for name in ATOMS - {"real"}}
_TYPES["number"] = frozenset({"integer", "real"})
_OBJECT_WORDS = {"properties", "patternProperties", "additionalProperties", "required"}
_ARRAY_WORDS = {"items", "prefixItems"}
_CONDITIONS = {"if", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef"}
MAX_ALTERNATIVES = 64
"""Of one place; a schema with more is not taken apart."""


class TooManyAlternativesError(Exception):
    """A place of a schema can be more different things than anybody can tell apart."""


@dataclass(frozen=True)
class Facts:
    """Schemas that hold for a value all at once."""

    documents: Documents
    nodes: tuple[Node, ...]
    """Those that say something; none when anything goes."""
    impossible: bool

    def words(self, keyword: str) -> Iterator[tuple[Node, Any]]:
        """Each schema that has a keyword, and what it says."""
        return ((node, node.keywords[keyword]) for node in self.nodes if keyword in node.keywords)

    @cached_property
    def atoms(self) -> frozenset[str]:
        """The types that a value may have."""
        found = ATOMS if not self.impossible else frozenset()
        for _, types in self.words("type"):
            names = types if isinstance(types, list) else [types]
            found &= frozenset().union(*(_TYPES.get(name, frozenset()) for name in names))
        if self.values is not None:
            found &= frozenset(atom_of(json.loads(text)) for text in self.values)
        return found

    @cached_property
    def meant_atoms(self) -> frozenset[str]:
        """The same, without the types that somebody only forgot to exclude.

        A schema with `properties` and no `type` lets numbers and texts pass; nobody means that.
        """
        if self.atoms != ATOMS:
            return self.atoms
        said = {word for node in self.nodes for word in node.keywords}
        if said & _OBJECT_WORDS:
            return frozenset({"object"})
        return frozenset({"array"}) if said & _ARRAY_WORDS else self.atoms

    @cached_property
    def values(self) -> frozenset[str] | None:
        """The values that are listed, as JSON; None when there is no list."""
        lists = [values for _, values in self.words("enum")]
        if self.documents.draft > 4:
            lists += [[value] for _, value in self.words("const")]
        sets = [frozenset(map(canonical, values)) for values in lists]
        return frozenset.intersection(*sets) if sets else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The properties that are told by name, in their order."""
        found: dict[str, None] = {}
        for _, properties in self.words("properties"):
            found |= dict.fromkeys(properties)
        return tuple(found)

    @cached_property
    def required(self) -> frozenset[str]:
        """The properties that must be there."""
        return frozenset(name for _, names in self.words("required") for name in names)

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """The expressions of `patternProperties`."""
        return tuple(dict.fromkeys(p for _, each in self.words("patternProperties") for p in each))

    def property(self, name: str, *, told_only: bool = False) -> tuple[Node, ...]:
        """What a property must match, by name, by pattern, or as one of the others."""
        found: list[Node] = []
        for node in self.nodes:
            told = self._told(node, name)
            others = node.keywords.get("additionalProperties", True)
            if not told and others is not True and not told_only:
                told = [self.documents.below(node, "additionalProperties")]
            found += told
        return tuple(found)

    def _told(self, node: Node, name: str) -> list[Node]:
        below, words = self.documents.below, node.keywords
        found = []
        if name in words.get("properties", {}):
            found.append(below(node, "properties", name))
        for pattern in words.get("patternProperties", {}):
            if _matches(pattern, name):
                found.append(below(node, "patternProperties", pattern))
        return found

    @cached_property
    def others(self) -> tuple[Node, ...]:
        """What properties must match that are not told; none when anything goes."""
        keyword = "additionalProperties"
        return tuple(
            self.documents.below(n, keyword) for n, said in self.words(keyword) if said is not True
        )

    @cached_property
    def closed(self) -> bool:
        """Whether no property may be there that is not told."""
        shut = [said for _, said in self.words("additionalProperties")]
        said = {word for node in self.nodes for word in node.keywords}
        # a condition may name properties too, and those are evaluated then
        if self.documents.draft >= 2019 and not said & _CONDITIONS:
            shut += [each for _, each in self.words("unevaluatedProperties")]
        return False in shut

    @cached_property
    def items(self) -> tuple[Node, ...]:
        """What every item of an array must match, where all are alike."""
        return tuple(
            self.documents.below(node, "items")
            for node, said in self.words("items")
            if not isinstance(said, list)
        )

    @cached_property
    def tuple_like(self) -> bool:
        """Whether items are told one by one."""
        return any(isinstance(said, list) for _, said in self.words("items")) or (
            self.documents.draft == 2020 and any(self.words("prefixItems"))
        )

    @cached_property
    def choices(self) -> tuple[tuple[Node, ...], ...]:
        """For each `anyOf` and `oneOf` its branches."""
        return tuple(
            tuple(self.documents.below(node, keyword, i) for i in range(len(branches)))
            for keyword in ("anyOf", "oneOf")
            for node, branches in self.words(keyword)
        )

    def alternatives(self) -> tuple[Facts, ...]:
        """What a value can be: one of these, each with what holds for all of them.

        Raises:
            TooManyAlternativesError: When there are more than `MAX_ALTERNATIVES`.
        """
        found: list[Facts] = []
        tried = 0
        waiting: list[tuple[Facts, frozenset[str]]] = [(self, frozenset())]
        while waiting:
            facts, taken = waiting.pop()
            tried += 1
            if tried > 2 * MAX_ALTERNATIVES:
                raise TooManyAlternativesError
            if not facts.atoms:
                continue
            # a choice may be within a choice, and even within itself
            group = next((g for g in facts.choices if g[0].key not in taken), None)
            if group is None:
                found.append(facts)
                continue
            done = taken | {group[0].key}
            waiting += [(facts_of(self.documents, (*facts.nodes, n)), done) for n in group[::-1]]
        return tuple(found)


def facts_of(documents: Documents, nodes: Iterable[Node]) -> Facts:
    """The facts of schemas that all hold for one value."""
    found: dict[str, Node] = {}
    waiting, impossible = list(nodes)[::-1], False
    while waiting:
        node = waiting.pop()
        if node.key in found:
            continue
        impossible |= node.content is False
        words = node.keywords
        if not words:
            continue
        target = documents.target(node)
        found[node.key] = node
        if target is not None:
            waiting.append(target)
        if "$ref" in words and documents.draft <= 7:
            # what stands beside a reference does not count in these drafts
            found[node.key] = Node({"$ref": words["$ref"]}, node.base, node.key)
            continue
        all_of = range(len(words.get("allOf", ())))
        waiting += [documents.below(node, "allOf", i) for i in reversed(all_of)]
    return Facts(documents, tuple(found.values()), impossible)


def canonical(value: Any) -> str:
    """A value as text that is the same for equal values: 1.0 is 1."""
    return json.dumps(_plain(value), sort_keys=True)


def atom_of(value: Any) -> str:
    """The type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "real"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
    return value


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    # the validator's own expressions, which give up where Python's would go on for ever
    known = {"pattern": pattern}
    return jsonschema_rs.is_valid(known, name, offline=True, pattern_options=PATTERNS)
