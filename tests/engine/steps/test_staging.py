"""An attempt that fails, is cancelled or is killed leaves no staged file behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from distributary.delta.parquet import WRITTEN, AbandonedError, write_file
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.steps import hops
from distributary.model.routing import StageOrder
from distributary.model.table import Role, TablePlan
from distributary.stage import job
from distributary.stage.job import Staged
from distributary.stage.task_outputs import file_name, ticket
from distributary.store.base import at

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def order(tmp_path: Path) -> StageOrder:
    return StageOrder("games", "stream", 7, "attempt1", 0, str(tmp_path / "runs" / "attempt1"))


def _tables(lake: Path) -> list[TablePlan]:
    def plan(name: str, **more: Any) -> TablePlan:
        return TablePlan(name, Role.EACH, name, str(lake / name), (), **more)

    return [plan("chess"), plan("go", partition_by=("day",)), plan("poker", format="parquet")]


def _write(table: TablePlan, order: StageOrder) -> None:
    folder = "day=1/" if table.partition_by else ""
    write_file(ROWS, table.path, table.staged(f"{folder}{file_name(order)}"))


def _files(lake: Path) -> list[str]:
    return sorted(p.name for p in lake.rglob("part-*") if p.is_file())


def test_a_job_that_fails_leaves_nothing_and_touches_nothing_else(
    tmp_path: Path, order: StageOrder
) -> None:
    lake = tmp_path / "lake"
    tables = _tables(lake)
    others = StageOrder("games", "stream", 7, "attempt2", 0, order.folder)
    for table in tables:
        _write(table, others)
    before = _files(lake)

    def fail(given: StageOrder) -> Staged:
        assert Path(ticket(given)).exists()
        for table in tables:
            _write(table, given)
        assert len(_files(lake)) == 6
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        hops._attempted_safely(fail, order, tables)
    assert _files(lake) == before
    assert not Path(ticket(order)).exists()


@pytest.mark.parametrize(
    "death",
    [
        "Python worker exited unexpectedly (crashed)",
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "PythonException: Traceback (most recent call last):\n  ...\nMemoryError\n",
        "pyarrow.lib.ArrowMemoryError: malloc of size 9 failed",
    ],
)
def test_a_job_that_kills_its_worker_is_done_again_as_another_attempt(
    tmp_path: Path, order: StageOrder, death: str
) -> None:
    lake = tmp_path / "lake"
    tables = _tables(lake)
    seen: list[StageOrder] = []

    def kill(given: StageOrder) -> Staged:
        seen.append(given)
        for table in tables:
            _write(table, given)
        if not given.guarded:
            raise RuntimeError(death)
        return Staged()

    hops._attempted_safely(kill, order, tables)
    assert [one.guarded for one in seen] == [False, True]
    assert len(_files(lake)) == 3
    # a task of the first attempt that is still at work finds that nobody waits for it
    assert [Path(ticket(one)).exists() for one in seen] == [False, True]


def test_a_jvm_without_memory_is_not_asked_again(tmp_path: Path, order: StageOrder) -> None:
    seen: list[StageOrder] = []

    def fail(given: StageOrder) -> Staged:
        seen.append(given)
        raise RuntimeError("java.lang.OutOfMemoryError: Java heap space")

    with pytest.raises(RuntimeError):
        hops._attempted_safely(fail, order, _tables(tmp_path / "lake"))
    assert len(seen) == 1


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_task_that_nobody_waits_for_takes_back_what_it_wrote(
    tmp_path: Path, order: StageOrder, when: str
) -> None:
    lake = tmp_path / "lake"
    tables = _tables(lake)
    wanted = Path(ticket(order))
    wanted.parent.mkdir(parents=True)
    wanted.touch()

    def work() -> Iterator[pa.RecordBatch]:
        for number, table in enumerate(tables):
            if number == {"before": 0, "between": 1}.get(when):
                wanted.unlink()
            _write(table, order)
        if when == "after":
            wanted.unlink()
        yield pa.RecordBatch.from_pylist([{"n": 1}])

    with pytest.raises(AbandonedError):
        list(job._run_wanted(work, order))
    assert _files(lake) == []
    # the process goes on with other work
    _write(tables[0], order)
    assert len(_files(lake)) == 1


def test_a_task_that_fails_takes_back_what_it_wrote_and_one_that_does_not_keeps_it(
    tmp_path: Path, order: StageOrder
) -> None:
    lake = tmp_path / "lake"
    tables = _tables(lake)
    Path(order.folder).mkdir(parents=True)
    Path(ticket(order)).touch()
    told = pa.RecordBatch.from_pylist([{"n": 1}])

    def work(*, fail: bool) -> Iterator[pa.RecordBatch]:
        for table in tables:
            _write(table, order)
        if fail:
            raise ValueError("a defect")
        yield told

    with pytest.raises(ValueError, match="a defect"):
        list(job._run_wanted(lambda: work(fail=True), order))
    assert _files(lake) == []
    assert list(job._run_wanted(lambda: work(fail=False), order)) == [told]
    assert len(_files(lake)) == 3
    Path(ticket(order)).unlink()
    WRITTEN.check()


def test_the_next_process_removes_what_a_killed_one_had_not_decided(tmp_path: Path) -> None:
    checkpoint = Checkpoint.begin(at(tmp_path / "checkpoint"), pipeline="games")
    runs = checkpoint.runs("stream")
    killed, decided = (
        StageOrder("games", "stream", 7, name, 0, str(runs / name)) for name in ("a1", "b2")
    )
    lake = tmp_path / "lake"
    fixed, *_ = tables = _tables(lake)
    for one in (killed, decided):
        Path(one.folder).mkdir(parents=True)
        for table in tables[:2]:
            _write(table, one)
    Path(ticket(killed)).touch()
    context: Any = SimpleNamespace(
        progress=SimpleNamespace(checkpoint=checkpoint, lane="stream"),
        config=SimpleNamespace(lake=SimpleNamespace(local_path=lake)),
        planner=SimpleNamespace(book=SimpleNamespace(tables={"go": tables[1]})),
    )
    assert fixed.name not in context.planner.book.tables
    hops.drop_undecided(context)
    assert len(_files(lake)) == 2
    assert all("-b2-" in name for name in _files(lake))
    assert list(runs.iterdir()) == []
