"""Whole runs whose Delta tables have Iceberg mirrors."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from distributary.cli.command_line import main
from distributary.delta.removal.holds import hold_of
from distributary.delta.tables import open_table, read_rows
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary.observe.cards import read_mirror_state
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, run
from tests.iceberg.tables import sorted_rows
from tests.lakes.changes import Feed
from tests.lakes.games import Games, read

TABLES = "{bronze: bronze_events, each: 'silver_{type}', unified: unified_gold}"
MIRRORED = "iceberg: {tables: ['silver_*', unified_gold]}"


def assert_mirrored(games: Games, *names: str) -> None:
    """Assert that the mirrors of tables have the rows of the tables, and no other has one."""
    for name in names:
        mirror = StaticTable.from_metadata(f"{games.lake}/{name}/_iceberg")
        assert sorted_rows(mirror.scan().to_arrow()) == sorted_rows(read(games.lake / name))
    others = {entry.name for entry in games.lake.iterdir()} - set(names)
    assert not [name for name in others if (games.lake / name / "_iceberg").exists()]


def test_mirrors_follow_the_batches(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=10, bad=7))
    games.send_all()
    pipeline = games.pipeline(tables=TABLES, lake=MIRRORED)
    pipeline.run(spark=tasks)
    names = [*games.tables(), "unified_gold"]
    assert_mirrored(games, *names)
    state = read_mirror_state(str(games.lake), "games")
    assert state is not None and (state.tables, state.behind) == (len(names), 0)
    # files that a mirror may need are kept from now on
    assert state.current_until is not None
    hold = hold_of(str(games.lake / names[0]))
    # what `status` shows is in milliseconds
    assert abs(hold.since - (state.current_until - timedelta(hours=1)).timestamp()) < 0.01

    # a run without anything new sees what was done beside it
    metadata = games.lake / names[0] / "_iceberg" / "metadata"
    for file in metadata.iterdir():
        file.unlink()
    games.pipeline(tables=TABLES, lake=MIRRORED).run(spark=tasks)
    assert_mirrored(games, *names)

    # a pipeline without mirrors no longer keeps files for them
    games.pipeline(tables=TABLES).run(spark=tasks)
    assert hold_of(str(games.lake / names[0])).since == float("inf")


def test_commands_bring_mirrors_up_to_date(
    tmp_path: Path, tasks: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10, bad=0), records_per_file=5)
    games.send_all()
    games.pipeline(tables=TABLES, batch=10).run(spark=tasks)
    file = str(games.write_file(tables=TABLES, batch=10))
    assert main(["iceberg", "sync", file]) == 2
    games.write_file(tables=TABLES, batch=10, lake=MIRRORED)
    capsys.readouterr()
    assert main(["iceberg", "sync", file, "--json"]) == 0
    names = [*games.tables(), "unified_gold"]
    answer = json.loads(capsys.readouterr().out)
    assert {table["table"] for table in answer["tables"]} == set(names)
    assert_mirrored(games, *names)
    assert main(["maintain", file, "--optimize"]) == 0
    assert main(["iceberg", "sync", file, names[0]]) == 0
    assert main(["iceberg", "sync", file, names[0], "--again"]) == 0
    assert main(["iceberg", "sync", file, "bronze_events"]) == 2
    assert main(["iceberg", "sync", file]) == 0
    assert_mirrored(games, *names)
    assert main(["status", "--lake", str(games.lake)]) == 0
    pipeline = games.pipeline(tables=TABLES, lake=MIRRORED)
    remove(pipeline, plan_clean(pipeline))
    assert games.tables() == []
    games.pipeline(tables=TABLES, lake=MIRRORED).run(spark=tasks)
    assert_mirrored(games, *names)


def test_a_vacuum_keeps_what_a_lagging_mirror_needs(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=20, bad=0), records_per_file=2)
    games.send_all()
    games.pipeline(tables=TABLES, batch=2, lake=MIRRORED).run(spark=tasks)
    names = [*games.tables(), "unified_gold"]
    mirror = StaticTable.from_metadata(f"{games.lake}/{names[0]}/_iceberg")
    before = sorted_rows(mirror.scan().to_arrow())
    file = str(games.root / "games.yaml")
    assert main(["maintain", file, "--optimize"]) == 0
    old = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    for path in (games.lake / names[0]).glob("*.parquet"):
        os.utime(path, (old, old))
    assert main(["maintain", file, "--vacuum", "--retention", "0s", "--force"]) == 0
    mirror = StaticTable.from_metadata(f"{games.lake}/{names[0]}/_iceberg")
    assert sorted_rows(mirror.scan().to_arrow()) == before


def test_mirrors_of_change_data(tmp_path: Path, tasks: SparkSession) -> None:
    plan = CdcPlan(tables=2, events=80, rows=4, rounds=3, features=CHAOS, file_events=30)
    feed, rounds = Feed(tmp_path, plan), 0
    while feed.send_round() is not None:
        rounds += 1
        tables = "{each: '{database}_{table}', format: iceberg}"
        file = feed.write_file(cdc=", history: true, deletes_as: vectors", tables=tables)
        place = f"{{path: {feed.lake}, iceberg: {{type: none}}}}"
        file.write_text(file.read_text().replace(f"{{path: {feed.lake}}}", place))
        Pipeline.load(file).run(spark=tasks)
        for role in (Role.LOG, Role.MERGED, Role.HISTORY):
            for name in feed.tables(role).values():
                if (feed.lake / name / "_delta_log").exists():
                    mirror = StaticTable.from_metadata(f"{feed.lake}/{name}/_iceberg")
                    delta = open_table(str(feed.lake / name))
                    assert delta is not None
                    assert sorted_rows(mirror.scan().to_arrow()) == sorted_rows(read_rows(delta))
    feed.assert_true()
    assert rounds > 1
    state = read_mirror_state(str(feed.lake), "changes")
    assert state is not None and (state.tables > 4, state.behind) == (True, 0)


@pytest.mark.slow
def test_mirrors_survive_kills(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=4, bad=0), records_per_file=12)
    games.send_all()
    iceberg = MIRRORED.replace("{tables", "{every: 1s, tables")
    games.write_file(tables=TABLES, batch=12, extra=SMALL, lake=iceberg)
    moments = (KillPoint.AFTER_STAGE, KillPoint.AFTER_MANIFEST, KillPoint.AFTER_FIRST_COMMIT)
    for number, moment in enumerate(moments):
        code, output = run(games, **{KILL: f"{moment}:{number}"})
        assert code == -signal.SIGKILL, output
    code, output = run(games)
    assert code == 0, output
    assert_mirrored(games, *games.tables(), "unified_gold")
