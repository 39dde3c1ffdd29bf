"""Change files in a bucket of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.config.sources.files import FilesSourceConfig as Config
from distributary.errors import ErrorCode, SourceUnavailableError
from distributary.source.files.file_bytes import BucketFiles
from distributary.source.files.file_list import ListedFile
from distributary.source.files.source import FilesReader, FilesSource, files_at
from tests.source.change_files import (
    MINUTE,
    avro,
    events,
    faults,
    found,
    lines,
    named,
    records,
    uuids,
)
from tests.source.files.test_files_parquet import parquet, simple
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


def source(server: S3Server, path: str, checkpoint: Path, **settings: Any) -> FilesSource:
    bucket = {"discovery": "discovery-bucket", "bucket": f"s3://{BUCKET}", "path": path}
    config = Config.model_validate({"type": "files", **bucket, **settings})
    return FilesSource(
        config,
        folder=checkpoint / "files",
        schemas=checkpoint / "schemas",
        storage_options=server.options,
    )


def test_files_are_found_and_read(server: S3Server, tmp_path: Path) -> None:
    for table in ("orders", "users"):
        server.put(f"first/{named(table=table)}", avro(events(5, table=table)))
    server.put(f"first-other/{named()}", avro(events(1)))
    one = source(server, "./first/", tmp_path)
    assert found(one) == [named(table="orders"), named(table="users")]
    read = records(one)
    assert len(uuids(read)) == 10
    assert set(read["key"].to_pylist()) == {b'["shop","","orders"]', b'["shop","","users"]'}
    late = named(9, minute="1999/01/01/00/00")
    server.put(f"first/{late}", avro(events(1)))
    assert found(source(server, "first", tmp_path), 2) == [late]


def test_the_bucket_itself_may_be_the_root(server: S3Server, tmp_path: Path) -> None:
    path = f"atroot/x/{named()}"
    server.put(path, avro(events(1)))
    one = source(server, ".", tmp_path, include="shop_*")
    assert path in found(one)


@pytest.mark.parametrize("zipped", [False, True])
def test_json(server: S3Server, tmp_path: Path, zipped: bool) -> None:
    server.put(f"json-{zipped}/{named(end='jsonl')}", lines(events(2000), zipped=zipped))
    one = source(server, f"json-{zipped}", tmp_path, format="json")
    assert uuids(records(one)) == [row["uuid"] for row in events(2000)]


def test_parquet_files(server: S3Server, tmp_path: Path) -> None:
    data = parquet(pa.Table.from_pylist(simple(20)))
    server.put(f"parquet/{named(end='parquet')}", data)
    server.put(f"parquet/{named(1, end='parquet')}", data[:-30])
    read = records(source(server, "parquet", tmp_path, format="parquet"))
    assert uuids(read) == [row["uuid"] for row in events(20)]
    assert faults(read) == [(ErrorCode.FILE_TRUNCATED, data[:-30])]


def test_markers_and_empty_objects_are_skipped(server: S3Server, tmp_path: Path) -> None:
    server.put(f"markers/{named()}", avro(events(1)))
    server.files.create_dir(f"{BUCKET}/markers/shop_orders/{MINUTE}")
    server.files.create_dir(f"{BUCKET}/markers/shop_empty/{MINUTE}")
    server.put(f"markers/{named(2)}", b"")
    server.put("markers/_SUCCESS", b"x")
    assert found(source(server, "markers", tmp_path)) == [named()]


def test_hostile_names(server: S3Server, tmp_path: Path) -> None:
    names = ["a b.avro", "ü.avro", "%2e%2e.avro", "a#b?c.avro", "back\\slash.avro", "a+b.avro"]
    for name in names:
        server.put(f"hostile/shop_orders/{MINUTE}/{name}", avro(events(1)))
    read = records(source(server, "hostile", tmp_path))
    assert {topic.rpartition("/")[2] for topic in read["topic"].to_pylist()} == set(names)
    assert faults(read) == []


def test_many_blocks_over_the_wire(server: S3Server, tmp_path: Path) -> None:
    rows = events(20_000)
    server.put(f"large/{named()}", avro(rows, block=50_000))
    server.put(f"large/{named(1)}", avro(rows[:100], block=50_000)[:-200])
    read = records(source(server, "large", tmp_path))
    assert uuids(read)[:20_000] == [row["uuid"] for row in rows]
    assert [code for code, _ in faults(read)] == [ErrorCode.FILE_TRUNCATED]


def test_an_object_that_is_gone_is_reported(server: S3Server, tmp_path: Path) -> None:
    bucket = files_at(f"s3://{BUCKET}/gone", server.options)
    listed = [ListedFile(0, path, 1, 0, 0) for path in (named(), "a//b.avro")]
    for format in ("avro", "parquet"):
        reader = FilesReader(bucket, format, str(tmp_path), 0.1, [listed])
        read = pa.Table.from_batches(list(reader(iter([pa.record_batch({"task": [0]})]))))
        assert faults(read) == [(ErrorCode.FILE_UNREADABLE, None)] * 2


def test_a_folder_without_files_is_empty_and_a_missing_bucket_an_error(
    server: S3Server, tmp_path: Path
) -> None:
    assert found(source(server, "nothing", tmp_path)) == []
    bucket = files_at("s3://no-such-bucket/x", server.options)
    assert isinstance(bucket, BucketFiles)
    with pytest.raises(SourceUnavailableError) as caught:
        bucket.files()
    assert "canary" not in str(caught.value)
    with pytest.raises(SourceUnavailableError):
        files_at("s3://b/x", server.options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}).open("a")


def test_one_object_as_it_is_now(server: S3Server) -> None:
    server.put("look/a.avro", b"123")
    bucket = files_at(f"s3://{BUCKET}/look", server.options)
    assert isinstance(bucket, BucketFiles)
    (listed,) = bucket.files()
    assert (listed.path, listed.size, listed.whole) == ("a.avro", 3, True)
    assert bucket.look("a.avro") == listed
    assert bucket.look("b.avro") is None


def test_what_is_known_is_not_found_again(server: S3Server, tmp_path: Path) -> None:
    for number in range(60):
        server.put(f"many/{named(number, minute=f'2024/01/01/00/{number:02d}')}", b"x")
    one = source(server, "many", tmp_path)
    assert one.newest() == {"files": 60}
    assert one.newest() == {"files": 60}
