"""The key of each event: which columns, as the source says, under their names in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.changes import ROW_ID
from distributary.decode.datastream_events import Events
from distributary.decode.datastream_values import Mask

_MARK = "\x1f"
_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by number: events have few different ones."""

    codes: npt.NDArray[np.int64]
    columns: tuple[tuple[str, ...] | None, ...]
    """By code: the names in the log; None where one is not among the columns."""

    def array(self) -> pa.Array:
        """`_key` of model/change.py."""
        found = [list(names or ()) for names in self.columns]
        return pa.array(found, _TEXTS).take(pa.array(self.codes))

    def missing(self) -> Mask:
        """Which events have a key that is not in their payload."""
        flags = np.array([names is None for names in self.columns], np.bool_)
        mask: Mask = flags[self.codes]
        return mask


def keys_of(events: Events, names: Mapping[str, str]) -> Keys:
    """The key of each event.

    Args:
        events: The events.
        names: What the payload's columns are called in the log, by their names in the source.
    """
    folded = {name.casefold(): column for name, column in reversed(list(names.items()))}
    count = len(events)
    lists = [events.metadata.get(part) for part in ("primary_keys", "replication_index")]
    codes, found = _distinct([_names(each) for each in lists if each is not None], count)
    row_ids = events.metadata.get("row_id")
    columns: list[tuple[str, ...] | None] = [_resolved(each, names, folded) for each in found]
    if row_ids is not None and pa.types.is_string(row_ids.type) and () in columns:
        given = pc.greater(pc.binary_length(row_ids), 0).fill_null(False)
        keyless = np.array([each == () for each in columns], np.bool_)[codes]
        chosen = keyless & given.to_numpy(zero_copy_only=False)
        codes = np.where(chosen, len(columns), codes)
        columns.append((ROW_ID,))
    return Keys(codes, tuple(columns))


def _resolved(
    wanted: tuple[str | None, ...], names: Mapping[str, str], folded: Mapping[str, str]
) -> tuple[str, ...] | None:
    columns: list[str] = []
    for name in wanted:
        # the very name first: a source may have two columns that differ by case only
        column = None if name is None else names.get(name, folded.get(name.casefold()))
        if column is None:
            return None
        columns += [] if column in columns else [column]
    return tuple(columns)


def _names(array: pa.Array) -> pa.ListArray:
    """Lists of names; what is something else names no column."""
    if pa.types.is_list(array.type) and pa.types.is_string(array.type.value_type):
        return array
    return pa.array([[None] if valid else None for valid in array.is_valid().to_pylist()], _TEXTS)


def _distinct(
    lists: list[pa.Array], count: int
) -> tuple[npt.NDArray[np.int64], list[tuple[str | None, ...]]]:
    """Which list of names each event has, the first that is not empty, and the different ones."""
    texts: pa.Array = pa.repeat(pa.scalar("", pa.string()), count)
    for each in reversed(lists):
        joined = marked(each)
        filled = pc.fill_null(pc.greater(pc.binary_length(joined), 0), False)
        texts = pc.if_else(filled, joined, texts)
    codes = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    _, rows = np.unique(codes, return_index=True)
    found = []
    for row in rows.tolist():
        values = (each[row].as_py() for each in lists)
        found.append(tuple(next(filter(None, values), ())))
    return codes, found


def marked(lists: pa.ListArray) -> pa.StringArray:
    """Lists of texts, each as one text that no other list becomes."""
    texts = lists.values
    if pc.any(pc.match_substring(texts, _MARK), min_count=0).as_py():
        texts = pc.replace_substring(texts, _MARK, f"{_MARK}0")
    ended = pc.binary_join_element_wise(texts.fill_null(f"{_MARK}2"), f"{_MARK}1", "")
    array = pa.Array.from_buffers(
        _TEXTS, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [ended]
    )
    return pc.binary_join(array, "")
