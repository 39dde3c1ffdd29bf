"""Regular expressions that find JSON texts of a known shape, at a fifth of the cost of parsing.

The shape of a stream's records is known after the first batch and rarely changes. A text that
matches the expression of a shape is JSON, apart from invalid UTF-8, and adds nothing to the shape.
The expression follows the output of programs: members in the order of sample texts, of which all
but the first may be missing, and at most one blank between two tokens. Any other text has to be
parsed.

An expression can also require texts at given paths, for instance a type in the field that names
types. A text that matches has this text there and nothing else under the same name.

Where texts contain objects, each object has its own expression, and a text is cut where they begin.
The automaton of a whole text of 600 bytes does not fit the first-level cache of a core and takes 5
nanoseconds for a byte. The automata of the parts fit and take 2.
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
"""The largest number of characters of an expression; the automaton of a longer one may not fit its
memory."""
_MOST_PLACES, _VALUE = 300_000, 20
"""The largest number of places that the automaton may keep for optional members, and the characters
counted for a value."""
_SAMPLES, _MOST_ORDERS = 8, 3
"""The number of texts sampled for the order of members, and the number of orders tried."""
_CUT, _BRACE = "\0", ord("{")
"""The mark where an expression is cut: after the brace that begins an object."""
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_PLAIN = r'"[ !#-\[\]-~]*"'
"""An ASCII text without escapes."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"
_FORMS = {
    "boolean": "true|false",
    "string": _STRING,
    # no more digits than every double keeps, before and after the point together
    "number": r"-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,6})?|-?[1-9][0-9]{9,14}",
    "integer": "-?(?:0|[1-9][0-9]{0,14})",
}
_INT64 = "-?(?:0|[1-9][0-9]{0,17})"
_SINGLE = {*_FORMS, "null"}

Named = Mapping[str, str | None]
"""The texts that must be present, by path; None for a path that must be missing or null."""


class _UnusualShapeError(Exception):
    """A shape for which no expression is built."""


def familiar(
    texts: pa.BinaryArray, shape: Mapping[str, Any], named: Named | None = None, plain: str = ""
) -> Mask:
    """Return a mask of the texts that certainly add nothing to a shape.

    With `named`, only objects with the given texts at the given paths match. With `plain`, only
    objects match that have an ASCII text without escapes under that name, and the name nowhere
    before.
    """
    matching = np.zeros(len(texts), np.bool_)
    required = json.dumps(dict(named or {}))
    for _ in range(_MOST_ORDERS):
        left = np.flatnonzero(~matching)
        if not len(left):
            break
        others = texts if len(left) == len(texts) else texts.take(pa.array(left))
        samples = _samples(others)
        ordered = json.dumps(_in_order(shape, samples))
        matched = np.zeros(len(left), np.bool_)
        for cuts in dict.fromkeys([_objects_of(shape, samples), ()]):
            expressions = _expressions(ordered, required, plain, cuts)
            if expressions and not matched.any():
                matched = _matched(others, expressions)
        matching[left[matched]] = True
        if not matched.any():
            break
    return matching


def _matched(texts: pa.BinaryArray, expressions: Sequence[str]) -> Mask:
    """Return a mask of the texts whose parts match the expressions, one after the other."""
    if len(expressions) == 1:
        return truths(pc.match_substring_regex(texts, expressions[0]))
    rows, bounds = _bounds(texts, len(expressions))
    for number, expression in enumerate(expressions):
        parts = slices(texts, bounds[:, number], bounds[:, number + 1])
        matched = truths(pc.match_substring_regex(parts, expression))
        if not matched.all():
            rows, bounds = rows[matched], bounds[matched]
    mask = np.zeros(len(texts), np.bool_)
    mask[rows] = True
    return mask


def _bounds(texts: pa.BinaryArray, count: int) -> tuple[Positions, Positions]:
    """Return the texts that can be cut into `count` parts, and the bounds of the parts.

    Braces in strings and further nested objects put the cuts in wrong places. Then no expression
    matches.
    """
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[begin:end]
    # one more position, so that every brace has a next one
    braces = np.append(np.flatnonzero(data == _BRACE) + begin, end)
    first = np.searchsorted(braces, offsets[:-1])
    last = np.minimum(first + count - 1, len(braces) - 1)
    rows = np.flatnonzero(braces[last] < offsets[1:])
    cuts = braces[first[rows, None] + np.arange(1, count)] + 1
    return rows, np.column_stack([offsets[:-1][rows], cuts, offsets[1:][rows]])


@lru_cache(maxsize=4096)
def shape_in(schema: bytes) -> Mapping[str, Any]:
    """Return the shape in a compiled schema, or an empty one if there is none."""
    try:
        shape = json.loads(schema)["schema"]
    except (ValueError, KeyError, TypeError):
        return {}
    return shape if isinstance(shape, dict) else {}


def _samples(texts: pa.BinaryArray) -> list[Any]:
    """Parse a few of the texts, evenly spread from the first to the last."""
    samples = []
    for place in np.unique(np.linspace(0, len(texts) - 1, _SAMPLES, dtype=np.int64)).tolist():
        with suppress(orjson.JSONDecodeError):
            samples.append(orjson.loads(texts[place].as_py()))
    return samples


def _in_order(shape: Any, samples: Sequence[Any]) -> Any:
    """Return a shape with its properties in the order in which the samples have them."""
    objects = [sample for sample in samples if isinstance(sample, dict)]
    properties = shape.get("properties") if isinstance(shape, dict) else None
    if not objects or not isinstance(properties, dict):
        return shape
    order = _merged_order(
        [name for name in sample if name in properties]
        for sample in sorted(objects, key=len, reverse=True)
    )
    names = dict.fromkeys((*order, *properties))
    members = {
        name: _in_order(properties[name], [sample[name] for sample in objects if name in sample])
        for name in names
    }
    ordered = {**shape, "properties": members}
    if _are_many(members):
        ordered["required"] = [
            name for name in members if all(name in sample for sample in objects)
        ]
    return ordered


def _merged_order(lists: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists of names into one, placing a new name after the name that it follows.

    The order is a linked list, so that an object of 30,000 names costs only ten times one of 3,000.
    """
    first = object()
    next_name: dict[Any, Any] = {first: None}
    for names in lists:
        last: Any = first
        for name in names:
            if name not in next_name:
                next_name[name], next_name[last] = next_name[last], name
            last = name
    order = []
    name = next_name[first]
    while name is not None:
        order.append(name)
        name = next_name[name]
    return order


def _objects_of(shape: Mapping[str, Any], samples: Sequence[Any]) -> tuple[str, ...]:
    """Return the properties that are objects in all of the samples."""
    properties = shape.get("properties")
    if not isinstance(properties, dict) or not all(isinstance(sample, dict) for sample in samples):
        return ()
    return tuple(
        name
        for name, property_ in properties.items()
        if isinstance(property_, dict)
        and "properties" in property_
        and all(isinstance(sample.get(name), dict) for sample in samples)
    )


def _are_many(names: Collection[str]) -> bool:
    """Return True if an object has too many members that may be missing.

    At each character the automaton remembers all members that may follow. Without enough memory for
    them a byte takes microseconds. Where there are many members, those that all samples have are
    required.
    """
    return len(names) * sum(len(name) + _VALUE for name in names) > _MOST_PLACES


@lru_cache(maxsize=4096)
def _expressions(shape: str, named: str, plain: str, cuts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the expressions of a shape, one for each part of a text; empty if there are none.

    A text is cut where the objects in `cuts` begin.
    """
    wanted = {tuple(path.split(".")): text for path, text in json.loads(named).items()}
    try:
        parts = _object(json.loads(shape), wanted, plain, cuts).split(_CUT)
        if max(map(len, parts)) > _MOST_CHARACTERS:
            return ()
        whole = tuple(f"^(?:{part})$" for part in parts)
        for expression in whole:
            # matching a first text raises if the engine does not accept the expression
            pc.match_substring_regex(pa.array([b"{}"]), expression)
    except (_UnusualShapeError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return whole


_Wanted = Mapping[tuple[str, ...], str | None]


def _object(
    shape: dict[str, Any], wanted: _Wanted, plain: str = "", cuts: Sequence[str] = ()
) -> str:
    """Return the expression of objects of a shape that have the wanted texts."""
    properties = shape["properties"]
    if any(text is not None and path[0] not in properties for path, text in wanted.items()):
        raise _UnusualShapeError
    # `_in_order` sets `required` where there are many members
    required = set(shape.get("required", ()))
    if _are_many(properties.keys() - required):
        raise _UnusualShapeError
    members: list[str] = []
    single = True
    for name, member_shape in properties.items():
        inner_wanted = {path[1:]: text for path, text in wanted.items() if path[0] == name}
        is_plain = bool(plain) and name == plain
        needed = is_plain or name in cuts or name in required or not members
        needed = needed or any(text is not None for text in inner_wanted.values())
        if is_plain:
            if not single:
                raise _UnusualShapeError
            value = _PLAIN
        elif () in inner_wanted:
            value = _text(member_shape, inner_wanted[()])
        elif name in cuts or inner_wanted:
            value = _object(member_shape, inner_wanted)
            value = value.replace(r"\{", rf"\{{{_CUT}", 1) if name in cuts else value
        else:
            value = _value(member_shape)
        single = single and bool(member_shape) and _SINGLE.issuperset(_types(member_shape))
        member = f"{_word(name)}: ?{value}"
        if members:
            member = f", ?{member}"
        members.append(member if needed else f"(?:{member})?")
    if plain and plain not in properties:
        raise _UnusualShapeError
    return r"\{" + "".join(members) + r"\}"


def _types(shape: dict[str, Any]) -> list[str]:
    if "anyOf" in shape:
        return [type_ for alternative in shape["anyOf"] for type_ in _types(alternative)]
    types = shape["type"]
    return types if isinstance(types, list) else [types]


def _text(shape: dict[str, Any], text: str | None) -> str:
    """Return the expression of one given text, or of null."""
    if text is None:
        return "null"
    if shape and "string" not in _types(shape):
        raise _UnusualShapeError
    return _word(text)


def _word(text: str) -> str:
    written = json.dumps(text)
    if not written.isascii() or "\\" in written:
        # a text with escapes may be written in several ways
        raise _UnusualShapeError
    return re.escape(written)


def _value(shape: dict[str, Any]) -> str:
    if not shape:
        return f"(?:{_anything(2)})"
    if "anyOf" in shape:
        return f"(?:{'|'.join(map(_value, shape['anyOf']))})"
    forms = []
    for type_ in _types(shape):
        if type_ == "object":
            forms.append(_object(shape, {}))
        elif type_ == "array":
            item = _value(shape["items"])
            forms.append(rf"\[(?:{item}(?:, ?{item})*)?\]")
        elif type_ != "null":
            forms.append(_INT64 if shape.get("format") == "int64" else _FORMS[type_])
    return f"(?:{'|'.join([*forms, 'null'])})"


def _anything(levels: int) -> str:
    """Return the expression of any value with at most `levels` nested objects and arrays."""
    if not levels:
        return _SCALAR
    item = _anything(levels - 1)
    member = f"{_STRING}: ?(?:{item})"
    objects = rf"\{{(?:{member}(?:, ?{member})*)?\}}"
    return rf"{_SCALAR}|\[(?:(?:{item})(?:, ?(?:{item}))*)?\]|{objects}"
