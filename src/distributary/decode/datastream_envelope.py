"""What came with a row beside the row, as JSON text.

Most of it is the same in thousands of events: the parts that have few different values are written
once for each combination of them, the others with Arrow for all events at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.datastream_arrays import json_texts
from distributary.decode.datastream_events import SKIPPED, Events
from distributary.decode.datastream_keys import marked

MAX_DIFFERENT = 64
"""Values of a part that has few of them."""
_COMBINATIONS = 2**40

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Object:
    """The members of an object: those with few values, and those with many."""

    few: Sequence[tuple[str, Codes, Sequence[str]]]
    """Name, number of the value by row, and the values as JSON."""
    many: Sequence[tuple[str, pa.Array]]


def envelopes(events: Events) -> pa.StringArray:
    """The envelope of each event, without what has a column of its own."""
    if events.envelope is not None:
        return _with_more(events.envelope, events)
    count = len(events)
    top = {name: array for name, array in events.top.items() if name not in SKIPPED}
    parts: list[Any] = [*_written(_sorted(top, count), count, opening="{")]
    if events.sort_keys is not None:
        parts += [_comma(parts, '"sort_keys":'), pc.fill_null(events.sort_keys, "null")]
    if events.metadata:
        opening = _comma(parts, '"source_metadata":{')
        parts += _written(_sorted(events.metadata, count), count, opening=opening)
        parts.append("}")
    parts = parts or ["{"]
    text = pc.binary_join_element_wise(*parts, "}", "")
    if isinstance(text, pa.Scalar):
        text = pa.repeat(text, count)
    return _with_more(text, events)


def _comma(parts: Sequence[Any], text: str) -> str:
    return f",{text}" if parts else f"{{{text}"


def _sorted(members: Mapping[str, pa.Array], count: int) -> _Object:
    few, many = [], []
    for name, array in members.items():
        coded = _coded(array)
        if coded is None:
            many.append((name, array))
        else:
            few.append((name, *coded))
    return _Object(few, many)


def _coded(array: pa.Array) -> tuple[Codes, list[str]] | None:
    """The number of each value and the values as JSON, if there are few."""
    type_ = array.type
    if kinds.is_string(type_) or kinds.is_boolean(type_):
        values = array
    elif kinds.is_list(type_) and kinds.is_string(type_.value_type):
        values = marked(array)
    else:
        return None
    # a look at the first tells of most that are all different
    head = values[: 4 * MAX_DIFFERENT]
    if len(head) < len(values) and pc.count_distinct(head, mode="all").as_py() > MAX_DIFFERENT:
        return None
    coded = pc.dictionary_encode(values, null_encoding="encode")
    if len(coded.dictionary) > MAX_DIFFERENT:
        return None
    codes = coded.indices.to_numpy().astype(np.int64)
    _, rows = np.unique(codes, return_index=True)
    return codes, [_dumps(array[row].as_py()) for row in rows.tolist()]


def _written(members: _Object, count: int, *, opening: str) -> Iterable[Any]:
    """The members of an object as parts of a text, without the bracket at its end."""
    first = opening
    for few in _manageable(members.few):
        yield _combined(few, count, first)
        first = ","
    for name, array in members.many:
        yield f"{first}{json.dumps(name)}:"
        yield pc.fill_null(_texts(array), "null")
        first = ","
    if first is opening:
        yield opening


def _manageable(
    few: Sequence[tuple[str, Codes, Sequence[str]]],
) -> Iterable[list[tuple[str, Codes, Sequence[str]]]]:
    """Members in groups that do not have too many combinations to be counted."""
    group: list[tuple[str, Codes, Sequence[str]]] = []
    combinations = 1
    for each in few:
        combinations *= len(each[2])
        if combinations > _COMBINATIONS:
            yield group
            group, combinations = [], len(each[2])
        group.append(each)
    if group:
        yield group


def _combined(
    few: Sequence[tuple[str, Codes, Sequence[str]]], count: int, opening: str
) -> pa.Array:
    """Several members as one text for each combination of their values."""
    codes: Codes = np.zeros(count, np.int64)
    for _, numbers, texts in few:
        codes = codes * len(texts) + numbers
    coded = pa.array(codes).dictionary_encode()
    _, rows = np.unique(coded.indices.to_numpy(), return_index=True)
    combined = [
        opening + ",".join(f"{json.dumps(n)}:{texts[numbers[row]]}" for n, numbers, texts in few)
        for row in rows.tolist()
    ]
    return pa.array(combined, pa.string()).take(coded.indices)


def _texts(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()) if kinds.is_integer(array.type) else json_texts(array)


def _with_more(texts: pa.StringArray, events: Events) -> pa.StringArray:
    """Envelopes with what had no place in the columns."""
    if not events.lost and not events.offsets:
        return texts
    more: dict[int, dict[str, dict[str, Any]]] = {}
    for part, values in (("rescued", events.lost), ("offsets", events.offsets)):
        for column, rows in values.items():
            for row, value in rows.items():
                more.setdefault(row, {}).setdefault(part, {})[column] = value
    if not more:
        return texts
    added: list[str] = [""] * len(texts)
    for row, parts in more.items():
        added[row] = _dumps(parts)[1:-1]
    inner = pc.utf8_slice_codeunits(texts, 0, -1)
    array = pa.array(added, pa.string())
    comma = pc.if_else(
        pc.or_(pc.equal(array, ""), pc.equal(inner, "{")), "", pa.scalar(",", pa.string())
    )
    return pc.binary_join_element_wise(inner, comma, array, "}", "")
