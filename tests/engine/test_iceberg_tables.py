"""Whole runs with Iceberg tables."""

import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from distributary.config.lake import LakeConfig
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ConfigError
from distributary.model.manifest import Counts
from distributary.observe.trace import Coordinates, TraceVerdict, trace_offset
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary.operations.replay import LANE, replay
from distributary.operations.trial_registry import preview
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.iceberg_table import open_catalog
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, run
from tests.lakes.games import Games

TABLES = "bronze: bronze_events, each: 'silver_{type}', unified: unified_gold"
ICEBERG = f"{{{TABLES}, format: iceberg}}"

pytestmark = pytest.mark.spark


def known(games: Games) -> set[str]:
    """The tables that the lake's catalog has."""
    catalog = open_catalog(LakeConfig(path=str(games.lake)))
    try:
        return {name for _, name in catalog.list_tables("default")}
    finally:
        catalog.close()


def test_a_lake_of_iceberg_tables(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=10, bad=17))
    games.send_all()
    summary = games.pipeline(tables=ICEBERG).run(spark=spark)
    assert summary.counts == Counts(read=137, written=120, dead_lettered=17)
    tables = {*games.tables(), "bronze_events", "unified_gold"}
    assert {format_at(str(games.lake / table)) for table in tables} == {"iceberg"}
    assert format_at(str(games.lake / "dead_letters")) == "delta"
    assert known(games) == tables
    games.assert_each_record_once()
    assert len(games.rows("bronze_events")) == 137
    assert len(games.rows("unified_gold")) == 120
    rows = pa.Table.from_pylist(games.rows(games.tables()[0]))
    assert [c for c in rows.column_names if c.startswith("col_")] == [
        f"col_{games.plan.names[0]}_{i}" for i in range(4)
    ]

    # the same settings again find nothing to do, and the other format is refused by name
    assert games.pipeline(tables=ICEBERG).run(spark=spark).counts == Counts()
    assert not preview(games.pipeline(tables=ICEBERG)).changes_something
    with pytest.raises(ConfigError):
        games.pipeline(tables=f"{{{TABLES}}}").run(spark=spark)


def test_commands_that_look_into_tables_know_iceberg(tmp_path: Path, spark: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=10, bad=2))
    games.send_all()
    pipeline = games.pipeline(tables=ICEBERG)
    pipeline.run(spark=spark)
    lake, table = str(games.lake), games.tables()[0]
    row = games.rows(table)[3]
    trace = trace_offset(lake, Coordinates("wrapper", 0, row["_offset"]))
    assert trace.verdict is TraceVerdict.WRITTEN
    (place,) = [p for p in trace.places if p.table == table]
    assert place.values["user_name"] == row["user_name"]
    with games.pipeline(tables=ICEBERG).open(spark, lane=LANE) as context:
        letters = dead_letters_of(pipeline)
        assert replay(context, letters, letters.select()).selected == 2
    games.assert_each_record_once()
    remove(pipeline, plan_clean(pipeline))
    assert games.tables() == []
    assert known(games) == set()
    # and from the start
    assert games.pipeline(tables=ICEBERG).run(spark=spark).counts.written == 20
    games.assert_each_record_once()


@pytest.mark.slow
def test_iceberg_tables_survive_kills(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=4, bad=6), records_per_file=16)
    games.send_all()
    games.write_file(tables=ICEBERG, batch=18, extra=SMALL)
    moments = (KillPoint.AFTER_STAGE, KillPoint.AFTER_MANIFEST, KillPoint.AFTER_FIRST_COMMIT)
    for number, moment in enumerate(moments):
        code, output = run(games, **{KILL: f"{moment}:{number}"})
        assert code == -signal.SIGKILL, output
    code, output = run(games)
    assert code == 0, output
    games.assert_each_record_once()
    assert sum(len(games.rows(table)) for table in games.tables()) == 48
