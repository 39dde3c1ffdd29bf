"""Which JSON texts look like those before them: by regular expressions, at a fifth of the price.

What records of a stream look like is known after the first batch, and rarely changes. A text that
matches the expression of a shape is JSON, but for bytes that are no UTF-8, and adds nothing to the
shape. The expression follows what programs write: members in the order that some of the texts have,
of which all but the first may be missing, at most one blank between two signs. Any other text has
to be looked at.

An expression may ask for certain texts in certain places as well, such as a type in the field that
names types: what matches it has that text there, and nothing else under the same name.

Where the texts have objects in them, each object is an expression by itself, and a text is cut
where they begin. The automaton of a whole text of 600 bytes does not fit into the first cache of a
core, and takes 5 nanoseconds for a byte; those of its parts do, and take 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, Positions, slices, truths

_MOST_CHARACTERS = 40_000
"""Of an expression: beyond it, the automaton that is made of it may not fit into its memory."""
_MOST_PLACES, _VALUE = 300_000, 20
"""What the automaton remembers of members that may be missing, and characters of a value in it."""
_SAMPLES, _MOST_ORDERS = 8, 3
"""Texts that show in which order members come, and how many orders are tried."""
_CUT, _BRACE = "\0", ord("{")
"""Where an expression is cut: behind the brace that begins an object."""
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_PLAIN = r'"[ !#-\[\]-~]*"'
"""A text of ASCII without escapes."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"
_FORMS = {
    "boolean": "true|false",
    "string": _STRING,
    # no more digits than every double keeps, before and behind the point together
    "number": r"-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,6})?|-?[1-9][0-9]{9,14}",
    "integer": "-?(?:0|[1-9][0-9]{0,14})",
}
_INT64 = "-?(?:0|[1-9][0-9]{0,17})"
_SINGLE = {*_FORMS, "null"}

Named = Mapping[str, str | None]
"""By path: the text that has to be there, or None where there must be nothing."""


class _UnusualShapeError(Exception):
    """A shape that no expression is made for."""


def familiar(
    texts: pa.BinaryArray, shape: Mapping[str, Any], named: Named | None = None, plain: str = ""
) -> Mask:
    """Which texts certainly add nothing to a shape.

    With `named`, only objects that have certain texts in certain places do. With `plain`, only
    those that have a text of ASCII without escapes under that name, and its name nowhere before.
    """
    known = np.zeros(len(texts), np.bool_)
    asked = json.dumps(dict(named or {}))
    for _ in range(_MOST_ORDERS):
        left = np.flatnonzero(~known)
        if not len(left):
            break
        others = texts if len(left) == len(texts) else texts.take(pa.array(left))
        samples = _samples(others)
        ordered = json.dumps(_in_order(shape, samples))
        found = np.zeros(len(left), np.bool_)
        for cuts in dict.fromkeys([_objects_of(shape, samples), ()]):
            expressions = _expressions(ordered, asked, plain, cuts)
            if expressions and not found.any():
                found = _matched(others, expressions)
        known[left[found]] = True
        if not found.any():
            break
    return known


def _matched(texts: pa.BinaryArray, expressions: Sequence[str]) -> Mask:
    """Which texts are of parts that match these, one after the other."""
    if len(expressions) == 1:
        return truths(pc.match_substring_regex(texts, expressions[0]))
    rows, bounds = _bounds(texts, len(expressions))
    for number, expression in enumerate(expressions):
        parts = slices(texts, bounds[:, number], bounds[:, number + 1])
        matched = truths(pc.match_substring_regex(parts, expression))
        if not matched.all():
            rows, bounds = rows[matched], bounds[matched]
    known = np.zeros(len(texts), np.bool_)
    known[rows] = True
    return known


def _bounds(texts: pa.BinaryArray, count: int) -> tuple[Positions, Positions]:
    """The texts that can be cut into so many parts, and where each part begins and ends.

    Where there are braces in strings, or further objects in each other, the cuts are in the wrong
    places, and no expression matches.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[begin:end]
    # one more, so that there is something behind the last
    braces = np.append(np.flatnonzero(data == _BRACE) + begin, end)
    first = np.searchsorted(braces, offsets[:-1])
    last = np.minimum(first + count - 1, len(braces) - 1)
    rows = np.flatnonzero(braces[last] < offsets[1:])
    cuts = braces[first[rows, None] + np.arange(1, count)] + 1
    return rows, np.column_stack([offsets[:-1][rows], cuts, offsets[1:][rows]])


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
    order = _merged_order(
        [name for name in each if name in properties]
        for each in sorted(objects, key=len, reverse=True)
    )
    names = dict.fromkeys((*order, *properties))
    inside = {
        name: _in_order(properties[name], [each[name] for each in objects if name in each])
        for name in names
    }
    ordered = {**shape, "properties": inside}
    if _are_many(inside):
        ordered["required"] = [name for name in inside if all(name in each for each in objects)]
    return ordered


def _merged_order(lists: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists of names into one: a new name stands behind the one that it follows.

    The order is a chain, so that an object of 30,000 names costs ten times one of 3,000.
    """
    first = object()
    behind: dict[Any, Any] = {first: None}
    for names in lists:
        last: Any = first
        for name in names:
            if name not in behind:
                behind[name], behind[last] = behind[last], name
            last = name
    order = []
    name = behind[first]
    while name is not None:
        order.append(name)
        name = behind[name]
    return order


def _objects_of(shape: Mapping[str, Any], samples: Sequence[Any]) -> tuple[str, ...]:
    """The members that are objects, in all of the samples."""
    properties = shape.get("properties")
    if not isinstance(properties, dict) or not all(isinstance(each, dict) for each in samples):
        return ()
    return tuple(
        name
        for name, each in properties.items()
        if isinstance(each, dict)
        and "properties" in each
        and all(isinstance(sample.get(name), dict) for sample in samples)
    )


def _are_many(names: Collection[str]) -> bool:
    """Whether an object has too many members that may be missing.

    At each character the automaton remembers all that may follow. Without enough memory for that a
    byte takes microseconds. Of many members, those that all samples have may not be missing.
    """
    return len(names) * sum(len(name) + _VALUE for name in names) > _MOST_PLACES


@lru_cache(maxsize=4096)
def _expressions(shape: str, named: str, plain: str, cuts: tuple[str, ...]) -> tuple[str, ...]:
    """The expressions of a shape of objects, one for each part of a text; none where there is none.

    A text is cut where the objects in `cuts` begin.
    """
    wanted = {tuple(path.split(".")): text for path, text in json.loads(named).items()}
    try:
        made = _object(json.loads(shape), wanted, plain, cuts).split(_CUT)
        if max(map(len, made)) > _MOST_CHARACTERS:
            return ()
        whole = tuple(f"^(?:{each})$" for each in made)
        for each in whole:
            # one that the engine does not take is refused with the first text
            pc.match_substring_regex(pa.array([b"{}"]), each)
    except (_UnusualShapeError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return whole


_Wanted = Mapping[tuple[str, ...], str | None]


def _object(
    shape: dict[str, Any], wanted: _Wanted, plain: str = "", cuts: Sequence[str] = ()
) -> str:
    """Objects of a shape that have what is wanted, by its path."""
    properties = shape["properties"]
    if any(text is not None and path[0] not in properties for path, text in wanted.items()):
        raise _UnusualShapeError
    # told where there are many members
    always = set(shape.get("required", ()))
    if _are_many(properties.keys() - always):
        raise _UnusualShapeError
    members: list[str] = []
    single = True
    for name, each in properties.items():
        below = {path[1:]: text for path, text in wanted.items() if path[0] == name}
        is_plain = bool(plain) and name == plain
        needed = is_plain or name in cuts or name in always or not members
        needed = needed or any(text is not None for text in below.values())
        if is_plain:
            if not single:
                raise _UnusualShapeError
            value = _PLAIN
        elif () in below:
            value = _text(each, below[()])
        elif name in cuts or below:
            value = _object(each, below)
            value = value.replace(r"\{", rf"\{{{_CUT}", 1) if name in cuts else value
        else:
            value = _value(each)
        single = single and bool(each) and _SINGLE.issuperset(_types(each))
        member = f"{_word(name)}: ?{value}"
        if members:
            member = f", ?{member}"
        members.append(member if needed else f"(?:{member})?")
    if plain and plain not in properties:
        raise _UnusualShapeError
    return r"\{" + "".join(members) + r"\}"


def _types(shape: dict[str, Any]) -> list[str]:
    if "anyOf" in shape:
        return [type_ for each in shape["anyOf"] for type_ in _types(each)]
    types = shape["type"]
    return types if isinstance(types, list) else [types]


def _text(shape: dict[str, Any], text: str | None) -> str:
    """One text, where a shape has texts; or nothing."""
    if text is None:
        return "null"
    if shape and "string" not in _types(shape):
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
    if "anyOf" in shape:
        return f"(?:{'|'.join(map(_value, shape['anyOf']))})"
    forms = []
    for each in _types(shape):
        if each == "object":
            forms.append(_object(shape, {}))
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
