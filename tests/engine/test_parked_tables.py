"""A run tries parked tables again by itself, and says what still waits when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributary.config.runtime import Run, Trigger
from distributary.engine.context import PublishState, RunReports
from distributary.engine.loop import RunSummary, StillParked, StreamRun, settled_now
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.requests import FIRST_WAIT, LONGEST_WAIT, RetryAges
from distributary.errors import FencedError, PublishError
from distributary.model.manifest import Counts, Mark, TableEntry, app_id
from distributary.model.table import Role
from distributary.observe.events import Event, EventBus, Failed, TableResumed
from distributary.publish.base import Published
from distributary.publish.parking import park, parked
from distributary.store.base import at
from tests.publish.memory import MemoryPublisher
from tests.publish.staged import batch_of, numbers
from tests.waiting import eventually


class _Nothing:
    """A source in which nothing comes; it can be asked so many times before it stops the run."""

    def __init__(self) -> None:
        self.asked = 0

    def first(self) -> dict[str, int]:
        return {}

    def newest(self) -> dict[str, int]:
        self.asked += 1
        return {}

    def advance(self, start: object, until: object) -> None:
        return None


class _Lake:
    """A run without batches over tables for which something waits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.publisher = MemoryPublisher()
        self.stop = threading.Event()
        self.events: list[Event] = []
        self.resumed: list[tuple[str, int]] = []
        self.source = _Nothing()
        self.checkpoint = Checkpoint.begin(at(root / "checkpoint"), pipeline="games")
        self.app_id = app_id("games", self.checkpoint.life)
        self.check: Callable[[], None] = lambda: None
        self.open: set[int] = set()
        """Batches that are not settled."""

    @property
    def parking(self) -> str:
        return str(self.root / "parked")

    def park(self, table: str, *batches: int) -> None:
        for batch in batches:
            entry = batch_of(self.root / table, batch, numbers(*range(4)))
            park(entry, Mark(self.app_id, batch, f"source-{batch}"), folder=self.parking)

    def run(self, trigger: str = "available_now") -> RunSummary:
        bus = EventBus()
        bus.subscribe(self.events.append)
        context: Any = SimpleNamespace(
            config=SimpleNamespace(
                name="games",
                run=Run(),
                cdc=None,
                hides_logs=False,
                keys=(),
                aggregates=(),
                lake=SimpleNamespace(address=str(self.root)),
                shard=None,
                tables=SimpleNamespace(each="x", bronze=None),
            ),
            spark=None,
            progress=SimpleNamespace(
                checkpoint=self.checkpoint,
                manifests=self.checkpoint.manifests(),
                claim=SimpleNamespace(check=lambda: self.check()),
                newest_settled=-1,
                app_id=self.app_id,
                settled_ranges=lambda batch: None,
            ),
            ledger=SimpleNamespace(record_resumed=self._record, settled=self._settled),
            publishing=PublishState(self.publisher, self.parking),
            reports=RunReports("games", bus),
            end_registering=lambda: None,
        )
        source: Any = self.source
        return StreamRun(context, source, stop=self.stop).run(Trigger.parse(trigger))

    def _record(self, _: str, entry: TableEntry, result: Published, *, batch: int) -> None:
        self.resumed.append((entry.table.name, batch))

    def _settled(self, pipeline: str, life: str, lane: str, batch: int) -> str | None:
        return None if batch in self.open else f"source-{batch}"

    def told(self) -> list[tuple[str, bool]]:
        return [(e.table, e.parked) for e in self.events if isinstance(e, TableResumed)]


@pytest.fixture
def lake(tmp_path: Path) -> _Lake:
    return _Lake(tmp_path)


def test_what_waits_is_published_in_order_once_its_cause_has_passed(lake: _Lake) -> None:
    lake.park("chess", 0, 1, 2)
    lake.park("go", 1)
    summary = lake.run()
    assert parked(lake.parking) == []
    assert lake.resumed == [("chess", 0), ("chess", 1), ("chess", 2), ("go", 1)]
    assert lake.told() == [("chess", False), ("go", False)]
    assert summary.still_parked == StillParked()
    assert summary.equation() == summary.counts.equation()


def test_a_table_that_still_fails_is_told_in_the_sum_and_by_no_event(lake: _Lake) -> None:
    lake.park("chess", 0, 1)
    lake.park("go", 0)
    lake.publisher.failing = {"chess"}
    summary = lake.run()
    assert lake.told() == [("go", False)]
    assert summary.still_parked == StillParked(records=8, tables=1)
    assert summary.counts == Counts()
    assert "8 records of 1 table still parked" in summary.equation()


def test_what_is_not_settled_waits_for_whoever_settles_it(lake: _Lake) -> None:
    lake.park("chess", 0, 1)
    lake.park("go", 0)
    lake.open = {1}
    summary = lake.run()
    assert lake.resumed == [("chess", 0), ("go", 0)]
    assert summary.still_parked == StillParked(records=4, tables=1)
    lake.open = set()
    lake.run()
    assert lake.resumed[2:] == [("chess", 1)]


def test_a_table_that_gets_a_part_of_what_waits_says_that_it_still_waits(lake: _Lake) -> None:
    lake.park("chess", 0, 1)
    publish = lake.publisher.publish

    def fail(entry: TableEntry, mark: Mark) -> Published:
        if mark.batch == 1:
            raise PublishError("not this one")
        return publish(entry, mark)

    lake.publisher.publish = fail  # type: ignore[method-assign]
    assert lake.run().still_parked == StillParked(records=4, tables=1)
    assert lake.told() == [("chess", True)]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("a defect")])
def test_a_try_that_fails_in_any_way_does_not_stop_the_run(lake: _Lake, error: Exception) -> None:
    lake.park("chess", 0)
    lake.park("go", 0)
    publish = lake.publisher.publish

    def fail(entry: TableEntry, mark: Mark) -> Published:
        if entry.table.name == "chess":
            raise error
        return publish(entry, mark)

    lake.publisher.publish = fail  # type: ignore[method-assign]
    assert lake.run().stopped == "done"
    assert [p.table for p in parked(lake.parking)] == ["chess"]
    assert not [e for e in lake.events if isinstance(e, Failed)]


def test_nothing_is_tried_by_a_process_that_was_overtaken(lake: _Lake) -> None:
    lake.park("chess", 0)

    def overtaken() -> None:
        raise FencedError("another process owns it")

    lake.check = overtaken
    with pytest.raises(FencedError):
        lake.run()
    assert lake.resumed == []


def test_a_run_that_goes_on_tries_again_after_a_while(
    lake: _Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.engine.requests.FIRST_WAIT", 0.01)
    lake.park("chess", 0)
    lake.publisher.failing = {"chess"}
    ended: list[RunSummary] = []
    runner = threading.Thread(target=lambda: ended.append(lake.run("continuous")))
    runner.start()
    try:
        eventually(lambda: lake.source.asked > 3, seconds=60)
        assert lake.told() == []
        lake.publisher.failing = set()
        eventually(lambda: lake.told() == [("chess", False)], seconds=60)
    finally:
        lake.stop.set()
        runner.join(60)
    assert ended[0].still_parked == StillParked()


def test_what_is_parked_at_the_start_is_due_at_once_and_then_less_and_less_often(
    lake: _Lake,
) -> None:
    now = 0.0
    config: Any = SimpleNamespace(cdc=None, keys=())
    patience = RetryAges(lake.parking, config, clock=lambda: now)
    lake.park("chess", 0)
    assert patience.due() == ["chess"]
    waits = []
    for _ in range(8):
        patience.tried("chess")
        assert patience.due() == []
        before = now
        while not patience.due():
            now += 1.0
        waits.append(now - before)
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900]
    assert (FIRST_WAIT, LONGEST_WAIT) == (30.0, 900.0)
    # one that comes later waits first; at the end of a run all are due
    patience.tried("chess")
    lake.park("go", 0)
    assert patience.due() == []
    assert patience.due(everything=True) == ["chess", "go"]
    now += FIRST_WAIT
    assert patience.due() == ["go"]


def test_a_parking_folder_that_cannot_be_listed_is_nothing_to_try(lake: _Lake) -> None:
    Path(lake.parking).write_text("not a folder")
    config: Any = SimpleNamespace(cdc=None, keys=())
    assert RetryAges(lake.parking, config).due() == []


def test_tables_of_one_log_are_tried_together(lake: _Lake) -> None:
    config: Any = SimpleNamespace(cdc=SimpleNamespace())
    for table in ("orders", "orders_log", "orders_history", "users"):
        lake.park(table, 0)
    assert RetryAges(lake.parking, config).due() == ["orders_log", "users_log"]


def test_records_that_were_parked_and_resumed_in_one_run_count_as_written(lake: _Lake) -> None:
    lake.park("chess", 3)
    lake.park("go", 3, 4)
    waiting = parked(lake.parking)
    counts = Counts(read=12, parked=12)
    # batch 3 was of an earlier run
    still = partial(settled_now, counts, waiting, role=Role.EACH)
    assert still(app_id=lake.app_id, since=4) == Counts(read=12, written=8, parked=4)
    assert still(app_id="another", since=0) == Counts(read=12, written=12)
