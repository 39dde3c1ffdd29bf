"""Whole runs of the jobs that `install --shards` writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.deploy.pipeline_file import read_for_install
from distributary.deploy.shards import spread_target
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.shards.progress import has_letters, is_retired
from distributary.errors import ConfigError, ErrorCode, SourceUnavailableError
from distributary.observe.trace import Coordinates, trace_offset
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_crashes import SMALL, gone
from tests.lakes.games import Games


class Spread:
    """A pipeline of games whose types are spread over jobs."""

    def __init__(self, games: Games, spark: SparkSession | None = None) -> None:
        self.games = games
        self.spark = spark
        self.file = games.root / "games.yaml"

    def install(self, shards: int) -> None:
        pipeline = read_for_install(self.file)
        assert pipeline.loaded is not None
        whole = pipeline.loaded.config
        place = spread_target(
            "systemd",
            pipeline,
            shards=shards,
            out=self.games.root / "units",
            is_done=lambda number: is_retired(whole, number),
            has_letters=lambda number: has_letters(whole, number),
        )
        place.apply(place.plan())

    def names(self) -> list[str]:
        units = (self.games.root / "units").glob("*.service")
        return sorted(p.stem.removeprefix("distributary-") for p in units)

    def path(self, name: str) -> Path:
        return self.games.root / "games.shards" / f"{name}.yaml"

    def run(self, *names: str) -> Counter[str]:
        read: Counter[str] = Counter()
        for name in names:
            pipeline = Pipeline.load(self.path(name), **{"run.batch_attempts": 1})
            read[name] = pipeline.run(spark=self.spark).counts.read
        return read


def test_types_move_between_jobs_while_records_come(tmp_path: Path, tasks: SparkSession) -> None:
    games = Games(tmp_path, GamesPlan(games=6, versions=5, records=5, bad=9), records_per_file=40)
    spread = Spread(games, tasks)
    games.send_round()
    games.pipeline(timed=True).run(spark=tasks)
    spread.install(2)
    assert spread.names() == ["games", "games-shard-0", "games-shard-1", "games-unified"]
    with pytest.raises(SourceUnavailableError) as caught:
        spread.run("games-shard-0")
    assert caught.value.code is ErrorCode.SHARD_WAITING
    games.send_round()
    spread.run("games", "games-shard-0", "games-shard-1", "games-unified")
    with pytest.raises(ConfigError):
        Pipeline.load(spread.file).run(spark=tasks)
    games.assert_each_record_once()

    games.send_round()
    spread.run("games")
    spread.install(3)
    games.send_round()
    spread.run("games")
    with pytest.raises(SourceUnavailableError) as caught:
        spread.run("games-shard-2")
    assert caught.value.code is ErrorCode.SHARD_WAITING
    with pytest.raises(SourceUnavailableError):
        spread.run("games-shard-1")
    spread.run("games-shard-0", "games-shard-1", "games-shard-2", "games-unified")
    games.assert_each_record_once()

    games.send_all()
    spread.run("games")
    spread.install(1)
    assert len(spread.names()) == 5
    spread.run("games")
    spread.run("games-shard-2", "games-shard-1", "games-shard-0", "games-unified")
    spread.install(1)
    assert spread.names() == ["games", "games-shard-0", "games-unified"]
    games.assert_each_record_once()
    _same_as_from_one_job(games)
    row = games.rows(games.tables()[0])[-1]
    found = trace_offset(str(games.lake), Coordinates("wrapper", 0, row["_offset"]))
    tables = {"bronze_events", games.tables()[0], "unified_gold"}
    assert {place.table for place in found.places} == tables


def _same_as_from_one_job(games: Games) -> None:
    ledger = Pipeline.load(games.root / "games.yaml").ledger()
    names = {b.pipeline for b in ledger.batches()}
    assert all(ledger.totals(name).balanced for name in names)
    unified = {row["_offset"] for row in games.rows("unified_gold")}
    each = {row["_offset"] for table in games.tables() for row in games.rows(table)}
    assert unified == each
    # a letter is the record as it came to the first job, not as bronze keeps it
    source = {n: row for n, row in enumerate(games.rows("wrapper"))}
    for letter in games.rows("dead_letters"):
        assert letter["topic"] == "wrapper"
        if letter["value"] is not None:
            assert letter["value"] in {row["wrapper"] for row in source.values()}


@pytest.mark.spark
@pytest.mark.slow
def test_two_jobs_at_once_one_of_them_killed_on_the_way(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=6, versions=3, records=5, bad=5), records_per_file=16)
    games.send_round()
    tables = "{bronze: bronze_events, each: 'silver_{type}'}"
    games.write_file(tables=tables, batch=20, extra=SMALL)
    spread = Spread(games)
    spread.install(2)
    assert _ended(_started(spread, "games")) == 0
    games.send_round()
    assert _ended(_started(spread, "games")) == 0
    killed = _started(spread, "games-shard-1", **{KILL: f"{KillPoint.AFTER_FIRST_COMMIT}:1"})
    other = _started(spread, "games-shard-0")
    assert (_ended(killed), _ended(other)) == (-signal.SIGKILL, 0)
    gone(killed)
    spread.install(3)
    games.send_all()
    # the cut is where the bronze job starts: what it lands now is behind it
    assert _ended(_started(spread, "games")) == 0
    left = ["games-shard-0", "games-shard-1"]
    while left:
        # one of them waits for the other, and is tried again as a scheduler would
        at_once = {name: _started(spread, name) for name in left}
        ends = {name: _ended(process) for name, process in at_once.items()}
        assert set(ends.values()) <= {0, SourceUnavailableError.exit_code}
        left = [name for name, code in ends.items() if code]
    assert _ended(_started(spread, "games-shard-2")) == 0
    games.assert_each_record_once()


def _started(spread: Spread, name: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "distributary", "run", str(spread.path(name))],
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[str]) -> int:
    return process.wait(timeout=300)
