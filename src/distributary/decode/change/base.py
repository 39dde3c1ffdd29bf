"""What every decoder of change events has in common, whichever system wrote them.

It turns each event into one row of a log table: the columns of model/change.py, then the columns of
the source's table under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from distributary.decode.base import Expansion, HasColumns, Mask, Positions
from distributary.decode.json.schema import lake_names
from distributary.model.change import CHANGE_NAMES
from distributary.model.deadletter import Decoded

ROW_ID = "_row_id"
"""The column that stands in for a key where the source has none but numbers its rows."""
METADATA_NAMES = tuple(
    "_headers _topic _partition _offset _timestamp _schema_id _batch _raw _date".split()
)
"""Columns that the stage may put behind those of the decoder."""
_RESERVED = frozenset((*CHANGE_NAMES, *METADATA_NAMES, ROW_ID, "_old_key"))
"""The last one is a column of histories, and of a merge's own."""
_SUFFIX = "__source"


class ChangeDecoder(HasColumns, Protocol):
    """Decodes change events of one writer schema. Built once per schema and process."""

    @property
    def expansion(self) -> Expansion:
        """How large events become; what is decoded at once should be one of its slices."""

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls and framing. Never raises for what an event contains.

        `raw` has the source's records that they came in, one each and in the same order.
        """


def claim(source_metadata: Mapping[str, object]) -> str | None:
    """The source table's names as compact JSON, `["shop","","orders"]`; None if it has no name.

    The three are database, schema and table; empty is what the source does not have.
    """
    table = _name(source_metadata, "table") or _name(source_metadata, "collection")
    if not table:
        return None
    names = [_name(source_metadata, "database"), _name(source_metadata, "schema"), table]
    text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair is legal in JSON and in no UTF-8: such a name stays escaped
        return json.dumps(names, separators=(",", ":"))
    return text


def _name(source_metadata: Mapping[str, object], part: str) -> str:
    name = source_metadata.get(part)
    return name if isinstance(name, str) else ""


def column_names(names: Iterable[str]) -> dict[str, str]:
    """What the columns of a source's table are called in its log.

    They keep their names, but for characters that lakes refuse and for names that differ by case
    only; one that is called like a column of the log itself ends in `__source`.
    """
    given = lake_names(names, top=False)
    taken = {name.casefold() for name in given.values()} | _RESERVED
    for name, column in given.items():
        if column.casefold() in _RESERVED:
            column += _SUFFIX
            while column.casefold() in taken:
                column += "_"
            taken.add(column.casefold())
            given[name] = column
    return given


def content_hashes(payloads: pa.BinaryArray) -> pa.Int64Array:
    """64 bits of each event's bytes, the same in every process and release."""
    # one digest of 8 bytes after the other, read as numbers at once
    digests = b"".join([blake2b(data, digest_size=8).digest() for data in payloads.to_pylist()])
    return pa.array(np.frombuffer(digests, "<i8"))


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns of each event's key, by number: the events of a table have few different keys."""

    codes: Positions
    names: tuple[tuple[str, ...] | None, ...]
    """By code: None for a key of which nobody can say the columns."""

    def where(self, wanted: Callable[[tuple[str, ...] | None], bool]) -> Mask:
        """Which events have such a key."""
        mask: Mask = np.array([wanted(each) for each in self.names], np.bool_)[self.codes]
        return mask

    def array(self) -> pa.ListArray:
        """`_key` of model/change.py."""
        names = [list(each or ()) for each in self.names]
        return pa.array(names, pa.list_(pa.string())).take(pa.array(self.codes))


def with_members(
    texts: pa.StringArray, members: Iterable[tuple[tuple[str, ...], Mapping[int, Any]]]
) -> pa.StringArray:
    """JSON objects with more members: each with its path, and its values by row."""
    more: dict[int, dict[str, Any]] = {}
    for (*path, name), values in members:
        for row, value in values.items():
            own = more.setdefault(row, {})
            for each in path:
                own = own.setdefault(each, {})
            own[name] = value
    if not more:
        return texts
    rows, added = sorted(more), []
    for row, text in zip(rows, texts.take(pa.array(rows)).to_pylist(), strict=True):
        words = json.dumps(more[row], ensure_ascii=False, separators=(",", ":"))
        words = words.encode("utf-8", "replace").decode()
        added.append(words if text == "{}" else f"{text[:-1]},{words[1:]}")
    return with_values_at(texts, rows, pa.array(added, pa.string()))


def with_values_at(column: pa.Array, rows: Sequence[int] | Positions, values: pa.Array) -> pa.Array:
    """A column with other values in some rows."""
    places = np.arange(len(column))
    places[np.asarray(rows, np.int64)] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, values]).take(pa.array(places))


# Datastream events, taken apart: what the decoders of Avro and JSON hand on.

SKIPPED = ("uuid", "source_timestamp")
"""What has a column of its own, and is not told again in the envelope."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events, part by part; every array has one element for each."""

    positions: Positions
    """Which payloads they are."""
    top: Mapping[str, pa.Array]
    """The envelope, but for the three parts below."""
    sort_keys: pa.Array | None
    """JSON text."""
    metadata: Mapping[str, pa.Array]
    """Of the source."""
    payload: tuple[pa.Array, ...]
    """One column after the other, as the lake has them."""
    told: Mask
    """Which have metadata of the source."""
    filled: Mask
    """Which have a payload."""
    unit: int = 1_000
    """Microseconds of one in a source timestamp that is a number."""
    envelope: pa.Array | None = None
    """The whole envelope as JSON, if it is known already."""
    lost: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    """By column, by row: values that the column cannot hold."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By column, by row: milliseconds that a moment's clock was east of UTC."""

    def __len__(self) -> int:
        return len(self.positions)

    def only(self, kept: Mask) -> Events:
        """Those that a mask selects."""
        mask = pa.array(kept)
        place = np.cumsum(kept) - 1
        return replace(
            self,
            positions=self.positions[kept],
            top={name: array.filter(mask) for name, array in self.top.items()},
            sort_keys=None if self.sort_keys is None else self.sort_keys.filter(mask),
            metadata={name: array.filter(mask) for name, array in self.metadata.items()},
            payload=tuple(array.filter(mask) for array in self.payload),
            told=self.told[kept],
            filled=self.filled[kept],
            envelope=None if self.envelope is None else self.envelope.filter(mask),
            lost=_moved(self.lost, kept, place),
            offsets=_moved(self.offsets, kept, place),
        )


def _moved(
    values: Mapping[str, Mapping[int, Any]], kept: Mask, place: Positions
) -> dict[str, dict[int, Any]]:
    return {
        name: {int(place[row]): value for row, value in rows.items() if kept[row]}
        for name, rows in values.items()
    }
