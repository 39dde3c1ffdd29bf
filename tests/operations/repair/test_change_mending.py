"""A table of change data that cannot be written waits alone, and catches up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch as batch_module
from distributary.engine.loop import StillParked
from distributary.engine.steps import merges as deriving
from distributary.errors import DistributaryError
from distributary.model.manifest import Counts
from distributary.observe.events import TableResumed
from distributary.operations.repair.reset_clean import plan_clean, plan_reset, remove
from distributary.operations.repair.resume_table import resume, waiting
from distributary.publish.base import Outcome
from distributary_lab.simulate.cdc.shapes import CdcPlan, Feature
from tests.lakes.changes import Feed

PLAN = CdcPlan(
    tables=3,
    events=120,
    rows=4,
    rounds=4,
    features=frozenset({Feature.KEY_CHANGES, Feature.LATE_UPDATES, Feature.NEW_COLUMNS}),
)


@contextmanager
def unwritable(table: Path) -> Iterator[None]:
    """The next version of the table's log is a folder: no commit can be made, not even by root."""
    log = table / "_delta_log"
    blocked = log / f"{len(list(log.glob('*.json'))):020d}.json"
    blocked.mkdir()
    try:
        yield
    finally:
        blocked.rmdir()


def test_a_merged_table_that_cannot_be_written_is_parked_alone_and_catches_up(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    feed.assert_true()
    with unwritable(feed.lake / "shop_orders"):
        for _ in range(2):
            feed.send_round()
            counts = feed.pipeline().run(spark=tasks).counts
            # the logs have everything: no record waits
            assert counts.parked == 0
            assert counts.read == counts.written
        assert [(p.table, p.mark.batch) for p in waiting(feed.pipeline())] == [
            ("shop_orders", 1),
            ("shop_orders", 2),
        ]
        others = dict(feed.stream.model.truth())
        (mine,) = (claim for claim in others if claim.table == "orders")
        for claim in others.keys() - {mine}:
            table = f"shop_{claim.table}"
            feed.assert_same_rows(claim, feed.rows(table), others[claim])
        with pytest.raises(AssertionError):
            feed.assert_true()
        # it fails again, and says so
        assert [r.outcome for r in resume(feed.pipeline(), "shop_orders")] == [Outcome.PARKED]
    done = resume(feed.pipeline(), "shop_orders")
    assert [(r.table, r.outcome) for r in done] == [("shop_orders", Outcome.PUBLISHED)] * 2
    feed.send_all()
    feed.pipeline().run(spark=tasks)
    assert waiting(feed.pipeline()) == []
    feed.assert_true()


def test_a_log_that_cannot_be_written_holds_its_table_back_and_both_are_resumed(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    with unwritable(feed.lake / "shop_orders_log"):
        feed.send_round()
        counts = feed.pipeline().run(spark=tasks).counts
        assert 0 < counts.parked < counts.read
        assert counts.balanced
        assert [p.table for p in waiting(feed.pipeline(), "shop_orders")] == [
            "shop_orders",
            "shop_orders_log",
        ]
        # what is made of the log does not overtake it
        done = resume(feed.pipeline(), "shop_orders")
        assert [(r.table, r.outcome) for r in done] == [("shop_orders_log", Outcome.PARKED)]
    feed.send_all()
    pipeline = feed.pipeline()
    told: list[TableResumed] = []
    pipeline.bus.subscribe(lambda e: told.append(e) if isinstance(e, TableResumed) else None)
    assert pipeline.run(spark=tasks).still_parked == StillParked()
    # the run has done it by itself, the log first
    assert [(e.table, e.parked) for e in told] == [
        ("shop_orders_log", False),
        ("shop_orders", False),
    ]
    feed.assert_true()
    totals = feed.pipeline().ledger().totals("changes")
    assert totals == Counts(read=totals.read, written=totals.read)


def test_a_table_that_was_replaced_by_a_file_is_parked_from_its_first_batch(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.lake.mkdir()
    (feed.lake / "shop_orders").write_text("not a table")
    feed.send_all()
    counts = feed.pipeline().run(spark=tasks).counts
    assert counts == Counts(read=counts.read, written=counts.read)
    assert {p.table for p in waiting(feed.pipeline())} == {"shop_orders"}
    (feed.lake / "shop_orders").unlink()
    assert {r.outcome for r in resume(feed.pipeline(), "shop_orders_log")} == {Outcome.PUBLISHED}
    feed.assert_true()


def test_after_a_reset_a_table_gets_what_its_log_had_and_it_had_not(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    with unwritable(feed.lake / "shop_orders"):
        feed.send_round()
        feed.pipeline().run(spark=tasks)
        assert waiting(feed.pipeline())
    remove(feed.pipeline(), plan_reset(feed.pipeline()))
    assert not waiting(feed.pipeline())
    # everything is read again: the logs have it, so nothing is written, but tables catch up
    counts = feed.pipeline().run(spark=tasks).counts
    assert counts == Counts(read=counts.read, skipped=counts.read)
    feed.assert_true()
    feed.send_all()
    feed.pipeline().run(spark=tasks)
    feed.assert_true()


def test_a_life_that_ended_between_log_and_merge_leaves_nothing_behind(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    feed.send_round()

    def die(*args: object) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(deriving, "merge_all", die)
        with pytest.raises(DistributaryError):
            feed.pipeline(extra="run: {batch_attempts: 1}").run(spark=tasks)
    remove(feed.pipeline(), plan_reset(feed.pipeline()))
    feed.send_round()
    feed.pipeline().run(spark=tasks)
    feed.assert_true()


@pytest.mark.parametrize("times", [1, 4])
def test_a_log_file_that_was_lost_before_its_commit_is_staged_again(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_all()
    publish = batch_module.publish_all
    removed: list[Path] = []

    def lose_a_file(context: object, manifest: object, *, fresh: bool) -> object:
        if len(removed) < times:
            entries = list(manifest.primary())  # type: ignore[attr-defined]
            removed.append(Path(entries[-1].table.path) / entries[-1].files[0].path)
            removed[-1].unlink(missing_ok=True)
        return publish(context, manifest, fresh=fresh)  # type: ignore[arg-type]

    monkeypatch.setattr(batch_module, "publish_all", lose_a_file)
    counts = feed.pipeline().run(spark=tasks).counts
    assert len(removed) == times
    assert counts == Counts(read=counts.read, written=counts.read)
    feed.assert_true()


def test_clean_forgets_what_was_deleted_too(tmp_path: Path, tasks: SparkSession) -> None:
    feed = Feed(tmp_path, PLAN)
    feed.send_all()
    feed.pipeline(cdc=", history: true").run(spark=tasks)
    remove(feed.pipeline(), plan_clean(feed.pipeline()))
    left = [path.name for path in feed.lake.glob("**/_delta_log") if "ledger" not in path.parts]
    assert left == []
