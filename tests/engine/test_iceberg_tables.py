"""Whole runs with `tables.format: iceberg`."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary import Lake
from distributary.catalog.iceberg_catalog import open_catalog
from distributary.cli.command_line import main
from distributary.config.lake import LakeConfig
from distributary.engine import batch as batches
from distributary.engine.kill_points import KILL, KillPoint
from distributary.errors import ConfigError
from distributary.model.manifest import Counts
from distributary.observe.cards import read_mirror_state
from distributary.operations.plan.trial_registry import preview
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary.publish.formats.table_format_entry import format_at
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, run
from tests.iceberg.earlier import as_earlier
from tests.iceberg.tables import sorted_rows
from tests.lakes.games import Games, read

TABLES = "bronze: bronze_events, each: 'silver_{type}', unified: unified_gold"
ICEBERG = f"{{{TABLES}, format: iceberg}}"
PARTITIONED = f"{{{TABLES}, format: iceberg, partition_by: [_date]}}"


class Killed(BaseException):
    """A run ends here."""


def own_catalog(games: Games) -> LakeConfig:
    """The catalog in the lake, which is the default."""
    return LakeConfig.model_validate({"path": str(games.lake), "iceberg": {"type": "sql"}})


def known(games: Games) -> set[str]:
    """The tables that the lake's catalog has."""
    with open_catalog(own_catalog(games)) as catalog:
        return {name for _, name in catalog.list_tables("default")}


def assert_read_by_name(games: Games) -> set[str]:
    """Assert that the catalog's tables have the rows of the Delta tables; return their names."""
    with open_catalog(own_catalog(games)) as catalog:
        for name in known(games):
            # pyiceberg reads a map that is null as an empty one
            rows = catalog.load_table(("default", name)).scan().to_arrow()
            seen, there = (
                table.select([c for c in table.column_names if c != "headers"])
                for table in (rows, read(games.lake / name))
            )
            assert sorted_rows(seen) == sorted_rows(there), name
    return known(games)


def test_a_lake_of_iceberg_tables(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=4, records=10, bad=17))
    games.send_all()
    settings: dict[str, Any] = {"tables": PARTITIONED, "timed": True}
    summary = games.pipeline(**settings).run(spark=tasks)
    assert summary.counts == Counts(read=137, written=120, dead_lettered=17)
    tables = {*games.tables(), "bronze_events", "unified_gold"}
    assert {format_at(str(games.lake / name)) for name in (*tables, "dead_letters")} == {"delta"}
    assert assert_read_by_name(games) == tables
    games.assert_each_record_once()
    # the same settings again find nothing to do
    assert games.pipeline(**settings).run(spark=tasks).counts == Counts()
    assert not preview(games.pipeline(**settings)).changes_something
    # upkeep is that of Delta tables
    assert main(["maintain", str(games.root / "games.yaml"), "--optimize", "--vacuum"]) == 0
    pipeline = games.pipeline(**settings)
    remove(pipeline, plan_clean(pipeline))
    assert known(games) == set()


def test_tables_of_an_earlier_version_go_on(
    tmp_path: Path, tasks: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=3, records=5, bad=4), records_per_file=7)
    games.send_round()
    games.pipeline(tables=ICEBERG, batch=7).run(spark=tasks)
    tables = [*games.tables(), "bronze_events", "unified_gold"]
    with open_catalog(own_catalog(games)) as catalog:
        for name in known(games):
            catalog.drop_table(("default", name))
    rows, versions = {}, {}
    for name in tables:
        rows[name] = sorted_rows(read(games.lake / name))
        versions[name] = as_earlier(games.lake / name, own_catalog(games))
    (games.lake / "_distributary/pipelines/games/iceberg.json").unlink()
    last = Lake(games.lake).cuts(1)[0].batch
    # the other format is refused by name, a trial run changes nothing, and reading says what to do
    with pytest.raises(ConfigError) as refused:
        games.pipeline(tables=f"{{{TABLES}}}", batch=7).run(spark=tasks)
    assert refused.value.next_step.startswith("set tables.format: iceberg")
    file = str(games.write_file(tables=ICEBERG, batch=7))
    assert not preview(games.pipeline(tables=ICEBERG, batch=7)).changes_something
    assert {format_at(str(games.lake / name)) for name in tables} == {"iceberg"}
    capsys.readouterr()
    assert main(["iceberg", "sync", file, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert all("run its pipeline" in one["error"]["next_step"] for one in answer["tables"])

    # a run without new records adopts all of them
    assert games.pipeline(tables=ICEBERG, batch=7).run(spark=tasks).counts == Counts()
    assert {format_at(str(games.lake / name)) for name in tables} == {"delta"}
    assert {name: sorted_rows(read(games.lake / name)) for name in tables} == rows
    assert assert_read_by_name(games) == set(tables)
    state = read_mirror_state(str(games.lake), "games")
    assert state is not None
    assert (state.tables, state.behind, state.made_again) == (len(tables), 0, 0)
    # and records go on where they ended, with evolved columns
    games.send_all()
    games.pipeline(tables=ICEBERG, batch=7).run(spark=tasks)
    games.assert_each_record_once()
    assert_read_by_name(games)
    capsys.readouterr()
    assert main(["verify", "--all", "--lake", str(games.lake)]) == 0, capsys.readouterr().out
    cut = ["--lake", str(games.lake), "--as-of", str(last + 1)]
    assert main(["head", "unified_gold", *cut]) == 0


def test_a_batch_that_an_earlier_version_has_half_written(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decided batch, whose first tables an earlier version has committed, is finished once."""
    games = Games(tmp_path, GamesPlan(games=3, versions=1, records=5, bad=0))
    games.send_all()
    pipeline = games.pipeline(tables=ICEBERG)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(batches, "_settle", killed)
        pipeline.run(spark=tasks)
    first, *others = [*games.tables(), "bronze_events", "unified_gold"]
    as_earlier(games.lake / first, own_catalog(games))
    for name in others:
        # the earlier version was killed before these
        for log in (games.lake / name / "_delta_log").iterdir():
            log.unlink()
        (games.lake / name / "_delta_log").rmdir()
    games.pipeline(tables=ICEBERG).run(spark=tasks)
    games.assert_each_record_once()
    assert_read_by_name(games)


@pytest.mark.spark
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
    assert_read_by_name(games)
    assert sum(len(games.rows(table)) for table in games.tables()) == 48
