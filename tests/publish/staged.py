"""Staged files and entries made by hand, and tables read back by every engine that can."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from distributary.delta.damage import checksum, spelled
from distributary.model.manifest import Mark, StagedFile, TableEntry, app_id
from distributary.model.names import hive_folder, label_folder
from distributary.model.table import ChangeKind, Column, ColumnChange, Role, TablePlan

Read = Callable[..., list[dict[str, Any]]]

FORMAT = "delta"
LIFE = app_id("games", "life1")
COMMENT = "all about 'chess' \\ `♞` \U0001f600 ${user.home} ; \n-- drop"


def mark(batch: int, *, app: str = LIFE, source: str = "") -> Mark:
    return Mark(app, batch, source or f"source-{batch}")


def stage(
    folder: Path,
    rows: pa.Table,
    *,
    name: str,
    partition_values: Mapping[str, str | None] | None = None,
) -> StagedFile:
    """Write a file that no commit names yet."""
    name = plan_of(folder).staged(name)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return StagedFile(
        name,
        path.stat().st_size,
        rows.num_rows,
        statistics(rows),
        partition_values or {},
        checksum=spelled(checksum(path.read_bytes())),
    )


def statistics(rows: pa.Table) -> str:
    numbers = [n for n in rows.column_names if pa.types.is_integer(rows.schema.field(n).type)]
    values = {n: [v for v in rows.column(n).to_pylist() if v is not None] for n in numbers}
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": {n: min(v) for n, v in values.items() if v},
            "maxValues": {n: max(v) for n, v in values.items() if v},
            "nullCount": {n: rows.num_rows - len(v) for n, v in values.items()},
        }
    )


def columns_like(rows: pa.Table) -> tuple[Column, ...]:
    return tuple(Column(f.name, f.type, f"field {f.name}") for f in rows.schema)


def entry_of(
    folder: Path,
    files: Sequence[StagedFile],
    columns: Sequence[Column],
    *,
    partition_by: tuple[str, ...] = (),
) -> TableEntry:
    plan = plan_of(folder, columns=tuple(columns), partition_by=partition_by)
    rows = sum(f.rows for f in files)
    return TableEntry(plan, tuple(files), rows, (ColumnChange(ChangeKind.TABLE_CREATED),))


def plan_of(folder: Path, **settings: Any) -> TablePlan:
    given = {"columns": (), "comment": COMMENT, "format": FORMAT} | settings
    return TablePlan(name=folder.name, role=Role.EACH, type="Chess", path=str(folder), **given)


def stage_day(folder: Path, number: int, day: str | None) -> StagedFile:
    """A row of a table that is partitioned by `day`, as the stage would write it."""
    name = f"part-{number}.parquet"
    if FORMAT == "parquet":
        rows = numbers(number).append_column("day", pa.array([day], pa.string()))
        return stage(folder, rows, name=f"{label_folder('by_day', day)}/{name}")
    values = {"day": day}
    return stage(
        folder, numbers(number), name=f"{hive_folder('day', day)}/{name}", partition_values=values
    )


def batch_of(
    folder: Path, batch: int, rows: pa.Table, columns: Sequence[Column] | None = None
) -> TableEntry:
    """An entry with one staged file; its columns are those of the rows unless said otherwise."""
    file = stage(folder, rows, name=f"batch-{batch}.parquet")
    return entry_of(folder, [file], columns or columns_like(rows))


def numbers(*values: int | None, type: pa.DataType | None = None) -> pa.Table:
    return pa.table({"n": pa.array(values, type or pa.int32())})


def read_everywhere(path: str, *, polars: bool = True) -> list[dict[str, Any]]:
    """The rows as deltalake, DuckDB and Polars see them, which must be the same."""
    table = DeltaTable(path)
    rows = table.to_pyarrow_table().to_pylist()
    dataset = table.to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("dataset", dataset)
    duck = connection.sql("select * from dataset").to_arrow_table().to_pylist()
    assert in_order(duck) == in_order(rows)
    if polars:
        assert in_order(pl.scan_delta(path).collect().to_dicts()) == in_order(rows)
    return in_order(rows)


def read_folder(path: str, *, polars: bool = True) -> list[dict[str, Any]]:
    """The rows of a plain folder as pandas, DuckDB and Polars see them, which must be the same."""
    frame = pa.Table.from_pandas(pd.read_parquet(path, dtype_backend="pyarrow"))
    labels = [name for name in frame.column_names if name.startswith("by_")]
    rows = frame.drop_columns(labels).to_pylist()
    pattern = f"{_literal(path)}/**/*.parquet"
    with duckdb.connect() as connection:
        found = connection.read_parquet(pattern, union_by_name=True)
        duck = found.to_arrow_table().to_pylist()
    assert in_order(duck) == in_order(rows)
    if polars:
        casts = pl.ScanCastOptions(
            integer_cast="upcast", float_cast="upcast", missing_struct_fields="insert"
        )
        lazy = pl.scan_parquet(pattern, missing_columns="insert", cast_options=casts)
        assert in_order(lazy.collect().to_dicts()) == in_order(rows)
    return in_order(rows)


def _literal(path: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", path)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))
