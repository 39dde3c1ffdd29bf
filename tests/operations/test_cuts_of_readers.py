"""Cuts for readers outside: Iceberg's snapshots, lakes in a bucket, Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from distributary import Lake
from distributary.cli.command_line import main
from distributary.iceberg.mirror import Mirror
from distributary.iceberg.pointer import VersionHint
from distributary.observe.cut_views import views
from distributary.store import base
from distributary.store.base import at, introduce
from tests.lakes.settled import SettledLake
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture
def games(tmp_path: Path) -> SettledLake:
    return SettledLake(tmp_path)


def mirrored(lake: SettledLake, table: str) -> None:
    store = at(str(lake.lake / table))
    Mirror(store, VersionHint(store), keep=timedelta(days=1)).sync()


def test_a_cut_names_the_snapshots_of_mirrors(
    games: SettledLake, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        games.batch({"chess": 2, "go": 1})
        mirrored(games, "silver_chess")
    games.batch({"chess": 1})
    games.batch({"chess": 4})
    mirrored(games, "silver_chess")
    assert main(["cuts", "show", "1", "--json", "--lake", str(games.lake)]) == 0
    tables = {t["table"]: t for t in json.loads(capsys.readouterr().out)["tables"]}
    assert tables["silver_go"]["snapshot"] is None
    mirror = StaticTable.from_metadata(f"{games.lake}/silver_chess/_iceberg")
    found = mirror.scan(snapshot_id=tables["silver_chess"]["snapshot"]).to_arrow()
    assert sorted(found["_batch"].to_pylist()) == [0, 0, 1, 1]
    # of two batches in one snapshot, only the later one is a version that the mirror shows
    cuts = {n: {t.table: t.snapshot for t in Lake(games.lake).at(n).cut().tables} for n in (3, 4)}
    assert cuts[3]["silver_chess"] is None
    assert mirror.scan(snapshot_id=cuts[4]["silver_chess"]).to_arrow().num_rows == 11


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as found:
        monkeypatch.setattr(base, "_OPTIONS", {})
        introduce(f"s3://{BUCKET}", found.options)
        yield found


def test_cuts_of_a_lake_in_a_bucket(server: S3Server, games: SettledLake) -> None:
    for n in range(4):
        games.batch({"chess": 2, "go": 1} if n != 2 else {"go": 1})
    address = f"s3://{BUCKET}/cuts/lake"
    bucket = at(address)
    for path in games.lake.rglob("*"):
        if path.is_file():
            bucket.write(str(path.relative_to(games.lake)), path.read_bytes())
    lake = Lake(address, storage_options=server.options)
    join = "select (select count(*) from silver_chess) c, (select count(*) from silver_go) g"
    assert [tuple(lake.at(n).query(join).to_pylist()[0].values()) for n in (1, 2)] == [
        (4, 2),
        (4, 3),
    ]
    assert lake.at(0)["silver_chess"].to_polars().height == 2
    counts = {name: one.counts()["inserted"] for name, one in lake.changes_since(1).items()}
    assert counts == {"bronze_events": 4, "silver_chess": 2, "silver_go": 2}
    assert {table.path.partition("/cuts/")[0] for table in lake.cut().tables} == {f"s3://{BUCKET}"}


@pytest.mark.spark
@pytest.mark.sql
def test_spark_reads_a_cut(games: SettledLake, spark) -> None:  # type: ignore[no-untyped-def]
    for _ in range(3):
        games.batch({"chess": 2, "go": 1})
    then = Lake(games.lake).at(1)
    assert then["silver_chess"].to_spark(spark).count() == 4
    spark.sql("create database if not exists games_cut")
    try:
        for statement in views(then.cut(), "spark", schema="games_cut"):
            spark.sql(statement.rstrip(";"))
        both = "games_cut.silver_go g join games_cut.silver_chess c using (_batch)"
        assert spark.sql(f"select count(*) from {both}").first()[0] == 4
    finally:
        spark.sql("drop database games_cut cascade")
