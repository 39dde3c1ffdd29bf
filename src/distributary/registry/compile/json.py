"""Compiles a JSON Schema and what it refers to into one text that stands for itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import urldefrag

import jsonschema_rs

from distributary.errors import InvalidSchemaError
from distributary.model.names import printable
from distributary.model.record import Compiled
from distributary.registry.compile import NO_IMPORTS
from distributary.registry.compile.json_documents import DRAFTS, PATTERNS, Documents, Node

# Looks at every part of a JSON Schema that can come into play, before anything relies on it.

MAX_PARTS = 50_000
"""Schemas within one schema."""
MAX_WEIGHT = 10_000
"""How often one value may be looked at, through schemas that hold for the same value."""

_CONDITIONS = ("not", "if", "then", "else")
_SAME_VALUE = ("allOf", "anyOf", "oneOf", *_CONDITIONS, "dependentSchemas", "dependencies")
_OTHER_VALUE = (
    *("additionalItems", "additionalProperties", "contains", "items", "prefixItems"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
    *("properties", "patternProperties"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "items", "prefixItems")
_MAPS = ("dependentSchemas", "dependencies", "properties", "patternProperties")


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


class UnfitSchemaError(ValueError):
    """A part of a schema cannot be used; the message says which and why."""


def check_parts(documents: Documents) -> None:
    """Look at every part that the schema leads to, also where no meta-schema describes it."""
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
        if not _schema(node.content):
            raise UnfitSchemaError(f"{node.key} is not a schema")
        for word, fits in _SHAPES.items():
            if word in node.keywords and not fits(node.keywords[word]):
                raise UnfitSchemaError(f"{node.key} has a wrong value for {word}")
        if _weight(documents, node, weights) > MAX_WEIGHT:
            text = f"{node.key} looks at one value more than {MAX_WEIGHT} times"
            raise UnfitSchemaError(text)
        waiting += [*_same(documents, node), *_below(documents, node, _OTHER_VALUE)]


def _weight(documents: Documents, node: Node, weights: dict[str, int]) -> int:
    """How many schemas a value meets here; a schema within itself counts once."""
    known = weights.get(node.key)
    if known is None:
        weights[node.key] = 0
        total = 1 + sum(_weight(documents, part, weights) for part in _same(documents, node))
        known = weights[node.key] = min(total, MAX_WEIGHT + 1)
    return known


def _same(documents: Documents, node: Node) -> Iterator[Node]:
    """The parts that look at the same value."""
    target = documents.target(node)
    if target is not None:
        yield target
    yield from _below(documents, node, _SAME_VALUE)


def _below(documents: Documents, node: Node, words: Iterable[str]) -> Iterator[Node]:
    """The schemas under some keywords: one, a list of them, or several by name."""
    for word in words:
        match node.keywords.get(word):
            case list() as listed if word in _LISTS:
                yield from (documents.below(node, word, index) for index in range(len(listed)))
            case dict() as named if word in _MAPS:
                found = (name for name, part in named.items() if _schema(part))
                yield from (documents.below(node, word, name) for name in found)
            case dict() | bool():
                yield documents.below(node, word)
            case _ if word in node.keywords and word in _CONDITIONS:
                yield documents.below(node, word)


MAX_LEVELS = 100
"""How deep the text of a schema may nest."""
_DEFAULT_DRAFT = 7
_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](0?4|0?6|0?7|2019-09|2020-12)/schema#?")
_META = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def compile_json(text: str, *, imports: Mapping[str, str] = NO_IMPORTS) -> Compiled:
    """Compile a schema of draft 4, 6, 7, 2019-09 or 2020-12; without `$schema` it is a draft 7.

    `imports` are the texts of the schemas it refers to, by the name that a `$ref` has for them.
    """
    content = _parsed(text, "the schema")
    if not isinstance(content, dict | bool):
        raise _invalid("a JSON Schema is an object or a boolean", "the schema", "something else")
    references = {name: _parsed(each, f"reference {name}") for name, each in imports.items()}
    draft = _draft(content)
    if isinstance(content, dict) and "$schema" in content:
        # as the validator spells it
        content = {**content, "$schema": _META[draft]}
    try:
        documents = Documents(content, draft=draft, references=references)
        _ = documents.validator
        check_parts(documents)
    except (ValueError, RecursionError) as error:
        reason = str(error).split("\n\n", maxsplit=1)[0]
        raise _invalid("the text is not a usable JSON Schema", "the schema", reason) from None
    message = message_of(content)
    return Compiled(documents.body, message, (message,))


def _parsed(text: str, what: str) -> Any:
    try:
        content = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        evidence = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            evidence = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _invalid("the text of a schema is not JSON", what, evidence) from None
    if _levels(content) > MAX_LEVELS:
        raise _invalid("a JSON Schema nests too deep", what, f"more than {MAX_LEVELS} levels")
    return content


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is beyond what a double can hold")
    return number


def _levels(content: Any) -> int:
    deepest, waiting = 0, [(content, 1)]
    while waiting:
        value, level = waiting.pop()
        if isinstance(value, dict | list):
            deepest = max(deepest, level)
            below = value.values() if isinstance(value, dict) else value
            waiting += [(each, level + 1) for each in below]
    return deepest


def _draft(content: Any) -> int:
    said = content.get("$schema") if isinstance(content, dict) else None
    if said is None:
        return _DEFAULT_DRAFT
    known = _DRAFT.fullmatch(said) if isinstance(said, str) else None
    if known is None:
        evidence = f"$schema {said!r}; known drafts: {', '.join(map(str, DRAFTS))}"
        raise _invalid("a JSON Schema is of a draft that is not known", "the schema", evidence)
    return int(known[1].split("-")[0])


def message_of(content: Any) -> str:
    """What payloads of a schema are called."""
    words = content if isinstance(content, dict) else {}
    title, own = words.get("title"), words.get("$id", words.get("id"))
    if isinstance(title, str) and title.strip():
        return " ".join(title.split())
    path = urldefrag(own).url.rstrip("/") if isinstance(own, str) else ""
    name = re.sub(r"(\.schema)?\.json$", "", re.split(r"[/:]", path)[-1])
    return name or "value"


def _invalid(what: str, where: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        what,
        where=printable(where),
        evidence=printable(evidence),
        next_step="fix the schema and register it again",
    )


# What one place of a JSON Schema says, with `$ref` and `allOf` folded in.
#
# Types are counted in atoms, so that they can be compared as sets: `number` is `integer` and
# `real`. What only some values must match (`if`, `not`, dependencies) is left out here: a value
# that matches the schema matches what is told here, but not the other way round.

ATOMS = frozenset({"null", "boolean", "integer", "real", "string", "array", "object"})
_TYPES = {name: frozenset({name}) for name in ATOMS - {"real"}}
_TYPES["number"] = frozenset({"integer", "real"})
_ATOM_OF = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    str: "string",
    list: "array",
    dict: "object",
}
_OBJECT_WORDS = {"properties", "patternProperties", "additionalProperties", "required"}
_ARRAY_WORDS = {"items", "prefixItems"}
_CONDITIONAL = {"if", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef"}
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
            found &= frozenset(_atom_of(json.loads(text)) for text in self.values)
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

    def property(self, name: str) -> tuple[Node, ...]:
        """What a property must match, by name, by pattern, or as one of the others."""
        found: list[Node] = []
        for node in self.nodes:
            below, words = self.documents.below, node.keywords
            told = [
                below(node, "patternProperties", pattern)
                for pattern in words.get("patternProperties", ())
                if _matches(pattern, name)
            ]
            if name in words.get("properties", ()):
                told.insert(0, below(node, "properties", name))
            if not told and words.get("additionalProperties", True) is not True:
                told = [below(node, "additionalProperties")]
            found += told
        return tuple(found)

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
        if self.documents.draft >= 2019 and not said & _CONDITIONAL:
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
        """What a value can be: one of these, each with what holds for all of them."""
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
        impossible |= node.content is False
        words = node.keywords
        if node.key in found or not words:
            continue
        found[node.key] = node
        target = documents.target(node)
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


def _atom_of(value: Any) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "real"
    return _ATOM_OF[type(value)]


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
