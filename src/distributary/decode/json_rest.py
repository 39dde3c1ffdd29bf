"""What is left of a record when everything that has a column is taken away.

A schema that is not closed lets properties pass that it does not name. They are kept, in the shape
they had: `{"address": {"zip4": 12}, "lines": [null, {"gift": true}]}` is a record with a property
`zip4` in `address` that nobody announced, and a `gift` in its second line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributary.decode.json_shape import Kind, Value

NOTHING = object()
"""There is nothing left."""

Rest = Callable[[Any], Any]


def rest_of(value: Value) -> Rest | None:
    """A function that gives what is left of a value, or `NOTHING`; None when nothing ever is."""
    if not value.leaves_rest:
        return None
    match value.kind:
        case Kind.STRUCT:
            return _struct(value)
        case Kind.LIST if value.item is not None:
            return _list(rest_of(value.item))
        case Kind.MAP if value.item is not None:
            return _map(rest_of(value.item))
    return None


def _struct(value: Value) -> Rest:
    known = {m.property for m in value.members}
    inside = [(m.property, rest_of(m.value)) for m in value.shown]
    below = [(name, rest) for name, rest in inside if rest is not None]

    def rest(content: Any) -> Any:
        if type(content) is not dict:
            return NOTHING
        left = {}
        if not content.keys() <= known:
            left = {name: each for name, each in content.items() if name not in known}
        for name, inner in below:
            if name in content:
                found = inner(content[name])
                if found is not NOTHING:
                    left[name] = found
        return left or NOTHING

    return rest


def _list(item: Rest | None) -> Rest:
    def rest(content: Any) -> Any:
        if type(content) is not list or item is None:
            return NOTHING
        found = [item(each) for each in content]
        if all(each is NOTHING for each in found):
            return NOTHING
        return [None if each is NOTHING else each for each in found]

    return rest


def _map(item: Rest | None) -> Rest:
    def rest(content: Any) -> Any:
        if type(content) is not dict or item is None:
            return NOTHING
        found = {name: item(each) for name, each in content.items()}
        return {name: each for name, each in found.items() if each is not NOTHING} or NOTHING

    return rest
