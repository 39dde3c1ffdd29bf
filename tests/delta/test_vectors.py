"""The bytes of deletion vectors: what is written is read, and what is broken is refused."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta import vectors
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.vectors import BrokenVectorError, Vector, read_vector, write_vectors
from distributary.store.base import at

ROWS = st.sets(st.integers(0, 2**34), max_size=200)
SIX = np.array([3, 4, 7, 11, 18, 29])


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    vectors._kept.clear()


@given(sets=st.lists(ROWS, min_size=1, max_size=4))
def test_what_is_written_is_read(sets: list[set[int]], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("table")
    written = write_vectors(at(folder), [np.array(sorted(rows), np.int64) for rows in sets])
    assert len(list(Path(folder).iterdir())) == 1
    vectors._kept.clear()
    for rows, vector in zip(sets, written, strict=True):
        assert vector.cardinality == len(rows)
        again = Vector.parse(vector.spelled())
        assert again == vector
        assert read_vector(at(folder), vector).tolist() == sorted(rows)


def test_the_bytes_are_those_of_the_protocol(tmp_path: Path) -> None:
    (vector,) = write_vectors(at(tmp_path), [SIX])
    bitmap = "0100000000000000000000003a3000000100000000000500100000000300040007000b0012001d00"
    data = bytes.fromhex(f"d1d33964{bitmap}")
    (file,) = tmp_path.iterdir()
    size, check = len(data).to_bytes(4, "big"), zlib.crc32(data).to_bytes(4, "big")
    assert file.read_bytes() == b"\1" + size + data + check
    assert (vector.storage, vector.offset, vector.size) == ("u", 1, len(data))
    assert vector.path == file.name


def test_a_vector_in_the_log_is_read(tmp_path: Path) -> None:
    data = vectors._MAGIC + vectors.BitMap64(SIX.tolist()).serialize()
    padded = data + b"\0" * (-len(data) % 4)
    text = base64.b85encode(padded).translate(vectors._TO_Z85).decode()
    assert read_vector(at(tmp_path), Vector("i", text, None, len(data), 6)).tolist() == [*SIX]


def test_names_are_spelled_as_others_do() -> None:
    vector = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    assert vector.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector.id == "uab^-aqEH.-t@S}K{vb[*k^@4"


@pytest.mark.parametrize(
    "change",
    [
        {"storage": "p", "place": "/etc/passwd"},
        {"storage": "p", "place": "file:///etc/passwd"},
        {"storage": "u", "place": "../../x^-aqEH.-t@S}K{vb[*k^"},
        {"storage": "u", "place": "/etc^-aqEH.-t@S}K{vb[*k^"},
        {"storage": "u", "place": ""},
        {"storage": "u", "place": "é" * 20},
        {"storage": "u", "place": "#" * 20},
        {"storage": "x"},
        {"storage": "i", "place": "01234"},
        {"storage": "i", "place": "'" * 40},
        {"storage": "i", "size": -5},
        {"offset": 0},
        {"offset": 10**6},
        {"size": 2**31 - 1},
        {"size": 0},
        {"size": -1},
        {"cardinality": 5},
    ],
    ids=str,
)
def test_what_a_stranger_put_into_the_log_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (vector,) = write_vectors(at(tmp_path), [SIX])
    with pytest.raises(BrokenVectorError):
        read_vector(at(tmp_path), replace(vector, **change))


@given(at_byte=st.integers(0, 51), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed(tmp_path_factory: Any, at_byte: int, flip: int) -> None:
    vectors._kept.clear()
    folder = tmp_path_factory.mktemp("table")
    (vector,) = write_vectors(at(folder), [SIX])
    (file,) = Path(folder).iterdir()
    data = bytearray(file.read_bytes())
    assert len(data) == 53
    data[at_byte + 1] ^= flip
    file.write_bytes(data)
    with pytest.raises(BrokenVectorError):
        read_vector(at(folder), vector)


@given(body=st.binary(max_size=80))
def test_bytes_that_are_no_bitmap_are_refused_with_a_right_checksum(
    tmp_path_factory: Any, body: bytes
) -> None:
    vectors._kept.clear()
    folder = tmp_path_factory.mktemp("table")
    (vector,) = write_vectors(at(folder), [SIX])
    (file,) = Path(folder).iterdir()
    data = vectors._MAGIC + body
    size, check = len(data).to_bytes(4, "big"), zlib.crc32(data).to_bytes(4, "big")
    file.write_bytes(b"\1" + size + data + check)
    with pytest.raises(BrokenVectorError):
        read_vector(at(folder), replace(vector, size=len(data), cardinality=10**9))


def test_a_vector_without_rows_takes_none_away(tmp_path: Path) -> None:
    (vector,) = write_vectors(at(tmp_path), [np.zeros(0, np.int64)])
    rows = pa.table({"n": [1, 2]})
    file = DataFile("a.parquet", "a.parquet", 1, vector=vector)
    assert list(Snapshot(at(tmp_path)).left(file, [rows])) == [rows]
