from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import RAW
from distributary.registry.record_schemas import FileSchemas
from distributary.source.files import avro_codecs as files_codecs
from tests.decode.avro_samples import zigzag
from tests.source.change_files import (
    avro,
    event,
    events,
    faults,
    good,
    named,
    put,
    records,
    schema,
    source,
    uuids,
)

SYNC = b"0123456789abcdef"


def read(tmp_path: Path, data: bytes) -> pa.Table:
    put(tmp_path / "in", named(), data)
    return records(source(tmp_path / "in", tmp_path / "checkpoint"))


def container(written: Any, *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    """A file made by hand, with a codec that needs no library."""
    entries = {b"avro.schema": json.dumps(written).encode(), b"avro.codec": codec.encode()}
    head = b"".join(zigzag(len(k)) + k + zigzag(len(v)) + v for k, v in entries.items())
    body = b"".join(zigzag(count) + zigzag(len(data)) + data + SYNC for count, data in blocks)
    return b"Obj\1" + zigzag(len(entries)) + head + b"\0" + SYNC + body


def encoded(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(out, schema(), row)
    return out.getvalue()


def test_an_event_is_its_own_bytes_behind_the_schemas_guid(tmp_path: Path) -> None:
    rows = events(5)
    data = avro(rows)
    found = read(tmp_path, data)
    assert found.schema == RAW
    header = fastavro.reader(io.BytesIO(data)).metadata["avro.schema"].encode()
    guid = hashlib.sha256(header).digest()[:16]
    assert good(found) == [b"\1" + guid + encoded([row]) for row in rows]
    assert (tmp_path / "checkpoint" / "schemas" / f"{guid.hex()}.avsc").read_bytes() == header
    assert found["key"].to_pylist() == [b'["shop","","orders"]'] * 5
    assert found["topic"].to_pylist() == [named()] * 5
    assert found["partition"].to_pylist() == [0] * 5
    assert found["offset"].to_pylist() == [0, 1, 2, 3, 4]
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [row["source_timestamp"] * 1000 for row in rows]


def test_columns_whose_names_are_not_avros(tmp_path: Path) -> None:
    rows, written = events(3), schema()
    for each in rows:
        each["source_metadata"]["primary_keys"] = ["order-no #"]
    data = encoded(rows)
    written["name"] = "shop-orders"
    written["fields"][-1]["type"]["fields"][0]["name"] = "order-no #"
    found = read(tmp_path, container(written, (3, data)))
    assert not faults(found) and uuids(found) == [row["uuid"] for row in rows]
    (value, *_) = values = good(found)
    brought = FileSchemas(tmp_path / "checkpoint" / "schemas").by_guid(UUID(bytes=value[1:17]))
    assert brought.message == "shop-orders"
    decoder = DatastreamDecoder(brought, ChangeSettings("datastream"), DecodeLimits())
    decoded = decoder.decode(pa.array([each[17:] for each in values], pa.binary()), found)
    assert not decoded.failed
    assert decoded.ok.column("order_no__").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("block", [1, 300, 16_000])
def test_blocks_of_any_size(tmp_path: Path, block: int) -> None:
    rows = events(50)
    found = read(tmp_path, avro(rows, block=block))
    assert uuids(found) == [row["uuid"] for row in rows]
    assert found["offset"].to_pylist() == list(range(50))


def test_an_event_without_a_time_has_the_files(tmp_path: Path) -> None:
    rows = [{**event(1), "source_timestamp": time} for time in (None, 2**62, -(2**62), 5)]
    found = read(tmp_path, avro(rows))
    modified = (tmp_path / "in" / named()).stat().st_mtime_ns // 1000
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [modified, modified, modified, 5000]


def test_events_of_several_tables_in_one_file(tmp_path: Path) -> None:
    rows = [event(1, table="a"), event(2, table="b"), event(3, table="a")]
    rows[1]["source_metadata"]["schema"] = "Größe"
    rows[2]["source_metadata"]["table"] = None
    assert read(tmp_path, avro(rows))["key"].to_pylist() == [
        b'["shop","","a"]',
        '["shop","Größe","b"]'.encode(),
        None,
    ]


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        ("null", bytes),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("zstandard", lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
        (
            "snappy",
            lambda data: (
                pa.Codec("snappy").compress(data, asbytes=True)
                + zlib.crc32(data).to_bytes(4, "big")
            ),
        ),
    ],
)
def test_codecs(tmp_path: Path, codec: str, pack: Any) -> None:
    rows = events(30)
    block, rest = encoded(rows[:20]), encoded(rows[20:])
    broken = pack(block)[:-9] if codec != "null" else b"x"
    data = container(schema(), (20, pack(block)), (20, broken), (10, pack(rest)), codec=codec)
    found = read(tmp_path, data)
    assert uuids(found) == [row["uuid"] for row in rows]
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, broken)]
    assert found["offset"].to_pylist() == list(range(31))


def test_a_few_bytes_do_not_become_any_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_codecs, "MOST_BLOCK_BYTES", 100_000)
    zeros = bytes(1_000_000)
    for codec, packed in {
        "deflate": zlib.compress(zeros)[2:-4],
        "bzip2": bz2.compress(zeros),
        "xz": lzma.compress(zeros),
        "zstandard": pa.Codec("zstd").compress(zeros, asbytes=True),
        "snappy": pa.Codec("snappy").compress(zeros, asbytes=True) + b"\0\0\0\0",
    }.items():
        with pytest.raises(files_codecs.UnpackError):
            files_codecs.unpack(codec, packed)


def test_a_truncated_file_keeps_its_good_events(tmp_path: Path) -> None:
    rows = events(40)
    data = avro(rows, block=300)
    for cut in range(1, 400, 37):
        found = read(tmp_path, data[:-cut])
        kept = uuids(found)
        assert kept == [row["uuid"] for row in rows][: len(kept)]
        ((code, rest),) = faults(found)
        assert code == ErrorCode.FILE_TRUNCATED
        assert rest and data[:-cut].endswith(rest)
        assert len(found) == len(kept) + 1


@pytest.mark.parametrize("size", [2, 4, 10, 200])
def test_a_file_that_ends_in_its_header(tmp_path: Path, size: int) -> None:
    data = avro(events(1))[:size]
    assert faults(read(tmp_path, data)) == [(ErrorCode.FILE_TRUNCATED, data)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"this is not Avro", ErrorCode.FILE_CORRUPT),
        (b'{"uuid": 1}\n', ErrorCode.FILE_CORRUPT),
        (b"Obj\1\0" + SYNC, ErrorCode.FILE_CORRUPT),
        (b"Obj\1" + b"\xff" * 30, ErrorCode.FILE_CORRUPT),
        (b"Obj\1" + zigzag(1) + zigzag(-5), ErrorCode.FILE_CORRUPT),
        (b"Obj\1" + zigzag(1) + zigzag(2**40), ErrorCode.FILE_CORRUPT),
        (container("no such type"), ErrorCode.UNUSABLE_SCHEMA),
        (container({"type": "record", "name": "E", "fields": []}), ErrorCode.UNUSABLE_SCHEMA),
        (container("int", codec="lz77"), ErrorCode.FILE_CORRUPT),
    ],
)
def test_files_that_cannot_be_read_are_whole_in_the_letter(
    tmp_path: Path, data: bytes, code: ErrorCode
) -> None:
    found = read(tmp_path, data)
    assert faults(found) == [(code, data)]
    assert found["topic"].to_pylist() == [named()]


def test_a_block_that_cannot_be_cut_does_not_hide_the_next(tmp_path: Path) -> None:
    rows = events(4)
    bad = encoded(rows[:1]) + b"\xff" * 50
    data = container(schema(), (3, bad), (1, encoded(rows[1:2])), (2, encoded(rows[2:])))
    found = read(tmp_path, data)
    assert uuids(found) == [row["uuid"] for row in rows]
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, b"\xff" * 50)]


def test_a_block_with_more_events_than_bytes(tmp_path: Path) -> None:
    found = read(tmp_path, container(schema(), (2**60, b"xy"), (1, encoded(events(1)))))
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, b"xy")]
    assert len(good(found)) == 1


@pytest.mark.parametrize("start", [zigzag(-1) + zigzag(2), zigzag(1) + zigzag(-2), b"\xff" * 20])
def test_numbers_that_cannot_be_end_the_file(tmp_path: Path, start: bytes) -> None:
    head = container(schema(), (1, encoded(events(1))))
    found = read(tmp_path, head + start + bytes(40))
    assert len(good(found)) == 1
    assert [code for code, _ in faults(found)] == [ErrorCode.FILE_CORRUPT]


def test_a_wrong_marker_ends_the_file(tmp_path: Path) -> None:
    head = container(schema(), (1, encoded(events(1))))
    tail = zigzag(1) + zigzag(3) + b"abc" + b"?" * 16 + b"more"
    assert faults(read(tmp_path, head + tail)) == [(ErrorCode.FILE_CORRUPT, tail)]


def test_avro_in_gzip(tmp_path: Path) -> None:
    rows = events(100)
    data = gzip.compress(avro(rows))
    assert uuids(read(tmp_path, data)) == [row["uuid"] for row in rows]


def test_a_file_without_events(tmp_path: Path) -> None:
    assert len(read(tmp_path, avro([]))) == 0


def test_metadata_in_counted_blocks(tmp_path: Path) -> None:
    text = json.dumps(schema()).encode()
    entry = zigzag(11) + b"avro.schema" + zigzag(len(text)) + text
    rows = events(1)
    block = encoded(rows)
    data = b"Obj\1" + zigzag(-1) + zigzag(len(entry)) + entry + b"\0" + SYNC
    data += zigzag(1) + zigzag(len(block)) + block + SYNC
    assert uuids(read(tmp_path, data)) == [rows[0]["uuid"]]


def test_large_blocks_come_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.source.files.avro_files.BYTES_PER_BATCH", 1000)
    rows = events(50)
    put(tmp_path / "in", named(), avro(rows, block=10**6))
    one = source(tmp_path / "in", tmp_path / "checkpoint")
    batches = list(one.peek(one.first()))
    assert len(batches) > 5
    assert all(batch.column("value").nbytes < 3000 for batch in batches)
    assert uuids(pa.Table.from_batches(batches)) == [row["uuid"] for row in rows]
