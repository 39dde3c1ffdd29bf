"""A Delta table in a bucket as a source, with credentials of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.config.load import load_text
from distributary.config.sources.base import storage_options_of
from distributary.config.sources.delta import DeltaSourceConfig as Config
from distributary.engine.seams import make_source
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError
from distributary.source.delta.source import DeltaReader, DeltaSource
from distributary.store import base
from distributary.store.base import REQUESTS
from tests.lakes.shard_jobs import SPARK
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, KEYS, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(autouse=True)
def _strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPTIONS", {})


@pytest.fixture
def address() -> str:
    return f"s3://{BUCKET}/{unique('source')}/some table"


def append(server: S3Server, address: str, values: list[bytes]) -> None:
    rows = pa.table({"value": values})
    write_deltalake(address, rows, mode="append", storage_options=server.options)


def source(server: S3Server, address: str, **settings: Any) -> DeltaSource:
    config = Config.model_validate({"type": "delta", "path": address, **settings})
    return DeltaSource(config, storage_options=server.options)


def read(one: DeltaSource, start: Any, end: Any) -> list[dict[str, Any]]:
    """What tasks would read that know of the bucket only what their reader says."""
    opened = one.open(cast(SparkSession, SPARK), start, end)
    reader: DeltaReader = pickle.loads(pickle.dumps(opened.reader))
    base._OPTIONS.clear()
    tasks = pa.record_batch({"task": list(range(len(reader.tasks)))})
    rows = [row for batch in reader(iter([tasks])) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["offset"])


def test_rows_are_read_commit_by_commit(server: S3Server, address: str) -> None:
    for number in range(3):
        append(server, address, [b"%d.%d" % (number, row) for row in range(4)])
    one = source(server, address, max_records_per_batch=8)
    first = one.first()
    middle = one.advance(first, one.newest())
    assert middle is not None
    assert [row["offset"] for row in read(one, first, middle)] == list(range(8))
    append(server, address, [b"last"])
    one = source(server, address)
    end = one.advance(middle, one.newest())
    assert end is not None
    assert [row["value"] for row in read(one, middle, end)] == [
        b"2.0",
        b"2.1",
        b"2.2",
        b"2.3",
        b"last",
    ]
    assert one.advance(end, one.newest()) is None
    assert [len(batch) for batch in one.peek(first)] == [4, 4, 4, 1]


def test_a_file_is_one_request_and_a_question_two(server: S3Server, address: str) -> None:
    for _ in range(3):
        append(server, address, [b"x"] * 1000)
    one = source(server, address)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    REQUESTS.clear()
    assert len(read(one, one.first(), end)) == 3000
    assert REQUESTS["read"] == 3
    REQUESTS.clear()
    one.newest()
    assert REQUESTS == {"look": 2}


def test_a_large_file_comes_in_parts(server: S3Server, address: str) -> None:
    value, other = pa.array([b"%07d" % n * 100 for n in range(60_000)]), [b"y" * 1000] * 60_000
    rows = pa.table({"value": value, "other": other})
    write_deltalake(address, rows, storage_options=server.options)
    (size,) = DeltaTable(address, storage_options=server.options).get_add_actions().column(1)
    one = source(server, address)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    REQUESTS.clear()
    found = read(one, one.first(), end)
    assert [row["value"] for row in found] == value.to_pylist()
    assert REQUESTS["read"] <= 10, (REQUESTS, size)


@pytest.mark.parametrize(
    "name",
    [
        "../private/p.parquet",
        "%2e%2e/private/p.parquet",
        "x/../../private/p.parquet",
        "s3://another/p.parquet",
        f"s3://{BUCKET}/private/p.parquet",
        "S3%3A%2F%2Fanother%2Fp.parquet",
        "/private/p.parquet",
        "file:///etc/passwd",
    ],
)
def test_a_log_cannot_name_files_outside_of_its_table(
    server: S3Server, address: str, name: str
) -> None:
    append(server, address, [b"1"])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": [b"secret"]}), sink)
    server.put("private/p.parquet", sink.getvalue().to_pybytes())
    add = {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1}
    inside = address.removeprefix(f"s3://{BUCKET}/")
    line = json.dumps({"add": {**add, "dataChange": True}}).encode()
    server.put(f"{inside}/_delta_log/{1:020d}.json", line)
    one = source(server, address, starting_version=0)
    with pytest.raises(SourceError) as caught:
        one.advance(one.first(), one.newest())
    assert caught.value.code is ErrorCode.SOURCE_INVALID
    assert not caught.value.retryable


def test_a_file_that_vanished_is_data_lost(server: S3Server, address: str) -> None:
    append(server, address, [b"1"])
    one = source(server, address)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    (path,) = DeltaTable(address, storage_options=server.options).file_uris()
    server.files.delete_file(unquote(path).removeprefix("s3://"))
    with pytest.raises(FileNotFoundError) as gone:
        read(one, one.first(), end)
    explained = one.explain(RuntimeError(f"Traceback:\nFileNotFoundError: {gone.value}\n"))
    assert explained is not None and explained.code is ErrorCode.SOURCE_DATA_LOST
    with pytest.raises(SourceError) as lost:
        list(one.peek(one.first()))
    assert lost.value.code is ErrorCode.SOURCE_DATA_LOST


def test_a_store_that_is_away_may_come_back_and_tells_no_secret(
    server: S3Server, address: str
) -> None:
    append(server, address, [b"1"])
    one = source(server, address)
    end = one.advance(one.first(), one.newest())
    assert end is not None
    reader = one.open(cast(SparkSession, SPARK), one.first(), end).reader
    wrong = server.options | {"aws_access_key_id": "canary-other"}
    object.__setattr__(reader, "storage_options", wrong)
    for secret in KEYS.values():
        assert secret not in repr(reader)
    with pytest.raises(SourceUnavailableError) as caught:
        list(reader(iter([pa.record_batch({"task": [0]})])))
    assert "canary" not in str(caught.value)
    explained = one.explain(RuntimeError(f"...SourceUnavailableError: {caught.value}"))
    assert explained is not None and explained.retryable
    base._OPTIONS.clear()
    strange = Config.model_validate({"type": "delta", "path": address})
    with pytest.raises(SourceUnavailableError) as closed:
        DeltaSource(strange, storage_options=wrong).first()
    assert "canary" not in str(closed.value)


def test_what_the_source_does_not_say_is_as_for_the_lake() -> None:
    def options(lake: str, source: str, address: str = "s3://b/t") -> dict[str, str]:
        config = load_text(
            f"""
name: games
source: {{type: delta, path: "{address}", storage_options: {source}}}
payload: {{format: json}}
tables: {{each: "silver_{{topic}}"}}
lake: {{path: "s3://lake/x", storage_options: {lake}}}
""",
            environ={},
        ).config
        assert isinstance(config.source, Config)
        assert isinstance(make_source(config), DeltaSource)
        return storage_options_of(config.source, config.lake)

    lake = "{AWS_REGION: eu, aws_access_key_id: k, aws_secret_access_key: s, aws_session_token: t}"
    own = "{AWS_ACCESS_KEY_ID: mine, AWS_SECRET_ACCESS_KEY: own}"
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    inherited = {"AWS_REGION": "eu", **dict(zip(names, "kst", strict=True))}
    assert options(lake, "{}") == inherited
    # a region of its own, with the keys of the lake
    assert options(lake, "{aws_region: us}") == {
        "aws_region": "us",
        **dict(zip(names, "kst", strict=True)),
    }
    # keys of its own: no token of the lake's beside them, however they are spelled
    assert options(lake, own) == {
        "AWS_REGION": "eu",
        "AWS_ACCESS_KEY_ID": "mine",
        "AWS_SECRET_ACCESS_KEY": "own",
    }
    # another kind of store
    assert options(lake, "{}", "gs://b/t") == {}
