"""JSON that carries its schema, as Kafka Connect writes it: `{"schema":...,"payload":...}`.

Thousands of messages begin with the same kilobytes: of each different schema the text is read once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Mask, Positions, truths

HEAD, NECK = b'{"schema":', b',"payload":'
NONE = -1
_MANY = 32
"""Schemas of one array, from which on each message is looked at by itself."""
_MOST_NECKS = 20
_NULL, _END = b"null", b"}"


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages, taken apart."""

    codes: Positions
    """For each message the number of its schema, or NONE."""
    schemas: tuple[bytes, ...]
    """The texts of the different schemas."""
    payloads: pa.BinaryArray
    """The messages without their schemas."""


def split_connect(values: pa.BinaryArray) -> Frames:
    """Split messages into schema and payload; leave null and other messages as they are."""
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
    """Return the payloads of messages with a schema, and all other messages unchanged."""
    framed = _framed(values, frame)
    if not framed.any():
        return values
    return pc.if_else(pa.array(framed), pc.binary_slice(values, len(frame), -1), values)


def _framed(values: pa.BinaryArray, frame: bytes) -> Mask:
    """Return which messages begin with a frame, end as an object does, and have content."""
    found = truths(pc.starts_with(values, frame))
    if found.any():
        long = pc.greater(pc.binary_length(values), len(frame) + 1)
        found = found & truths(pc.and_(long, pc.ends_with(values, _END)))
    return found


def schema_of(value: bytes) -> bytes | None:
    """Return the schema that a message carries; None if the message has another form."""
    if not value.startswith(HEAD) or not value.endswith(_END):
        return None
    end = 0
    # a parameter or a default may contain text that looks like the end of the schema
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


def _payloads(
    array: pa.BinaryArray, codes: Positions, schemas: tuple[bytes, ...]
) -> pa.BinaryArray:
    bare = np.flatnonzero(codes == NONE)
    if len(bare) == len(array):
        return array
    parts, places = [array.take(pa.array(bare))], [bare]
    for code, schema in enumerate(schemas):
        start, rows = len(HEAD) + len(schema) + len(NECK), np.flatnonzero(codes == code)
        if len(rows) == len(array):
            return pc.binary_slice(array, start, -1)
        parts.append(pc.binary_slice(array.take(pa.array(rows)), start, -1))
        places.append(rows)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


def framed(schema: bytes, payload: bytes) -> bytes:
    """Return a message that carries its schema."""
    return b"".join((HEAD, schema, NECK, payload, _END))
