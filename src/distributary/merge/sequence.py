"""The order of events, as numbers: places in a source's log are compared field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.change import SEQ

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Place = tuple[int | str, ...]
"""A `_seq` as a tuple: the fields of SEQ in their order."""

_LOWEST = -(2**63)


def ranks(parts: Sequence[pa.Array | pa.ChunkedArray]) -> list[Ints]:
    """One number for each place, over all parts: equal for equal places, larger for later ones."""
    sizes = [len(part) for part in parts]
    whole = _whole(parts)
    rank = _dense([_numbers(whole, field.name) for field in SEQ if field.name != "tie"])
    tie = whole.field("tie") if len(rank) else None
    if tie is not None and len(rank) and len(np.unique(rank)) < len(rank):
        rank = _dense([rank, pc.rank(tie.fill_null(""), tiebreaker="dense").to_numpy()])
    return np.split(rank, np.cumsum(sizes)[:-1]) if sizes else []


def place_of(value: dict[str, Any]) -> Place:
    """A `_seq` out of Arrow as a tuple that Python compares the same way."""
    return tuple(value[field.name] for field in SEQ)


def places(values: Sequence[Place]) -> pa.StructArray:
    """The inverse of `place_of`."""
    names = [field.name for field in SEQ]
    return pa.array([dict(zip(names, value, strict=True)) for value in values], SEQ)


def highest(seq: pa.Array | pa.ChunkedArray) -> Place | None:
    """The last place of all, or None when there is none."""
    if len(seq) == 0:
        return None
    return place_of(seq[int(np.argmax(ranks([seq])[0]))].as_py())


def lowest(seq: pa.Array | pa.ChunkedArray) -> Place | None:
    """The first place of all, or None when there is none."""
    if len(seq) == 0:
        return None
    return place_of(seq[int(np.argmin(ranks([seq])[0]))].as_py())


def _whole(parts: Sequence[pa.Array | pa.ChunkedArray]) -> pa.StructArray:
    chunks: list[pa.Array] = []
    for part in parts:
        chunks += part.chunks if isinstance(part, pa.ChunkedArray) else [part]
    # a slice's fields are not cut with it, but those of a copy are
    return pa.concat_arrays([*chunks, pa.array([], SEQ)])


def _numbers(whole: pa.StructArray, name: str) -> Ints:
    # a row that somebody else wrote may have no place: it is before all others
    field = whole.field(name)
    values: Ints = field.cast(pa.int64()).fill_null(_LOWEST).to_numpy(zero_copy_only=False)
    return values


def _dense(keys: Sequence[Ints]) -> Ints:
    """Ranks without gaps by several keys, the first of which counts most."""
    telling = [key for key in keys if len(key) and (key != key[0]).any()]
    if not telling:
        return np.zeros(len(keys[0]), np.int64)
    order = np.lexsort(telling[::-1])
    new = np.zeros(len(order), np.bool_)
    for key in telling:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new)
    return rank
