"""Rows of a table as text, however large the table is."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.publish.formats.readable import ReadableTable
from distributary.publish.formats.table_format_entry import open_readable
from distributary.web import drawing as module
from distributary.web.drawing import preview


def table(path: Path, rows: pa.Table, **options: object) -> ReadableTable:
    write_deltalake(str(path), rows, mode="append", **options)  # type: ignore[call-overload]
    found = open_readable(str(path))
    assert found is not None
    return found


def test_every_kind_of_value_is_text(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "whole": pa.array([2**63 - 1], pa.int64()),
            "nan": pa.array([float("nan")]),
            "money": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "flag": pa.array([True]),
            "day": pa.array([date(2026, 1, 31)]),
            "time": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "bytes": pa.array([bytes(range(40))]),
            "long": pa.array(["x" * 1000]),
            "list": pa.array([[1, 2]]),
            "struct": pa.array([{"a": b"\xff", "b": "<b>"}]),
            "none": pa.array([None], pa.string()),
        }
    )
    told = preview(table(tmp_path / "t", rows), limit=10)
    values = dict(zip((c["name"] for c in told["columns"]), told["rows"][0], strict=True))
    assert values["whole"] == "9223372036854775807"
    assert values["nan"] == "nan"
    assert values["money"] == "1.50"
    assert values["flag"] == "true"
    assert values["day"] == "2026-01-31"
    assert values["time"] == "2026-01-31T12:00:00.000Z"
    assert values["bytes"] == f"0x{bytes(range(24)).hex()}…"
    assert len(values["long"]) == 160 and values["long"].endswith("…")
    assert values["list"] == "[1, 2]"
    assert values["struct"] == '{"a": "ff", "b": "<b>"}'
    assert values["none"] is None
    kinds = {c["name"]: c["kind"] for c in told["columns"]}
    assert (kinds["whole"], kinds["bytes"], kinds["list"]) == ("number", "bytes", "nested")


def test_the_newest_rows_come_first_whatever_their_folder_is_called(tmp_path: Path) -> None:
    for n, kind in enumerate(("plain", "a b%c", "plain")):
        rows = pa.table({"n": [n], "kind": [kind]})
        found = table(tmp_path / "t", rows, partition_by=["kind"])
    told = preview(found, limit=2)
    assert [row[0] for row in told["rows"]] == ["2", "1"]


def test_the_newest_rows_come_first(tmp_path: Path) -> None:
    for n in range(3):
        found = table(tmp_path / "t", pa.table({"n": [n] * 5}))
    told = preview(found, limit=7)
    assert [row[0] for row in told["rows"]] == ["2"] * 5 + ["1"] * 2


def test_a_column_of_huge_values_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    rows = pa.table({"n": [1, 2], "payload": [bytes(range(256)) * 8, b""]})
    told = preview(table(tmp_path / "t", rows), limit=2)
    assert told["left_out"] == ["payload"]
    assert told["rows"] == [["1"], ["2"]]


def test_partitions_and_many_columns(tmp_path: Path) -> None:
    wide = pa.table({f"c{n}": [n] for n in range(100)})
    found = table(tmp_path / "t", wide, partition_by=["c1"])
    told = preview(found, limit=5)
    assert told["more_columns"] == 100 - module.MOST_COLUMNS
    assert told["rows"][0][:3] == ["0", "1", "2"]


def test_an_empty_table(tmp_path: Path) -> None:
    told = preview(table(tmp_path / "t", pa.table({"n": pa.array([], pa.int64())})), limit=5)
    assert told["rows"] == []
