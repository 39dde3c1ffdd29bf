"""Compiles a JSON Schema and its references into one self-contained text."""

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
from distributary.registry.compile.json_documents import DRAFTS, PATTERNS, Documents, JsonNode

# Checks of every part of a JSON Schema that can apply, before other code relies on it.

MAX_PARTS = 50_000
"""The largest number of schemas within one schema."""
MAX_WEIGHT = 10_000
"""The largest number of schemas that may apply to one and the same value."""

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
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


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
    """A part of a schema that cannot be used; the message says which and why."""


def check_parts(documents: Documents) -> None:
    """Check every part that the schema refers to, also parts that no meta-schema describes."""
    seen: set[str] = set()
    weights: dict[str, int] = {}
    pending = [documents.root]
    while pending:
        node = pending.pop()
        if node.key in seen:
            continue
        seen.add(node.key)
        if len(seen) > MAX_PARTS:
            raise UnfitSchemaError(f"the schema has more than {MAX_PARTS} parts")
        if not _schema(node.content):
            raise UnfitSchemaError(f"{node.key} is not a schema")
        for word, fits in _SHAPES.items():
            if word in node.keywords and not fits(node.keywords[word]):
                raise UnfitSchemaError(f"{node.key} has a wrong value for {word}")
        if _weight(documents, node, weights) > MAX_WEIGHT:
            text = f"{node.key} checks one value more than {MAX_WEIGHT} times"
            raise UnfitSchemaError(text)
        pending += [*_same(documents, node), *_below(documents, node, _OTHER_VALUE)]


def _weight(documents: Documents, node: JsonNode, weights: dict[str, int]) -> int:
    """Return the number of schemas that apply to a value here; a recursive schema counts once."""
    weight = weights.get(node.key)
    if weight is None:
        weights[node.key] = 0
        total = 1 + sum(_weight(documents, part, weights) for part in _same(documents, node))
        weight = weights[node.key] = min(total, MAX_WEIGHT + 1)
    return weight


def _same(documents: Documents, node: JsonNode) -> Iterator[JsonNode]:
    """Yield the parts that apply to the same value."""
    target = documents.target(node)
    if target is not None:
        yield target
    yield from _below(documents, node, _SAME_VALUE)


def _below(documents: Documents, node: JsonNode, words: Iterable[str]) -> Iterator[JsonNode]:
    """Yield the schemas under some keywords: one, a list of them, or several by name."""
    for word in words:
        match node.keywords.get(word):
            case list() as listed if word in _LISTS:
                yield from (documents.below(node, word, index) for index in range(len(listed)))
            case dict() as named if word in _MAPS:
                names = (name for name, part in named.items() if _schema(part))
                yield from (documents.below(node, word, name) for name in names)
            case dict() | bool():
                yield documents.below(node, word)
            case _ if word in node.keywords and word in _CONDITIONS:
                yield documents.below(node, word)


MAX_LEVELS = 100
"""The deepest nesting of a schema's text."""
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
    """Compile a schema of draft 4, 6, 7, 2019-09 or 2020-12; without `$schema` it is draft 7.

    `imports` are the texts of the schemas it references, by the name in `$ref`.
    """
    content = _parsed(text, "the schema")
    if not isinstance(content, dict | bool):
        raise _invalid(
            "a JSON Schema is an object or a boolean", "the schema", "another JSON value"
        )
    references = {
        name: _parsed(import_text, f"reference {name}") for name, import_text in imports.items()
    }
    draft = _draft(content)
    if isinstance(content, dict) and "$schema" in content:
        # in the spelling of the validator
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
        evidence = "the text nests too deep" if isinstance(error, RecursionError) else str(error)
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
    deepest, pending = 0, [(content, 1)]
    while pending:
        value, level = pending.pop()
        if isinstance(value, dict | list):
            deepest = max(deepest, level)
            below = value.values() if isinstance(value, dict) else value
            pending += [(inner, level + 1) for inner in below]
    return deepest


def _draft(content: Any) -> int:
    declared = content.get("$schema") if isinstance(content, dict) else None
    if declared is None:
        return _DEFAULT_DRAFT
    match = _DRAFT.fullmatch(declared) if isinstance(declared, str) else None
    if match is None:
        evidence = f"$schema {declared!r}; known drafts: {', '.join(map(str, DRAFTS))}"
        raise _invalid("a JSON Schema has an unknown draft", "the schema", evidence)
    return int(match[1].split("-")[0])


def message_of(content: Any) -> str:
    """Return the name of a schema's payloads: its title, the end of its id, or `value`."""
    words = content if isinstance(content, dict) else {}
    title, schema_id = words.get("title"), words.get("$id", words.get("id"))
    if isinstance(title, str) and title.strip():
        return " ".join(title.split())
    path = urldefrag(schema_id).url.rstrip("/") if isinstance(schema_id, str) else ""
    name = re.sub(r"(\.schema)?\.json$", "", re.split(r"[/:]", path)[-1])
    return name or "value"


def _invalid(what: str, where: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        what,
        where=printable(where),
        evidence=printable(evidence),
        next_step="fix the schema and register it again",
    )


# The facts of one place in a JSON Schema, with `$ref` and `allOf` merged.
#
# Types are split into atoms, so that they can be compared as sets: `number` is `integer` and
# `real`. Conditions that only some values must match (`if`, `not`, dependencies) are left out: a
# value that matches the schema matches these facts, but not the other way round.

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
"""The largest number of alternatives of one place; a schema with more is kept as JSON text."""


class TooManyAlternativesError(Exception):
    """A place of a schema with too many alternatives."""


@dataclass(frozen=True)
class Facts:
    """The schemas that all apply to one value."""

    documents: Documents
    nodes: tuple[JsonNode, ...]
    """The schemas with keywords; empty if any value is accepted."""
    impossible: bool

    def words(self, keyword: str) -> Iterator[tuple[JsonNode, Any]]:
        """Yield each schema that has a keyword, and the keyword's value."""
        return ((node, node.keywords[keyword]) for node in self.nodes if keyword in node.keywords)

    @cached_property
    def atoms(self) -> frozenset[str]:
        """Return the types that a value may have."""
        atoms = ATOMS if not self.impossible else frozenset()
        for _, types in self.words("type"):
            names = types if isinstance(types, list) else [types]
            atoms &= frozenset().union(*(_TYPES.get(name, frozenset()) for name in names))
        if self.values is not None:
            atoms &= frozenset(_atom_of(json.loads(text)) for text in self.values)
        return atoms

    @cached_property
    def meant_atoms(self) -> frozenset[str]:
        """Return the types that a value may have, without those that the author forgot to exclude.

        A schema with `properties` and no `type` also accepts numbers and texts, which is hardly
        intended.
        """
        if self.atoms != ATOMS:
            return self.atoms
        keywords = {word for node in self.nodes for word in node.keywords}
        if keywords & _OBJECT_WORDS:
            return frozenset({"object"})
        return frozenset({"array"}) if keywords & _ARRAY_WORDS else self.atoms

    @cached_property
    def values(self) -> frozenset[str] | None:
        """Return the listed values as JSON, or None if values are not listed."""
        lists = [values for _, values in self.words("enum")]
        if self.documents.draft > 4:
            lists += [[value] for _, value in self.words("const")]
        sets = [frozenset(map(canonical, values)) for values in lists]
        return frozenset.intersection(*sets) if sets else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the declared properties, in their order."""
        names: dict[str, None] = {}
        for _, properties in self.words("properties"):
            names |= dict.fromkeys(properties)
        return tuple(names)

    @cached_property
    def required(self) -> frozenset[str]:
        """Return the required properties."""
        return frozenset(name for _, names in self.words("required") for name in names)

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """Return the expressions of `patternProperties`."""
        return tuple(
            dict.fromkeys(
                pattern for _, patterns in self.words("patternProperties") for pattern in patterns
            )
        )

    def property(self, name: str) -> tuple[JsonNode, ...]:
        """Return the schemas of a property, by name, by pattern, or for additional properties."""
        schemas: list[JsonNode] = []
        for node in self.nodes:
            below, words = self.documents.below, node.keywords
            matches = [
                below(node, "patternProperties", pattern)
                for pattern in words.get("patternProperties", ())
                if _matches(pattern, name)
            ]
            if name in words.get("properties", ()):
                matches.insert(0, below(node, "properties", name))
            if not matches and words.get("additionalProperties", True) is not True:
                matches = [below(node, "additionalProperties")]
            schemas += matches
        return tuple(schemas)

    @cached_property
    def others(self) -> tuple[JsonNode, ...]:
        """Return the schemas of undeclared properties; empty if any value is accepted."""
        keyword = "additionalProperties"
        return tuple(
            self.documents.below(node, keyword)
            for node, value in self.words(keyword)
            if value is not True
        )

    @cached_property
    def closed(self) -> bool:
        """Return True if undeclared properties are forbidden."""
        rules = [value for _, value in self.words("additionalProperties")]
        keywords = {word for node in self.nodes for word in node.keywords}
        # a condition may declare properties too, which then count as evaluated
        if self.documents.draft >= 2019 and not keywords & _CONDITIONAL:
            rules += [value for _, value in self.words("unevaluatedProperties")]
        return False in rules

    @cached_property
    def items(self) -> tuple[JsonNode, ...]:
        """Return the schemas of every item of an array, if all items are alike."""
        return tuple(
            self.documents.below(node, "items")
            for node, value in self.words("items")
            if not isinstance(value, list)
        )

    @cached_property
    def tuple_like(self) -> bool:
        """Return True if the items have schemas one by one."""
        return any(isinstance(value, list) for _, value in self.words("items")) or (
            self.documents.draft == 2020 and any(self.words("prefixItems"))
        )

    @cached_property
    def choices(self) -> tuple[tuple[JsonNode, ...], ...]:
        """Return the branches of each `anyOf` and `oneOf`."""
        return tuple(
            tuple(self.documents.below(node, keyword, i) for i in range(len(branches)))
            for keyword in ("anyOf", "oneOf")
            for node, branches in self.words(keyword)
        )

    def alternatives(self) -> tuple[Facts, ...]:
        """Return the alternatives of a value, each with the facts that hold for all of them."""
        complete: list[Facts] = []
        tried = 0
        pending: list[tuple[Facts, frozenset[str]]] = [(self, frozenset())]
        while pending:
            facts, taken = pending.pop()
            tried += 1
            if tried > 2 * MAX_ALTERNATIVES:
                raise TooManyAlternativesError
            if not facts.atoms:
                continue
            # a choice may be inside another choice, and even inside itself
            group = next((choice for choice in facts.choices if choice[0].key not in taken), None)
            if group is None:
                complete.append(facts)
                continue
            done = taken | {group[0].key}
            pending += [
                (facts_of(self.documents, (*facts.nodes, node)), done) for node in group[::-1]
            ]
        return tuple(complete)


def facts_of(documents: Documents, nodes: Iterable[JsonNode]) -> Facts:
    """Return the facts of schemas that all apply to one value."""
    nodes_by_key: dict[str, JsonNode] = {}
    pending, impossible = list(nodes)[::-1], False
    while pending:
        node = pending.pop()
        impossible |= node.content is False
        words = node.keywords
        if node.key in nodes_by_key or not words:
            continue
        nodes_by_key[node.key] = node
        target = documents.target(node)
        if target is not None:
            pending.append(target)
        if "$ref" in words and documents.draft <= 7:
            # in these drafts, keywords beside a reference are ignored
            nodes_by_key[node.key] = JsonNode({"$ref": words["$ref"]}, node.base, node.key)
            continue
        all_of = range(len(words.get("allOf", ())))
        pending += [documents.below(node, "allOf", i) for i in reversed(all_of)]
    return Facts(documents, tuple(nodes_by_key.values()), impossible)


def canonical(value: Any) -> str:
    """Return a value as a text that is the same for equal values: 1.0 is 1."""
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
            return [_plain(inner) for inner in value]
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
    return value


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    # the validator's regular expressions stop after a limit, where Python's could run for ever
    schema = {"pattern": pattern}
    return jsonschema_rs.is_valid(schema, name, offline=True, pattern_options=PATTERNS)
