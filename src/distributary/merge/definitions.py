"""Which columns were a table's key, and when.

A key may be defined anew while events flow. Two events, or an event and a row, are about the same
row if they agree on the key of the *newer* of the two: that one was in force when the newer
replaced the older. So a table must know for each of its rows which key was in force at its place
in the order. A table with one key, which is nearly every table, says so in one word; another one
keeps the spans of its keys. Both are written with the rows, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.evolve.place import fold
from distributary.merge.keys import Definition
from distributary.merge.sequence import Ints, Place, place_of, places, ranks

PROPERTY = "distributary.keys"
"""The table property that holds the spans."""
MOST_SPANS = 64
"""A table whose keys change to and fro forgets the oldest spans: their rows count for the next."""


Bound = tuple[int | str, ...]
"""A place, then -1, 0 or 1: just before it, at it, just after it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A key, and the first and the last place at which it was in force; None: no bound."""

    key: Definition
    first: Bound | None = None
    last: Bound | None = None


def resolve(names: Iterable[str | None], columns: Sequence[str]) -> Definition | None:
    """A key's columns by the names that the table has for them; None if it lacks one."""
    by_fold = {fold(column): column for column in reversed(columns)}
    exact = set(columns)
    found = [name if name in exact else by_fold.get(fold(name or "")) for name in names]
    known = {name for name in found if name is not None}
    return tuple(sorted(known)) if known and None not in found else None


def definitions_of(
    keys: pa.ChunkedArray, columns: Sequence[str]
) -> tuple[tuple[Definition, ...], Ints]:
    """The definitions in a column of key names, and for each row which it has; -1 for none."""
    lists = pa.concat_arrays([*keys.chunks, pa.array([], keys.type)])
    firsts, codes = _distinct(lists)
    found = [resolve(lists[at].as_py() or (), columns) for at in firsts]
    known = tuple(sorted({each for each in found if each is not None}))
    numbers = np.array([known.index(each) if each is not None else -1 for each in found] + [-1])
    return known, numbers[codes]


def _distinct(lists: pa.ListArray) -> tuple[list[int], Ints]:
    """A row for each different list of names, and for each row which of these lists it has."""
    indices = lists.flatten().dictionary_encode().indices
    names = indices.fill_null(-1).to_numpy(zero_copy_only=False)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy()
    if len(sizes) and (sizes == sizes[0]).all():
        # nearly every table has one key
        table = names.reshape(len(sizes), sizes[0])
        if (table == table[:1]).all():
            return [0], np.zeros(len(sizes), np.int64)
    ends = np.cumsum(sizes)
    first: dict[bytes, int] = {}
    codes = np.empty(len(sizes), np.int64)
    starts: list[int] = []
    for row, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        text = names[start:end].tobytes()
        if text not in first:
            first[text] = len(starts)
            starts.append(row)
        codes[row] = first[text]
    return starts, codes


def owners(spans: Sequence[Span], keys: Sequence[Definition], seq: pa.StructArray) -> Ints:
    """For each place the number of the key in force there."""
    if not spans:
        return np.zeros(len(seq), np.int64)
    # the columns of a key may be gone from the table: nobody can agree on it any more
    numbers = np.array([keys.index(s.key) if s.key in keys else -1 for s in spans])
    if len(spans) == 1:
        return np.full(len(seq), numbers[0])
    lasts = [span.last for span in spans if span.last is not None]
    ends, here = ranks([places([bound[:-1] for bound in lasts]), seq])
    sides = np.array([bound[-1] for bound in lasts], np.int64)
    # between two spans nothing was seen: the later one counts
    owner: Ints = numbers[np.searchsorted(2 * ends + sides, 2 * here)]
    return owner


def fits(spans: Sequence[Span], keys: Sequence[Definition], seq: pa.StructArray) -> bool:
    """Whether events with these keys and places leave the spans as they are."""
    if not spans or tuple(keys) != (spans[-1].key,):
        return False
    first = spans[-1].first
    return first is None or all((*place_of(each), 0) >= first for each in seq.to_pylist())


def advanced(
    spans: Sequence[Span], seen: Iterable[tuple[Place, Definition]], top: Place | None
) -> tuple[Span, ...]:
    """The spans after events with these places and keys.

    The last span has no end for as long as nothing else is seen, so that it need not be written
    again with every batch; `top`, the last place of the table's rows, is where it ends so far.
    """
    result = [replace(spans[-1], last=(*top, 0))] if spans and top is not None else []
    result = [*spans[:-1], *result]
    for place, key in sorted(set(seen)):
        _see(result, place, key)
    if result:
        result[-1] = replace(result[-1], last=None)
    if len(result) == 1:
        return (Span(result[0].key),)
    return tuple(result[-MOST_SPANS:])


def _see(spans: list[Span], place: Place, key: Definition) -> None:
    here = (*place, 0)
    at = 0
    while at < len(spans) and _ends_before(spans[at], here):
        at += 1
    before = spans[at - 1] if at else None
    found = spans[at] if at < len(spans) else None
    if found is not None and (found.first is None or found.first <= here):
        if found.key != key:
            # the span keeps all of its other places: they were seen
            left, right = replace(found, last=(*place, -1)), replace(found, first=(*place, 1))
            spans[at : at + 1] = [left, Span(key, here, here), right]
    elif before is not None and before.key == key:
        spans[at - 1] = replace(before, last=here)
    elif found is not None and found.key == key:
        spans[at] = replace(found, first=here)
    else:
        spans.insert(at, Span(key, here, here))


def _ends_before(span: Span, here: Bound) -> bool:
    return span.last is not None and span.last < here


def to_text(spans: Sequence[Span]) -> str:
    """Spans as the property's text."""
    return json.dumps(
        [{"columns": s.key, "first": s.first, "last": s.last} for s in spans], ensure_ascii=False
    )


def from_text(text: str | None) -> tuple[Span, ...]:
    """The inverse of `to_text`; nothing for a text that is not ours."""
    try:
        return tuple(
            Span(tuple(map(str, each["columns"])), _bound(each["first"]), _bound(each["last"]))
            for each in json.loads(text or "[]")
        )
    except (ValueError, KeyError, TypeError):
        return ()


def _bound(values: list[int | str] | None) -> Bound | None:
    return None if values is None else tuple(values)
