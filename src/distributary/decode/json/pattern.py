"""Which JSON texts look like those before them: by a regular expression, at a fifth of the price.

What records of a stream look like is known after the first batch, and rarely changes. A text that
matches the expression of a shape adds nothing to the shape, whatever else is wrong with it. The
expression follows what programs write: members in the order that some of the texts have, of which
all but the first may be missing, at most one blank between two signs. Any other text has to be
looked at.

An expression may ask for a certain text in a certain place as well, such as a type in the field
that names types: what matches it has that text there, and nothing else under the same name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, truths

_MOST_CHARACTERS = 20_000
"""Of an expression: beyond it, the automaton that is made of it may not fit into its memory."""
_SAMPLES, _MOST_ORDERS = 8, 3
"""Texts that show in which order members come, and how many orders are tried."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_SCALAR = rf"(?:{_STRING}|[-+.0-9eE]+|true|false|null)"
_FORMS = {
    "boolean": "true|false",
    "string": _STRING,
    # no more digits than every double keeps, before and behind the point together
    "number": r"-?[0-9]{1,9}(?:\.[0-9]{1,6})?|-?[0-9]{10,15}",
    "integer": "-?[0-9]{1,15}",
}
_INT64 = "-?[0-9]{1,18}"


class _UnusualShapeError(Exception):
    """A shape that no expression is made for."""


def familiar(
    texts: pa.BinaryArray, shape: Mapping[str, Any], path: str = "", text: str = ""
) -> Mask:
    """Which texts certainly add nothing to a shape.

    With a path, only objects that have a certain text there do.
    """
    known = np.zeros(len(texts), np.bool_)
    for _ in range(_MOST_ORDERS):
        left = np.flatnonzero(~known)
        others = texts if len(left) == len(texts) else texts.take(pa.array(left))
        ordered = json.dumps(_in_order(shape, _samples(others)))
        expression = _expression(ordered, path, text)
        if not expression:
            break
        found = truths(pc.match_substring_regex(others, expression))
        known[left[found]] = True
        if found.all() or not found.any():
            break
    return known


@lru_cache(maxsize=4096)
def shape_in(schema: bytes) -> Mapping[str, Any]:
    """The shape that a compiled schema holds; one without anything where it holds none."""
    try:
        shape = json.loads(schema)["schema"]
    except (ValueError, KeyError, TypeError):
        return {}
    return shape if isinstance(shape, dict) else {}


def _samples(texts: pa.BinaryArray) -> list[Any]:
    """What a few of the texts hold, from the first to the last."""
    found = []
    for place in np.unique(np.linspace(0, len(texts) - 1, _SAMPLES, dtype=np.int64)).tolist():
        with suppress(orjson.JSONDecodeError):
            found.append(orjson.loads(texts[place].as_py()))
    return found


def _in_order(shape: Any, samples: Sequence[Any]) -> Any:
    """A shape with the properties of objects in the order in which samples have them."""
    objects = [each for each in samples if isinstance(each, dict)]
    properties = shape.get("properties") if isinstance(shape, dict) else None
    if not objects or not isinstance(properties, dict):
        return shape
    order: list[str] = []
    for each in sorted(objects, key=len, reverse=True):
        # a name that is new belongs behind the one that it follows
        place = 0
        for name in each:
            if name not in order:
                order.insert(place, name)
                place += 1
            else:
                place = order.index(name) + 1
    names = dict.fromkeys(name for name in (*order, *properties) if name in properties)
    inside = {
        name: _in_order(properties[name], [each[name] for each in objects if name in each])
        for name in names
    }
    return {**shape, "properties": inside}


@lru_cache(maxsize=4096)
def _expression(shape: str, path: str, text: str) -> str:
    """The expression of a shape of objects; empty where there is none."""
    names = tuple(path.split(".")) if path else ()
    try:
        made = rf"^(?:{_object(json.loads(shape), names, text)})$"
        if len(made) > _MOST_CHARACTERS:
            return ""
        # one that the engine does not take is refused with the first text
        pc.match_substring_regex(pa.array([b"{}"]), made)
    except (_UnusualShapeError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return made


def _object(shape: dict[str, Any], path: tuple[str, ...] = (), text: str = "") -> str:
    """Objects of a shape; with a path, those that have a text there."""
    wanted, *below = path or ("",)
    if path and wanted not in shape["properties"]:
        raise _UnusualShapeError
    members: list[str] = []
    for name, each in shape["properties"].items():
        if not path or name != wanted:
            member, needed = f"{_word(name)}: ?{_value(each)}", not members
        else:
            inside = _object(each, tuple(below), text) if below else _text(each, text)
            member, needed = f"{_word(name)}: ?{inside}", True
        if members:
            member = f", ?{member}"
        members.append(member if needed else f"(?:{member})?")
    return r"\{" + "".join(members) + r"\}"


def _text(shape: dict[str, Any], text: str) -> str:
    """One text, where a shape has texts."""
    if shape and "string" not in shape["type"]:
        raise _UnusualShapeError
    return _word(text)


def _word(text: str) -> str:
    written = json.dumps(text)
    if not written.isascii() or "\\" in written:
        # may be spelled in several ways
        raise _UnusualShapeError
    return re.escape(written)


def _value(shape: dict[str, Any]) -> str:
    if not shape:
        return f"(?:{_anything(2)})"
    types = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
    forms = []
    for each in types:
        if each == "object":
            forms.append(_object(shape))
        elif each == "array":
            item = _value(shape["items"])
            forms.append(rf"\[(?:{item}(?:, ?{item})*)?\]")
        elif each != "null":
            forms.append(_INT64 if shape.get("format") == "int64" else _FORMS[each])
    return f"(?:{'|'.join([*forms, 'null'])})"


def _anything(levels: int) -> str:
    """Values that have no more than so many objects and arrays in each other."""
    if not levels:
        return _SCALAR
    item = _anything(levels - 1)
    member = f"{_STRING}: ?(?:{item})"
    objects = rf"\{{(?:{member}(?:, ?{member})*)?\}}"
    return rf"{_SCALAR}|\[(?:(?:{item})(?:, ?(?:{item}))*)?\]|{objects}"
