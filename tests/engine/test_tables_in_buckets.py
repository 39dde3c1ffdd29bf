"""Whole runs on a bucket that are not of Delta tables by one job: plain Parquet, and shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from distributary.engine import batch as batches
from distributary.engine.kill_points import KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.errors import ConfigError, ErrorCode, SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.observe.trace import Coordinates, trace_offset
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary.operations.repair.resume_table import resume, waiting
from distributary.publish.base import Outcome
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.parquet_publisher import ParquetTable, open_parquet
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.shards.test_shards_running import Spread
from tests.engine.test_object_store import Store, server, store
from tests.iceberg.test_mirrors_in_buckets import as_pyiceberg
from tests.lakes.games import TABLES, Games
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server

__all__ = ["server", "store"]
PARQUET = "{each: 'silver_{type}', bronze: bronze_events, format: parquet}"


def offsets(store: Store, table: str, column: str = "_offset") -> list[int]:
    found = open_parquet(f"{store.address}/{table}")
    if found is None:
        return [row[column] for row in store.rows(table)]
    values: list[int] = found[0].dataset(found[1]).to_table(columns=[column])[column].to_pylist()
    return values


def assert_each_record_once(store: Store) -> None:
    counted = Counter(n for table in store.tables() for n in offsets(store, table))
    counted.update(offsets(store, "dead_letters", "offset"))
    assert counted == Counter(range(sum(sent.messages for sent in store.games.sent)))


def test_a_lake_of_iceberg_tables(store: Store, tasks: SparkSession) -> None:
    iceberg = "{each: 'silver_{type}', unified: unified_gold, format: iceberg}"
    while store.games.send_round() is not None:
        store.pipeline(tables=iceberg).run(spark=tasks)
    assert_each_record_once(store)
    for name in (*store.tables(), "unified_gold"):
        mirror = StaticTable.from_metadata(
            f"{store.address}/{name}/_iceberg", properties=as_pyiceberg(store.server)
        )
        rows = mirror.scan().to_arrow().to_pylist()
        assert sorted(map(str, rows)) == sorted(map(str, store.rows(name)))


@pytest.mark.slow
def test_a_lake_of_plain_parquet(
    store: Store, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.games.send_round()
    store.pipeline(tables=PARQUET).run(spark=tasks)
    assert {format_at(f"{store.address}/{table}") for table in store.tables()} == {"parquet"}
    assert_each_record_once(store)
    # cut short, and finished once
    store.games.send_round()

    def stop(here: KillPoint, _: int) -> None:
        if here is KillPoint.AFTER_FIRST_COMMIT:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batches, "reached", stop)
        patched.setattr("distributary.engine.steps.commits.reached", stop)
        with pytest.raises(KeyboardInterrupt):
            store.pipeline(tables=PARQUET).run(spark=tasks)
    store.pipeline(tables=PARQUET).run(spark=tasks)
    assert_each_record_once(store)
    # parked, and resumed
    victim, real = store.tables()[0], ParquetTable.intend

    def fail(self: ParquetTable, intent: object) -> None:
        if self.folder.endswith(f"/{victim}"):
            raise OSError("no")
        real(self, intent)  # type: ignore[arg-type]

    store.games.send_round()
    with monkeypatch.context() as patched:
        patched.setattr(ParquetTable, "intend", fail)
        extra = "run: {publish_attempts: 1}"
        assert store.pipeline(tables=PARQUET, extra=extra).run(spark=tasks).counts.parked == 10
    done = resume(store.pipeline(tables=PARQUET), victim)
    assert {each.outcome for each in done} == {Outcome.PUBLISHED}
    assert waiting(store.pipeline(tables=PARQUET)) == []
    assert_each_record_once(store)
    assert store.pipeline(tables=PARQUET).run(spark=tasks).counts == Counts()
    found = trace_offset(store.address, Coordinates("wrapper", 0, offsets(store, victim)[0]))
    assert victim in {place.table for place in found.places}
    with pytest.raises(ConfigError):
        store.pipeline().run(spark=tasks)
    pipeline = store.pipeline(tables=PARQUET)
    remove(pipeline, plan_clean(pipeline))
    assert not [path for path in store.objects() if "/silver_" in path]


@pytest.mark.slow
def test_two_shards_and_then_three(
    server: S3Server, tasks: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=5, versions=4, records=4, bad=5), records_per_file=40)
    lake = f"s3://{BUCKET}/{unique('lake')}"
    options = []
    for name, value in server.options.items():
        # a secret in clear would not be copied into the files of the jobs
        monkeypatch.setenv(f"LAKE_{name.upper()}", value)
        options.append(f"{name}: '${{env:LAKE_{name.upper()}}}'")
    path = games.write_file(tables=TABLES, timed=True)
    told = f"lake: {{path: {lake}, storage_options: {{{', '.join(options)}}}}}"
    path.write_text(path.read_text().replace(f"lake: {{path: {games.lake}}}", told))
    spread = Spread(games, tasks)

    def assert_once() -> None:
        ledger = Pipeline.load(path).ledger()
        tables = {(t.table, "_offset") for t in ledger.tables() if t.role == "each"}
        counted: dict[str, Counter[int]] = {}
        for table, column in [
            *tables,
            ("dead_letters", "offset"),
            ("unified_gold", "_offset"),
        ]:
            rows = DeltaTable(f"{lake}/{table}", storage_options=server.options).to_pyarrow_table()
            kind = "unified" if table == "unified_gold" else "each"
            counted.setdefault(kind, Counter()).update(rows[column].to_pylist())
        expected = sum(sent.messages for sent in games.sent)
        assert counted["each"] == Counter(range(expected))
        assert set(counted["unified"].values()) == {1}
        assert all(ledger.totals(name).balanced for name in {b.pipeline for b in ledger.batches()})

    games.send_round()
    Pipeline.load(path).run(spark=tasks)
    spread.install(2)
    with pytest.raises(SourceUnavailableError) as caught:
        spread.run("games-shard-0")
    assert caught.value.code is ErrorCode.SHARD_WAITING
    games.send_round()
    spread.run("games", "games-shard-0", "games-shard-1", "games-unified")
    assert_once()
    with pytest.raises(ConfigError):
        Pipeline.load(path).run(spark=tasks)
    games.send_round()
    spread.run("games")
    spread.install(3)
    games.send_round()
    spread.run("games")
    for waiting_one in ("games-shard-2", "games-shard-1"):
        with pytest.raises(SourceUnavailableError):
            spread.run(waiting_one)
    spread.run("games-shard-0", "games-shard-1", "games-shard-2", "games-unified")
    assert_once()
    spread.install(1)
    spread.run("games")
    spread.run("games-shard-2", "games-shard-1", "games-shard-0", "games-unified")
    spread.install(1)
    assert spread.names() == ["games", "games-shard-0", "games-unified"]
