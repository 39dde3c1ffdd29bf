"""SQL over a lake: what it answers, what it refuses, and that it leaves nothing open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.errors import DistributaryError, ErrorCode
from distributary.operations import query
from distributary.operations.query import QueryLimits, Questions, json_value, newest
from distributary.publish.formats.table_format_entry import open_readable
from tests.lakes.written import make_lake


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return make_lake(tmp_path / "lake")


def ask(lake: Path, sql: str, **bounds: Any) -> list[dict[str, Any]]:
    with Questions(str(lake)).ask(sql, QueryLimits(**bounds)) as answer:
        names = [column.name for column in answer.columns]
        return [dict(zip(names, map(json_value, row), strict=True)) for row in answer.rows()]


def refused(lake: Path, sql: str, *, rows: int | None = None, **bounds: Any) -> DistributaryError:
    with pytest.raises(DistributaryError) as caught:
        ask(lake, sql, rows=rows, **bounds)
    return caught.value


def test_tables_go_by_their_names_in_any_case(lake: Path) -> None:
    assert ask(lake, "select count(*) n, max(_offset) m from Silver_0") == [{"n": 10, "m": 9}]
    sql = "with s as (from silver_0) select count(*) n from s join silver_1 using (_offset)"
    assert ask(lake, sql) == [{"n": 10}]
    named = ask(lake, "show tables")
    assert {row["name"] for row in named} == {"silver_0", "silver_1", "dead_letters"}
    assert ask(lake, "describe silver_0")[0]["column_name"] == "move"


def test_sums_stay_whole_numbers_and_names_differ(lake: Path) -> None:
    (row,) = ask(lake, "select sum(_offset) a, 1.50::decimal(4,2) a, 'NaN'::double c from silver_0")
    assert row == {"a": 45, "a_1": "1.50", "c": None}


def test_rows_are_cut_off_and_said_to_be(lake: Path) -> None:
    with Questions(str(lake)).ask("select * from silver_0", QueryLimits(rows=3)) as answer:
        assert len(list(answer.rows())) == 3
        assert answer.more
    with Questions(str(lake)).ask("select * from silver_0", QueryLimits(rows=10)) as answer:
        assert len(list(answer.rows())) == 10
        assert not answer.more


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "selec 1",
        "select 1; select 2",
        "select nope from silver_0",
        "select case when i < 90000 then '1' else 'x' end::int from range(100000) t(i)",
        "copy silver_0 to '/tmp/stolen.csv'",
        "create table x as select 1",
        "insert into silver_0 values (1)",
        "attach '/tmp/other.db'",
        "install httpfs",
        "set threads = 1",
        "pragma database_list",
        "explain select 1",
        "call pragma_version()",
        "select * from read_text('/etc/passwd')",
        "select * from read_csv('/etc/passwd')",
        "select * from glob('/*')",
        "select * from arrow_scan(1, 2, 3)",
        "select * from query('select 1')",
        "select * from query_table('silver_0')",
        "select * from (select * from duckdb_settings())",
        "select (select max(content) from read_text('/etc/passwd'))",
        "with x as (select * from read_blob('/etc/passwd')) select * from x",
        "select * from information_schema.tables",
        "select 1 \0",
        "select " + "(" * 3000 + "1" + ")" * 3000,
        "select * from (" * 900 + "select 1" + ")" * 900,
        "select '" + "x" * 200_000 + "'",
    ],
)
def test_only_one_select_of_the_tables_is_answered(lake: Path, sql: str) -> None:
    assert refused(lake, sql).code is ErrorCode.QUERY_INVALID


def test_columns_that_come_close_are_named(lake: Path) -> None:
    error = refused(lake, 'select "mov" from silver_0')
    assert '"move"' in error.evidence
    assert "LINE" not in error.evidence


@pytest.mark.parametrize("name", ["silver_9", "'/etc/passwd'", '"a;b""c"', "answer"])
def test_a_table_that_is_not_there(lake: Path, name: str) -> None:
    found = refused(lake, f"select * from {name}")
    assert found.code is ErrorCode.NOT_FOUND
    assert "silver_0" in found.next_step or "tables" in found.next_step


@pytest.mark.parametrize(
    "sql",
    [
        "select sum(a.i * b.i) from range(1000000000) a(i), range(1000000) b(i)",
        "select list(i) from range(1000000000) t(i)",
        # the first rows come at once, and then none
        "select * from (select 1 as i union all select sum(i) from range(1000000000000) t(i))",
    ],
)
def test_an_answer_that_costs_too_much_is_stopped(lake: Path, sql: str) -> None:
    assert refused(lake, sql, seconds=0.5, memory=64 << 20).code is ErrorCode.QUERY_STOPPED


def test_an_engine_that_does_not_stop_is_told(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_PATIENCE_SECONDS", 0.0)
    heard: list[DistributaryError] = []
    # one value that takes seconds: the engine looks for an interrupt only after it
    sql = "select levenshtein(repeat('a', 20000), repeat('b', 20000))"
    with (
        pytest.raises(DistributaryError),
        Questions(str(lake)).ask(sql, QueryLimits(seconds=0.01), overdue=heard.append) as answer,
    ):
        list(answer.rows())
    assert [error.code for error in heard] == [ErrorCode.QUERY_STOPPED]


def test_a_file_that_is_gone_is_the_lakes_fault(lake: Path) -> None:
    for file in (lake / "silver_0").glob("*.parquet"):
        file.unlink()
    assert refused(lake, "select * from silver_0").code is ErrorCode.LAKE_UNAVAILABLE


def test_a_file_outside_of_the_lake_is_not_read(lake: Path, tmp_path: Path) -> None:
    (file,) = (lake / "silver_0").glob("*.parquet")
    file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(tmp_path / "elsewhere.parquet")
    assert refused(lake, "select * from silver_0").code is ErrorCode.OUTSIDE_LAKE


def test_tables_that_only_their_own_engine_reads_can_be_joined_with_themselves(lake: Path) -> None:
    table = DeltaTable(str(lake / "silver_0"))
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    sql = "select count(*) n from silver_0 a join silver_0 b using (_offset)"
    assert ask(lake, sql) == [{"n": 10}]


def write(path: Path, offsets: list[int], batch: int) -> None:
    rows = pa.table(
        {
            "_offset": pa.array(offsets, pa.int64()),
            "_batch": pa.array([batch] * len(offsets), pa.int64()),
        }
    )
    write_deltalake(str(path), rows, mode="append")


def offsets(path: Path, count: int) -> list[int]:
    found = open_readable(str(path))
    assert found is not None
    return newest(found, count).column("_offset").to_pylist()


def test_the_newest_rows_come_first(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, [4, 5], 1)
    # written later, and older
    write(table, [1, 3, 2], 0)
    write(table, [7, 6], 2)
    assert offsets(table, 3) == [7, 6, 5]
    assert offsets(table, 100) == [7, 6, 5, 4, 3, 2, 1]
    DeltaTable(str(table)).optimize.compact()
    assert offsets(table, 3) == [7, 6, 5]


def test_the_newest_rows_of_a_table_that_does_not_say_what_is_new(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1, 2, 3]}))
    found = open_readable(str(tmp_path / "t"))
    assert found is not None
    assert newest(found, 2).num_rows == 2
    write_deltalake(str(tmp_path / "empty"), pa.table({"a": pa.array([], pa.int64())}))
    nothing = open_readable(str(tmp_path / "empty"))
    assert nothing is not None
    assert newest(nothing, 5).num_rows == 0
