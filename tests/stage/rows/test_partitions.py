"""Rows by partition: what is written where, and that every reader gets the same rows back."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.names import HIVE_NULL
from distributary.model.record import RAW, TIMESTAMP
from distributary.model.routing import StageOrder
from distributary.model.table import Column, Role, TablePlan
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.stage.rows import partitions
from distributary.stage.rows.partitions import (
    days,
    frequent_types,
    partition_columns,
    write_files,
)
from distributary_lab.simulate.dice import VARINT, WRAPPER, WRAPPER_SUBJECT, delimited, tag, varint
from tests.stage.conftest import Bench, raw_batch

MakeBench = Callable[..., Bench]

ORDER = StageOrder("games", "stream", 3, "try", 0, "")
MARK = Mark("distributary/games/life/stream", 3, "source")
DAY = 86_400_000_000
ORDERS = """
syntax = "proto3";
message Order {
  string country = 1;
  optional int32 shop = 2;
  double price = 3;
}
"""


def plan(folder: Path, columns: list[Column], by: tuple[str, ...], *, kind: str) -> TablePlan:
    return TablePlan("t", Role.EACH, "T", str(folder), tuple(columns), partition_by=by, format=kind)


def columns_of(rows: pa.Table) -> list[Column]:
    return [Column(f.name, f.type) for f in rows.schema]


def published(folder: Path, rows: pa.Table, by: tuple[str, ...], *, kind: str) -> list[StagedFile]:
    table = plan(folder, columns_of(rows), by, kind=kind)
    files = write_files(rows, table, ORDER, offsets=rows["n"])
    publisher = ParquetPublisher() if kind == "parquet" else DirectPublisher()
    publisher.publish(TableEntry(table, tuple(files), rows.num_rows), MARK)
    return files


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["n"])


TEXTS = st.none() | st.text(max_size=20) | st.sampled_from(["a", "b", "..", "/", "%2F", "007", "é"])
KEYS = {
    "text": (pa.string(), TEXTS),
    "int": (pa.int32(), st.none() | st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    "bool": (pa.bool_(), st.none() | st.booleans()),
    "date": (pa.date32(), st.none() | st.dates()),
}


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_a_partitioned_delta_table_reads_back(kind: str, data: st.DataObject) -> None:
    type_, values = KEYS[kind]
    keys = data.draw(st.lists(values, min_size=1, max_size=12))
    # what cannot be written is refused before
    keys = [k for k in keys if not isinstance(k, str) or "\0" not in k]
    rows = pa.table({"n": pa.array(range(len(keys)), pa.int64()), "k": pa.array(keys, type_)})
    # an empty text is null to Delta
    wanted = [{**row, "k": None if row["k"] == "" else row["k"]} for row in rows.to_pylist()]
    with tempfile.TemporaryDirectory() as name:
        files = published(Path(name), rows, ("k",), kind="delta")
        for file in files:
            assert pq.read_schema(Path(name) / file.path).names == ["n"]
            assert ".." not in PurePosixPath(file.path).parts
            assert len(PurePosixPath(file.path).parts) == 2
        assert rows_of(DeltaTable(name).to_pyarrow_table()) == wanted
        assert pl.read_delta(name).sort("n").to_dicts() == wanted


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_a_partitioned_folder_reads_back(kind: str, data: st.DataObject) -> None:
    type_, values = KEYS[kind]
    keys = data.draw(st.lists(values, min_size=1, max_size=12))
    rows = pa.table({"n": pa.array(range(len(keys)), pa.int64()), "k": pa.array(keys, type_)})
    with tempfile.TemporaryDirectory() as name:
        published(Path(name), rows, ("k",), kind="parquet")
        frame = pa.Table.from_pandas(pd.read_parquet(name, dtype_backend="pyarrow"))
        assert rows_of(frame.select(["n", "k"])) == rows.to_pylist()
        assert len(pd.read_parquet(name)) == len(keys)


def test_files_know_their_offsets_and_their_values(tmp_path: Path) -> None:
    rows = pa.table({"n": pa.array([5, 6, 7], pa.int64()), "k": ["a", "b", "a"]})
    by_value = {f.partition_values["k"]: f for f in published(tmp_path, rows, ("k",), kind="delta")}
    assert {k: (f.first_offset, f.last_offset, f.rows) for k, f in by_value.items()} == {
        "a": (5, 7, 2),
        "b": (6, 6, 1),
    }


def test_a_filter_finds_characters_of_every_plane(tmp_path: Path) -> None:
    name = "\U00020000\U0001f600"
    rows = pa.table({"n": pa.array([1], pa.int64()), "name": [name], "k": ["a"]})
    published(tmp_path, rows, ("k",), kind="delta")
    found = DeltaTable(tmp_path).to_pyarrow_table(filters=[("name", "=", name)])
    assert found["n"].to_pylist() == [1]


def test_rows_without_any_other_column_are_kept(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a", "a", "b"]})
    table = plan(tmp_path, [*columns_of(rows), Column("later", pa.int32())], ("k",), kind="delta")
    files = write_files(rows, table, ORDER)
    DirectPublisher().publish(TableEntry(table, tuple(files), 3), MARK)
    assert Counter(DeltaTable(tmp_path).to_pyarrow_table()["k"].to_pylist()) == {"a": 2, "b": 1}


def test_a_column_that_nobody_writes_any_more_is_null(tmp_path: Path) -> None:
    table = plan(tmp_path, [Column("n", pa.int32()), Column("k", pa.int32())], ("k",), kind="delta")
    (file,) = write_files(pa.table({"n": pa.array([1], pa.int32())}), table, ORDER)
    assert file.partition_values == {"k": None}


def test_which_columns_can_partition_a_table() -> None:
    kinds = {
        "text": pa.string(),
        "flag": pa.bool_(),
        "small": pa.int32(),
        "large": pa.int64(),
        "day": pa.date32(),
        "price": pa.float64(),
        "sum": pa.decimal128(10, 2),
        "at": TIMESTAMP,
        "bytes": pa.binary(),
        "list": pa.list_(pa.string()),
        "inner": pa.struct([("a", pa.string())]),
    }
    columns = [Column(name, type_) for name, type_ in kinds.items()]
    chosen = partition_columns([*kinds, "missing"], columns)
    assert chosen == ("text", "flag", "small", "large", "day")
    # something must be left for the files
    assert partition_columns(["a", "b"], [Column("a", pa.string()), Column("b", pa.bool_())]) == (
        "a",
    )


def test_days_are_those_of_utc_and_unknown_where_there_is_none() -> None:
    moments = [0, -1, DAY - 1, DAY, None, -(2**63), 2**63 - 1, 253_402_300_799_999_999]
    found = days(pa.chunked_array([pa.array(moments, pa.int64()).cast(TIMESTAMP)])).to_pylist()
    assert found == [
        date(1970, 1, 1),
        date(1969, 12, 31),
        date(1970, 1, 1),
        date(1970, 1, 2),
        None,
        None,
        None,
        date(9999, 12, 31),
    ]


def test_days_beyond_the_most_frequent_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 3)
    moments = pa.array([n * DAY for n in (9, 1, 1, 2, 2, 5)], pa.int64()).cast(TIMESTAMP)
    found = days(pa.chunked_array([moments])).to_pylist()
    assert found == [None, *[date(1970, 1, 2)] * 2, *[date(1970, 1, 3)] * 2, None]


def test_labels_beyond_the_limit_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 2)
    keys = ["a", "a", "b", "b", "c", "d"]
    rows = pa.table({"n": pa.array(range(6), pa.int64()), "k": keys})
    published(tmp_path, rows, ("k",), kind="parquet")
    frame = pd.read_parquet(tmp_path).sort_values("n")
    assert frame["k"].tolist() == keys
    assert frame["by_k"].tolist() == ["a", "a", "b", "b", "other", "other"]


ODD = ["", "..", "a/b", "%2F", "=", "Ä\u2028", "x" * 300, "a\0b", HIVE_NULL]


def test_types_without_a_folder_or_beyond_the_most_frequent_share_a_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = frequent_types(pa.chunked_array([ODD, [None, "a"]])).to_pylist()
    assert odd == [None, "..", "a/b", "%2F", "=", "Ä\u2028", None, None, None, None, "a"]
    assert frequent_types(pa.chunked_array([[None]], pa.string())).to_pylist() == [None]
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 6)
    types = pa.chunked_array([["c", None, "b", "a", "b", "a", "a"], [None] * 3])
    assert frequent_types(types).to_pylist()[:7] == types.to_pylist()[:7]
    assert frequent_types(types, days=2).to_pylist()[:7] == [None, None, "b", *"aba", "a"]
    assert set(frequent_types(types, days=6).to_pylist()) == {None}


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_bronze_by_type_keeps_every_record_whatever_its_type(
    bench: MakeBench, tmp_path: Path, kind: str
) -> None:
    one = bench(f"{{bronze: raw, format: {kind}, partition_by: [_type, _date]}}")
    one.registry.register(WRAPPER_SUBJECT, WRAPPER)
    rest = tag(2, VARINT) + varint(1) + delimited(3, b"x")
    framed = [delimited(1, name.encode()) + rest for name in ODD]
    staged = one.stage([raw_batch([*framed, b"\xff", *framed])], tasks=1)
    table, files = one.planner.book.tables["raw"], staged.files["raw"]
    assert table.partition_by == ("_type", "_date")
    publisher = ParquetPublisher() if kind == "parquet" else DirectPublisher()
    publisher.publish(TableEntry(table, tuple(files), 2 * len(ODD) + 1), MARK)
    rows = (
        DeltaTable(table.path).to_pyarrow_table()
        if kind == "delta"
        else pa.Table.from_pandas(pd.read_parquet(table.path, dtype_backend="pyarrow"))
    ).sort_by("_offset")
    assert rows["_offset"].to_pylist() == list(range(2 * len(ODD) + 1))
    types = rows["type"].to_pylist()
    assert types == [*ODD, None, *ODD]
    for type_name, partition in zip(types, rows["_type"].to_pylist(), strict=True):
        assert partition in (type_name, None)
    assert len(files) == len(set(rows["_type"].to_pylist())) == 6


def order(schema_id: int, country: str, *, shop: int | None = None) -> bytes:
    body = delimited(1, country.encode()) if country else b""
    body += tag(2, VARINT) + varint(shop) if shop is not None else b""
    wrapper = delimited(1, b"order") + tag(2, VARINT) + varint(schema_id)
    return wrapper + delimited(3, body)


def orders(bench: Bench, countries: list[str], *, text: str = ORDERS) -> list[pa.RecordBatch]:
    bench.registry.register(WRAPPER_SUBJECT, WRAPPER)
    schema_id = bench.registry.register("order-value", text)
    return [raw_batch([order(schema_id, c, shop=n) for n, c in enumerate(countries)])]


def test_tables_are_partitioned_by_those_columns_that_they_have(bench: MakeBench) -> None:
    one = bench(
        "{bronze: raw, each: 'silver_{type}', unified: gold, partition_by: [_date, country, nope]}"
    )
    staged = one.stage(orders(one, ["de", "fr", "de", ""]), tasks=1)
    tables = one.planner.book.tables
    assert {n: t.partition_by for n, t in tables.items()} == {
        "silver_order": ("_date", "country"),
        "raw": ("_date",),
        "gold": ("_date",),
        "dead_letters": (),
    }
    assert [c.type for c in tables["silver_order"].columns if c.name == "_date"] == [pa.date32()]
    values = {f.partition_values["country"]: f.rows for f in staged.files["silver_order"]}
    assert values == {"de": 2, "fr": 1, None: 1}
    days_of = {f.partition_values["_date"] for name in staged.files for f in staged.files[name]}
    assert days_of == {"2023-11-14"}
    assert dict(staged.records) == {"silver_order": 4, "raw": 4, "gold": 4}


def test_records_of_too_many_partitions_are_dead_letters(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 2)
    one = bench("{each: 'silver_{type}', unified: gold, partition_by: [country]}")
    staged = one.stage(orders(one, ["a", "a", "b", "b", "c", "x" * 300]), tasks=1)
    assert staged.dead == {ErrorCode.PARTITION_REFUSED: 2}
    assert dict(staged.records) == {"silver_order": 4, "gold": 4, "dead_letters": 2}
    assert sum(f.rows for f in staged.files["gold"]) == 4
    letters = one.rows(staged, "dead_letters").to_pylist()
    assert sorted(letter["offset"] for letter in letters) == [4, 5]
    assert {letter["type"] for letter in letters} == {"order"}


def test_a_plain_table_refuses_no_value(bench: MakeBench) -> None:
    one = bench("{each: 'silver_{type}', format: parquet, partition_by: [country]}")
    staged = one.stage(orders(one, ["a", "x" * 10_000, ""]), tasks=1)
    assert not staged.dead
    files = staged.files["silver_order"]
    assert all(f.path.startswith("_distributary/staging/by_country=") for f in files)
    assert all(len(part) <= 255 for f in files for part in f.path.split("/"))
    assert set(one.rows(staged, "silver_order")["country"].to_pylist()) == {"a", "x" * 10_000, ""}


def test_a_partition_column_that_becomes_a_fraction_is_refused(bench: MakeBench) -> None:
    one = bench("{each: 'silver_{type}', partition_by: [shop]}")
    one.stage(orders(one, ["de"]), tasks=1)
    changed = ORDERS.replace("optional int32 shop", "optional double shop")
    one.registry.set_compatibility(None, "NONE")
    schema_id = one.registry.register("order-value", changed)
    staged = one.stage([raw_batch([order(schema_id, "de")])], tasks=1)
    assert staged.dead == {ErrorCode.TYPE_CHANGE_REFUSED: 1}


def test_a_table_stays_partitioned_as_it_was_made(bench: MakeBench) -> None:
    one = bench("{each: 'silver_{type}'}")
    staged = one.stage(orders(one, ["de"]), tasks=1)
    entry = TableEntry(
        one.planner.book.tables["silver_order"], tuple(staged.files["silver_order"]), 1
    )
    one.publisher.publish(entry, MARK)
    later = bench("{each: 'silver_{type}', partition_by: [country]}")
    later.publisher.tables = one.publisher.tables
    again = later.stage(orders(later, ["fr"]), tasks=1)
    assert later.planner.book.tables["silver_order"].partition_by == ()
    assert [f.partition_values for f in again.files["silver_order"]] == [{}]


def test_records_without_a_time_have_no_day(bench: MakeBench) -> None:
    one = bench("{each: 'silver_{type}', partition_by: [_date]}")
    (raw,) = orders(one, ["de", "fr"])
    index = RAW.get_field_index("timestamp")
    raw = raw.set_column(index, RAW.field(index), pa.array([None, 0], TIMESTAMP))
    staged = one.stage([raw], tasks=1)
    values = [f.partition_values["_date"] for f in staged.files["silver_order"]]
    assert sorted(values, key=str) == ["1970-01-01", None]
