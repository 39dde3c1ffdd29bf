"""Checks whether data of one JSON Schema is valid for another, as Confluent does.

The schemas are compared place by place, with `$ref` and `allOf` merged and each branch of `anyOf`
and `oneOf` on its own (a `oneOf` counts as an `anyOf`). The rules are in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import Any

from distributary.registry.compile.json_compiler import (
    Facts,
    TooManyAlternativesError,
    canonical,
    facts_of,
)
from distributary.registry.compile.json_documents import Documents

# Limits in a JSON Schema, and whether another schema has narrower ones.

_COUNTS = (
    ("maxLength", "minLength", "string"),
    ("maxItems", "minItems", "array"),
    ("maxProperties", "minProperties", "object"),
)
_NUMBERS = {"integer", "real"}


def narrowed_limits(old: Facts, new: Facts, place: str) -> Iterator[str]:
    """Yield the limits of the new schema that exclude values of the old one."""
    types = old.atoms & new.atoms
    if types & _NUMBERS:
        yield from _numbers(old, new, place)
    for most, least, type_ in _COUNTS:
        if type_ not in types:
            continue
        was, now = (
            min((limit for _, limit in facts.words(most)), default=inf) for facts in (old, new)
        )
        if was > now:
            yield f"{place} has a lower `{most}`"
        # a missing lower limit is the same as zero
        was, now = (
            max((limit for _, limit in facts.words(least)), default=0) for facts in (old, new)
        )
        if was < now:
            yield f"{place} has a higher `{least}`"


def _numbers(old: Facts, new: Facts, place: str) -> Iterator[str]:
    for word, exclusive, sign in (
        ("maximum", "exclusiveMaximum", 1),
        ("minimum", "exclusiveMinimum", -1),
    ):
        was, now = _end(old, word, exclusive, sign), _end(new, word, exclusive, sign)
        if now is not None and (was is None or was > now):
            yield f"{place} has a narrower `{word}`"
    steps = [_fraction(value) for _, value in old.words("multipleOf")]
    for _, value in new.words("multipleOf"):
        step = _fraction(value)
        is_redundant = step == 1 and "real" not in old.atoms
        if not is_redundant and not any((old_step / step).denominator == 1 for old_step in steps):
            yield f"{place} has another `multipleOf`"


def _end(facts: Facts, word: str, exclusive: str, sign: int) -> tuple[Fraction, bool] | None:
    """Return the limit of numbers, and whether it is inclusive; the narrowest of several counts."""
    # in draft 4 the exclusive keyword is a boolean
    ends = [
        (sign * _fraction(value), node.keywords.get(exclusive) is not True)
        for node, value in facts.words(word)
    ]
    strict = (value for _, value in facts.words(exclusive) if not isinstance(value, bool))
    return min(ends + [(sign * _fraction(value), False) for value in strict], default=None)


def _fraction(value: Any) -> Fraction:
    return Fraction(str(value))


MAX_COMPARISONS = 20_000
_WORD_FOR_WORD = (
    *("$dynamicRef", "$recursiveRef", "additionalItems", "contains", "dependencies"),
    *("dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not"),
    *("pattern", "prefixItems", "propertyNames", "then", "unevaluatedItems"),
    "unevaluatedProperties",
)
_COLUMN_FORMATS = ("date", "date-time")


def unreadable(writer: bytes, reader: bytes) -> list[str]:
    """Return the reasons why data of one compiled schema may not be valid for another."""
    old, new = _documents(writer), _documents(reader)
    check = _Check(old, new)
    try:
        return check.compare(facts_of(old, [old.root]), facts_of(new, [new.root]), "")
    except (_TooLongError, TooManyAlternativesError, RecursionError):
        return ["the schemas have too many alternatives to be compared"]


@lru_cache(maxsize=256)
def _documents(body: bytes) -> Documents:
    return Documents.of(body)


class _TooLongError(Exception):
    """The schemas need too many comparisons."""


class _Check:
    def __init__(self, old: Documents, new: Documents) -> None:
        self._old, self._new = old, new
        self._compared: dict[tuple[frozenset[str], frozenset[str]], list[str]] = {}
        self._comparisons = 0

    def compare(self, old: Facts, new: Facts, at: str) -> list[str]:
        """Return the problems of values that the old schema accepts and the new one does not."""
        pair = _keys(old), _keys(new)
        if pair in self._compared:
            return self._compared[pair]
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise _TooLongError
        # a recursive comparison finds no problems here, so a recursive schema is judged by its
        # other parts
        self._compared[pair] = []
        problems: dict[str, None] = {}
        for alternative in old.alternatives():
            problems |= dict.fromkeys(self._refused(alternative, new, at))
        self._compared[pair] = list(problems)
        return list(problems)

    def _refused(self, old: Facts, new: Facts, at: str) -> Iterator[str]:
        """Yield the problems of one alternative of the old schema against the new schema."""
        place = at or "the schema"
        lost = sorted(old.atoms - new.atoms)
        if lost:
            types = ", ".join("number" if atom == "real" else atom for atom in lost)
            yield f"{place} may be {types}, which is not allowed any more"
        if not old.atoms & new.atoms:
            return
        yield from _values(old, new, place)
        yield from narrowed_limits(old, new, place)
        yield from _changed_keywords(old, new, place)
        if "object" in old.atoms & new.atoms:
            yield from self._objects(old, new, at)
        if "array" in old.atoms & new.atoms:
            yield from self._arrays(old, new, at)
        for group in new.choices:
            branches = [facts_of(self._new, [node]) for node in group]
            if all(self.compare(old, branch, at) for branch in branches):
                yield f"{place} has alternatives, and none of them accepts what was valid"

    def _objects(self, old: Facts, new: Facts, at: str) -> Iterator[str]:
        for name in dict.fromkeys((*old.names, *new.names)):
            yield from self._property(
                old, facts_of(self._old, old.property(name)), new, name, f"{at}/{name}"
            )
        for name in sorted(new.required - old.required):
            property_facts = facts_of(self._new, new.property(name))
            if not any(property_facts.words("default")):
                yield f"{at}/{name} became required"
        if not old.closed:
            yield from self._others(old, new, at)
        for pattern in old.patterns:
            if new.closed and pattern not in new.patterns:
                yield f"{at}/{{{pattern}}} is not allowed any more"

    def _property(self, old: Facts, was: Facts, new: Facts, name: str, at: str) -> Iterator[str]:
        now = facts_of(self._new, new.property(name))
        if was.impossible or not (now.nodes or now.impossible):
            return
        if now.impossible:
            yield f"{at} is not allowed any more"
        elif not was.nodes and name not in old.names:
            yield f"{at} is new in an open object, which may have had anything there"
        else:
            yield from self.compare(was, now, at)

    def _others(self, old: Facts, new: Facts, at: str) -> Iterator[str]:
        """Compare the properties that the old schema did not name."""
        was, now = facts_of(self._old, old.others), facts_of(self._new, new.others)
        place = f"{at}/*"
        if now.impossible:
            yield f"{place} is not allowed any more: the object is closed now"
        elif now.nodes:
            yield from self.compare(was, now, place)
        for pattern in new.patterns:
            before, after = _pattern(old, pattern), _pattern(new, pattern)
            if before.nodes or pattern in old.patterns:
                yield from self.compare(before, after, f"{at}/{{{pattern}}}")
            elif after.nodes or after.impossible:
                yield f"{at}/{{{pattern}}} is new in an open object"

    def _arrays(self, old: Facts, new: Facts, at: str) -> Iterator[str]:
        if new.tuple_like:
            if _words(old, "items") != _words(new, "items"):
                yield f"{at or 'the schema'} lists its items one by one, and not as before"
            return
        was, now = facts_of(self._old, old.items), facts_of(self._new, new.items)
        if now.impossible or now.nodes:
            # a tuple has no schema for all items, so any item is assumed
            before = facts_of(self._old, ()) if old.tuple_like else was
            yield from self.compare(before, now, f"{at}/[]")


def _pattern(facts: Facts, pattern: str) -> Facts:
    below = facts.documents.below
    nodes = (node for node, patterns in facts.words("patternProperties") if pattern in patterns)
    return facts_of(facts.documents, [below(node, "patternProperties", pattern) for node in nodes])


def _keys(facts: Facts) -> frozenset[str]:
    impossible = frozenset({"never"}) if facts.impossible else frozenset()
    return frozenset(node.key for node in facts.nodes) | impossible


def _values(old: Facts, new: Facts, place: str) -> Iterator[str]:
    if new.values is None:
        return
    if old.values is None:
        if any(atom not in ("null", "boolean") for atom in old.atoms):
            yield f"{place} is limited to certain values"
        return
    lost = sorted(old.values - new.values)
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        yield f"{place} lacks the value {', '.join(lost[:3])}{more}"


def _changed_keywords(old: Facts, new: Facts, place: str) -> Iterator[str]:
    for word in _WORD_FOR_WORD:
        added = _words(new, word) - _words(old, word)
        if added:
            yield f"{place} has another `{word}`"
    unique = [any(value is True for _, value in facts.words("uniqueItems")) for facts in (old, new)]
    if unique == [False, True]:
        yield f"{place} must have unique items now"
    formats = {value for _, value in new.words("format") if value in _COLUMN_FORMATS}
    if formats - {value for _, value in old.words("format") if isinstance(value, str)}:
        yield f"{place} has another `format`"


def _words(facts: Facts, word: str) -> frozenset[str]:
    return frozenset(canonical(value) for _, value in facts.words(word))
