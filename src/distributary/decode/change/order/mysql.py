"""The binary log of MySQL and MariaDB: number of the file, position in it, row of the event."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.change.order.place import Place, Triple, read_integers, read_texts

_SUFFIX = re.compile(r"\d+$", re.ASCII)
_FILES = ("log_file", "binlog_file")
_POSITIONS = ("log_position", "binlog_position")
"""Datastream has the second names where it follows the log by global transaction ids."""


def datastream_place(metadata: Mapping[str, pa.Array], count: int) -> Place:
    """Read the places of Datastream's events."""
    return _place(_given(metadata, _FILES), _given(metadata, _POSITIONS), None, count)


def debezium_place(source: Mapping[str, pa.Array], count: int) -> Place:
    """Read the places of Debezium's events."""
    return _place(source["file"], source["pos"], source.get("row"), count)


def _given(metadata: Mapping[str, pa.Array], names: tuple[str, ...]) -> pa.Array | None:
    """Return the value under the first name that an event gives one."""
    arrays = [metadata[name] for name in names if name in metadata]
    if len(arrays) < 2:
        return arrays[0] if arrays else None
    if arrays[0].type != arrays[1].type:
        arrays = [array.cast(pa.string()) for array in arrays]
    empty = pc.equal(arrays[0], "") if pa.types.is_string(arrays[0].type) else None
    first = arrays[0] if empty is None else pc.if_else(empty, None, arrays[0])
    return pc.coalesce(first, arrays[1])


def _place(
    file: pa.Array | None, position: pa.Array | None, row: pa.Array | None, count: int
) -> Place:
    log = read_texts(file, count, _file_number)
    offset, bad = read_integers(position, count)
    number, worse = read_integers(row, count)
    return Place(log.a, offset, number, log.bad | bad | worse)


def _file_number(name: str) -> Triple | None:
    suffix = _SUFFIX.search(name)
    return (int(suffix[0]), 0, 0) if suffix and len(suffix[0]) < 20 else None
