"""Whole runs whose tables are registered in a catalog: evolved, failed, healed, removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from distributary.catalog.base import NOT_EMPTY
from distributary.cli.doctor import checks_for_file
from distributary.engine import batch
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.errors import CatalogUnavailableError
from distributary.model.check import CheckState
from distributary.model.table import Role
from distributary.observe.cards import read_catalog_state
from distributary.observe.events import CatalogUpdated, Event
from distributary.observe.metrics import Metrics
from distributary.observe.status.status import status
from distributary.operations.repair.reset_clean import plan_clean, plan_schema, remove
from distributary_lab.simulate.game_records import GamesPlan
from tests.catalog.unity_server import TOKEN, Refused, Unity, unity_server
from tests.lakes.games import TABLES, Games
from tests.source.s3_server import BUCKET, KEYS, s3_server


@pytest.fixture
def unity() -> Iterator[Unity]:
    with unity_server() as server:
        yield server


def with_catalog(games: Games, catalog: str, **settings: Any) -> Path:
    file = games.write_file(**settings)
    place = f"{{path: {games.lake}}}"
    told = f"{{path: {games.lake}, catalog: {catalog}}}"
    file.write_text(file.read_text().replace(f"lake: {place}", f"lake: {told}"))
    return file


def in_unity(server: Unity) -> str:
    return f"{{type: unity, url: '{server.url}', token: {TOKEN}, name: main, schema: games}}"


def columns(server: Unity, table: str) -> list[str]:
    return [c["name"] for c in server.tables[f"main.games.{table}"]["columns"]]


def test_tables_are_in_unity_and_their_columns_follow(
    tmp_path: Path, tasks: SparkSession, unity: Unity
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    games.send_round()
    summary = Pipeline.load(with_catalog(games, in_unity(unity))).run(spark=tasks)
    names = ["bronze_events", "unified_gold", *games.tables()]
    assert {f"main.games.{name}" for name in names} <= set(unity.tables)
    assert summary.catalog is not None
    assert (summary.catalog.waiting, summary.catalog.problems) == (0, ())
    table, name = games.tables()[0], games.plan.names[0]
    assert f"col_{name}_1" not in columns(unity, table)
    told = unity.tables[f"main.games.{table}"]
    assert any("event.user_name" in c["comment"] for c in told["columns"])

    games.send_round()
    created = unity.count("POST", "/tables")
    Pipeline.load(with_catalog(games, in_unity(unity))).run(spark=tasks)
    assert f"col_{name}_1" in columns(unity, table)
    assert unity.count("POST", "/tables") == created
    games.assert_each_record_once()


def test_a_catalog_that_is_down_costs_no_batch(
    tmp_path: Path, tasks: SparkSession, unity: Unity
) -> None:
    def down(method: str, path: str) -> None:
        raise Refused(503, "UNAVAILABLE", f"no {TOKEN}")

    games = Games(tmp_path, GamesPlan(games=1, versions=2, records=5))
    games.send_round()
    unity.before = down
    file = with_catalog(games, in_unity(unity))
    pipeline = Pipeline.load(file)
    heard: list[Event] = []
    metrics = Metrics()
    pipeline.bus.subscribe(heard.append)
    pipeline.bus.subscribe(metrics.listen)
    summary = pipeline.run(spark=tasks)
    assert summary.counts.written == 5
    assert summary.catalog is not None
    assert summary.catalog.code == "CATALOG_UNAVAILABLE"
    told = [e for e in heard if isinstance(e, CatalogUpdated)]
    assert told[-1].waiting >= 3
    assert b"distributary_catalog_tables_waiting" in metrics.render()[1]
    (shown,) = status(str(games.lake)).as_dict()["pipelines"]
    assert shown["catalog"]["waiting"] >= 3
    assert shown["catalog"]["problems"][0]["code"] == "CATALOG_UNAVAILABLE"
    assert TOKEN not in json.dumps(shown)
    check = {c.name: c for c in checks_for_file(pipeline.loaded, None)}["catalog"]
    assert check.state is CheckState.FAIL
    assert TOKEN not in str(check)

    # and the next run heals it, though no record comes
    unity.before = lambda method, path: None
    Pipeline.load(file).run(spark=tasks)
    assert f"main.games.{games.tables()[0]}" in unity.tables
    healed = read_catalog_state(str(games.lake), "games")
    assert healed is not None
    assert (healed.waiting, healed.problems) == (0, ())
    check = {c.name: c for c in checks_for_file(pipeline.loaded, None)}["catalog"]
    assert check.state is CheckState.PASS


def test_clean_takes_entries_away_and_only_its_own(
    tmp_path: Path, tasks: SparkSession, unity: Unity
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    games.send_round()
    file = with_catalog(games, in_unity(unity))
    Pipeline.load(file).run(spark=tasks)
    mine, theirs = games.tables()
    unity.tables[f"main.games.{theirs}"]["storage_location"] = "s3://somewhere/else"
    pipeline = Pipeline.load(file)

    def down(method: str, path: str) -> None:
        raise Refused(503, "UNAVAILABLE")

    unity.before = down
    with pytest.raises(CatalogUnavailableError):
        remove(pipeline, plan_clean(pipeline))
    # nothing was begun: the tables are there, and so are their entries
    assert games.tables() == [mine, theirs]
    unity.before = lambda method, path: None
    remove(pipeline, plan_clean(pipeline))
    assert games.tables() == []
    assert f"main.games.{mine}" not in unity.tables
    assert f"main.games.{theirs}" in unity.tables
    assert remove(pipeline, [plan_schema(pipeline)]) == NOT_EMPTY
    del unity.tables[f"main.games.{theirs}"]
    assert remove(pipeline, [plan_schema(pipeline)]) == ""
    assert not unity.schemas


def test_a_run_that_ended_before_it_registered_is_healed(
    tmp_path: Path, tasks: SparkSession, unity: Unity, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=5))
    games.send_round()
    file = with_catalog(games, in_unity(unity))

    def end(here: KillPoint, _: int) -> None:
        if here is KillPoint.BEFORE_SETTLE:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch, "reached", end)
        with pytest.raises(KeyboardInterrupt):
            Pipeline.load(file).run(spark=tasks)
    table = f"main.games.{games.tables()[0]}"
    assert table not in unity.tables
    summary = Pipeline.load(file).run(spark=tasks)
    assert table in unity.tables
    assert summary.catalog is not None and summary.catalog.waiting == 0


def test_a_lake_in_a_bucket_is_in_glue(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=2, records=5))
    with s3_server() as server:
        endpoint = server.options["AWS_ENDPOINT_URL"]
        options = ", ".join(f'{name}: "{value}"' for name, value in server.options.items())
        catalog = f"{{type: glue, schema: games, region: eu-central-1, endpoint: '{endpoint}'}}"
        client = boto3.client("glue", region_name="eu-central-1", endpoint_url=endpoint, **KEYS)
        for _ in range(2):
            games.send_round()
            file = games.write_file(tables=TABLES)
            lake = (
                f"{{path: s3://{BUCKET}/lake, storage_options: {{{options}}}, catalog: {catalog}}}"
            )
            file.write_text(
                file.read_text().replace(f"lake: {{path: {games.lake}}}", f"lake: {lake}")
            )
            pipeline = Pipeline.load(file)
            assert pipeline.run(spark=tasks).counts.written == 5
        tables = {t["Name"]: t for t in client.get_tables(DatabaseName="games")["TableList"]}
        each = next(t.table for t in pipeline.ledger().tables("games") if t.role == Role.EACH)
        stored = tables[each]["StorageDescriptor"]
        assert stored["Location"] == f"s3://{BUCKET}/lake/{each}"
        assert f"col_{games.plan.names[0]}_1" in [c["Name"] for c in stored["Columns"]]
        remove(pipeline, plan_clean(pipeline))
        left = {t["Name"] for t in client.get_tables(DatabaseName="games")["TableList"]}
        assert each not in left


_QUERY = """
import sys
from pathlib import Path
from distributary.engine.pipeline import Pipeline
pipeline = Pipeline.load(sys.argv[1])
spark = pipeline.session()
for table in sys.argv[2:]:
    frame = spark.sql(f"SELECT * FROM games.{table}")
    print(table, frame.count(), ",".join(frame.columns))
print("left", spark.sql("SHOW TABLES IN games").count())
"""


def in_derby(folder: Path) -> str:
    """The settings of a Hive metastore that one process at a time can open."""
    store = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    return f"""spark:
  conf:
    spark.hadoop.javax.jdo.option.ConnectionURL: "{store}"
    spark.sql.warehouse.dir: "{folder}/warehouse"
    spark.driver.extraJavaOptions: "-Dderby.stream.error.file=/dev/null"
"""


def process(*command: str, ends: int = 0, **variables: str) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | variables
    )
    assert done.returncode == ends, done.stderr[-3000:]
    return done.stdout


_MANAGE = """
import sys
from distributary.engine.pipeline import Pipeline
pipeline = Pipeline.load(sys.argv[1])
spark = pipeline.session()
spark.sql(f"CREATE SCHEMA IF NOT EXISTS games LOCATION '{pipeline.config.lake.address}'")
columns = "owner STRING, _offset BIGINT"
spark.sql(f"CREATE TABLE IF NOT EXISTS games.{sys.argv[2]} ({columns}) USING delta")
told = spark.sql(f"DESCRIBE TABLE EXTENDED games.{sys.argv[2]}").collect()
print(next(row["data_type"] for row in told if row["col_name"] == "Type"))
"""


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.slow
def test_a_managed_table_of_a_hive_metastore_is_written_by_its_name(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    table = f"silver_{games.plan.names[0]}"
    file = with_catalog(
        games,
        "{type: hive, schema: games}",
        tables='{each: "silver_{type}", publisher: spark}',
        extra=in_derby(tmp_path),
    )
    manage = (sys.executable, "-c", _MANAGE, str(file), table)
    run = (sys.executable, "-m", "distributary", "run", str(file), "--json")
    assert process(*manage).split() == ["MANAGED"]
    games.send_round()
    # all tables have the batch, nobody has written that down
    process(*run, ends=-9, **{KILL: f"{KillPoint.BEFORE_SETTLE}:0"})
    games.send_round()
    assert json.loads(process(*run))["catalog"]["problems"] == []
    games.assert_each_record_once()
    told = process(sys.executable, "-c", _QUERY, str(file), table).split()
    assert told[:2] == [table, "10"]
    assert {"owner", f"col_{games.plan.names[0]}_1"} <= set(told[2].split(","))
    assert process(*manage).split() == ["MANAGED"]


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.slow
def test_a_hive_metastore_has_the_tables_for_every_session(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=5))
    file = with_catalog(games, "{type: hive, schema: games}", extra=in_derby(tmp_path))
    for _ in range(2):
        games.send_round()
        run = json.loads(process(sys.executable, "-m", "distributary", "run", str(file), "--json"))
        assert run["catalog"]["problems"] == []
    told = process(sys.executable, "-c", _QUERY, str(file), *games.tables())
    lines = [line.split() for line in told.splitlines()]
    assert [line[:2] for line in lines[:2]] == [[name, "10"] for name in games.tables()]
    assert f"col_{games.plan.names[0]}_1" in lines[0][2]
    assert int(lines[2][1]) >= 4
    process(sys.executable, "-m", "distributary", "clean", str(file), "--yes")
    # the table of dead letters is the lake's
    assert process(sys.executable, "-c", _QUERY, str(file)).split() in (
        ["left", "0"],
        ["left", "1"],
    )
