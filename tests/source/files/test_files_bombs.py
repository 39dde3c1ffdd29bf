"""Small files that would become gigabytes: each is a dead letter, and the others are read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.errors import ErrorCode
from distributary.source.files import avro_codecs, avro_files, source
from distributary.source.files import file_bytes as files_events
from distributary.source.files import json_files as files_json
from distributary.source.files import parquet_files as files_parquet
from distributary.source.files import parquet_files as files_parquet_pages
from distributary.source.files.avro_slices import slicer_for
from tests.decode.avro_samples import zigzag
from tests.source.change_files import avro, events, faults, good, lines, named, put, records
from tests.source.change_files import source as files_source
from tests.source.files.test_files_avro import container
from tests.source.files.test_files_json import _Bytes
from tests.source.files.test_files_parquet import parquet, simple

ONE_BYTE = {"type": "record", "name": "E", "fields": [{"name": "a", "type": "int"}]}
MIB = 1024 * 1024

READ_WITH_LITTLE_MEMORY = """
import json, resource, sys
from pathlib import Path
from tests.source.change_files import source
root, checkpoint, format, most = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
one = source(Path(root), Path(checkpoint), format=format, max_unpacked_bytes=most)
for batch in one.peek(one.first()):
    told = batch.column("headers").to_pylist()
    codes = [pairs[0]["value"].decode() if pairs else "" for pairs in told]
    print(json.dumps(list(zip(batch.column("topic").to_pylist(), codes))))
"""


def read_with_little_memory(
    tmp_path: Path, format: str, most: str = "1GiB"
) -> list[tuple[str, str]]:
    """Path and code of every record, the code of an event is empty; in 3 GiB of addresses."""
    command = [sys.executable, "-c", READ_WITH_LITTLE_MEMORY]
    command += [str(tmp_path / "in"), str(tmp_path / "checkpoint"), format, most]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(path, code) for line in done.stdout.splitlines() for path, code in json.loads(line)]


def read(tmp_path: Path, data: bytes, format: str = "avro", **settings: Any) -> pa.Table:
    """A file between two good ones of two events each."""
    fine = {"avro": avro, "json": lines, "parquet": lambda r: parquet(pa.Table.from_pylist(r))}
    for number in (0, 2):
        rows = simple(2) if format == "parquet" else events(2)
        put(tmp_path / "in", named(number, end=format), fine[format](rows))
    put(tmp_path / "in", named(1, end=format), data)
    one = files_source(tmp_path / "in", tmp_path / "checkpoint", format=format, **settings)
    found = records(one)
    others = [path for path in found["topic"].to_pylist() if path != named(1, end=format)]
    assert others == [named(0, end=format)] * 2 + [named(2, end=format)] * 2
    return found.slice(2, len(found) - 4)


def bz2_zeros(mebibytes: int) -> bytes:
    packer = bz2.BZ2Compressor()
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(mebibytes))
    return packed + packer.flush()


def gzip_members(*members: tuple[bytes, int]) -> bytes:
    """Gzip whose parts are there so many times."""
    return b"".join(gzip.compress(data) * times for data, times in members)


def test_a_block_of_64_mi_events_in_227_bytes(tmp_path: Path) -> None:
    bomb = container(ONE_BYTE, (64 * MIB, bz2_zeros(64)), codec="bzip2")
    assert len(bomb) < 300
    put(tmp_path / "in", named(0), avro(events(3)))
    put(tmp_path / "in", named(1), bomb)
    put(tmp_path / "in", named(2), avro(events(3)))
    assert read_with_little_memory(tmp_path, "avro") == [
        *[(named(0), "")] * 3,
        (named(1), ErrorCode.FILE_TOO_LARGE),
        *[(named(2), "")] * 3,
    ]


def test_a_header_of_gigabytes(tmp_path: Path) -> None:
    zeros = gzip.compress(bytes(60 * MIB))
    names = [zigzag(1) + bytes([65 + number]) + zigzag(60 * MIB) for number in range(40)]
    bomb = gzip.compress(b"Obj\1" + zigzag(40))
    bomb += b"".join(gzip.compress(name) + zeros for name in names)
    put(tmp_path / "in", named(0), bomb)
    put(tmp_path / "in", named(1), avro(events(3)))
    assert read_with_little_memory(tmp_path, "avro") == [
        (named(0), ErrorCode.FILE_TOO_LARGE),
        *[(named(1), "")] * 3,
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_text_in_every_row(tmp_path: Path, nested: bool) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4096), ["x" * 50_000_000])
    column = pa.ListArray.from_arrays([0, 4096], text) if nested else text
    bomb = parquet(pa.table({"a": column}), compression="zstd", write_statistics=False)
    assert len(bomb) < 20_000
    put(tmp_path / "in", named(0, end="parquet"), bomb)
    put(tmp_path / "in", named(1, end="parquet"), parquet(pa.Table.from_pylist(simple(3))))
    assert read_with_little_memory(tmp_path, "parquet") == [
        (named(0, end="parquet"), ErrorCode.FILE_TOO_LARGE),
        *[(named(1, end="parquet"), "")] * 3,
    ]


def test_a_line_of_gigabytes(tmp_path: Path) -> None:
    bomb = gzip_members((lines(events(2)), 1), (b"x" * 64 * MIB, 33), (b"\n", 1))
    put(tmp_path / "in", named(0, end="json"), bomb)
    put(tmp_path / "in", named(1, end="json"), lines(events(3)))
    found = read_with_little_memory(tmp_path, "json", most="256MiB")
    assert [code for path, code in found if path == named(0, end="json")] == [
        "",
        "",
        ErrorCode.FILE_CORRUPT,
        ErrorCode.FILE_TOO_LARGE,
    ]
    assert found[-3:] == [(named(1, end="json"), "")] * 3


def noted_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the batches that are unpacked from now on."""
    sizes: list[int] = []
    pieces = files_parquet._pieces

    def noted(batch: pa.RecordBatch) -> Any:
        sizes.append(batch.nbytes)
        return pieces(batch)

    monkeypatch.setattr(files_parquet, "_pieces", noted)
    return sizes


ZEROS = bytes(MIB)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "snappy": lambda data: (
        pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
    ),
}
WIDE = {**ONE_BYTE, "fields": [{"name": "a", "type": {"type": "fixed", "name": "F", "size": 1024}}]}


@pytest.mark.parametrize("codec", PACKED)
def test_many_blocks_that_unpack_to_more_than_a_file_may(tmp_path: Path, codec: str) -> None:
    bomb = container(WIDE, *[(1024, PACKED[codec](ZEROS))] * 20, codec=codec)
    most = max(3 * MIB, 100 * len(bomb))
    found = read(tmp_path, bomb, max_unpacked_bytes="3MiB")
    if 20 * MIB > most:
        assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, bomb)]
    assert sum(map(len, good(found))) <= most
    assert found["offset"].to_pylist() == list(range(len(found)))
    everything = read(tmp_path / "again", bomb, max_unpacked_bytes="32MiB")
    assert (len(good(everything)), faults(everything)) == (20 * 1024, [])


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_over_the_limit_does_not_hide_the_next(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (avro_codecs, avro_files):
        monkeypatch.setattr(module, "MOST_BLOCK_BYTES", MIB - 1)
    packed, last = PACKED[codec](ZEROS), PACKED[codec](bytes(1024))
    found = read(tmp_path, container(WIDE, (1024, packed), (1, last), codec=codec))
    assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, packed)]
    assert len(good(found)) == 1


@pytest.mark.parametrize("zipped", [False, True])
def test_a_header_of_many_entries(tmp_path: Path, zipped: bool) -> None:
    # a map's key may come again and again
    bomb = b"Obj\1" + zigzag(2**40) + b"\0\0" * 3 * MIB
    found = read(tmp_path, gzip.compress(bomb) if zipped else bomb)
    assert [code for code, _ in faults(found)] == [ErrorCode.FILE_TOO_LARGE]


def test_an_array_of_more_items_than_bytes_ends() -> None:
    items = {"type": "array", "items": "boolean"}
    slicer = slicer_for(json.dumps({**ONE_BYTE, "fields": [{"name": "a", "type": items}]}))
    assert slicer(zigzag(2**60) + b"\1\0", 1).fault
    assert slicer(zigzag(70) + b"\1" * 70 + b"\0", 1).fault == ""


def test_a_block_of_many_events_comes_in_portions(tmp_path: Path) -> None:
    count = 2 * files_events.EVENTS_PER_BATCH + 5
    numbers = b"".join(map(zigzag, range(count)))
    put(tmp_path / "in", named(), container(ONE_BYTE, (count, numbers), (1, b"\0")))
    one = files_source(tmp_path / "in", tmp_path / "checkpoint")
    batches = list(one.peek(one.first()))
    assert max(map(len, batches)) <= files_events.EVENTS_PER_BATCH
    found = pa.Table.from_batches(batches)
    assert b"".join(value[17:] for value in good(found)) == numbers + b"\0"
    assert found["offset"].to_pylist() == list(range(count + 1))


def test_many_events_of_nearly_no_bytes_are_many_bytes(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.nulls(40_000, pa.int8())})
    found = read(tmp_path, parquet(rows), "parquet", max_unpacked_bytes="10MiB")
    assert [code for code, _ in faults(found)] == [ErrorCode.FILE_TOO_LARGE]


def test_a_fault_behind_many_events_of_a_block(tmp_path: Path) -> None:
    count = files_events.EVENTS_PER_BATCH + 5
    block = bytes(count) + b"\xff" * 3
    found = read(tmp_path, container(ONE_BYTE, (count + 1, block), (1, b"\0")))
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, b"\xff" * 3)]
    assert len(good(found)) == count + 1


def test_lines_without_content_come_in_portions(tmp_path: Path) -> None:
    bomb = gzip.compress(b"1\n" * 300_000)
    put(tmp_path / "in", named(end="json"), bomb)
    put(tmp_path / "in", named(1, end="json"), gzip.compress(b"[1" + b",1" * 300_000 + b"]"))
    one = files_source(tmp_path / "in", tmp_path / "checkpoint", format="json")
    sizes = [len(batch) for batch in one.peek(one.first())]
    assert (sum(sizes), max(sizes)) == (600_001, files_events.EVENTS_PER_BATCH)


@pytest.mark.parametrize("arranged", ["lines", "array", "space"])
def test_json_that_unzips_to_more_than_a_file_may(tmp_path: Path, arranged: str) -> None:
    text = {"lines": b"[]\n" * MIB, "array": b"[" + b"[]," * MIB, "space": b"\n" * 3 * MIB}
    bomb = gzip.compress(text[arranged])
    found = read(tmp_path, bomb, "json", max_unpacked_bytes="1MiB")
    assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, bomb)]
    assert found["offset"].to_pylist() == list(range(len(found)))


def test_rows_that_unpack_to_more_than_a_file_may(tmp_path: Path) -> None:
    bomb = parquet(pa.table({"a": pa.nulls(200_000, pa.string())}), row_group_size=50_000)
    found = read(tmp_path, bomb, "parquet", max_unpacked_bytes="5MiB")
    assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, bomb)]
    assert 0 < len(good(found)) < 200_000


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_group_of_rows_over_the_limit_does_not_hide_those_before_it(
    tmp_path: Path, dictionary: bool
) -> None:
    table = pa.table({"a": ["x", "y", *["z" * MIB] * 20]})
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out, table.schema, use_dictionary=dictionary, compression="zstd"
    ) as writer:
        writer.write_table(table.slice(0, 2))
        writer.write_table(table.slice(2))
    found = read(tmp_path, out.getvalue().to_pybytes(), "parquet", max_unpacked_bytes="15MiB")
    assert [code for code, _ in faults(found)] == [ErrorCode.FILE_TOO_LARGE]
    assert good(found) == [b'{"a":"x"}', b'{"a":"y"}']


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_texts_that_are_stored_once_are_unpacked_a_few_at_a_time(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_parquet, "_MOST_TEXT_BYTES", 300_000)
    texts = ["a" * size, None, "b" * size, "c"]
    rows = [{"n": number, "t": {"s": texts[number % 4], "l": texts[:2]}} for number in range(50)]
    sizes = noted_sizes(monkeypatch)
    found = read(tmp_path, parquet(pa.Table.from_pylist(rows)), "parquet")
    assert [json.loads(value) for value in good(found)] == rows
    assert max(sizes) < 320_000


@pytest.mark.parametrize("kind", ["json", "path"])
def test_texts_that_are_not_to_be_told_apart_are_counted(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_parquet, "_MOST_TEXT_BYTES", 300_000)
    texts = pa.array(['"' + "x" * 100_000 + '"'] * 10)
    columns = {
        "json": {"a": pa.ExtensionArray.from_storage(pa.json_(pa.string()), texts)},
        "path": {"a.b": ["short"] * 10, "a": pa.StructArray.from_arrays([texts], ["b"])},
    }
    sizes = noted_sizes(monkeypatch)
    found = read(tmp_path, parquet(pa.table(columns[kind])), "parquet")
    assert (len(good(found)), faults(found)) == (10, [])
    assert max(sizes) < 320_000


def test_a_page_is_judged_by_its_own_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_parquet, "MOST_BLOCK_BYTES", 100_000)
    table = pa.table({"a": [bytes(200_000)], "b": ["x"]})
    for version in ("1.0", "2.0"):
        bomb = parquet(table, use_dictionary=False, data_page_version=version)
        found = read(tmp_path / version, bomb, "parquet")
        assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, bomb)]


def test_pages_are_those_that_the_footer_adds_up(tmp_path: Path) -> None:
    rows = [{"a": str(number % 7000) * 20, "l": [number] * (number % 5)} for number in range(9000)]
    for options in ({}, {"data_page_version": "2.0"}, {"compression": "zstd"}):
        file = io.BytesIO(parquet(pa.Table.from_pylist(rows), data_page_size=5000, **options))
        group = pq.ParquetFile(file).metadata.row_group(0)
        for chunk in map(group.column, range(group.num_columns)):
            pages = files_parquet_pages.pages_of(file, chunk)
            assert pages.values == chunk.num_values
            # the footer counts headers too
            assert 0 < pages.bytes <= chunk.total_uncompressed_size < 1.5 * pages.bytes
            assert 0 < pages.dictionary <= pages.largest


def test_a_footer_of_many_columns_or_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet(pa.table({f"c{number}": [1] for number in range(30)}))
    monkeypatch.setattr(files_parquet, "_MOST_COLUMNS", 29)
    assert faults(read(tmp_path / "a", data, "parquet")) == [(ErrorCode.FILE_TOO_LARGE, data)]
    monkeypatch.setattr(files_parquet, "_MOST_COLUMNS", 30)
    assert faults(read(tmp_path / "b", data, "parquet")) == []
    monkeypatch.setattr(files_parquet, "_MOST_FOOTER_BYTES", len(data) // 2)
    long = parquet(pa.table({f"c{number}": [1] for number in range(90)}))
    assert faults(read(tmp_path / "c", long, "parquet"))[0][0] == ErrorCode.FILE_TOO_LARGE


def test_a_row_that_no_letter_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_parquet, "MOST_LETTER_BYTES", 1000)
    monkeypatch.setattr(files_parquet, "BYTES_PER_BATCH", 1000)
    found = read(tmp_path, parquet(pa.table({"a": ["x", "y" * 2000, "z"]})), "parquet")
    assert faults(found) == [(ErrorCode.FILE_TOO_LARGE, None)]
    assert good(found) == [b'{"a":"x"}', b'{"a":"z"}']


@pytest.mark.parametrize("format", ["avro", "json", "parquet"])
def test_a_file_for_which_there_is_no_memory(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(source, f"read_{format}")

    def read_it(*arguments: Any, **options: Any) -> Any:
        for each in real(*arguments, **options):
            yield each
            if len(each.values) == 7:
                raise pa.ArrowMemoryError("malloc of size 5000000000 failed")

    monkeypatch.setattr(source, f"read_{format}", read_it)
    rows = simple(7)
    make = {"avro": lambda: avro(events(7)), "json": lambda: lines(rows)}
    data = make.get(format, lambda: parquet(pa.Table.from_pylist(rows)))()
    found = read(tmp_path, data, format)
    assert (len(good(found)), faults(found)) == (7, [(ErrorCode.FILE_TOO_LARGE, None)])


def test_a_line_that_is_a_dead_letter_anyway_is_not_looked_into(tmp_path: Path) -> None:
    data = b'{"source_metadata": {"database": "d", "table": "t"}}'
    (known,) = files_json.read_json(_Bytes(data), len(data))
    (unknown,) = files_json.read_json(_Bytes(data), len(data) - 1)
    assert (known.values, unknown.values) == (pa.array([data]), pa.array([data]))
    assert (known.claims.null_count, unknown.claims.null_count) == (0, 1)
