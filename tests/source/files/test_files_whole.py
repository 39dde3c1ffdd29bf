"""Any file that a common library writes gives the events that the library reads from it."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.source.files import avro_files, parquet_files
from distributary.source.files import json_files as files_json
from distributary.source.files.file_bytes import LocalFiles
from distributary.source.files.file_list import ListedFile
from distributary.source.files.parquet_files import as_json
from distributary.source.files.source import FilesReader
from tests.source.change_files import event, faults, good, lines, schema

TEXTS = st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["", "long" * 300, "x"]))


def read(data: bytes, format: str) -> pa.Table:
    """A file's records; the offset of each is its number."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_bytes(data)
        reader = FilesReader(
            files=LocalFiles(folder),
            format=format,
            schemas=f"{folder}/schemas",
            settle_seconds=0.0,
            tasks=[[ListedFile(0, "file", len(data), 0, 0)]],
        )
        batches = list(reader(iter([pa.record_batch({"task": [0]})])))
    found = pa.Table.from_batches(batches) if batches else pa.table({"value": [], "headers": []})
    assert faults(found) == []
    if batches:
        assert found["offset"].to_pylist() == list(range(len(found)))
    return found


@given(
    notes=st.lists(TEXTS, max_size=30),
    codec=st.sampled_from(["null", "deflate", "bzip2", "xz"]),
    block=st.integers(1, 5000),
    at_once=st.sampled_from([1, 2, 7, 65_536]),
)
def test_avro(notes: list[str | None], codec: str, block: int, at_once: int) -> None:
    written = fastavro.parse_schema(schema("note"))
    rows = [event(number, note=note) for number, note in enumerate(notes)]
    out = io.BytesIO()
    fastavro.writer(out, written, rows, codec=codec, sync_interval=block)
    with pytest.MonkeyPatch.context() as patch:
        for module in (avro_files, avro_files):
            patch.setattr(module, "EVENTS_PER_BATCH", at_once)
        found = read(out.getvalue(), "avro")
    decoded = [
        fastavro.schemaless_reader(io.BytesIO(value[17:]), written, None) for value in good(found)
    ]
    out.seek(0)
    assert decoded == list(fastavro.reader(out))
    if rows:
        times = found["timestamp"].cast(pa.int64()).to_pylist()
        assert times == [row["source_timestamp"] * 1000 for row in rows]


@given(notes=st.lists(TEXTS, min_size=2, max_size=30), zipped=st.booleans())
def test_json(notes: list[str | None], zipped: bool) -> None:
    rows = [event(number, note=note) for number, note in enumerate(notes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_json, "EVENTS_PER_BATCH", 4)
        found = read(lines(rows, zipped=zipped), "json")
    assert [json.loads(value) for value in good(found)] == rows


NUMBERS = st.one_of(st.none(), st.integers(-(2**60), 2**60))
ROWS = st.fixed_dictionaries(
    {
        "n": NUMBERS,
        "s": TEXTS,
        "b": st.one_of(st.none(), st.binary(max_size=4)),
        "in": st.fixed_dictionaries({"s": TEXTS, "l": st.lists(TEXTS, max_size=3)}),
        "m": st.lists(st.tuples(st.text(max_size=2), NUMBERS), max_size=2),
    }
)
TYPES = pa.schema(
    {
        "n": pa.int64(),
        "s": pa.string(),
        "b": pa.binary(),
        "in": pa.struct({"s": pa.string(), "l": pa.list_(pa.string())}),
        "m": pa.map_(pa.string(), pa.int64()),
    }
)
ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "both": {"dictionary_pagesize_limit": 50},
    "delta": {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY"}},
    "lengths": {"use_dictionary": ["b"], "column_encoding": {"s": "DELTA_LENGTH_BYTE_ARRAY"}},
}


@given(
    rows=st.lists(ROWS, max_size=40),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    # with pages of a few bytes the library writes lists that it cannot read
    page=st.integers(100, 3000),
    group=st.integers(1, 50),
    most=st.sampled_from([1, 500, 5000, 10**7]),
)
def test_parquet(
    rows: list[dict[str, Any]],
    encoding: str,
    compression: str,
    version: str,
    page: int,
    group: int,
    most: int,
) -> None:
    out = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(rows, TYPES),
        out,
        compression=compression,
        data_page_version=version,
        data_page_size=page,
        row_group_size=group,
        **ENCODINGS[encoding],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_files, "BYTES_PER_BATCH", most)
        patch.setattr(parquet_files, "_MOST_TEXT_BYTES", most)
        found = read(out.getvalue(), "parquet")
    expected = [as_json(row).encode() for row in pq.read_table(out).to_pylist()]
    assert good(found) == expected
