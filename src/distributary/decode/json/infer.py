"""Infers a JSON Schema for change events in JSON that came without one.

The schema accepts every event that it was inferred from, and `JsonDecoder` keeps all of their
content: objects become columns for two levels, an event and its parts. Deeper objects, values of
several types, and numbers that no type of the lake holds become JSON text. Null is accepted
everywhere.
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
from distributary.decode.json.json_text import parse
from distributary.decode.json.pattern import familiar

# Shapes of JSON values: JSON Schemas that can be joined. A joined shape accepts all values that its
# parts accept; order, grouping and repetition of joins do not matter.

LEVELS = 2
"""The levels of nested objects whose properties are inferred one by one: an event and its parts."""
MOST_LEVELS = 20
"""The levels of lists in lists; deeper items can be anything, as a schema has limits of its own."""
MAX_PROPERTIES = 5_000
"""The largest number of properties of one object; an object with more can be anything."""
MIXED = "sort_keys"
"""A list in Datastream's events that mixes texts and numbers by design: its items can be
anything."""

Shape = dict[str, Any]
NOTHING: Shape = {"type": "null"}
"""The shape of no value at all; every shape accepts null."""
ANYTHING: Shape = {}

_RANKS = (2**53, 2**63, 10**20, 10**38)
"""Upper bounds of integers: exact in a double, in 64 bits, in decimals of 20 and 38 digits."""
_INT64, _TEXT = 1, len(_RANKS)
_SCALARS = frozenset(("boolean", "integer", "number", "string"))
_KINDS = (frozenset(("object",)), frozenset(("array",)), _SCALARS)
"""The kinds of records and of columns; a table and a column keep their first kind."""
_COLUMN_KINDS = (*_KINDS[:2], *map(frozenset, (("boolean",), ("integer", "number"), ("string",))))
"""The kinds of values of a column of change data, to which its database gave one type."""


@dataclass(slots=True)
class _Parts:
    """The parts of a shape."""

    types: set[str]
    rank: int = 0
    """The index in `_RANKS` of the bound that the integers stay below."""
    properties: dict[str, Shape] = field(default_factory=dict)
    items: Shape = field(default_factory=lambda: NOTHING)


def join(one: Shape, other: Shape) -> Shape:
    """Return the shape that accepts all values of either shape."""
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
    """Join two shapes, but keep an object with properties where the join would be anything.

    With `parts` this holds for the inner objects as well, for instance the images of a row.
    """
    joined = join(one, other)
    if not joined:
        return next(
            (candidate for candidate in (one, other) if "properties" in candidate), ANYTHING
        )
    inner = joined.get("properties", {})
    if not parts or all(inner.values()):
        return joined
    either = [candidate.get("properties", {}) for candidate in (one, other)]
    kept = {
        name: shape or widened(*(candidate.get(name, NOTHING) for candidate in either))
        for name, shape in inner.items()
    }
    return {**joined, "properties": kept}


def grown(current: Shape, shape: Shape, *, images: Sequence[str] | None = None) -> Shape:
    """Return `current` extended by a shape; a shape of another kind adds nothing.

    Where `current` is `NOTHING`, objects take precedence over arrays, and arrays over single
    values. The same holds for each column: a column of objects,
    arrays or single values keeps that kind, and a record with another kind there adds nothing to
    the column.

    Change events are always objects; `images` are the properties of them that hold rows.
    """
    joined = widened(current, shape, parts=images is not None)
    if images is not None:
        return _kept_rows(current, objects_only(joined), images)
    if not current or not joined:
        return ANYTHING
    types = _parts(current).types or _parts(joined).types
    top = _only(joined, next((kind for kind in _KINDS if kind & types), frozenset()))
    return _kept(current, top, _KINDS)


def _kept_rows(current: Shape, joined: Shape, images: Sequence[str]) -> Shape:
    """Apply `_kept` to the columns of change events: in their row images, or at the top."""
    old, new = current.get("properties", {}), joined.get("properties", {})
    if not any(name in new for name in images):
        return _kept(current, joined, _COLUMN_KINDS)
    rows = {
        name: _kept(old[name], new[name], _COLUMN_KINDS)
        for name in images
        if "properties" in old.get(name, {})
    }
    return {**joined, "properties": new | rows}


def _kept(current: Shape, joined: Shape, kinds: Sequence[frozenset[str]]) -> Shape:
    """Return the joined shape, or the current one where joining would change its kind."""
    types = _parts(current).types if current else set()
    kind = next((candidate for candidate in kinds if types and types <= candidate), None)
    if kind is None:
        return joined
    if not joined or not _parts(joined).types <= kind:
        return current
    kept = dict(joined)
    if "properties" in joined and "properties" in current:
        old = current["properties"]
        kept["properties"] = {
            name: _kept(old.get(name, NOTHING), shape, kinds)
            for name, shape in joined["properties"].items()
        }
    if "items" in joined and "items" in current:
        kept["items"] = _kept(current["items"], joined["items"], kinds)
    return kept


def of_one_kind(shape: Shape) -> Shape:
    """Return the part of a shape that is objects, or else arrays, or else single values."""
    types = _parts(shape).types if shape else set()
    return _only(shape, next(kind for kind in _KINDS if kind & types)) if types else shape


def objects_only(shape: Shape) -> Shape:
    """Return the part of a shape that is objects; `NOTHING` if it has none."""
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
    """Return the shape of one parsed value at a level of an event."""
    match value:
        case bool():
            return BOOLEAN
        case int():
            return integers(value, value)
        case list():
            if level >= MOST_LEVELS:
                return ANYTHING
            inner = max(level, LEVELS) + 1
            return lists(reduce(join, (shape_of(item, inner) for item in value), NOTHING))
        case dict() if len(value) > MAX_PROPERTIES:
            return ANYTHING
        case dict():
            return objects(
                {
                    name: lists(ANYTHING)
                    if name == MIXED and level == 0 and isinstance(inner, list)
                    else shape_of(inner, level + 1)
                    for name, inner in value.items()
                },
                level,
            )
    return _SINGLE[type(value)]


def integers(least: int, most: int) -> Shape:
    """Return the shape of integers between two bounds."""
    return INTEGERS[integer_rank(least, most)]


def integer_rank(least: int, most: int) -> int:
    """Return the index of the first shape in `INTEGERS` that holds all integers of a range."""
    # 64 bits hold one more integer below zero than above
    size = max(most, -least - (least == -(2**63)))
    return next((i for i, limit in enumerate(_RANKS) if size < limit), _TEXT)


def lists(items: Shape) -> Shape:
    """Return the shape of lists of a shape; lists and objects in lists can be anything."""
    return _joined(_Parts({"array"}, items=items))


def objects(properties: Mapping[str, Shape], level: int) -> Shape:
    """Return the shape of objects with properties; objects nested too deep can be anything."""
    if level >= LEVELS:
        return ANYTHING
    return _joined(_Parts({"object"}, properties=dict(properties)))


def _parts(shape: Shape) -> _Parts:
    types = shape["type"]
    names = set(types) if isinstance(types, list) else {types}
    rank = 0
    if "maximum" in shape:
        rank = _RANKS.index(shape["maximum"] + 1)
    elif "format" in shape:
        rank = _INT64
    return _Parts(
        names - {"null"}, rank, dict(shape.get("properties", {})), shape.get("items", NOTHING)
    )


def _joined(parts: _Parts) -> Shape:
    types, rank = set(parts.types), parts.rank
    # numbers that neither a double nor a decimal of the lake can hold are kept as text
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
# a double would lose digits of a decimal, so the value is kept as text
EXACT = _joined(_Parts({"number", "string"}))
_SINGLE = {type(None): NOTHING, str: STRING, float: NUMBER, Decimal: EXACT}
INTEGERS = tuple(_joined(_Parts({"integer"}, rank)) for rank in range(_TEXT + 1))


# Arrow reads JSON fast, but not a list that mixes numbers and texts, as Datastream's `sort_keys`
# does. This list is blanked in a copy of the texts, which stay JSON of the same length, and is
# passed on separately. Texts that look unusual are left to the careful reader.

Bytes = npt.NDArray[np.uint8]
_BLANK, _OPEN, _CLOSE, _COLON, _ESCAPE, _BRACE = b" []:\\{"
_PIECE_BYTES = 256 * 1024
# whole numbers, and ASCII texts without escapes
_VALUE = r'(?:"[ !#-\[\]-~]*"|-?(?:0|[1-9][0-9]*)|null)'
_PLAIN = rf"^\[ *(?:{_VALUE}(?: *, *{_VALUE})*)? *\]$"


class Masked(NamedTuple):
    """Texts in which one list is blanked."""

    texts: pa.BinaryArray
    lists: pa.StringArray
    """The list of each text; null where there is none."""
    sure: Mask
    """A mask of the texts whose list was found without doubt."""


def unmasked(texts: pa.BinaryArray) -> Masked:
    """Return texts that have no list to blank."""
    return Masked(texts, pa.nulls(len(texts), pa.string()), np.ones(len(texts), np.bool_))


def mask_list(texts: pa.BinaryArray, name: str) -> Masked:
    """Blank the list that the top object of each text has under a name."""
    count = len(texts)
    key = f'"{name}"'.encode()
    first = texts[0].as_py() if count else b""
    if key not in first and key not in joined_bytes(texts):
        # searching every text takes ten times as long as searching all their bytes at once
        return unmasked(texts)
    name_at = pc.find_substring(texts, pattern=key).to_numpy()
    has_name = name_at >= 0
    if not has_name.any():
        return unmasked(texts)
    texts = texts if texts.offset == 0 else pa.concat_arrays([texts])
    offsets = np.frombuffer(texts.buffers()[1], np.int32, count + 1).astype(np.int64)
    data = np.frombuffer(texts.buffers()[2], np.uint8, int(offsets[-1])).copy()
    rows = np.flatnonzero(has_name)
    starts, ends = offsets[rows], offsets[rows + 1]
    key_at = starts + name_at[rows]
    opened, closed, sure = _ends(data, starts, key_at, key_at + len(key))
    sure &= closed <= ends
    opened, closed = np.where(sure, opened, key_at), np.where(sure, closed, key_at)
    lists = slices(texts, opened, closed)
    sure &= truths(pc.match_substring_regex(lists, _PLAIN))
    _blank(data, opened[sure] + 1, closed[sure] - 1)
    buffers = [None, texts.buffers()[1], pa.py_buffer(data)]
    masked = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    usable = np.ones(count, np.bool_)
    usable[rows] = sure
    list_index = np.full(count, -1)
    list_index[rows] = np.where(sure, np.arange(len(rows)), -1)
    list_of_text = pa.array(list_index, mask=list_index < 0)
    return Masked(masked, lists.take(list_of_text).cast(pa.string()), usable)


def joined_bytes(texts: pa.BinaryArray) -> bytes:
    """Return the bytes of all texts, one after the other."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    joined: bytes = (
        texts.buffers()[2].slice(start, end - start).to_pybytes() if end > start else b""
    )
    return joined


def _ends(
    data: Bytes, starts: Positions, key_at: Positions, after: Positions
) -> tuple[Positions, Positions, Mask]:
    """Return where each list begins and ends, and a mask of the lists found for certain.

    A list counts only in the top object of its text.
    """
    last = len(data) - 1
    opened = np.minimum(after + 1, last)
    opened = np.minimum(opened + (data[opened] == _BLANK), last)
    # a bracket inside a string changes the count, which makes the text doubtful
    brackets = _brackets(data)
    outer = np.searchsorted(brackets, starts)
    inner = np.searchsorted(brackets, opened)
    closed = brackets[np.minimum(inner + 1, len(brackets) - 1)] if len(brackets) else opened
    sure = (data[np.minimum(after, last)] == _COLON) & (data[opened] == _OPEN)
    sure &= (inner - outer == 1) & (data[closed] == _CLOSE) & (closed > opened)
    sure &= data[np.maximum(key_at - 1, 0)] != _ESCAPE
    return opened, closed + 1, sure


def _brackets(data: Bytes) -> Positions:
    """Return the positions of braces and brackets, searched in pieces that fit the CPU caches."""
    positions = [np.zeros(0, np.int64)]
    for start in range(0, len(data), _PIECE_BYTES):
        # with this bit set, a square bracket equals the curly one
        folded = data[start : start + _PIECE_BYTES] | 0x20
        positions.append(np.flatnonzero((folded == _BRACE) | (folded == _BRACE + 2)) + start)
    return np.concatenate(positions)


def _blank(data: Bytes, starts: Positions, ends: Positions) -> None:
    lengths = ends - starts
    first = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(starts - first, lengths)
    data[places] = _BLANK


# Shapes of texts that Arrow reads, used where Arrow's result is as exact as ours.

_REAL = re.compile(rb"[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_POINT, _E = b".e"
_WINDOW = 24
_SAFE_DIGITS = 15
"""The digits that every double keeps, unless it is tiny."""
_TINY = 1e-307
_WIDE = 2.0**53
_LONG_POWER = rf"(?:^|[\s:,\[])-?[0-9]{{{_SAFE_DIGITS + 1},}}[eE]"
"""A number with more digits than that, an exponent and no point, unless a quote stands before
it."""


def arrow_shape(texts: pa.BinaryArray) -> Shape | None:
    """Return the shape of all texts together, or None if some must be read one by one."""
    result = _arrow_values(texts)
    return None if result is None else result[1]


def _arrow_values(texts: pa.BinaryArray) -> tuple[pa.Array, Shape] | None:
    """Return Arrow's values and their shape, or None if some texts must be read one by one."""
    masked = mask_list(texts, MIXED)
    if not masked.sure.all():
        return None
    values = read_texts(masked.texts)
    if values is None:
        return None
    try:
        shape = _shape(values, 0)
    except UnicodeDecodeError:
        # Arrow checks the UTF-8 of texts but not of property names
        return None
    if shape is None or (_has_reals(values.type) and not _exact(masked.texts)):
        return None
    return values, shape


def _exact(texts: pa.BinaryArray) -> bool:
    """Return True if doubles keep all digits of the numbers with a point or an exponent.

    Text in a string that looks like a number is checked as well.
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
    """Count the consecutive digits from each position on, up to the size of a window."""
    window = places[:, None] + step * np.arange(_WINDOW + 1)
    near = data[np.clip(window, 0, len(data) - 1)] - np.uint8(ord("0")) < 10
    near[:, _WINDOW] = False
    counts: Positions = np.argmin(near, axis=1)
    return counts


def _is_exact(text: bytes) -> bool:
    """Return True if a double keeps all digits of the unsigned number that a text begins with."""
    number = _REAL.match(text)
    if number is None:
        return False
    digits = number[0].decode("ascii")
    return Decimal(repr(float(digits))) == Decimal(digits)


def _has_reals(type_: pa.DataType) -> bool:
    if kinds.is_struct(type_):
        return any(_has_reals(child.type) for child in type_)
    return _has_reals(type_.value_type) if kinds.is_list(type_) else kinds.is_floating(type_)


def _shape(array: pa.Array, level: int) -> Shape | None:
    type_ = array.type
    if kinds.is_struct(type_):
        if level >= LEVELS or type_.num_fields > MAX_PROPERTIES:
            return ANYTHING
        properties = {}
        for member, child in zip(type_, array.flatten(), strict=True):
            shape = lists(ANYTHING) if is_mixed(member, level) else _shape(child, level + 1)
            if shape is None:
                return None
            properties[member.name] = shape
        return objects(properties, level)
    if kinds.is_list(type_):
        if level >= MOST_LEVELS:
            return ANYTHING
        items = _shape(array.values, max(level, LEVELS) + 1)
        return None if items is None else lists(items)
    if kinds.is_integer(type_):
        ends = pc.min_max(array).as_py()
        return NOTHING if ends["min"] is None else integers(ends["min"], ends["max"])
    if kinds.is_floating(type_):
        # a large number may have been an integer that lost digits, and a tiny one keeps fewer
        # digits
        size = pc.abs(array)
        tiny = pc.and_(pc.less(size, _TINY), pc.greater(size, 0))
        fine = pc.and_not(pc.less(size, _WIDE), tiny)
        return NUMBER if pc.all(fine, min_count=0).as_py() else None
    if kinds.is_null(type_):
        return NOTHING
    # Arrow reads a text that looks like a timestamp as a timestamp
    return BOOLEAN if kinds.is_boolean(type_) else STRING


def is_mixed(field: pa.Field, level: int) -> bool:
    """Return True if a field is Datastream's list that mixes texts and numbers by design."""
    return level == 0 and field.name == MIXED and kinds.is_list(field.type)


MAX_DEPTH = 100
_BYTES_AT_ONCE = 64 * 1024 * 1024
_SAMPLE = 2_000
_MANY = 10_000
"""The largest number of objects in a text that is read together with others."""


def infer(
    values: pa.BinaryArray | Sequence[bytes], *, parts: bool = False, careful: bool = False
) -> Shape | None:
    """Return the shape of JSON texts, or None if none of them has a value.

    Texts that are not JSON, and nulls, add nothing. A record with too many properties, with `parts`
    in one of its parts, adds nothing if other records have a shape. With `careful` each text is
    read by itself.
    """
    array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    look = Look(parts=parts, careful=careful)
    looked_at(array, look)
    shape = look.alone if look.shape == NOTHING else look.shape
    return None if shape == NOTHING else shape


def looked_at(values: pa.BinaryArray, look: Look) -> None:
    """Add the shapes of JSON texts to `look`, skipping texts that match the first of them."""
    texts = values.cast(pa.binary())
    if len(texts) > 2 * _SAMPLE and not look.careful:
        # Nearly all texts have the shape of the first, and a match costs less than inference.
        look.at(texts[:_SAMPLE])
        texts = texts[_SAMPLE:]
        if look.may_skip():
            matching = familiar(texts, look.shape)
            look.skip(int(matching.sum()), _SAMPLE)
            texts = texts.filter(pa.array(~matching)) if matching.any() else texts
    look.at(texts)


@dataclass(slots=True)
class Look:
    """The shape of all texts seen so far."""

    parts: bool
    careful: bool
    shape: Shape = field(default_factory=lambda: NOTHING)
    alone: Shape = field(default_factory=lambda: NOTHING)
    """The shape of the records with too many properties."""

    def at(self, array: pa.BinaryArray) -> None:
        """Add the shapes of an array of texts."""
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
        """Return True if texts that match the earlier ones need not be read."""
        return True

    def skip(self, count: int, sample: int) -> None:
        """Count texts that match the first `sample` texts."""

    def take_array(self, values: pa.Array, shape: Shape) -> None:
        """Add the shape of texts that Arrow has read."""
        self.shape = join(self.shape, shape)

    def take_value(self, value: Any) -> None:
        """Add the shape of one parsed text."""
        shape = shape_of(value)
        if _is_too_wide(shape, parts=self.parts):
            self.alone = join(self.alone, shape)
        else:
            self.shape = join(self.shape, shape)

    def _quickly(self, texts: pa.BinaryArray) -> tuple[pa.Array, Shape] | None:
        result = _arrow_values(texts) if len(texts) > 1 and not self.careful else None
        return None if result is None or _is_too_wide(result[1], parts=self.parts) else result


def _is_too_wide(shape: Shape, *, parts: bool) -> bool:
    return not shape or (parts and not all(shape.get("properties", {}).values()))


def _apart(texts: pa.BinaryArray) -> list[pa.BinaryArray]:
    """Split off texts with many objects: Arrow gives each object the columns of all others."""
    long = where(pc.greater(pc.binary_length(texts), _MANY))
    many = [i for i in long if _objects(texts[i].as_py()) > _MANY]
    if not many:
        return [texts]
    others = np.ones(len(texts), np.bool_)
    others[many] = False
    return [texts.filter(pa.array(others)), *(texts[i : i + 1] for i in many)]


def _objects(text: bytes) -> int:
    """Return an upper bound of the number of objects in a text, counting nulls as objects."""
    return text.count(b"{") + text.count(b"null")
