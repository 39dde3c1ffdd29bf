"""Rows that are looked for are found, whatever a log says or does not say about its files."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.delta import log, tables
from distributary.delta.column_merge import UnsupportedTypeError, fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import Snapshot, snapshot_of
from distributary.delta.parquet import write_file
from distributary.delta.tables import dataset, read_rows
from distributary.model.manifest import StagedFile
from distributary.model.table import Column
from distributary.store.base import introduce

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("t", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("b", pa.binary()),
        pa.field("flag", pa.bool_()),
        pa.field("s", pa.struct([pa.field("x", pa.int64())])),
        pa.field("a.b", pa.int32()),
    ]
)
VALUES: dict[str, list[Any]] = {
    "n": [None, 0, 1, 2, -(2**62)],
    "f": [None, 0.0, 1.5, float("inf")],
    "t": [None, "", "z", "x" * 70, "\U0001f600"],
    "at": [None, NOON, NOON + timedelta(microseconds=1), NOON + timedelta(days=1)],
    "b": [None, b"", b"q"],
    "flag": [None, True, False],
    "s": [None, {"x": 1}],
    "a.b": [None, 1, 2],
}
ROWS = st.fixed_dictionaries({name: st.sampled_from(some) for name, some in VALUES.items()})
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=4)


def ours(folder: Path, files: list[list[dict[str, Any]]]) -> None:
    columns = [Column(field.name, field.type) for field in SCHEMA]
    for rows in files:
        written = write_rows(pa.Table.from_pylist(rows, schema=SCHEMA), str(folder))
        before = snapshot_of(str(folder))
        fields = fields_of(columns) if before is None else None
        rewrite_files(str(folder), before, Change("WRITE", "t", fields=fields, added=[written]))


def others(folder: Path, files: list[list[dict[str, Any]]]) -> None:
    for rows in files:
        write_deltalake(folder, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")


def partitioned(folder: Path, files: list[list[dict[str, Any]]]) -> None:
    for rows in files:
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        write_deltalake(folder, table, mode="append", partition_by=["n", "t"])


@pytest.mark.parametrize("write", [ours, others, partitioned], ids=lambda write: write.__name__)
@given(files=FILES)
@settings(max_examples=settings().max_examples // 4)
def test_every_value_is_found_wherever_it_is(write: Any, files: list[list[dict[str, Any]]]) -> None:
    if write is partitioned:
        # nobody tells an empty text from none in the name of a folder
        files = [[row | {"t": row["t"] or None} for row in rows] for rows in files]
    every = [row for rows in files for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        table = DeltaTable(folder)
        engine = duckdb.connect()
        engine.register("t", dataset(table))
        for name, values in VALUES.items():
            if name == "s":
                continue
            for value in values:
                found = sum(row[name] == value for row in every)
                here = pc.field(name)
                where = (
                    here.is_null()
                    if value is None
                    else here == pa.scalar(value, SCHEMA.field(name).type)
                )
                assert read_rows(table, where=where).num_rows == found, (name, value)
                sql = f'select count(*) from t where "{name}" is not distinct from ?'
                assert engine.execute(sql, [value]).fetchall() == [(found,)], (name, value)
        inside = sum(row["s"] is not None for row in every)
        assert read_rows(table, where=pc.field("s", "x") == 1).num_rows == inside
        engine.close()


def test_files_that_cannot_hold_it_are_not_read(tmp_path: Path) -> None:
    rows = {name: None for name in VALUES}
    ours(tmp_path, [[rows | {"n": 1}], [rows | {"n": 2}], [rows | {"n": 3}, rows]])
    files = dataset(DeltaTable(tmp_path))
    assert files is not None
    assert len(list(files.get_fragments(filter=pc.field("n") == 2))) == 1
    assert len(list(files.get_fragments(filter=pc.field("n").is_null()))) == 1


def test_columns_with_values_that_come_again_have_a_dictionary(tmp_path: Path) -> None:
    """A large file; one that is begun for values that do not is given up, and stays in the file."""
    numbers = np.arange(30_000)
    few = pa.array(numbers % 7)
    rows = pa.table(
        {
            "id": numbers,
            "few": few,
            "both": pa.StructArray.from_arrays([few, pa.array(numbers)], ["few", "id"]),
            "words": pa.array([["a", "b"]] * len(numbers)),
            "map": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "with.dot": pa.array(["x"] * len(numbers)),
            "nothing": pa.nulls(len(numbers), pa.string()),
            "empty": pa.array([[]] * len(numbers), pa.list_(pa.int8())),
        }
    )
    # in pieces, as a stage hands them over
    write_file(pa.concat_tables([rows[:9], rows[9:9], rows[9:]]), str(tmp_path), "1.parquet")
    file = pq.ParquetFile(tmp_path / "1.parquet")
    assert file.read() == rows
    group = file.metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    plain = [c.path_in_schema for c in columns if not c.has_dictionary_page]
    assert plain == ["id", "both.id", "map.key_value.value"]


FAR = datetime(9999, 12, 31, tzinfo=UTC)


def from_spark(folder: Path, rows: pa.Table, **about: str) -> Snapshot:
    """A table with a file as Spark writes it unless it is told otherwise."""
    folder.mkdir(exist_ok=True)
    path = folder / "part-0.parquet"
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    with pq.ParquetWriter(path, rows.schema, **options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(about)
    file = StagedFile(path.name, path.stat().st_size, rows.num_rows, "{}")
    fields = fields_of([Column(field.name, field.type) for field in rows.schema])
    return rewrite_files(str(folder), None, Change("WRITE", "t", fields=fields, added=[file]))


@pytest.mark.parametrize("large", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
def test_spark_s_old_timestamps_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, lenient: bool
) -> None:
    monkeypatch.setattr(log, "LARGE_FILE", 0 if large else 2**20)
    rows = pa.table({"at": pa.array([FAR, NOON, None], SCHEMA.field("at").type)})
    table = from_spark(tmp_path / "t", rows)
    (file,) = table.files.values()
    assert pa.concat_tables(table.pieces(file, rows.schema, lenient=lenient)) == rows


@pytest.mark.parametrize("large", [False, True], ids=["whole", "pieces"])
def test_spark_s_old_calendar_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(log, "LARGE_FILE", 0 if large else 2**20)
    rows = pa.table({"at": pa.array([NOON], SCHEMA.field("at").type)})
    table = from_spark(tmp_path / "t", rows, **{"org.apache.spark.legacyINT96": ""})
    (file,) = table.files.values()
    with pytest.raises(UnsupportedTypeError, match="old calendar"):
        list(table.pieces(file, rows.schema))


def test_each_lake_is_opened_with_its_own_login(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def opened(path: str, *, version: int | None, storage_options: object) -> None:
        assert version is None
        asked[path] = storage_options

    monkeypatch.setattr(tables, "DeltaTable", opened)
    logins = {f"s3://{name}-lake/main": {"aws_region": name} for name in ("one", "two")}
    for lake, login in logins.items():
        introduce(lake, login)
    for lake in logins:
        tables.open_table(f"{lake}/silver_chess")
    tables.open_table("/lake/silver_chess")
    found = {f"{lake}/silver_chess": login for lake, login in logins.items()}
    assert asked == found | {"/lake/silver_chess": None}
