"""Arrays of PostgreSQL, which Datastream writes as records in records, as JSON text.

A level is `{nestedArray, elementValue}`: either the items of one more dimension or one element.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.datastream_values import Mask, Read, Reading
from distributary.decode.json_text import RefusedTextError, parse
from distributary.evolve.lists import compact, with_values
from distributary.evolve.rest import rest_as_json

MAX_DIMENSIONS = 6
"""As many as PostgreSQL has."""
TOO_DEEP = object()
"""Stands for an array of more dimensions, which cannot be read."""

MAX_DEPTH = 100
_TEXTS = pa.list_(pa.string())


def json_texts(array: pa.Array) -> pa.Array:
    """Each value as JSON; null stays null."""
    batch = pa.RecordBatch.from_arrays([array], ["v"])
    # the value stands between `{"v":` and `}`
    return pc.utf8_slice_codeunits(rest_as_json(batch, ["v"]), 5, -1)


def arrays(read: Read, *, is_json: bool) -> Read:
    """Reads arrays whose elements are read so; elements may be JSON themselves."""

    def elements(array: pa.Array) -> pa.Array:
        reading = read(array)
        texts = _as_json(reading.array) if is_json else json_texts(reading.array)
        return _with(texts, {row: json.dumps(value) for row, value in reading.lost.items()})

    def levels(array: pa.StructArray, left: int) -> tuple[pa.Array, Mask]:
        lists, element = array.field(0), array.field(1)
        if not left:
            deep: Mask = lists.is_valid().to_numpy(zero_copy_only=False)
            return elements(element), deep
        lists = compact(lists)
        # most levels hold nothing at all
        inner, below = levels(lists.values, left - 1) if len(lists.values) else (_empty(), _none())
        items = pc.fill_null(inner, "null")
        joined = pc.binary_join(with_values(lists, _TEXTS, items), ",")
        texts = pc.binary_join_element_wise("[", joined, "]", "")
        owners = np.searchsorted(lists.offsets.to_numpy(), np.flatnonzero(below), side="right") - 1
        deep = np.zeros(len(array), np.bool_)
        deep[owners] = True
        return pc.coalesce(texts, elements(element)), deep

    def read_all(array: pa.StructArray) -> Reading:
        texts, deep = levels(array, MAX_DIMENSIONS)
        valid = array.is_valid()
        texts = pc.if_else(valid, pc.fill_null(texts, "null"), pa.scalar(None, pa.string()))
        lost: dict[int, Any] = dict.fromkeys(np.flatnonzero(deep).tolist(), TOO_DEEP)
        return Reading(texts, lost)

    return read_all


def _as_json(texts: pa.Array) -> pa.Array:
    """Texts that are JSON as they are, others as JSON strings."""
    return pa.array([None if t is None else _checked(t) for t in texts.to_pylist()], pa.string())


def _checked(text: str) -> str:
    try:
        parse(text.encode(), max_depth=MAX_DEPTH)
    except RefusedTextError:
        return json.dumps(text, ensure_ascii=False)
    return text


def _with(texts: pa.Array, others: dict[int, str]) -> pa.Array:
    if not others:
        return texts
    found: Sequence[Any] = texts.to_pylist()
    return pa.array([others.get(row, text) for row, text in enumerate(found)], pa.string())


def _empty() -> pa.Array:
    return pa.array([], pa.string())


def _none() -> Mask:
    return np.zeros(0, np.bool_)
