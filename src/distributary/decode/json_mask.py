"""Takes a list of mixed values out of JSON texts without parsing them.

Arrow reads JSON fast, but no list in which numbers and texts are mixed, as Datastream's `sort_keys`
are. Such a list is blanked in a copy of the texts, which stay JSON of the same length, and handed
on by itself. Only where no doubt is possible: what looks unusual is left to the careful reader.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
_BLANK, _OPEN, _CLOSE, _COLON, _ESCAPE, _BRACE = b" []:\\{"
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


def mask_list(texts: pa.BinaryArray, name: str) -> Masked:
    """Blank the list that the top object of each text has under a name."""
    count = len(texts)
    key = f'"{name}"'
    found = pc.find_substring(texts, pattern=key.encode()).to_numpy()
    has = found >= 0
    if not has.any():
        return Masked(texts, pa.nulls(count, pa.string()), ~has)
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
    plain = pc.match_substring_regex(lists, _PLAIN).to_numpy(zero_copy_only=False)
    sure &= plain
    _blank(data, opened[sure] + 1, closed[sure] - 1)
    buffers = [None, texts.buffers()[1], pa.py_buffer(data)]
    masked = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    every = np.ones(count, np.bool_)
    every[rows] = sure
    place = np.full(count, -1)
    place[rows] = np.where(sure, np.arange(len(rows)), -1)
    chosen = pa.array(place, mask=place < 0)
    return Masked(masked, lists.take(chosen).cast(pa.string()), every)


def _ends(
    data: Bytes, starts: Places, key_at: Places, after: Places
) -> tuple[Places, Places, Mask]:
    """Where lists begin and end behind their names, and which of them do, in the top object."""
    last = len(data) - 1
    opened = np.minimum(after + 1, last)
    opened = np.minimum(opened + (data[opened] == _BLANK), last)
    # brackets in strings are reason for doubt: then there are others than expected
    folded = data | 0x20
    brackets = np.flatnonzero((folded == _BRACE) | (folded == _BRACE + 2))
    outer = np.searchsorted(brackets, starts)
    inner = np.searchsorted(brackets, opened)
    closed = brackets[np.minimum(inner + 1, len(brackets) - 1)] if len(brackets) else opened
    sure = (data[np.minimum(after, last)] == _COLON) & (data[opened] == _OPEN)
    sure &= (inner - outer == 1) & (data[closed] == _CLOSE) & (closed > opened)
    sure &= data[np.maximum(key_at - 1, 0)] != _ESCAPE
    return opened, closed + 1, sure


def slices(texts: pa.BinaryArray, starts: Places, ends: Places) -> pa.BinaryArray:
    """Parts of the bytes of an array; the parts come one after the other."""
    offsets = np.column_stack([starts, ends]).reshape(-1).astype(np.int32)
    count = len(offsets) - 1
    buffers = [None, pa.py_buffer(offsets), texts.buffers()[2]]
    whole = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    return whole.take(pa.array(np.arange(0, count, 2)))


def _blank(data: Bytes, starts: Places, ends: Places) -> None:
    lengths = ends - starts
    first = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(starts - first, lengths)
    data[places] = _BLANK
