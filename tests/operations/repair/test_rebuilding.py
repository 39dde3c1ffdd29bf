"""Rebuilding and verifying merged tables: by whoever owns the checkpoint, and by nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import Claim, state_of
from distributary.engine.requests import answer_requests, wanted
from distributary.engine.seams import make_publisher
from distributary.errors import ErrorCode, PublishError
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.operations.repair import rebuild_table as rebuilding
from distributary.operations.repair import verify_table as verifying
from distributary.operations.repair.rebuild_table import rebuild_table
from distributary.operations.repair.verify_table import verify_table
from distributary_lab.simulate.cdc.shapes import CALM, CdcPlan, Feature
from tests.changes.logs import event
from tests.lakes.changes import Feed
from tests.lakes.written_changes import LOG, MERGED, ChangeLake
from tests.waiting import until_read


@pytest.fixture
def shop(tmp_path: Path) -> ChangeLake:
    shop = ChangeLake(tmp_path)
    shop.batch([event(n, "insert", id=n, price=1.0 * n) for n in range(1, 5)])
    return shop


def merged(shop: ChangeLake) -> TableSummary:
    return next(t for t in shop.ledger.tables() if t.table == MERGED)


@contextmanager
def owner(pipeline: Pipeline, *, answers: bool = True) -> Iterator[Claim]:
    """Somebody runs on the checkpoint and looks for requests, as a pipeline does."""
    claim = Claim.take(pipeline.checkpoint, lease=60)
    ended = threading.Event()
    folder = layout.parked(pipeline.lake, pipeline.config.name)

    def look() -> None:
        publisher = make_publisher(pipeline.config)
        while not ended.wait(0.02):
            if answers and wanted(folder):
                answer_requests(pipeline.config, pipeline.ledger(), publisher, folder)
            elif wanted(folder):
                claim.release()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield claim
    finally:
        ended.set()
        thread.join()
        claim.release()


def test_nobody_runs_so_this_process_does_it_and_gives_the_claim_back(shop: ChangeLake) -> None:
    pipeline, before = Pipeline.load(shop.file), shop.rows()
    shop.spoil(price=0.5)
    done = rebuild_table(pipeline, merged(shop))
    assert (done.table, done.log, done.rows, done.by_owner) == (MERGED, LOG, 4, False)
    assert shop.rows() == before
    assert state_of(pipeline.checkpoint) == "stopped"


def test_a_running_pipeline_is_asked(shop: ChangeLake) -> None:
    pipeline, before = Pipeline.load(shop.file), shop.rows()
    shop.spoil(price=0.5)
    with owner(pipeline) as claim:
        done = rebuild_table(pipeline, merged(shop))
        claim.check()
    assert (done.rows, done.by_owner) == (4, True)
    assert shop.rows() == before
    assert list(Path(layout.parked(pipeline.lake, "shop")).iterdir()) == []


def test_an_owner_that_ends_instead_of_answering_is_not_waited_for(shop: ChangeLake) -> None:
    pipeline = Pipeline.load(shop.file)
    with owner(pipeline, answers=False):
        done = rebuild_table(pipeline, merged(shop))
    assert (done.rows, done.by_owner) == (4, False)


def test_what_the_owner_cannot_do_is_told_and_does_not_stop_it(
    shop: ChangeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, known = Pipeline.load(shop.file), merged(shop)
    monkeypatch.setattr(rebuilding, "merged_table", lambda *given: None)
    with owner(pipeline) as claim:
        log = next(t for t in shop.ledger.tables() if t.table == LOG)
        with pytest.raises(PublishError) as caught:
            rebuild_table(pipeline, log)
        assert str(ErrorCode.CONFIG_INVALID) in caught.value.evidence
        claim.check()
        assert rebuild_table(pipeline, known).by_owner


def test_a_batch_that_was_left_half_way_is_named(
    shop: ChangeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.load(shop.file)
    assert not verify_table(pipeline, merged(shop)).unfinished
    manifests = Path(pipeline.checkpoint.address) / "manifests"
    manifests.mkdir(parents=True)
    (manifests / f"{1:020d}.json").write_text("{}")
    shop.batch([event(9, "insert", id=9)], parked=True)
    found = verify_table(pipeline, merged(shop))
    assert (found.verified.agrees, found.verified.missing, found.unfinished) == (False, 1, True)
    # while somebody works on it, it is waited for, though not for ever
    monkeypatch.setattr(verifying, "_PATIENCE_SECONDS", 0.1)
    with owner(pipeline):
        assert verify_table(pipeline, merged(shop)).unfinished
        (manifests / "settled").write_text("1")
        assert not verify_table(pipeline, merged(shop)).unfinished


def test_a_pipeline_rebuilds_between_its_batches(tmp_path: Path, tasks: SparkSession) -> None:
    plan = CdcPlan(tables=2, events=60, rows=4, rounds=3, features=CALM | {Feature.DUPLICATES})
    feed = Feed(tmp_path, plan)
    feed.send_round()
    pipeline = feed.pipeline()
    seen: list[object] = []
    pipeline.bus.subscribe(seen.append)
    runner = threading.Thread(
        target=lambda: pipeline.run(trigger="continuous", spark=tasks), daemon=True
    )
    runner.start()
    try:
        until_read(seen, feed.stream.sent().events)
        tables = {t.table: t for t in pipeline.ledger().tables("changes")}
        name = next(t for t in feed.tables(Role.MERGED).values())
        before = feed.rows(name)
        done = rebuild_table(feed.pipeline(), tables[name])
        assert (done.by_owner, done.rows) == (True, len(before))
        assert sorted(map(str, feed.rows(name))) == sorted(map(str, before))
        feed.send_all()
        until_read(seen, feed.stream.sent().events)
    finally:
        pipeline.stop.set()
        runner.join(timeout=120)
    feed.assert_true()
    sent = feed.stream.sent()
    logs = [t for t in pipeline.ledger().tables("changes") if t.role == Role.LOG]
    kinds = [sum(t.changes[op] for t in logs) for op in ("insert", "update", "delete", "read")]
    assert sum(kinds) == sent.distinct
    assert kinds[3] == sent.backfilled
    for table in pipeline.ledger().tables("changes"):
        if table.role == Role.MERGED:
            assert table.changes == next(t.changes for t in logs if t.type == table.type)
            assert verify_table(feed.pipeline(), table).verified.agrees
