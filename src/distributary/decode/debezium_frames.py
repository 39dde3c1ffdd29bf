"""JSON of Kafka Connect that carries its schema: `{"schema":...,"payload":...}`.

Thousands of messages begin with the same kilobytes of schema. Of each different one the text is
looked at once; the others are known by their first bytes, compared for whole arrays at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

HEAD, NECK = b'{"schema":', b',"payload":'
NONE = -1
_MANY = 32
"""Schemas of one array, from which on each message is looked at by itself."""
_MOST_NECKS = 20
_NULL, _END = b"null", b"}"
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages, taken apart."""

    codes: Codes
    """For each message the number of its schema, or NONE."""
    schemas: tuple[bytes, ...]
    """The texts of the different schemas."""
    payloads: pa.BinaryArray
    """What is left without the schema; a message without one as it is."""


def split_connect(values: pa.BinaryArray) -> Frames:
    """Take messages apart; those that are not of this form, or null, stay as they are."""
    array = values if values.type == pa.binary() else values.cast(pa.binary())
    codes = np.full(len(array), NONE, np.int64)
    found: dict[bytes, int] = {}
    left = np.flatnonzero(_framed(array, HEAD))
    while len(left) and len(found) < _MANY:
        text = schema_of(array[int(left[0])].as_py())
        if text is None:
            left = left[1:]
            continue
        chosen = _framed(array.take(pa.array(left)), HEAD + text + NECK)
        codes[left[chosen]] = found.setdefault(text, len(found))
        left = left[~chosen]
    for row in left.tolist():
        text = schema_of(array[row].as_py())
        if text is not None:
            codes[row] = found.setdefault(text, len(found))
    return Frames(codes, tuple(found), _payloads(array, codes, tuple(found)))


def without_schema(values: pa.BinaryArray, frame: bytes) -> pa.BinaryArray:
    """The payloads of messages that begin so; the others as they are."""
    framed = _framed(values, frame)
    if not framed.any():
        return values
    return pc.if_else(pa.array(framed), pc.binary_slice(values, len(frame), -1), values)


def _framed(values: pa.BinaryArray, frame: bytes) -> npt.NDArray[np.bool_]:
    """Which messages begin so, end as an object does, and have something in between."""
    found = pc.starts_with(values, frame).fill_null(False).to_numpy(zero_copy_only=False)
    if found.any():
        long = pc.greater(pc.binary_length(values), len(frame) + 1).fill_null(False)
        closed = pc.ends_with(values, _END).fill_null(False)
        found = found & pc.and_(long, closed).to_numpy(zero_copy_only=False)
    framed: npt.NDArray[np.bool_] = found
    return framed


def tombstones(payloads: pa.BinaryArray, *, is_json: bool) -> npt.NDArray[np.bool_]:
    """Which messages have no value: Connect writes `null` where there is a schema for it."""
    lengths = pc.fill_null(pc.binary_length(payloads), 0)
    silent: npt.NDArray[np.bool_] = pc.equal(lengths, 0).to_numpy(zero_copy_only=False)
    if is_json and pc.any(pc.equal(lengths, len(_NULL)), min_count=0).as_py():
        written = pc.fill_null(pc.equal(payloads, _NULL), False)
        silent = silent | written.to_numpy(zero_copy_only=False)
    return silent


def schema_of(value: bytes) -> bytes | None:
    """The schema that a message carries; None if it is not of this form."""
    if not value.startswith(HEAD) or not value.endswith(_END):
        return None
    end = 0
    # parameters and defaults of a schema may hold anything, also what looks like its end
    for _ in range(_MOST_NECKS):
        end = value.find(NECK, end + 1)
        text = value[len(HEAD) : end]
        if end > 0 and _is_schema(text):
            return text if len(value) > end + len(NECK) + 1 else None
    return None


def _is_schema(text: bytes) -> bool:
    if text == _NULL:
        return True
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _payloads(array: pa.BinaryArray, codes: Codes, schemas: tuple[bytes, ...]) -> pa.BinaryArray:
    if not schemas:
        return array
    if len(schemas) == 1 and (codes == 0).all():
        return pc.binary_slice(array, len(HEAD) + len(schemas[0]) + len(NECK), -1)
    parts: list[pa.Array] = []
    places: list[Codes] = []
    for code in range(NONE, len(schemas)):
        rows = np.flatnonzero(codes == code)
        if len(rows):
            some = array.take(pa.array(rows))
            if code != NONE:
                some = pc.binary_slice(some, len(HEAD) + len(schemas[code]) + len(NECK), -1)
            parts.append(some)
            places.append(rows)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))
