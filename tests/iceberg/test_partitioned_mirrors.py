"""Partitions whose values and columns need care."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from distributary.delta.column_merge import UnsupportedTypeError, fields_of
from distributary.delta.commit import Change, commit
from distributary.delta.parquet import write_file
from distributary.iceberg.mirror import Mirror
from distributary.iceberg.pointer import VersionHint
from distributary.model.table import Column
from distributary.store.base import at

TEXTS = ["a b/c", "100%", "\u00e9\u4e2d", "a=b", "x#y?z", None]
COLUMNS = {
    "1 t\u00e9xt": pa.string(),
    "_date": pa.date32(),
    "ok": pa.bool_(),
    "n": pa.int64(),
    "v": pa.int32(),
}


def test_values_that_need_care(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    folder = tmp_path / "t"
    folder.mkdir()
    parts = [name for name in COLUMNS if name != "v"]
    expected, staged = [], []
    for number, text in enumerate(TEXTS):
        day = date(2026, 11, 19) if number % 2 else None
        row = [text, day, bool(number % 2), -number, number]
        expected.append(dict(zip(COLUMNS, row, strict=True)))
        spelled = [text, day and day.isoformat(), str(row[2]).lower(), str(row[3])]
        values = dict(zip(parts, spelled, strict=True))
        places = [f"{quote(k)}={quote(str(v), safe='')}" for k, v in values.items()]
        name = "/".join([*places, f"{number}.parquet"])
        rows = pa.table({"v": pa.array([number], pa.int32())})
        staged.append(write_file(rows, str(folder), name, partition_values=values))
    store = at(folder)
    fields = fields_of([Column(name, type_) for name, type_ in COLUMNS.items()])
    commit(store, None, Change("WRITE", "t", fields=fields, partition_by=parts, added=staged))
    Mirror(store, VersionHint(store)).sync()
    table = StaticTable.from_metadata(f"{folder}/_iceberg")
    found = table.scan().to_arrow().sort_by("v").to_pylist()
    assert found == expected
    assert [row["v"] for row in table.scan("n <= -3").to_arrow().to_pylist()] == [3, 4, 5]
    newest = VersionHint(store).load()
    assert newest is not None
    frame = pl.scan_iceberg(newest.location).collect().sort("v")
    assert frame.to_dicts() == expected


def test_a_partition_column_of_another_type_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    store = at(folder)
    fields = fields_of([Column("d", pa.float64()), Column("v", pa.int32())])
    commit(store, None, Change("WRITE", "t", fields=fields, partition_by=["d"]))
    with pytest.raises(UnsupportedTypeError):
        Mirror(store, VersionHint(store)).sync()
