"""The plan of single values: numbers and texts of a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from distributary.decode import json_shape as shape
from distributary.decode.json_shape import Value
from distributary.registry.json_facts import Facts

_INT64 = range(-(2**63), 2**63)
_FORMATS = {"date-time": shape.INSTANT, "date": shape.DATE}


def unlisted(facts: Iterable[Facts]) -> bool:
    """Whether the values are not told one by one."""
    return all(f.values is None for f in facts)


def integer(facts: Sequence[Facts]) -> Value:
    """An integer, of as many bits or digits as the schema lets it have."""
    bounds = [bound for f in facts for bound in _bounds(f)]
    if all(bound in _INT64 for bound in bounds):
        return replace(shape.INTEGER, plain=unlisted(facts))
    return shape.integer_of(max(len(str(abs(bound))) for bound in bounds))


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
            return replace(shape.STRING, allowed=_texts(listed[0]), plain=True)
        return shape.STRING
    formats = {said for f in facts for _, said in f.words("format") if isinstance(said, str)}
    told = all(any(f.words("format")) for f in facts)
    known = _FORMATS.get(next(iter(formats))) if told and len(formats) == 1 else None
    return replace(known or shape.STRING, plain=True)


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in map(json.loads, sorted(values)) if isinstance(text, str))
