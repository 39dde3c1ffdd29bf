"""Whole runs with partitioned tables, of plain Parquet files and of Delta."""

import signal
from datetime import date
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.catalog.base import CatalogEntry
from distributary.catalog.spark_catalog import SessionCatalog
from distributary.cli.doctor import tables_with_expiring_marks
from distributary.config.catalog import SparkCatalogConfig
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ConfigError
from distributary.model.manifest import Counts, Mark, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.trace import Coordinates, TraceVerdict, trace_offset, trace_row
from distributary.operations.plan.trial_registry import preview
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary.operations.repair.resume_table import resume, waiting
from distributary.operations.replay import LANE, replay
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.parquet_publisher import ParquetPublisher
from distributary.store.base import same_place
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, run
from tests.lakes.games import Games

TABLES = "bronze: bronze_events, each: 'silver_{type}', unified: unified_gold"
PARQUET = f"{{{TABLES}, format: parquet, partition_by: [_date]}}"
DELTA = f"{{{TABLES}, partition_by: [_date, user_name]}}"


def test_a_lake_of_plain_folders(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=10, bad=17))
    games.send_all()
    settings = {"tables": PARQUET, "timed": True}
    summary = games.pipeline(**settings).run(spark=spark)
    assert summary.counts == Counts(read=137, written=120, dead_lettered=17)
    assert {format_at(str(games.lake / t)) for t in games.tables()} == {"parquet"}
    assert format_at(str(games.lake / "dead_letters")) == "delta"
    games.assert_each_record_once()

    table = games.lake / games.tables()[0]
    frame = pd.read_parquet(table)
    assert len(frame) == 40
    assert (frame["_date"] == frame["_timestamp"].dt.date).all()
    assert (frame["by_date"].astype(str) == frame["_date"].astype(str)).all()
    assert [c for c in frame.columns if c.startswith("col_")] == [
        f"col_{games.plan.names[0]}_{i}" for i in range(4)
    ]
    by_spark = spark.read.parquet(str(table))
    assert (by_spark.count(), set(by_spark.columns)) == (40, set(frame.columns))
    with duckdb.connect() as connection:
        rows = connection.read_parquet(f"{table}/**/*.parquet", union_by_name=True)
        assert rows.count("*").fetchall() == [(40,)]
    assert len(pd.read_parquet(games.lake / "bronze_events")) == 137
    assert len(pd.read_parquet(games.lake / "unified_gold")) == 120

    # the same settings again find nothing to do, and the other format is refused by name
    assert games.pipeline(**settings).run(spark=spark).counts == Counts()
    assert not preview(games.pipeline(**settings)).changes_something
    with pytest.raises(ConfigError):
        games.pipeline(tables=f"{{{TABLES}}}").run(spark=spark)


def test_commands_that_look_into_tables_know_plain_folders(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=10, bad=2))
    games.send_all()
    pipeline = games.pipeline(tables=PARQUET, timed=True)
    pipeline.run(spark=tasks)
    lake, table = str(games.lake), games.tables()[0]
    row = games.rows(table)[3]
    trace = trace_offset(lake, Coordinates("wrapper", 0, row["_offset"]))
    assert trace.verdict is TraceVerdict.WRITTEN
    (place,) = [p for p in trace.places if p.table == table]
    assert place.values["user_name"] == row["user_name"]
    assert place.file is not None
    assert place.row is not None
    found = pd.read_parquet(games.lake / table / place.file).iloc[place.row]
    assert found["_offset"] == row["_offset"]
    origins = trace_row(lake, table, "user_name", row["user_name"])
    assert row["_offset"] in {o.source.offset for o in origins if o.source}
    assert tables_with_expiring_marks(games.lake, "games") == []
    with games.pipeline(tables=PARQUET, timed=True).open(tasks, lane=LANE) as context:
        letters = dead_letters_of(pipeline)
        assert replay(context, letters, letters.select()).selected == 2
    games.assert_each_record_once()
    remove(pipeline, plan_clean(pipeline))
    assert games.tables() == []


def test_a_plain_folder_that_cannot_be_written_is_parked_and_resumed(
    tmp_path: Path, tasks: SparkSession
) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=2, records=5))
    games.send_round()
    settings = {"tables": "{each: 'silver_{type}', format: parquet}"}
    games.pipeline(**settings).run(spark=tasks)
    table = games.tables()[0]
    lock = games.lake / table / "_distributary" / "lock"
    lock.unlink()
    lock.mkdir()
    games.send_round()
    counts = games.pipeline(**settings).run(spark=tasks).counts
    assert counts == Counts(read=15, written=10, parked=5)
    assert len(pd.read_parquet(games.lake / table)) == 5
    lock.rmdir()
    pipeline = games.pipeline(**settings)
    assert [p.outcome for p in resume(pipeline, table)] == ["published"]
    assert waiting(pipeline) == []
    games.assert_each_record_once()


@pytest.mark.sql
def test_plain_folders_are_views_in_the_catalog(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=2, records=5))
    for sent in (5, 10):
        games.send_round()
        file = games.write_file(tables=PARQUET, timed=True)
        Pipeline.load(file, **{"lake.database": "g2"}).run(spark=spark)
        frame = spark.sql(f"SELECT * FROM g2.{games.tables()[0]}")
        assert frame.count() == sent
    assert f"col_{games.plan.names[0]}_1" in frame.columns


def test_a_folder_with_an_odd_name_can_be_a_view(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "a lake [1] 100% {x}" / "odd"
    plan = TablePlan(
        "odd", Role.EACH, "odd", str(folder), (Column("n", pa.int64()),), True, format="parquet"
    )
    ParquetPublisher().publish(TableEntry(plan, (), 0), Mark("app", 0, "source"))
    catalog = SessionCatalog(
        spark, SparkCatalogConfig.model_validate({"type": "spark", "schema": "g3"})
    )
    catalog.prepare()
    catalog.create(CatalogEntry("odd", plan.path, format="parquet"))
    assert spark.sql("SELECT * FROM g3.odd").columns == ["n"]
    assert same_place(catalog.entries()["odd"].location, plan.path)


@pytest.mark.sql
def test_partitioned_delta_tables_are_read_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10, bad=4))
    games.send_all()
    pipeline = games.pipeline(tables=DELTA, timed=True)
    assert pipeline.run(spark=spark).counts.balanced
    games.assert_each_record_once()
    table = str(games.lake / games.tables()[0])
    assert DeltaTable(table).metadata().partition_columns == ["_date", "user_name"]
    frame = spark.read.format("delta").load(table)
    assert dict(frame.dtypes)["_date"] == "date"
    by_spark = {(r["_offset"], r["_date"], r["user_name"]) for r in frame.collect()}
    rows = {(r["_offset"], r["_date"], r["user_name"]) for r in games.rows(games.tables()[0])}
    assert by_spark == rows
    assert all(isinstance(day, date) for _, day, _ in rows)
    # a partition column is in no file, and is found all the same
    offset, day, user = min(rows)
    places = trace_offset(str(games.lake), Coordinates("wrapper", 0, offset)).places
    assert {(p.table, p.values["_date"]) for p in places} == {
        (games.tables()[0], day),
        ("bronze_events", day),
        ("unified_gold", day),
    }
    origins = trace_row(str(games.lake), games.tables()[0], "user_name", user)
    assert offset in {o.source.offset for o in origins if o.source}
    bronze = DeltaTable(str(games.lake / "bronze_events"))
    assert bronze.metadata().partition_columns == ["_date"]
    assert pa.table(bronze.to_pyarrow_table())["_offset"].length() == 44


@pytest.mark.slow
def test_plain_folders_survive_kills(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=4, bad=6), records_per_file=16)
    games.send_all()
    games.write_file(tables=PARQUET, batch=18, extra=SMALL, timed=True)
    for number, moment in enumerate((KillPoint.AFTER_MANIFEST, KillPoint.AFTER_FIRST_COMMIT)):
        code, output = run(games, **{KILL: f"{moment}:{number}"})
        assert code == -signal.SIGKILL, output
    code, output = run(games)
    assert code == 0, output
    games.assert_each_record_once()
    assert sum(len(pd.read_parquet(games.lake / t)) for t in games.tables()) == 48
