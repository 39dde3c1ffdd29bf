"""Values that PostgreSQL did not send, because they are large and were not changed.

Debezium writes a text in their place, and what comes nearest to it where a column holds no texts:
its bytes, its bytes as numbers of a list, a list or a map of it, an identifier made of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.datastream_values import Mask
from distributary.evolve.lists import compact

PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = PLACEHOLDER.encode()
_BASE64 = base64.b64encode(_BYTES).decode()
# what Java makes of bytes that are to be an identifier
_UUID = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
_TEXTS = pa.array(
    [
        PLACEHOLDER,
        _BASE64,
        # lists and maps that were left as JSON
        json.dumps([PLACEHOLDER]),
        json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
        json.dumps({PLACEHOLDER: PLACEHOLDER}),
        json.dumps([_UUID]),
    ],
    pa.string(),
)
_ITEMS = pa.array([PLACEHOLDER, _BASE64, _UUID], pa.string())


def unchanged(array: pa.Array) -> Mask | None:
    """Which values stand for one that was not sent; None for none of them."""
    type_ = array.type
    if len(array) == 0 or array.null_count == len(array):
        return None
    if kinds.is_string(type_):
        return _some(pc.is_in(array, _TEXTS))
    if kinds.is_binary(type_):
        return _some(pc.equal(array, pa.scalar(_BYTES, pa.binary())))
    if kinds.is_list(type_):
        return _lists(array)
    return _maps(array) if kinds.is_map(type_) else None


def _some(flags: pa.Array) -> Mask | None:
    found: Mask = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def _lists(array: pa.ListArray) -> Mask | None:
    items = array.type.value_type
    lengths = pc.list_value_length(array)
    if kinds.is_integer(items):
        return _numbers(array, lengths)
    if not (kinds.is_string(items) or kinds.is_binary(items)):
        return None
    single = _some(pc.equal(lengths, 1))
    if single is None:
        return None
    rows = np.flatnonzero(single)
    first = array.take(pa.array(rows)).flatten()
    wanted = _ITEMS if kinds.is_string(items) else pa.array([_BYTES], pa.binary())
    return _at(rows, pc.is_in(first, wanted), len(array))


def _numbers(array: pa.ListArray, lengths: pa.Array) -> Mask | None:
    as_long = _some(pc.equal(lengths, len(_BYTES)))
    if as_long is None:
        return None
    rows = np.flatnonzero(as_long)
    items = array.take(pa.array(rows)).flatten().cast(pa.int64()).fill_null(-1).to_numpy()
    same = (items.reshape(-1, len(_BYTES)) == np.frombuffer(_BYTES, np.uint8)).all(axis=1)
    return _at(rows, pa.array(same), len(array))


def _maps(array: pa.MapArray) -> Mask | None:
    maps = compact(array)
    # one that is null has no entries
    rows = np.flatnonzero(np.diff(maps.offsets.to_numpy()) == 1)
    keys = maps.keys.take(maps.offsets.take(pa.array(rows)))
    return _at(rows, pc.equal(keys, PLACEHOLDER), len(array))


def _at(
    rows: np.ndarray[tuple[int], np.dtype[np.int64]], flags: pa.Array, count: int
) -> Mask | None:
    found = np.zeros(count, np.bool_)
    found[rows] = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return found if found.any() else None
