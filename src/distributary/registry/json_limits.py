"""Limits in a JSON Schema, and whether another schema has narrower ones."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from distributary.registry.json_facts import Facts

_COUNTS = (
    ("maxLength", "minLength", "string"),
    ("maxItems", "minItems", "array"),
    ("maxProperties", "minProperties", "object"),
)
_NUMBERS = {"integer", "real"}


def narrowed_limits(old: Facts, new: Facts, place: str) -> Iterator[str]:
    """Which limits of the new schema exclude what the old one let pass."""
    types = old.atoms & new.atoms
    if types & _NUMBERS:
        yield from _numbers(old, new, place)
    for most, least, type_ in _COUNTS:
        if type_ not in types:
            continue
        was, now = _highest(old, most), _highest(new, most)
        if now is not None and (was is None or was > now):
            yield f"{place} has a lower `{most}`"
        # nothing has less than nothing
        low = _lowest(new, least)
        if low is not None and (_lowest(old, least) or 0) < low:
            yield f"{place} has a higher `{least}`"


def _numbers(old: Facts, new: Facts, place: str) -> Iterator[str]:
    for word, exclusive, sign in (
        ("maximum", "exclusiveMaximum", 1),
        ("minimum", "exclusiveMinimum", -1),
    ):
        was, now = _end(old, word, exclusive, sign), _end(new, word, exclusive, sign)
        if now is not None and (was is None or was > now):
            yield f"{place} has a narrower `{word}`"
    steps = [_fraction(said) for _, said in old.words("multipleOf")]
    for _, said in new.words("multipleOf"):
        step = _fraction(said)
        whole = step == 1 and "real" not in old.atoms
        if not whole and not any((each / step).denominator == 1 for each in steps):
            yield f"{place} has another `multipleOf`"


def _end(facts: Facts, word: str, exclusive: str, sign: int) -> tuple[Fraction, bool] | None:
    """How far numbers may go, and whether that far; of two the smaller holds."""
    ends = []
    for node, said in facts.words(word):
        # in draft 4 the exclusive one is a switch
        ends.append((sign * _fraction(said), node.keywords.get(exclusive) is not True))
    for _, said in facts.words(exclusive):
        if not isinstance(said, bool):
            ends.append((sign * _fraction(said), False))
    return min(ends, default=None)


def _fraction(said: Any) -> Fraction:
    return Fraction(str(said))


def _highest(facts: Facts, word: str) -> int | None:
    return min((said for _, said in facts.words(word)), default=None)


def _lowest(facts: Facts, word: str) -> int | None:
    return max((said for _, said in facts.words(word)), default=None)
