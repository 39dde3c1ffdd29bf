"""A JSON Schema for change events in JSON that came without one.

The schema takes every event that it was inferred from, and `JsonDecoder` loses nothing of them with
it: objects are followed for two levels, an event and its parts; what lies below is JSON text, and
so is what has several types, or numbers that no type of the lake holds. Null is taken everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.base import (
    Mask,
    Positions,
    RefusedError,
    by_halves,
    slices,
    truths,
    where,
)
from distributary.decode.json.columns import read_texts
from distributary.decode.json.pattern import familiar
from distributary.decode.json.text import parse

# Shapes of JSON values: JSON Schemas that can be joined. Their order, grouping and repetition do
# not matter, and the outcome takes all that the parts take.

LEVELS = 2
"""Of objects in each other whose properties are told one by one: an event and its parts."""
MAX_PROPERTIES = 5_000
"""Of one object; one with more can be anything."""
MIXED = "sort_keys"
"""A list of Datastream's that mixes texts and numbers by design: its items can be anything."""

Shape = dict[str, Any]
NOTHING: Shape = {"type": "null"}
"""The shape of no value at all; null itself is taken by every shape."""
ANYTHING: Shape = {}

_RANKS = (2**53, 2**63, 10**20, 10**38)
"""Integers below these in size: exact in a double, in 64 bits, in decimals of the lake."""
_INT64, _TEXT = 1, len(_RANKS)
_SCALARS = frozenset(("boolean", "integer", "number", "string"))
_KINDS = (frozenset(("object",)), frozenset(("array",)), _SCALARS)
"""What records of one table are at the top, and values of one column."""
_COLUMN_KINDS = (*_KINDS[:2], *map(frozenset, (("boolean",), ("integer", "number"), ("string",))))
"""What values of a column of change data are: its database gave it a type."""
_IMAGES = ("before", "after", "payload")
"""Where change events have rows, unless they are flattened."""


@dataclass(slots=True)
class _Parts:
    """A shape taken apart."""

    types: set[str]
    rank: int = 0
    """Of integers: how many bits or digits they need."""
    properties: dict[str, Shape] = field(default_factory=dict)
    items: Shape = field(default_factory=lambda: NOTHING)


def join(one: Shape, other: Shape) -> Shape:
    """The shape that takes what either takes."""
    if one == other:
        return one
    if not one or not other:
        return ANYTHING
    a, b = _parts(one), _parts(other)
    properties = dict(a.properties)
    for name, shape in b.properties.items():
        properties[name] = join(properties[name], shape) if name in properties else shape
    return _joined(
        _Parts(a.types | b.types, max(a.rank, b.rank), properties, join(a.items, b.items))
    )


def widened(one: Shape, other: Shape, *, parts: bool = False) -> Shape:
    """The shapes joined, but an object with properties never becomes just anything.

    With `parts` that holds for the objects in it as well, as for the images of a row.
    """
    joined = join(one, other)
    if not joined:
        return next((each for each in (one, other) if "properties" in each), ANYTHING)
    inner = joined.get("properties", {})
    if not parts or all(inner.values()):
        return joined
    either = [each.get("properties", {}) for each in (one, other)]
    kept = {
        name: shape or widened(*(each.get(name, NOTHING) for each in either))
        for name, shape in inner.items()
    }
    return {**joined, "properties": kept}


def grown(known: Shape, shape: Shape, *, changes: bool = False) -> Shape:
    """What is known and what a shape adds to it, which is nothing if it is of another kind.

    Where nothing is known yet, objects go before arrays, and those before single values. Change
    events are always objects. The same holds for each column: what was objects, arrays or single
    values stays that, and a record that has something else there says nothing about it.
    """
    joined = widened(known, shape, parts=changes)
    if changes:
        return _kept_rows(known, objects_only(joined))
    if not known or not joined:
        return ANYTHING
    types = _parts(known).types or _parts(joined).types
    top = _only(joined, next((kind for kind in _KINDS if kind & types), frozenset()))
    return _kept(known, top, _KINDS)


def _kept_rows(known: Shape, joined: Shape) -> Shape:
    """The same for change events: it is their rows that have columns, or they are rows."""
    old, new = known.get("properties", {}), joined.get("properties", {})
    if not any(name in new for name in _IMAGES):
        return _kept(known, joined, _COLUMN_KINDS)
    rows = {
        n: _kept(old[n], new[n], _COLUMN_KINDS) for n in _IMAGES if "properties" in old.get(n, {})
    }
    return {**joined, "properties": new | rows}


def _kept(known: Shape, joined: Shape, kinds: Sequence[frozenset[str]]) -> Shape:
    """What was joined, but what is of one kind by now stays that, also inside."""
    types = _parts(known).types if known else set()
    kind = next((each for each in kinds if types and types <= each), None)
    if kind is None:
        return joined
    if not joined or not _parts(joined).types <= kind:
        return known
    inside = dict(joined)
    if "properties" in joined and "properties" in known:
        old = known["properties"]
        inside["properties"] = {
            name: _kept(old.get(name, NOTHING), shape, kinds)
            for name, shape in joined["properties"].items()
        }
    if "items" in joined and "items" in known:
        inside["items"] = _kept(known["items"], joined["items"], kinds)
    return inside


def of_one_kind(shape: Shape) -> Shape:
    """Return what of a shape is objects, or else arrays, or else single values."""
    types = _parts(shape).types if shape else set()
    return _only(shape, next(kind for kind in _KINDS if kind & types)) if types else shape


def objects_only(shape: Shape) -> Shape:
    """What of a shape is objects; nothing, if no objects are."""
    return _only(shape, _KINDS[0]) if shape else shape


def _only(shape: Shape, kind: frozenset[str]) -> Shape:
    parts = _parts(shape)
    parts.types &= kind
    if "object" not in parts.types:
        parts.properties = {}
    if not parts.types & _SCALARS:
        parts.rank = 0
    return _joined(parts)


def shape_of(value: Any, level: int = 0) -> Shape:
    """The shape of one parsed value that lies so deep in an event."""
    match value:
        case bool():
            return BOOLEAN
        case int():
            return integers(value, value)
        case list():
            return lists(reduce(join, (shape_of(each, LEVELS) for each in value), NOTHING))
        case dict() if len(value) > MAX_PROPERTIES:
            return ANYTHING
        case dict():
            return objects(
                {
                    name: lists(ANYTHING)
                    if name == MIXED and level == 0 and isinstance(each, list)
                    else shape_of(each, level + 1)
                    for name, each in value.items()
                },
                level,
            )
    return _SINGLE[type(value)]


def integers(least: int, most: int) -> Shape:
    """Integers between two."""
    return INTEGERS[integer_rank(least, most)]


def integer_rank(least: int, most: int) -> int:
    """Return the place among `INTEGERS` of the first shape that holds integers between two."""
    # of 64 bits there is one more below zero than above
    size = max(most, -least - (least == -(2**63)))
    return next((i for i, limit in enumerate(_RANKS) if size < limit), _TEXT)


def lists(items: Shape) -> Shape:
    """Lists of items of a shape; lists and objects in lists can be anything."""
    return _joined(_Parts({"array"}, items=items))


def objects(properties: Mapping[str, Shape], level: int) -> Shape:
    """Objects with properties; those that lie too deep can be anything."""
    if level >= LEVELS:
        return ANYTHING
    return _joined(_Parts({"object"}, properties=dict(properties)))


def _parts(shape: Shape) -> _Parts:
    types = shape["type"]
    found = set(types) if isinstance(types, list) else {types}
    rank = 0
    if "maximum" in shape:
        rank = _RANKS.index(shape["maximum"] + 1)
    elif "format" in shape:
        rank = _INT64
    return _Parts(
        found - {"null"}, rank, dict(shape.get("properties", {})), shape.get("items", NOTHING)
    )


def _joined(parts: _Parts) -> Shape:
    types, rank = set(parts.types), parts.rank
    # what neither a double nor a decimal of the lake can hold is kept as text
    if rank == _TEXT or ("number" in types and rank >= _INT64):
        types.add("string")
    if "number" in types:
        types.discard("integer")
    if len(parts.properties) > MAX_PROPERTIES:
        return ANYTHING
    shape: dict[str, Any] = {"type": sorted({*types, "null"}) if types else "null"}
    if "integer" in types and "string" not in types and rank == _INT64:
        shape["format"] = "int64"
    elif "integer" in types and "string" not in types and rank:
        shape |= {"minimum": 1 - _RANKS[rank], "maximum": _RANKS[rank] - 1}
    if "object" in types:
        shape |= {"properties": parts.properties, "additionalProperties": False}
    if "array" in types:
        shape["items"] = parts.items
    return shape


STRING = _joined(_Parts({"string"}))
BOOLEAN = _joined(_Parts({"boolean"}))
NUMBER = _joined(_Parts({"number"}))
"""Numbers that a double holds with all their digits."""
# a double would lose digits of a decimal
EXACT = _joined(_Parts({"number", "string"}))
_SINGLE = {type(None): NOTHING, str: STRING, float: NUMBER, Decimal: EXACT}
INTEGERS = tuple(_joined(_Parts({"integer"}, rank)) for rank in range(_TEXT + 1))


# Arrow reads JSON fast, but no list in which numbers and texts are mixed, as Datastream's
# `sort_keys` are. Such a list is blanked in a copy of the texts, which stay JSON of the same
# length, and handed on by itself; what looks unusual is left to the careful reader.

Bytes = npt.NDArray[np.uint8]
_BLANK, _OPEN, _CLOSE, _COLON, _ESCAPE, _BRACE = b" []:\\{"
_PIECE_BYTES = 256 * 1024
# whole numbers, and texts of ASCII without escapes
_VALUE = r'(?:"[ !#-\[\]-~]*"|-?(?:0|[1-9][0-9]*)|null)'
_PLAIN = rf"^\[ *(?:{_VALUE}(?: *, *{_VALUE})*)? *\]$"


class Masked(NamedTuple):
    """Texts with a list blanked."""

    texts: pa.BinaryArray
    lists: pa.StringArray
    """The list of each; null where there is none."""
    sure: Mask
    """Which of them can be used."""


def unmasked(texts: pa.BinaryArray) -> Masked:
    """Texts that have no list to blank."""
    return Masked(texts, pa.nulls(len(texts), pa.string()), np.ones(len(texts), np.bool_))


def mask_list(texts: pa.BinaryArray, name: str) -> Masked:
    """Blank the list that the top object of each text has under a name."""
    count = len(texts)
    key = f'"{name}"'.encode()
    first = texts[0].as_py() if count else b""
    if key not in first and key not in joined_bytes(texts):
        # where none has it, to ask for each text takes ten times as long
        return unmasked(texts)
    found = pc.find_substring(texts, pattern=key).to_numpy()
    has = found >= 0
    if not has.any():
        return unmasked(texts)
    texts = texts if texts.offset == 0 else pa.concat_arrays([texts])
    offsets = np.frombuffer(texts.buffers()[1], np.int32, count + 1).astype(np.int64)
    data = np.frombuffer(texts.buffers()[2], np.uint8, int(offsets[-1])).copy()
    rows = np.flatnonzero(has)
    starts, ends = offsets[rows], offsets[rows + 1]
    key_at = starts + found[rows]
    opened, closed, sure = _ends(data, starts, key_at, key_at + len(key))
    sure &= closed <= ends
    opened, closed = np.where(sure, opened, key_at), np.where(sure, closed, key_at)
    lists = slices(texts, opened, closed)
    sure &= truths(pc.match_substring_regex(lists, _PLAIN))
    _blank(data, opened[sure] + 1, closed[sure] - 1)
    buffers = [None, texts.buffers()[1], pa.py_buffer(data)]
    masked = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    every = np.ones(count, np.bool_)
    every[rows] = sure
    place = np.full(count, -1)
    place[rows] = np.where(sure, np.arange(len(rows)), -1)
    chosen = pa.array(place, mask=place < 0)
    return Masked(masked, lists.take(chosen).cast(pa.string()), every)


def joined_bytes(texts: pa.BinaryArray) -> bytes:
    """The bytes of all texts, one after the other."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    joined: bytes = (
        texts.buffers()[2].slice(start, end - start).to_pybytes() if end > start else b""
    )
    return joined


def _ends(
    data: Bytes, starts: Positions, key_at: Positions, after: Positions
) -> tuple[Positions, Positions, Mask]:
    """Where lists begin and end behind their names, and which of them do, in the top object."""
    last = len(data) - 1
    opened = np.minimum(after + 1, last)
    opened = np.minimum(opened + (data[opened] == _BLANK), last)
    # brackets in strings are reason for doubt: then there are others than expected
    brackets = _brackets(data)
    outer = np.searchsorted(brackets, starts)
    inner = np.searchsorted(brackets, opened)
    closed = brackets[np.minimum(inner + 1, len(brackets) - 1)] if len(brackets) else opened
    sure = (data[np.minimum(after, last)] == _COLON) & (data[opened] == _OPEN)
    sure &= (inner - outer == 1) & (data[closed] == _CLOSE) & (closed > opened)
    sure &= data[np.maximum(key_at - 1, 0)] != _ESCAPE
    return opened, closed + 1, sure


def _brackets(data: Bytes) -> Positions:
    """Where braces and brackets are, found in pieces that stay in the caches."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(data), _PIECE_BYTES):
        # square ones differ from the others by one bit
        folded = data[start : start + _PIECE_BYTES] | 0x20
        found.append(np.flatnonzero((folded == _BRACE) | (folded == _BRACE + 2)) + start)
    return np.concatenate(found)


def _blank(data: Bytes, starts: Positions, ends: Positions) -> None:
    lengths = ends - starts
    first = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(starts - first, lengths)
    data[places] = _BLANK


# Arrow's own idea of what JSON texts hold, where it is as good as ours.

_REAL = re.compile(rb"[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_POINT, _E = b".e"
_WINDOW = 24
_SAFE_DIGITS = 15
"""As many as every double keeps, unless it is tiny."""
_TINY = 1e-307
_WIDE = 2.0**53
_LONG_POWER = rf"(?:^|[\s:,\[])-?[0-9]{{{_SAFE_DIGITS + 1},}}[eE]"
"""A number with more digits than that, no point and an exponent; not what is in quotes alone."""


def arrow_shape(texts: pa.BinaryArray) -> Shape | None:
    """The shape of all texts together; None when one of them must be looked at by itself."""
    read = _arrow_values(texts)
    return None if read is None else read[1]


def _arrow_values(texts: pa.BinaryArray) -> tuple[pa.Array, Shape] | None:
    """What Arrow reads, with its shape; None when one of them must be looked at by itself."""
    masked = mask_list(texts, MIXED)
    if not masked.sure.all():
        return None
    values = read_texts(masked.texts)
    if values is None:
        return None
    try:
        shape = _shape(values, 0)
    except UnicodeDecodeError:
        # Arrow looks at texts only, not at the names of properties
        return None
    if shape is None or (_has_reals(values.type) and not _exact(masked.texts)):
        return None
    return values, shape


def _exact(texts: pa.BinaryArray) -> bool:
    """Whether doubles keep all digits of the numbers with a point or an exponent in some texts.

    What looks like a number in a string is reason for doubt as well.
    """
    if pc.any(pc.match_substring_regex(texts, _LONG_POWER)).as_py():
        return False
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(texts.buffers()[2], np.uint8)[start:end]
    points = np.flatnonzero(data == _POINT)
    left = _digits(data, points - 1, -1)
    right = _digits(data, points + 1, 1)
    long = (left > 0) & (right > 0) & (left + right > _SAFE_DIGITS)
    points, left, right = points[long], left[long], right[long]
    if not len(points):
        return True
    first, last = points - left, points + 1 + right
    if max(left.max(), right.max()) == _WINDOW:
        return False
    powers = (data[np.minimum(last, len(data) - 1)] | 0x20) == _E
    numbers = slices(texts, first + start, last + start).cast(pa.string())
    short = numbers.cast(pa.float64()).cast(pa.string())
    doubtful = pc.or_(pc.not_equal(numbers, short), pa.array(powers))
    places = first[truths(doubtful)].tolist()
    return all(_is_exact(data[place : place + 3 * _WINDOW].tobytes()) for place in places)


def _digits(data: Bytes, places: Positions, step: int) -> Positions:
    """How many digits there are one after the other, up to some number of them."""
    window = places[:, None] + step * np.arange(_WINDOW + 1)
    near = data[np.clip(window, 0, len(data) - 1)] - np.uint8(ord("0")) < 10
    near[:, _WINDOW] = False
    counts: Positions = np.argmin(near, axis=1)
    return counts


def _is_exact(text: bytes) -> bool:
    """Whether a double keeps the number that a text begins with; its sign does not matter."""
    number = _REAL.match(text)
    if number is None:
        return False
    digits = number[0].decode("ascii")
    return Decimal(repr(float(digits))) == Decimal(digits)


def _has_reals(type_: pa.DataType) -> bool:
    if kinds.is_struct(type_):
        return any(_has_reals(each.type) for each in type_)
    return _has_reals(type_.value_type) if kinds.is_list(type_) else kinds.is_floating(type_)


def _shape(array: pa.Array, level: int) -> Shape | None:
    type_ = array.type
    if kinds.is_struct(type_):
        if level >= LEVELS or type_.num_fields > MAX_PROPERTIES:
            return ANYTHING
        properties = {}
        for each, child in zip(type_, array.flatten(), strict=True):
            shape = lists(ANYTHING) if is_mixed(each, level) else _shape(child, level + 1)
            if shape is None:
                return None
            properties[each.name] = shape
        return objects(properties, level)
    if kinds.is_list(type_):
        items = _shape(array.values, LEVELS)
        return None if items is None else lists(items)
    if kinds.is_integer(type_):
        ends = pc.min_max(array).as_py()
        return NOTHING if ends["min"] is None else integers(ends["min"], ends["max"])
    if kinds.is_floating(type_):
        # beyond it, it may have been an integer that lost digits; a tiny one has fewer digits
        size = pc.abs(array)
        tiny = pc.and_(pc.less(size, _TINY), pc.greater(size, 0))
        fine = pc.and_not(pc.less(size, _WIDE), tiny)
        return NUMBER if pc.all(fine, min_count=0).as_py() else None
    if kinds.is_null(type_):
        return NOTHING
    # a text that looks like a moment is a moment to Arrow
    return BOOLEAN if kinds.is_boolean(type_) else STRING


def is_mixed(field: pa.Field, level: int) -> bool:
    """Whether a field is the list of Datastream's that mixes texts and numbers by design."""
    return level == 0 and field.name == MIXED and kinds.is_list(field.type)


MAX_DEPTH = 100
_BYTES_AT_ONCE = 64 * 1024 * 1024
_SAMPLE = 2_000
_MANY = 10_000
"""Objects in one text, beyond which it is looked at by itself."""


def infer(
    values: pa.BinaryArray | Sequence[bytes], *, parts: bool = False, careful: bool = False
) -> Shape | None:
    """The shape of JSON texts; None if nothing can be said about any of them.

    Texts that are not JSON say nothing, and nor do nulls. A record that has too many properties by
    itself, with `parts` in one of its parts, says nothing beside others. With `careful` each text
    is looked at by itself.
    """
    array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    look = Look(parts=parts, careful=careful)
    looked_at(array, look)
    found = look.alone if look.shape == NOTHING else look.shape
    return None if found == NOTHING else found


def looked_at(values: pa.BinaryArray, look: Look) -> None:
    """Have a look at JSON texts: at all that do not look like the first of them."""
    some = values.cast(pa.binary())
    if len(some) > 2 * _SAMPLE and not look.careful:
        # nearly all texts look like the first, and to see that is cheaper than to infer from them
        look.at(some[:_SAMPLE])
        some = some[_SAMPLE:]
        if look.may_skip():
            known = familiar(some, look.shape)
            look.skip(int(known.sum()), _SAMPLE)
            some = some.filter(pa.array(~known)) if known.any() else some
    look.at(some)


@dataclass(slots=True)
class Look:
    """What texts look like that were looked at so far."""

    parts: bool
    careful: bool
    shape: Shape = field(default_factory=lambda: NOTHING)
    alone: Shape = field(default_factory=lambda: NOTHING)
    """The same of records that have too many properties."""

    def at(self, array: pa.BinaryArray) -> None:
        """Take in some more."""
        for texts in reversed(_apart(array)):
            for part, quick in by_halves(texts, self._quickly, most_bytes=_BYTES_AT_ONCE):
                if quick is not None:
                    self.take_array(*quick)
                    continue
                for data in texts[part].to_pylist():
                    try:
                        self.take_value(parse(data, max_depth=MAX_DEPTH))
                    except RefusedError:
                        continue

    def may_skip(self) -> bool:
        """Whether texts that look like those before them need not be looked at."""
        return True

    def skip(self, count: int, sample: int) -> None:
        """Take note of texts that look like the first ones, of which there were so many."""

    def take_array(self, values: pa.Array, shape: Shape) -> None:
        """Take in texts that Arrow has read."""
        self.shape = join(self.shape, shape)

    def take_value(self, value: Any) -> None:
        """Take in one parsed text."""
        own = shape_of(value)
        if _is_too_wide(own, parts=self.parts):
            self.alone = join(self.alone, own)
        else:
            self.shape = join(self.shape, own)

    def _quickly(self, texts: pa.BinaryArray) -> tuple[pa.Array, Shape] | None:
        read = _arrow_values(texts) if len(texts) > 1 and not self.careful else None
        return None if read is None or _is_too_wide(read[1], parts=self.parts) else read


def _is_too_wide(shape: Shape, *, parts: bool) -> bool:
    return not shape or (parts and not all(shape.get("properties", {}).values()))


def _apart(texts: pa.BinaryArray) -> list[pa.BinaryArray]:
    """Texts of many objects each by itself: Arrow gives every object the columns of all others."""
    long = where(pc.greater(pc.binary_length(texts), _MANY))
    many = [i for i in long if _objects(texts[i].as_py()) > _MANY]
    if not many:
        return [texts]
    usual = np.ones(len(texts), np.bool_)
    usual[many] = False
    return [texts.filter(pa.array(usual)), *(texts[i : i + 1] for i in many)]


def _objects(text: bytes) -> int:
    """At least as many as there are objects in a text, also where they are null."""
    return text.count(b"{") + text.count(b"null")
