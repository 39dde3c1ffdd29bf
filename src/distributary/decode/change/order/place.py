"""Places in the log of a source as typed numbers, whichever kind of database wrote it.

A position that an event does not have is 0, as that of a backfilled row. A position that cannot be
read, in any of its parts, is bad: a guess would put the change in a wrong place for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.base import Mask, Positions, nulls
from distributary.model.change import SEQ

Triple = tuple[int, int, int]
NOWHERE: Triple = (0, 0, 0)
INT64 = 2**63
WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)


class Place(NamedTuple):
    """Positions, and a mask of those that cannot be read."""

    a: Positions
    b: Positions
    c: Positions
    bad: Mask

    @property
    def known(self) -> Mask:
        """Return a mask of the events with a position."""
        mask: Mask = (self.a != 0) | (self.b != 0) | (self.c != 0)
        return mask


def nowhere(count: int) -> Place:
    """Return the places of events that have no position."""
    zeros = np.zeros(count, np.int64)
    return Place(zeros, zeros, zeros, np.zeros(count, np.bool_))


def read_texts(array: pa.Array | None, count: int, read: Callable[[str], Triple | None]) -> Place:
    """Read positions that are written as text; each different text is read once."""
    if array is None:
        return nowhere(count)
    if not kinds.is_string(array.type):
        return nowhere(count)._replace(bad=~nulls(array))
    coded = pc.dictionary_encode(array, null_encoding="encode")
    texts = coded.dictionary.to_pylist()
    triples = [read(text.strip()) if text and text.strip() else NOWHERE for text in texts]
    fits = [triple is not None and all(0 <= part < INT64 for part in triple) for triple in triples]
    numbers = [triple if fine else NOWHERE for triple, fine in zip(triples, fits, strict=True)]
    codes = coded.indices.to_numpy()
    a, b, c = np.array(numbers, np.int64).reshape(-1, 3).T[:, codes]
    return Place(a, b, c, ~np.array(fits, np.bool_)[codes])


def read_integers(array: pa.Array | None, count: int) -> tuple[Positions, Mask]:
    """Read whole numbers, also where they are written as text; null is 0, less than 0 is bad."""
    if array is None:
        return np.zeros(count, np.int64), np.zeros(count, np.bool_)
    if kinds.is_integer(array.type):
        numbers: Positions = array.cast(pa.int64()).fill_null(0).to_numpy()
        return np.maximum(numbers, 0), numbers < 0
    place = read_texts(array, count, lambda t: (int(t), 0, 0) if WHOLE.fullmatch(t) else None)
    return place.a, place.bad


def read_hexes(parts: list[str], count: int) -> list[int] | None:
    """Read hexadecimal parts of a position; None unless there are `count` and all are numbers."""
    if len(parts) != count or not all(map(_HEX.fullmatch, parts)):
        return None
    return [int(part, 16) for part in parts]


def ties(offsets: pa.Array, partitions: pa.Array) -> pa.Array:
    """Format the place in a topic as text that sorts as the topic orders its records."""
    return pc.binary_join_element_wise(
        pc.utf8_lpad(offsets.cast(pa.string()), 19, "0"),
        pc.utf8_lpad(partitions.cast(pa.string()), 6, "0"),
        ".",
    )


def sequence(
    place: Place,
    *,
    phase: Positions | Mask,
    ts: Positions,
    half: Positions | Mask,
    tie: pa.StringArray,
) -> pa.StructArray:
    """Build `_seq` of model/change.py."""
    numbers = [phase.astype(np.int32), ts, place.a, place.b, place.c, half.astype(np.int32)]
    return pa.StructArray.from_arrays([*map(pa.array, numbers), tie], fields=list(SEQ))
