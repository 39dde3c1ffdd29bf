"""Tables and progress on an object store, a real one on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

from distributary.cli.doctor import checks_for_file
from distributary.engine import batch as batches
from distributary.engine.kill_points import KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.errors import LakeUnavailableError, PublishError, TableBehindError
from distributary.model.check import CheckState
from distributary.model.manifest import Counts
from distributary.observe.deadletters import DeadLetters
from distributary.observe.status.status import status
from distributary.operations.repair.accept_table import accept, plan_acceptance
from distributary.operations.repair.reset_clean import plan_clean, remove
from distributary.operations.repair.resume_table import resume, waiting
from distributary.operations.replay import LANE, replay, try_replay
from distributary.publish.base import Outcome
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet_publisher import open_parquet
from distributary.store.base import REQUESTS, at
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import TABLES, Games
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, KEYS, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@dataclass
class Store:
    """Games whose lake is a bucket."""

    games: Games
    server: S3Server
    address: str

    def pipeline(
        self, *, tables: str = TABLES, extra: str = "", batch: int = 250_000, **options: str
    ) -> Pipeline:
        known = self.server.options | options
        spelled = ", ".join(f'{name}: "{value}"' for name, value in known.items())
        path = self.games.write_file(tables=tables, extra=extra, batch=batch)
        place = f"lake: {{path: {self.games.lake}}}"
        told = f"lake: {{path: {self.address}, storage_options: {{{spelled}}}}}"
        path.write_text(path.read_text().replace(place, told))
        return Pipeline.load(path)

    def rows(self, table: str) -> list[dict[str, Any]]:
        plain = open_parquet(f"{self.address}/{table}")
        if plain is not None:
            return plain[0].dataset(plain[1]).to_table().to_pylist()
        place = DeltaTable(f"{self.address}/{table}", storage_options=self.server.options)
        return place.to_pyarrow_table().to_pylist()

    def tables(self) -> list[str]:
        ledger = self.pipeline().ledger()
        return [t.table for t in ledger.tables("games") if t.role == "each"]

    def objects(self) -> list[str]:
        inside = self.address.removeprefix("s3://")
        listing = self.server.files.get_file_info(
            FileSelector(inside, recursive=True, allow_not_found=True)
        )
        return [info.path for info in listing if info.is_file]

    def assert_each_record_once(self) -> None:
        offsets = Counter(row["_offset"] for table in self.tables() for row in self.rows(table))
        offsets.update(row["offset"] for row in self.rows("dead_letters"))
        expected = sum(sent.messages for sent in self.games.sent)
        assert sorted(offsets) == list(range(expected))
        assert set(offsets.values()) == {1}
        assert self.pipeline().ledger().totals("games").balanced


@pytest.fixture
def store(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    # an address taken for a path would become a folder here
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    games = Games(tmp_path, GamesPlan(games=3, versions=3, records=10, bad=6))
    return Store(games, server, f"s3://{BUCKET}/{unique('lake')}")


def test_every_record_reaches_its_table_on_the_store(
    store: Store, tasks: SparkSession, tmp_path: Path
) -> None:
    while store.games.send_round() is not None:
        store.pipeline().run(spark=tasks)
    store.assert_each_record_once()
    assert len(store.tables()) == 3
    names = {f"col_{store.tables()[0].removeprefix('silver_')}_{n}" for n in range(3)}
    assert names <= set(store.rows(store.tables()[0])[0])
    assert len(store.rows("unified_gold")) == 90
    assert len(store.rows("bronze_events")) == 96 - _unwrapped_bad(store)
    assert store.pipeline().run(spark=tasks).counts == Counts()
    assert list((tmp_path / "work").iterdir()) == []
    (one,) = status(store.address).pipelines
    assert one.equation.startswith("read 96 = written 90")


def _unwrapped_bad(store: Store) -> int:
    """Bad records that never were a message in an envelope."""
    return 96 - len({row["_offset"] for row in store.rows("bronze_events")})


@pytest.mark.parametrize(
    "moment", [KillPoint.AFTER_STAGE, KillPoint.AFTER_MANIFEST, KillPoint.BEFORE_SETTLE]
)
@pytest.mark.slow
def test_what_was_cut_short_is_finished_once(
    store: Store, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, moment: KillPoint
) -> None:
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    store.games.send_round()

    def stop(here: KillPoint, _: int) -> None:
        if here is moment:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batches, "reached", stop)
        with pytest.raises(KeyboardInterrupt):
            store.pipeline().run(spark=tasks)
    store.pipeline().run(spark=tasks)
    store.assert_each_record_once()


def parked_table(
    store: Store, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, *, rounds: int
) -> str:
    """A table that could not be written for some rounds, after a good one."""
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    victim = store.tables()[0]
    publish = DirectPublisher.publish

    def fail(self: DirectPublisher, entry: Any, mark: Any) -> Any:
        if entry.table.name == victim:
            raise PublishError("no", where=entry.table.path)
        return publish(self, entry, mark)

    with monkeypatch.context() as patched:
        patched.setattr(DirectPublisher, "publish", fail)
        for _ in range(rounds):
            store.games.send_round()
            assert store.pipeline().run(spark=tasks).counts.parked == 10
    return victim


def test_a_table_that_cannot_be_written_waits_beside_the_progress(
    store: Store, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = parked_table(store, tasks, monkeypatch, rounds=2)
    assert [p.table for p in waiting(store.pipeline())] == [victim, victim]
    done = resume(store.pipeline(), victim)
    assert {each.outcome for each in done} == {Outcome.PUBLISHED}
    assert waiting(store.pipeline()) == []
    store.assert_each_record_once()


def test_batches_that_waited_in_a_checkpoint_that_was_replaced_are_missed_by_name(
    store: Store, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = parked_table(store, tasks, monkeypatch, rounds=1)
    at(store.pipeline().parking).remove_folder()
    store.games.send_round()
    with pytest.raises(TableBehindError) as caught:
        store.pipeline().run(spark=tasks)
    assert f"{victim} (batch 1)" in caught.value.evidence
    # meant to be so: nobody has another copy
    accept(store.pipeline(), plan_acceptance(store.pipeline(), victim))
    assert store.pipeline().run(spark=tasks).batches == 1


@pytest.mark.slow
def test_clean_takes_away_what_the_pipeline_made(store: Store, tasks: SparkSession) -> None:
    store.server.put(f"{store.address.removeprefix(f's3://{BUCKET}/')}/of_others/x", b"1")
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    assert len(store.objects()) > 10
    pipeline = store.pipeline()
    remove(pipeline, plan_clean(pipeline))
    left = {
        path.removeprefix(f"{store.address.removeprefix('s3://')}/") for path in store.objects()
    }
    assert "of_others/x" in left
    assert not [path for path in left if path.startswith("silver_")]
    assert not [path for path in left if path.startswith("_checkpoints/")]
    # and everything comes again
    store.pipeline().run(spark=tasks)
    assert len(store.tables()) == 3


@pytest.mark.slow
def test_a_lost_checkpoint_and_a_reset_find_the_bucket_by_themselves(
    store: Store, tasks: SparkSession
) -> None:
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    progress = store.pipeline().checkpoint
    progress.remove_folder()
    # in processes of their own, which have not seen the bucket before
    assert "manifest" in _typed("recover", str(store.games.root / "games.yaml"))
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    store.assert_each_record_once()
    life = progress.read("life.json")
    _typed("reset", str(store.games.root / "games.yaml"), "--with-tables", "--yes")
    assert progress.read("life.json") != life
    store.pipeline().run(spark=tasks)
    store.assert_each_record_once()


def _typed(*words: str) -> str:
    command = [sys.executable, "-m", "distributary", *words, "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "change",
    [
        lambda server: {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        lambda server: {},
    ],
    ids=["no server", "no bucket"],
)
@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named_and_tells_no_secret(
    store: Store, tasks: SparkSession, change: Callable[[S3Server], dict[str, str]]
) -> None:
    store.games.send_round()
    told = change(store.server)
    if not told:
        store.address = "s3://no-such-bucket/lake"
    with pytest.raises((LakeUnavailableError, PublishError)) as caught:
        store.pipeline(extra="run: {batch_attempts: 1, publish_attempts: 1}", **told).run(
            spark=tasks
        )
    assert caught.value.exit_code == 75
    for secret in KEYS.values():
        assert secret not in repr(caught.value.as_dict())


def test_a_batch_costs_few_requests(store: Store, spark: SparkSession) -> None:
    store.games.send_round()
    store.pipeline().run(spark=spark)
    store.games.send_round()
    REQUESTS.clear()
    summary = store.pipeline(tables="{each: 'silver_{type}'}").run(spark=spark)
    assert summary.batches == 1
    # start and end of a run are in it, and what a process reads that has not seen the tables before
    assert REQUESTS.total() <= 100, REQUESTS
    (one,) = status(store.address).as_dict()["pipelines"]
    assert 0 < one["last_batch"]["requests"] < REQUESTS.total()


def test_a_batch_of_a_run_that_goes_on_costs_a_request_a_table_and_ten(
    store: Store, spark: SparkSession
) -> None:
    while store.games.send_round() is not None:
        pass
    store.pipeline(batch=40).run(spark=spark)
    batches = store.pipeline().ledger().batches("games")
    # in the first one tables are made and looked at for the first time
    assert len(batches) == 3
    for batch in batches[1:]:
        # a commit a table, a look at each file that tasks have written, and ten for the batch
        assert batch.requests is not None
        assert batch.requests <= batch.tables + batch.files + 10, batch


@pytest.mark.slow
def test_dead_letters_are_replayed_and_closed_there(store: Store, tasks: SparkSession) -> None:
    store.games.send_round()
    store.pipeline().run(spark=tasks)
    letters = DeadLetters(f"{store.address}/dead_letters")
    before = letters.count_by_status()["open"]
    assert before > 0
    with store.pipeline().open(tasks, lane=LANE) as context:
        assert sum(try_replay(context, letters.select()).failed_again.values()) == before
        assert sum(replay(context, letters, letters.select()).failed_again.values()) == before
    assert letters.count_by_status()["open"] == before
    letters.discard(letters.select(columns=["id"])["id"].to_pylist()[:1], note="seen")
    assert letters.count_by_status()["open"] == before - 1
    store.assert_each_record_once()


def test_doctor_looks_at_the_store(store: Store) -> None:
    store.games.send_round()
    (lake,) = [c for c in checks_for_file(store.pipeline().loaded, None) if c.name == "lake"]
    assert lake.state is CheckState.PASS
    assert store.objects() == []
    store.address = "s3://no-such-bucket/lake"
    (lake,) = [c for c in checks_for_file(store.pipeline().loaded, None) if c.name == "lake"]
    assert lake.state is CheckState.FAIL
    for secret in KEYS.values():
        assert secret not in lake.found
