"""Files of CSV as AWS DMS writes them: whatever is in them, a row is an event or a fault."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from distributary.decode.change.connect_frames import split_connect
from distributary.errors import ErrorCode
from distributary.source.files.csv_files import Dialect, read_csv
from distributary.source.files.file_bytes import (
    Fault,
    FileEvents,
    FileFaultError,
    LocalFiles,
    Patience,
    PlainBytes,
    content_of,
)


def read(folder: Path, data: bytes, *, longest: int = 1000) -> tuple[list[Any], list[Fault]]:
    """The rows of a file, and its faults."""
    (folder / "f.csv").write_bytes(data)
    plain = PlainBytes(LocalFiles(str(folder)), "f.csv", Patience(0))
    rows: list[Any] = []
    faults: list[Fault] = []
    with closing(plain):
        for part in read_csv(content_of(plain, 1 << 20), longest, Dialect()):
            if isinstance(part, Fault):
                faults.append(part)
                continue
            assert isinstance(part, FileEvents)
            frames = split_connect(part.values)
            assert (frames.codes == 0).all() and len(frames.schemas) == 1
            rows += map(json.loads, frames.payloads.to_pylist())
    return rows, faults


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_have_the_names_of_the_first_line(tmp_path: Path, end: str, pack: Any) -> None:
    lines = ["Op,id,name", "I,1,a", 'U,2,"x, ""y"""', "D,3,NULL", "I,4,", ""]
    rows, faults = read(tmp_path, pack(end.join(lines).encode()))
    assert [tuple(row.values()) for row in rows] == [
        ("I", "1", "a"),
        ("U", "2", 'x, "y"'),
        ("D", "3", None),
        ("I", "4", ""),
    ]
    assert rows[0].keys() == {"Op", "id", "name"} and not faults


def test_values_may_hold_ends_of_lines_and_anything(tmp_path: Path) -> None:
    values = [
        "a\nb",
        "a\r\nb",
        "a\rb",
        "a\u2028b\x0bc\x85d",
        "\U0001f600",
        '{"schema":1,"payload":2}',
    ]
    text = "Op,x\n" + "".join('I,"{}"\n'.format(v.replace('"', '""')) for v in values)
    rows, faults = read(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert [row["x"] for row in rows] == values and not faults


def test_a_column_that_is_named_like_a_frame(tmp_path: Path) -> None:
    name = 'x"},"payload":{"y'
    text = '"{}",z\n1,2\n'.format(name.replace('"', '""'))
    rows, _ = read(tmp_path, text.encode())
    assert rows == [{name: "1", "z": "2"}]


def test_a_row_of_another_width_is_a_fault_alone(tmp_path: Path) -> None:
    rows, faults = read(tmp_path, b"Op,id\nI,1\nI,2,3\nI\n\nI,4\n")
    assert [row["id"] for row in rows] == ["1", "4"]
    assert [fault.code for fault in faults] == [ErrorCode.PAYLOAD_MISMATCH] * 2


@pytest.mark.parametrize(
    "data",
    [
        b"Op,Op\nI,1\n",
        b"Op,\nI,1\n",
        b"Op,id\nI,\xff\n",
        b'Op,id\nI,"1\n' + b"x" * 3000,
        b"Op,id\nI," + b"x" * 3000,
        b'Op,id\nI,"1"x\n',
        b",".join(b"c%d" % n for n in range(30_000)) + b"\n",
    ],
)
def test_what_is_no_csv_is_one_fault(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(FileFaultError) as caught:
        read(tmp_path, data, longest=2000)
    assert caught.value.code is ErrorCode.FILE_CORRUPT


@pytest.mark.parametrize("data", [b"", b"Op,id\n", b"\n"])
def test_a_file_without_rows_has_no_events(tmp_path: Path, data: bytes) -> None:
    assert read(tmp_path, data) == ([], [])


def test_many_rows_come_in_parts(tmp_path: Path) -> None:
    lines = b"".join(b"I,%d\n" % n for n in range(100_000))
    rows, _ = read(tmp_path, b"Op,id\n" + lines)
    assert [row["id"] for row in rows] == list(map(str, range(100_000)))
