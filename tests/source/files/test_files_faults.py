from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode, SourceUnavailableError
from distributary.source.files import file_bytes as reading
from distributary.source.files.file_bytes import LocalFiles, Patience
from distributary.source.files.file_list import ListedFile
from distributary.source.files.source import FilesReader
from tests.source.change_files import avro, events, faults, lines, named, put, source, uuids
from tests.source.files.test_files_parquet import parquet, simple


def read(
    root: Path, *paths: str, format: str = "avro", settle: float = 0.05, start: int = 0
) -> pa.Table:
    """What a task gives for files that were listed before."""
    listed = [ListedFile(start + n, path, 1, 0, 0) for n, path in enumerate(paths)]
    reader = FilesReader(
        files=LocalFiles(str(root)),
        format=format,
        schemas=str(root.parent / "schemas"),
        settle_seconds=settle,
        tasks=[listed],
    )
    return pa.Table.from_batches(list(reader(iter([pa.record_batch({"task": [0]})]))))


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "in", named(0), avro(events(2)))
    put(tmp_path / "in", named(2), avro(events(2, start=2)))
    found = read(tmp_path / "in", named(0), named(1), named(2), start=7)
    assert faults(found) == [(ErrorCode.FILE_UNREADABLE, None)]
    assert len(uuids(found)) == 4
    assert found["partition"].to_pylist() == [7, 7, 8, 9, 9]
    assert found["topic"].to_pylist()[2] == named(1)
    assert found["key"].null_count == 1


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task looks again every 10 ms."""
    monkeypatch.setattr(reading, "_STEP_SECONDS", 0.01)


def test_a_folder_that_is_gone_is_reported_for_every_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    found = read(tmp_path / "in", *(named(n) for n in range(10)), settle=0.05)
    assert faults(found) == [(ErrorCode.FILE_UNREADABLE, None)] * 10


def test_a_file_that_is_gone_for_a_moment_is_read(tmp_path: Path) -> None:
    file = put(tmp_path / "in", named(0), avro(events(2)))
    aside = file.rename(tmp_path / "aside")
    back = threading.Timer(0.1, lambda: aside.rename(file))
    back.start()
    found = read(tmp_path / "in", named(0), settle=20)
    back.join()
    assert len(uuids(found)) == 2


def test_patience_has_an_end_for_all_files_together() -> None:
    patience = Patience(5.0, left=0.02)
    assert [patience.wait(10**9), patience.wait(10**9), patience.wait(10**9)] == [
        True,
        True,
        False,
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "in", named(0), avro(events(2))).chmod(0)
    assert faults(read(tmp_path / "in", named(0))) == [(ErrorCode.FILE_UNREADABLE, None)]


@pytest.mark.parametrize("kind", ["file", "folder", "pipe"])
def test_what_became_a_link_or_a_pipe_is_not_opened(tmp_path: Path, kind: str) -> None:
    outside = put(tmp_path / "outside", named(0), avro(events(2)))
    file = put(tmp_path / "in", named(0), avro(events(1)))
    if kind == "folder":
        shutil.rmtree(file.parent)
        file.parent.symlink_to(outside.parent, target_is_directory=True)
    else:
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.symlink_to(outside)
    assert faults(read(tmp_path / "in", named(0))) == [(ErrorCode.FILE_UNREADABLE, None)]


@pytest.mark.parametrize("path", ["../outside.avro", "a/../../outside.avro"])
def test_a_path_does_not_lead_out_of_the_root(tmp_path: Path, path: str) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    put(tmp_path, "outside.avro", avro(events(1)))
    for each in (path, str(tmp_path / "outside.avro")):
        assert faults(read(tmp_path / "in", each)) == [(ErrorCode.FILE_UNREADABLE, None)]


def test_a_store_that_fails_is_not_the_files_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in", named(0), avro(events(1)))

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("distributary.source.files.file_bytes.os.open", fail)
    with pytest.raises(SourceUnavailableError) as caught:
        read(tmp_path / "in", named(0))
    assert caught.value.retryable


HALVES: dict[str, Callable[[], bytes]] = {
    "avro": lambda: avro(events(40), block=300),
    "json": lambda: lines(events(40)),
    "array": lambda: json.dumps(events(40)).encode(),
    "gzip": lambda: gzip.compress(lines(events(40))),
    "parquet": lambda: parquet(pa.Table.from_pylist(simple(40))),
}


@pytest.mark.parametrize("kind", HALVES)
def test_a_file_that_is_still_being_written_is_waited_for(tmp_path: Path, kind: str) -> None:
    data = HALVES[kind]()
    half = len(data) // 2 + 3
    file = put(tmp_path / "in", named(0), data[:half], age=0)

    def write_the_rest() -> None:
        with file.open("ab") as opened:
            opened.write(data[half:])

    later = threading.Timer(0.1, write_the_rest)
    later.start()
    listed = ListedFile(0, named(0), half, file.stat().st_mtime_ns, 0)
    reader = FilesReader(
        files=LocalFiles(str(tmp_path / "in")),
        format=kind if kind in ("avro", "parquet") else "json",
        schemas=str(tmp_path / "schemas"),
        settle_seconds=20,
        tasks=[[listed]],
    )
    found = pa.Table.from_batches(list(reader(iter([pa.record_batch({"task": [0]})]))))
    later.join()
    assert faults(found) == []
    assert uuids(found) == [row["uuid"] for row in events(40)]


@pytest.mark.parametrize("kind", ["avro", "parquet", "gzip"])
def test_a_file_that_stays_half_written_is_reported_and_read_again_when_it_is_whole(
    tmp_path: Path, kind: str
) -> None:
    data = HALVES[kind]()
    path = named(0, end=kind)
    put(tmp_path / "in", path, data[:-30], age=0)
    format = kind if kind in ("avro", "parquet") else "json"
    one = source(tmp_path / "in", tmp_path / "checkpoint", format=format)
    assert one.newest() == {"files": 1}
    assert [code for code, _ in faults(read(tmp_path / "in", path, format=format))] == [
        ErrorCode.FILE_TRUNCATED
    ]
    put(tmp_path / "in", path, data)
    assert one.newest() == {"files": 2}
    found = read(tmp_path / "in", path, format=format)
    assert faults(found) == []
    assert uuids(found) == [row["uuid"] for row in events(40)]
