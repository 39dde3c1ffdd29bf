from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.errors import ErrorCode
from distributary.source.files import parquet_files as files_parquet
from tests.source.change_files import events, faults, good, named, put, records, source, uuids


def parquet(table: pa.Table, **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def read(tmp_path: Path, data: bytes) -> pa.Table:
    put(tmp_path / "in", named(end="parquet"), data)
    return records(source(tmp_path / "in", tmp_path / "checkpoint", format="parquet"))


def simple(count: int) -> list[dict[str, object]]:
    # a column of Parquet has one type
    return [{k: v for k, v in row.items() if k != "sort_keys"} for row in events(count)]


def test_a_row_is_an_event(tmp_path: Path) -> None:
    rows = simple(10)
    data = parquet(pa.Table.from_pylist(rows), row_group_size=3)
    found = read(tmp_path, data)
    assert [json.loads(value) for value in good(found)] == rows
    assert found["key"].to_pylist() == [b'["shop","","orders"]'] * 10
    assert found["offset"].to_pylist() == list(range(10))


def test_values_of_all_types() -> None:
    row = {
        "decimal": Decimal("12345678901234567890.1200"),
        "bytes": b"\x00\xff",
        "date": dt.date(2024, 2, 29),
        "moment": dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC),
        "local": dt.datetime(2024, 1, 2, 3, 4, 5),
        "time": dt.time(23, 59, 59),
        "span": dt.timedelta(seconds=1, microseconds=2),
        "list": [1, None, 2.5],
        "map": [("k", 1)],
        "text": 'a"b\nü',
        "not": float("nan"),
        "yes": True,
        "none": None,
    }
    text = files_parquet.as_json(row)
    assert '"decimal":12345678901234567890.1200,' in text
    assert json.loads(text) == {
        "decimal": 12345678901234567890.12,
        "bytes": "00ff",
        "date": "2024-02-29",
        "moment": "2024-01-02T03:04:05.000006+00:00",
        "local": "2024-01-02T03:04:05",
        "time": "23:59:59",
        "span": 1_000_002,
        "list": [1, None, 2.5],
        "map": [["k", 1]],
        "text": 'a"b\nü',
        "not": "nan",
        "yes": True,
        "none": None,
    }


def test_a_time_of_its_own_type(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    table = pa.table({"source_timestamp": pa.array([moment], pa.timestamp("us", "UTC"))})
    assert read(tmp_path, parquet(table))["timestamp"].to_pylist() == [moment]


def test_times_of_spark_s_old_kind_are_read_as_they_are(tmp_path: Path) -> None:
    moment = dt.datetime(9999, 12, 31)
    table = pa.table({"uuid": ["a"], "at": pa.array([moment], pa.timestamp("us"))})
    data = parquet(table, use_deprecated_int96_timestamps=True)
    (value,) = good(read(tmp_path, data))
    assert json.loads(value)["at"] == moment.isoformat()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    data = parquet(pa.Table.from_pylist(simple(5)))
    assert faults(read(tmp_path, data[:-20])) == [(ErrorCode.FILE_TRUNCATED, data[:-20])]
    assert faults(read(tmp_path, b"no Parquet")) == [(ErrorCode.FILE_CORRUPT, b"no Parquet")]
    wrong = data[:4] + b"\xff" * (len(data) - 300) + data[len(data) - 296 :]
    assert [code for code, _ in faults(read(tmp_path, wrong))] == [ErrorCode.FILE_CORRUPT]


def test_rows_before_a_damaged_part_are_kept(tmp_path: Path) -> None:
    rows = simple(20)
    data = parquet(pa.Table.from_pylist(rows), row_group_size=10, compression="snappy")
    second = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0).data_page_offset
    damaged = data[:second] + b"\xff" * 40 + data[second + 40 :]
    found = read(tmp_path, damaged)
    assert uuids(found) == [row["uuid"] for row in rows[:10]]
    assert faults(found) == [(ErrorCode.FILE_CORRUPT, damaged)]


@pytest.mark.parametrize("most", [1, 1000])
def test_rows_come_in_portions(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_parquet, "BYTES_PER_BATCH", most)
    rows = simple(30)
    assert uuids(read(tmp_path, parquet(pa.Table.from_pylist(rows)))) == [r["uuid"] for r in rows]
