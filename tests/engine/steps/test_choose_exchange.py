"""Records travel by Spark's own shuffle, where workers share no disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine.steps import hops
from distributary.engine.steps.hops import choose_exchange
from distributary.model.manifest import Counts
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import TABLES, Games

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_every_record_reaches_its_table_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=3, records=10, bad=6))
    while games.send_round() is not None:
        pipeline = games.pipeline(tables=TABLES, extra="run: {exchange: spark}")
        pipeline.run(spark=spark)
        assert not list(Path(pipeline.checkpoint.address).rglob("*.arrow"))
    games.assert_each_record_once()
    again = games.pipeline(tables=TABLES, extra="run: {exchange: spark}")
    assert again.run(spark=spark).counts == Counts()


def test_a_local_master_shares_its_disk(spark: SparkSession, tmp_path: Path) -> None:
    assert choose_exchange("auto", spark, tmp_path).way == "disk"
    assert choose_exchange("spark", spark, tmp_path).way == "spark"


def test_whether_there_is_a_disk_for_all_is_tried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops, "is_local", lambda spark: False)
    assert choose_exchange("auto", spark, tmp_path / "runs").way == "disk"
    assert list((tmp_path / "runs").iterdir()) == []
    monkeypatch.setattr(Path, "touch", lambda path: None)
    assert choose_exchange("auto", spark, tmp_path / "runs").way == "spark"
