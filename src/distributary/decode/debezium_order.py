"""Where in the order of its source a change is: typed numbers, compared one after the other.

| source | a | b | c |
|---|---|---|---|
| PostgreSQL | log sequence number | | |
| MySQL, MariaDB | number of the binary log | position in it | row of the event |
| SQL Server, Db2 | first part of the change's LSN | second and third | number of the event |
| Oracle | SCN | redo log and block of `rs_id` | offset of `rs_id` and SSN |
| MongoDB | seconds | number within the second | |
| any other, and flattened events whose deletes tell no position | | | |

A row's changes are told in the order of these numbers, because each waits for the one before it to
be committed. What is at one place, or has no place, is in the order of its topic's partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.datastream_order import Place
from distributary.decode.datastream_values import Ints, Mask

Triple = tuple[int, int, int]
_NOWHERE: Triple = (0, 0, 0)
_INT64 = 2**63
_SUFFIX = re.compile(r"\d{1,18}$", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)


def places(source: Mapping[str, pa.Array], count: int, *, ordered: bool) -> Place:
    """The position of each change; none where `ordered` is not the case."""
    if not ordered:
        return _nowhere(count)
    if "pos" in source and "file" in source:
        file = _texts(source["file"], count, _log_file)
        position, bad = _integers(source["pos"], count)
        row, worse = _integers(source.get("row"), count)
        return Place(file.a, position, row, file.bad | bad | worse)
    if "change_lsn" in source:
        change = _texts(source["change_lsn"], count, _three_parts)
        number, bad = _integers(source.get("event_serial_no"), count)
        return Place(change.a, change.b, number, change.bad | bad)
    if "scn" in source:
        scn, bad_scn = _integers(source["scn"], count)
        ssn, bad_ssn = _integers(source.get("ssn"), count)
        redo = _texts(source.get("rs_id"), count, _rs_id)
        bad = redo.bad | bad_scn | bad_ssn | (ssn >= 2**32)
        return Place(scn, redo.b, redo.c | np.where(bad, 0, ssn), bad)
    if "lsn" in source:
        return _one(source["lsn"], count)
    if "ord" in source:
        seconds, bad = _integers(source.get("ts_ms"), count)
        number, worse = _integers(source["ord"], count)
        return Place(seconds // 1_000, number, np.zeros(count, np.int64), bad | worse)
    return _nowhere(count)


def ties(offsets: pa.Array, partitions: pa.Array) -> pa.Array:
    """The source's last word: the place in the topic, as text that sorts in the same way."""
    return pc.binary_join_element_wise(
        pc.utf8_lpad(offsets.cast(pa.string()), 19, "0"),
        pc.utf8_lpad(partitions.cast(pa.string()), 6, "0"),
        ".",
    )


def _one(array: pa.Array, count: int) -> Place:
    numbers, bad = _integers(array, count)
    zeros = np.zeros(count, np.int64)
    return Place(numbers, zeros, zeros, bad)


def _nowhere(count: int) -> Place:
    zeros = np.zeros(count, np.int64)
    return Place(zeros, zeros, zeros, np.zeros(count, np.bool_))


def _integers(array: pa.Array | None, count: int) -> tuple[Ints, Mask]:
    """Whole numbers, also where they are written as text; nothing is 0."""
    none = np.zeros(count, np.bool_)
    if array is None:
        return np.zeros(count, np.int64), none
    if kinds.is_integer(array.type):
        numbers: Ints = array.cast(pa.int64()).fill_null(0).to_numpy()
        return np.maximum(numbers, 0), numbers < 0
    if not kinds.is_string(array.type):
        return np.zeros(count, np.int64), array.is_valid().to_numpy(zero_copy_only=False)
    place = _texts(array, count, lambda t: (int(t), 0, 0) if _WHOLE.fullmatch(t) else None)
    return place.a, place.bad


def _texts(array: pa.Array | None, count: int, read: Callable[[str], Triple | None]) -> Place:
    """Positions that are written as text; each text is read once."""
    if array is None or not kinds.is_string(array.type):
        return _nowhere(count)
    coded = pc.dictionary_encode(array, null_encoding="encode")
    texts = coded.dictionary.to_pylist()
    found = [read(text.strip()) if text and text.strip() else _NOWHERE for text in texts]
    bad = np.array([each is None or max(each) >= _INT64 for each in found], np.bool_)
    triples = [_NOWHERE if b or each is None else each for each, b in zip(found, bad, strict=True)]
    table = np.array(triples, np.int64).reshape(-1, 3)
    codes = coded.indices.to_numpy()
    return Place(table[codes, 0], table[codes, 1], table[codes, 2], bad[codes])


def _log_file(name: str) -> Triple | None:
    suffix = _SUFFIX.search(name)
    return (int(suffix[0]), 0, 0) if suffix else None


def _three_parts(lsn: str) -> Triple | None:
    parts = _hexes(lsn.split(":"))
    if len(parts) != 3 or parts[1] >= 2**47 or parts[2] >= 2**16:
        return None
    return (parts[0], (parts[1] << 16) | parts[2], 0)


def _rs_id(text: str) -> Triple | None:
    parts = _hexes(text.removeprefix("0x").split("."))
    if len(parts) != 3 or parts[0] >= 2**31 or parts[1] >= 2**32 or parts[2] >= 2**31:
        return None
    # beside the offset there is room for the SSN, which counts the rows of one redo record
    return (0, (parts[0] << 32) | parts[1], parts[2] << 32)


def _hexes(parts: list[str]) -> list[int]:
    return [int(part, 16) for part in parts if _HEX.fullmatch(part)]
