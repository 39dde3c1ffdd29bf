"""Arrow's own idea of what JSON texts hold, where it is as good as ours."""

from __future__ import annotations

import re
import secrets
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyarrow import types as kinds

from distributary.decode.json_join import (
    ANYTHING,
    BOOLEAN,
    LEVELS,
    MIXED,
    NOTHING,
    NUMBER,
    STRING,
    Shape,
    integers,
    lists,
    objects,
)
from distributary.decode.json_mask import Bytes, Places, mask_list, slices

_REAL = re.compile(rb"[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_POINT, _E = b".e"
_WINDOW = 24
_SAFE_DIGITS = 15
"""As many as every double keeps, unless it is tiny."""
_TINY = 1e-307
_WIDE = 2.0**53
_NOTHING = pa.scalar(b"", pa.binary())


def arrow_shape(texts: pa.BinaryArray) -> Shape | None:
    """The shape of all texts together; None when one of them must be looked at by itself."""
    masked = mask_list(texts, MIXED)
    if not masked.sure.all():
        return None
    values = read_texts(masked.texts)
    if values is None:
        return None
    shape = _shape(values, 0)
    return shape if not _has_reals(values.type) or _exact(masked.texts) else None


def read_texts(texts: pa.BinaryArray, type_: pa.DataType | None = None) -> pa.Array | None:
    """What texts hold, one element each; of a given type, only what that has a place for."""
    # a secret, because a text that knows it could end with it
    seal = secrets.token_hex(8)
    behind = pa.scalar(f',"s":"{seal}"}}\n'.encode(), pa.binary())
    wrapped = pc.binary_join_element_wise(pa.scalar(b'{"v":', pa.binary()), texts, behind, _NOTHING)
    _, offsets, data = wrapped.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[0, len(wrapped)]].tolist()
    # in one block, because values may have line breaks in them
    reading = arrow_json.ReadOptions(use_threads=False, block_size=end - start + 1)
    schema = None if type_ is None else pa.schema([("v", type_), ("s", pa.string())])
    unexpected = "infer" if type_ is None else "ignore"
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        source = pa.BufferReader(data.slice(start, end - start))
        table = arrow_json.read_json(source, reading, parsing)
        table.validate(full=True)
    except MemoryError:
        # one of Arrow's own as well
        raise
    except pa.ArrowException:
        return None
    if table.num_rows != len(texts) or "s" not in table.column_names:
        return None
    if not pc.all(pc.equal(table.column("s"), seal), skip_nulls=False).as_py():
        return None
    values: pa.Array = table.column("v").combine_chunks()
    return values


def _exact(texts: pa.BinaryArray) -> bool:
    """Whether doubles keep all digits of the numbers with a point in some texts.

    What looks like a number in a string is reason for doubt as well.
    """
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
    where = first[doubtful.to_numpy(zero_copy_only=False)].tolist()
    return all(_is_exact(data[place : place + 3 * _WINDOW].tobytes()) for place in where)


def _digits(data: Bytes, places: Places, step: int) -> Places:
    """How many digits there are one after the other, up to some number of them."""
    window = places[:, None] + step * np.arange(_WINDOW + 1)
    near = data[np.clip(window, 0, len(data) - 1)] - np.uint8(ord("0")) < 10
    near[:, _WINDOW] = False
    counts: Places = np.argmin(near, axis=1)
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
        if level >= LEVELS:
            return ANYTHING
        properties = {}
        for each, child in zip(type_, array.flatten(), strict=True):
            shape = lists(ANYTHING) if _is_mixed(each, level) else _shape(child, level + 1)
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


def _is_mixed(field: pa.Field, level: int) -> bool:
    return level == 0 and field.name == MIXED and kinds.is_list(field.type)
