"""What came with a row beside the row: when, which half of a change of key, and all the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.change.order import Place
from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_shape import Parts
from distributary.decode.debezium_values import instants
from distributary.evolve.rest import rest_as_json
from distributary.model.record import TIMESTAMP

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the two halves of a change of key: of the delete and of the insert."""

_UNITS = (
    ("ts_us", instants()),
    ("ts_ns", instants(parts=1_000)),
    ("ts_ms", instants(factor=1_000)),
)
Headers = Mapping[int, bytes]


def source_times(parts: Parts, arrived: pa.Array) -> pa.Array:
    """When the source made each change; for one that does not say it, when it was written down."""
    times: pa.Array = pa.nulls(len(arrived), TIMESTAMP)
    rest = {name.removeprefix("__"): array for name, array in parts.rest}
    for told in (parts.source, rest):
        for name, read in _UNITS:
            array = told.get(name)
            if array is not None and kinds.is_integer(array.type) and times.null_count:
                times = pc.coalesce(times, read(array).array)
    return pc.coalesce(times, arrived.cast(TIMESTAMP)) if times.null_count else times


def headers_of(headers: pa.ListArray, name: str) -> Headers:
    """By row, what a header of that name holds."""
    if headers.null_count == len(headers):
        return {}
    keys, values = headers.flatten().flatten()
    found = np.flatnonzero(pc.equal(keys, name).fill_null(False).to_numpy(zero_copy_only=False))
    if not len(found):
        return {}
    rows = pc.list_parent_indices(headers).to_numpy()[found]
    return dict(zip(rows.tolist(), values.take(pa.array(found)).to_pylist(), strict=True))


def envelopes(
    parts: Parts,
    *,
    new_keys: Mapping[int, Any],
    old_keys: Mapping[int, Any],
    lost: Mapping[str, Mapping[int, Any]],
) -> pa.StringArray:
    """The envelope of each event as JSON, without what has a column of its own."""
    members = {name: array for name, array in parts.rest if array.null_count < len(array)}
    count = len(parts.codes)
    texts: pa.Array = pa.repeat(pa.scalar("{}", pa.string()), count)
    if members:
        batch = pa.RecordBatch.from_arrays([*members.values()], names=[*members])
        texts = pc.fill_null(rest_as_json(batch, [*members]), "{}")
    more: dict[int, dict[str, Any]] = {}
    for part, headers in (("new_key", new_keys), ("old_key", old_keys)):
        for row, value in headers.items():
            more.setdefault(row, {})[part] = value
    for column, rows in lost.items():
        for row, value in rows.items():
            more.setdefault(row, {}).setdefault("rescued", {})[column] = value
    return _with_more(texts, more) if more else texts


def contents(headers: Headers) -> dict[int, Any]:
    """What headers hold: JSON, or what can be shown of it."""
    return {row: _content(value) for row, value in headers.items()}


def _content(value: bytes | None) -> Any:
    try:
        content = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return (value or b"").decode("utf-8", "replace")
    framed = isinstance(content, dict) and content.keys() == {"schema", "payload"}
    return content["payload"] if framed else content


def _with_more(texts: pa.StringArray, more: Mapping[int, Mapping[str, Any]]) -> pa.StringArray:
    rows = sorted(more)
    added: list[str] = []
    for row, text in zip(rows, texts.take(pa.array(rows)).to_pylist(), strict=True):
        words = json.dumps(more[row], ensure_ascii=False, separators=(",", ":"))
        words = words.encode("utf-8", "replace").decode()
        added.append(words if text == "{}" else f"{text[:-1]},{words[1:]}")
    places = np.arange(len(texts))
    places[rows] = len(texts) + np.arange(len(rows))
    return pa.concat_arrays([texts, pa.array(added, pa.string())]).take(pa.array(places))


def halves(deletes: Mask, new_keys: Headers, place: Place) -> Any:
    """0 for the row that a change of key removes, 1 for all else.

    Where no position puts the two halves together, the order of the topic tells which is first.
    """
    half = np.ones(len(deletes), np.int64)
    half[[*new_keys]] = 0
    nowhere = (place.a == 0) & (place.b == 0) & (place.c == 0)
    return np.where(deletes & ~nowhere, half, 1)
