"""The next batch is sorted while this one is committed, and nobody can tell but by the time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from distributary.engine import batch as batch_module
from distributary.engine.batch import ReadAhead
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.steps import hops
from distributary.errors import SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.observe.events import BatchSettled, BatchStarted, Failed
from distributary.source.delta.source import DeltaSource
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.waiting import eventually

_VERSIONS = 4
_ALL = Counts(read=48, written=48)


@pytest.fixture
def games(tmp_path: Path) -> Games:
    """Every batch brings a new schema version."""
    made = Games(tmp_path, GamesPlan(games=2, versions=_VERSIONS, records=6))
    made.send_all()
    return made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each stage whether it was begun ahead."""
    found: list[bool] = []
    take = ReadAhead.take

    def spied(self: ReadAhead, source: Any) -> Any:
        begun = take(self, source)
        found.append(begun is not None)
        return begun

    monkeypatch.setattr(ReadAhead, "take", spied)
    return found


def _pipeline(games: Games) -> Pipeline:
    # a round is a file, and a batch takes whole files
    return games.pipeline(batch=12)


def _assert_nothing_is_left(games: Games, pipeline: Pipeline) -> None:
    """Neither runs nor staged files that no commit names."""
    assert not list((Path(pipeline.checkpoint.address) / "runs").rglob("*.arrow"))
    games.assert_no_file_is_left()


def _once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> list[int]:
    """The second call of something fails, the others do what they do; returns the calls."""
    original: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 2:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return calls


def test_all_but_the_first_batch_are_begun_ahead_and_every_record_is_there_once(
    games: Games, taken: list[bool], spark: SparkSession
) -> None:
    pipeline = _pipeline(games)
    summary = pipeline.run(spark=spark)
    assert (summary.batches, summary.counts) == (_VERSIONS, _ALL)
    assert taken == [False, True, True, True]
    games.assert_each_record_once()
    _assert_nothing_is_left(games, pipeline)


def test_a_run_that_is_told_to_stop_drops_what_it_has_begun(
    games: Games, taken: list[bool], spark: SparkSession
) -> None:
    pipeline = _pipeline(games)

    def stop(event: object) -> None:
        if isinstance(event, BatchSettled):
            pipeline.stop.set()

    pipeline.bus.subscribe(stop)
    assert pipeline.run(spark=spark).batches == 1
    _assert_nothing_is_left(games, pipeline)
    assert _pipeline(games).run(spark=spark).batches == _VERSIONS - 1
    assert taken == [False, False, True, True]
    games.assert_each_record_once()


def test_tasks_that_outlive_a_run_that_was_stopped_leave_no_file(
    games: Games, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, release = games.root / "workers", games.root / "release"
    workers.mkdir()
    open_ = DeltaSource.open

    def slow(self: DeltaSource, session: SparkSession, start: Any, end: Any) -> Any:
        opened = open_(self, session, start, end)
        return replace(opened, reader=_held_back(opened.reader, str(workers), str(release)))

    pipeline = _pipeline(games)

    def stop(event: object) -> None:
        # from now on tasks wait for a word of the test
        if isinstance(event, BatchStarted) and event.batch == 0:
            monkeypatch.setattr(DeltaSource, "open", slow)
        if isinstance(event, BatchSettled):
            eventually(lambda: bool(list(workers.iterdir())), seconds=120)
            pipeline.stop.set()

    pipeline.bus.subscribe(stop)
    assert pipeline.run(spark=spark).batches == 1
    _assert_nothing_is_left(games, pipeline)
    release.touch()
    eventually(lambda: not any(_alive(int(p.name)) for p in workers.iterdir()), seconds=120)
    _assert_nothing_is_left(games, pipeline)


def _held_back(reader: Any, workers: str, release: str) -> Any:
    """A reader that tells who it is, and does not end before it may."""

    def read(batches: Any) -> Any:
        # pickled with the task: a worker does not know this module
        import os
        import time

        with open(f"{workers}/{os.getpid()}", "w"):
            yield from reader(batches)
        while not os.path.exists(release):
            time.sleep(0.05)

    return read


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_batch_whose_commits_fail_keeps_what_was_begun_for_the_next(
    games: Games, taken: list[bool], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = SourceUnavailableError("away for a moment")
    _once(monkeypatch, batch_module, "publish_all", away)
    pipeline = _pipeline(games)
    assert pipeline.run(spark=spark).counts == _ALL
    assert taken == [False, True, True, True]
    games.assert_each_record_once()
    _assert_nothing_is_left(games, pipeline)


def test_a_batch_that_could_not_be_decided_is_staged_again_before_the_next(
    games: Games, taken: list[bool], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _once(monkeypatch, Manifests, "create", SourceUnavailableError("away for a moment"))
    pipeline = _pipeline(games)
    assert pipeline.run(spark=spark).counts == _ALL
    assert taken == [False, True, False, True, True]
    games.assert_each_record_once()
    _assert_nothing_is_left(games, pipeline)


def test_a_batch_that_is_staged_again_begins_the_next_anew(
    games: Games, taken: list[bool], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = batch_module.publish_all
    lost: list[Path] = []

    def lose_a_file(context: Any, manifest: Any, *, fresh: bool) -> Any:
        if manifest.batch == 1 and not lost:
            entry = next(iter(manifest.primary()))
            lost.append(Path(entry.table.path) / entry.files[0].path)
            lost[0].unlink()
        return publish(context, manifest, fresh=fresh)

    monkeypatch.setattr(batch_module, "publish_all", lose_a_file)
    assert _pipeline(games).run(spark=spark).counts == _ALL
    assert taken == [False, True, False, True, True]
    games.assert_each_record_once()


def test_a_source_that_cannot_be_asked_ahead_is_asked_again(
    games: Games, taken: list[bool], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Failed] = []
    pipeline = _pipeline(games)
    pipeline.bus.subscribe(lambda e: failed.append(e) if isinstance(e, Failed) else None)
    calls = _once(monkeypatch, DeltaSource, "advance", SourceUnavailableError("not now"))
    assert pipeline.run(spark=spark).counts == _ALL
    assert len(calls) > _VERSIONS
    assert (taken, failed) == ([False, False, True, True], [])
    games.assert_each_record_once()


def test_records_that_could_not_be_read_ahead_are_told_as_the_batch_s_own_failure(
    games: Games, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Failed] = []
    pipeline = _pipeline(games)
    pipeline.bus.subscribe(lambda e: failed.append(e) if isinstance(e, Failed) else None)
    _once(monkeypatch, hops, "hop_one", SourceUnavailableError("the broker is away"))
    assert pipeline.run(spark=spark).counts == _ALL
    assert [event.error.what for event in failed] == ["the broker is away"]
    games.assert_each_record_once()
    _assert_nothing_is_left(games, pipeline)
