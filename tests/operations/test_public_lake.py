"""`distributary.Lake`: tables as Arrow, Polars, pandas and DuckDB, all at one cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import distributary
from distributary import DistributaryError, Lake
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.trace import Trace
from distributary.operations import public_lake as module
from tests.lakes.settled import SettledLake
from tests.lakes.written import HOSTILE, make_lake


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    lake = SettledLake(tmp_path)
    for _ in range(3):
        lake.batch({"chess": 2, "go": 1})
    return lake


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(make_lake(tmp_path_factory.mktemp("lakes") / "lake"))


def test_a_table_in_every_form(games: SettledLake) -> None:
    lake = Lake(games.lake)
    assert lake.tables() == list(lake) == ["bronze_events", "silver_chess", "silver_go"]
    assert "silver_go" in lake and "silver_poker" not in lake
    chess = lake["silver_chess"]
    assert (chess.version, chess.schema.names[0]) == (2, "move")
    assert chess.to_arrow().num_rows == 6
    assert chess.to_arrow(["_batch"]).column_names == ["_batch"]
    assert chess.to_polars().shape == (6, 5)
    assert isinstance(chess.to_polars(), polars.DataFrame)
    assert len(chess.to_pandas()) == 6
    assert chess.to_duckdb().aggregate("count(*)").fetchall() == [(6,)]
    with duckdb.connect() as connection:
        assert chess.to_duckdb(connection).filter("_batch = 1").fetchall() != []
    assert chess.head(1).to_pylist()[0]["_batch"] == 2
    # by its type
    assert lake["go"].name == "silver_go"


def test_a_cut_stays_what_it_is_while_batches_go_on(games: SettledLake) -> None:
    lake = Lake(games.lake)
    now, first = lake.at(), lake.at(0)
    games.batch({"chess": 2, "go": 1, "poker": 1})
    games.batch({"chess": 2}, settled=False)
    sql = "select (select count(*) from silver_chess) c, (select count(*) from silver_go) g"
    counts = [each.query(sql).to_pylist()[0] for each in (lake, now, first)]
    assert counts == [{"c": 8, "g": 4}, {"c": 6, "g": 3}, {"c": 2, "g": 1}]
    assert [len(each["silver_chess"].to_arrow()) for each in (lake, now, first)] == [8, 6, 2]
    assert "silver_poker" in lake and "silver_poker" not in now
    with pytest.raises(ConfigError) as caught:
        first["silver_poker"].to_arrow()
    assert "not part of cut 0" in str(caught.value)
    assert [cut.batch for cut in lake.cuts(2)] == [3, 2]
    versions = {t.table: t.version for t in first.cut().tables}
    assert versions["silver_chess"] == 0
    assert lake.cut().as_dict()["batches"][0]["batch"] == 3


def test_an_opened_table_keeps_its_version(games: SettledLake) -> None:
    chess = Lake(games.lake)["silver_chess"]
    assert chess.version == 2
    games.batch({"chess": 2})
    assert chess.to_arrow().num_rows == 6
    DeltaTable(chess.path).optimize.compact()
    DeltaTable(chess.path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(DistributaryError) as caught:
        chess.to_arrow()
    assert caught.value.code is ErrorCode.CUT_LOST


def test_the_rest_of_a_lake(tmp_path: Path) -> None:
    lake = Lake(make_lake(tmp_path / "lake"))
    assert lake.status().pipelines[0].name == "games"
    assert len(lake.dead_letters()) == 3
    assert len(lake.dead_letters(reason="NULL_VALUE", columns=["id"])) == 1
    found = lake.trace("wrapper/0/5")
    assert isinstance(found, Trace) and found.sentence()
    rows = lake.trace("silver_0", _offset=3)
    assert not isinstance(rows, Trace)
    assert rows[0].values["move"] == "e4"
    for wrong in ("nowhere", "a/b/c"):
        with pytest.raises(ConfigError):
            lake.trace(wrong)
    with pytest.raises(ConfigError):
        lake.trace("silver_0", a=1, b=2)


def test_statements_are_those_of_the_command(games: SettledLake) -> None:
    lake = Lake(games.lake)
    assert lake.query("select 1 as one").to_pydict() == {"one": [1]}
    assert lake.query("select * from range(5) t(i)", rows=2).num_rows == 2
    assert lake.query("select move from silver_chess where false").schema == pa.schema(
        [("move", pa.string())]
    )
    with pytest.raises(ConfigError) as caught:
        lake.query("copy silver_chess to 'x.csv'")
    assert caught.value.code is ErrorCode.QUERY_INVALID


def test_what_is_not_there_is_named(
    games: SettledLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        Lake(tmp_path / "nowhere")
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(DistributaryError) as unknown:
        Lake(games.lake)["silver_ches"]
    assert "silver_chess" in str(unknown.value)
    with pytest.raises(DistributaryError):
        Lake(games.lake)["silver_chess"].to_arrow(["mov"])

    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(module, "import_module", absent)
    with pytest.raises(DistributaryError) as missing:
        Lake(games.lake)["silver_chess"].to_polars()
    assert missing.value.code is ErrorCode.EXTRA_MISSING
    assert missing.value.next_step == "pip install polars"


class SparkSession:
    """A session as `stop` leaves it: its context has no JVM."""

    def __init__(self) -> None:
        self._sc = type("SparkContext", (), {"_jsc": None})()


def closed() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.close()
    return connection


WRONG: dict[str, tuple[Callable[[Lake, Any], object], tuple[object, ...]]] = {
    "path": (lambda lake, value: Lake(value), (None, 5, b"lake")),
    "storage_options": (
        lambda lake, value: Lake(lake.path, storage_options=value),
        (5, "a=b", ["a"], {"a": 1}, {1: "a"}),
    ),
    "as_of": (lambda lake, value: lake.at(value), (1.5, True, [1], 10**30, "9" * 30, b"1")),
    "pipeline": (lambda lake, value: lake.at(0, pipeline=value), (5, ["games"])),
    "name": (lambda lake, value: lake[value], (None, 5, ["silver_0"], slice(1), {})),
    "sql": (lambda lake, value: lake.query(value), (None, 5, b"select 1")),
    "seconds": (
        lambda lake, value: lake.query("select 1", seconds=value),
        (None, "5", 0, -1, float("nan"), float("inf")),
    ),
    "memory": (
        lambda lake, value: lake.query("select 1", memory=value),
        (None, "2GB", 0, 1.5, 10**30),
    ),
    "rows": (lambda lake, value: lake.query("select 1", rows=value), ("5", -1, 1.5)),
    "last": (lambda lake, value: lake.cuts(value), (None, "5", -1, 1.5, 10**30)),
    "of cuts": (lambda lake, value: lake.cuts(pipeline=value), (5,)),
    "since": (lambda lake, value: lake.changes_since(value), (1.5, object())),
    "tables": (
        lambda lake, value: lake.changes_since(0, tables=value),
        (5, "silver_0", [None], [5], ["x"]),
    ),
    "status": (lambda lake, value: lake.status(value), (5, [])),
    "letters": (
        lambda lake, value: lake.dead_letters(**value),
        (
            *({"reson": "x"}, {"reason": 5}, {"type": 5}, {"status": 5}, {"pipeline": 5}),
            *({"since": "2026-11-18"}, {"until": 5}, {"partition": "0"}, {"limit": -1}),
            *({"limit": "5"}, {"offsets": (1,)}, {"offsets": "1-2"}, {"offsets": ("1", 2)}),
            *({"columns": "id"}, {"columns": ["nope"]}, {"columns": 5}),
        ),
    ),
    "where": (lambda lake, value: lake.trace(value), (None, 5)),
    "rows of": (lambda lake, value: lake.trace(value, move="e4"), (None, 5, "nope")),
    "columns": (
        lambda lake, value: lake["silver_0"].to_arrow(value),
        (5, "move", [None], [["move"]]),
    ),
    "of pandas": (lambda lake, value: lake["silver_0"].to_pandas(value), (5,)),
    "of polars": (lambda lake, value: lake["silver_0"].to_polars(value), (5,)),
    "connection": (
        lambda lake, value: lake["silver_0"].to_duckdb(value),
        (5, "lake.duckdb", closed()),
    ),
    "spark": (
        lambda lake, value: lake["silver_0"].to_spark(value),
        (None, 5, "local[2]", SparkSession()),
    ),
    "count": (lambda lake, value: lake["silver_0"].head(value), (None, "5", -1, 1.5, 10**30)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_errors_of_ours(made: Lake, name: str) -> None:
    call, values = WRONG[name]
    for value in values:
        with pytest.raises(ConfigError) as caught:
            call(made, value)
        assert caught.value.next_step, value


def test_arguments_that_are_right(made: Lake) -> None:
    silver = made["silver_0"]
    assert silver.head(0).num_rows == 0 and silver.head(0).schema == silver.head(1).schema
    assert silver.to_arrow(()).num_columns == 0
    assert silver.to_arrow(dict.fromkeys(["move"])).column_names == ["move"]
    assert len(made.dead_letters(offsets=(0, 100), limit=2, partition=0, columns=["id"])) == 2
    assert len(made.dead_letters(since=datetime(2000, 1, 1, tzinfo=UTC), status=None)) == 3
    assert made.query("select 1 as one", seconds=1, rows=0).num_rows == 0
    assert made.cuts(0) == ()


def test_a_notebook_shows_names_and_values_as_text(tmp_path: Path) -> None:
    lake = Lake(make_lake(tmp_path / "lake", types=("<script>", HOSTILE)))
    page = lake._repr_html_()
    assert "&lt;script&gt;" in page and "<script>" not in page and "\x1b" not in page
    assert repr(lake) == f"Lake('{tmp_path}/lake')"
    assert repr(lake.at(0)).endswith(" at cut 0")
    table = lake["silver_0"]
    assert "<td>e4</td>" in table._repr_html_()
    assert repr(table) == "LakeTable('silver_0', version=0)"


def test_importing_the_package_stays_quick() -> None:
    code = (
        "import sys, distributary; heavy = {'pyarrow', 'pyspark', 'deltalake', 'duckdb'}; "
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys(); "
        "distributary.Lake; assert not {'pyspark', 'duckdb'} & sys.modules.keys()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Lake" in distributary.__all__
