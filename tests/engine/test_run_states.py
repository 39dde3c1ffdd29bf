"""The states of a pipeline in `status`: done, stopped, failed, and paused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from distributary.engine import loop
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import liveness
from distributary.errors import ConfigError, DistributaryError, ErrorCode, PausedError
from distributary.observe.events import BatchSettled, Event, Idle, Paced, Paused
from distributary.observe.pause import LONGEST_NOTE, Pause, end_pause, read_pause, write_pause
from distributary.observe.status.status import PipelineStatus, status
from distributary.store.base import at
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games


def now(pipeline: Pipeline) -> PipelineStatus:
    (found,) = status(pipeline.lake, liveness=liveness).pipelines
    return found


def test_the_three_ends_of_a_run(tasks: SparkSession, tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file(extra="run: {batch_attempts: 1}")
    games.send_all()
    Pipeline.load(file).run(trigger="available_now", spark=tasks)
    assert (now(Pipeline.load(file)).state, now(Pipeline.load(file)).failure) == ("done", None)

    source, away = games.lake / "wrapper", tmp_path / "away"
    shutil.move(source, away)
    with pytest.raises(DistributaryError):
        Pipeline.load(file).run(trigger="available_now", spark=tasks)
    found = now(Pipeline.load(file))
    assert found.state == "failed" and found.failure is not None
    assert found.failure["code"] == ErrorCode.SOURCE_UNAVAILABLE
    assert found.failure["at"] and found.failure["next_step"]

    shutil.move(away, source)
    pipeline = Pipeline.load(file)
    seen: list[str] = []

    def stop(event: Event) -> None:
        if isinstance(event, Idle):
            seen.append(now(pipeline).state)
            pipeline.stop.set()

    pipeline.bus.subscribe(stop)
    pipeline.run(trigger="continuous", spark=tasks)
    assert seen == ["running"]
    assert (now(pipeline).state, now(pipeline).failure) == ("stopped", None)


def test_an_interrupted_run_is_stopped_and_a_defect_is_a_failure(
    tasks: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file()
    games.send_all()
    for error, state in ((KeyboardInterrupt, "stopped"), (AssertionError, "failed")):
        pipeline = Pipeline.load(file)
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(StreamRun, "_loop", Mock(side_effect=error))
            pipeline.run(trigger="available_now", spark=tasks)
        assert now(pipeline).state == state


def test_a_run_with_a_freshness_says_when_its_batches_begin(
    tasks: SparkSession, tmp_path: Path
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10))
    pipeline = Pipeline.load(games.write_file(extra="trigger: {freshness: 3s}"))
    games.send_round()
    batches: list[int] = []
    seen: list[PipelineStatus] = []

    def follow(event: Event) -> None:
        if isinstance(event, BatchSettled):
            batches.append(event.counts.read)
        if isinstance(event, Paced):
            assert 0 <= event.pace.interval_seconds <= 3
            found = now(pipeline)
            # the pulse is written every few seconds
            if found.pace is not None and len(batches) > 1:
                seen.append(found)
                pipeline.stop.set()
            elif len(batches) == 1:
                games.send_round()

    pipeline.bus.subscribe(follow)
    pipeline.run(spark=tasks)
    games.assert_each_record_once()
    assert len(batches) == 2
    pace = seen[0].pace
    assert pace is not None and (pace.freshness_seconds, pace.records >= 0) == (3.0, True)
    # a pipeline that has ended has no pace
    assert now(pipeline).pace is None


@pytest.mark.parametrize(
    ("trigger", "meant"),
    [
        ("evry 5s", "every 5s"),
        ("continous", "continuous"),
        ("every 5 weeks", ""),
        (5, ""),
        (b"", ""),
    ],
)
def test_a_wrong_trigger_is_an_error_of_ours(tmp_path: Path, trigger: Any, meant: str) -> None:
    file = Games(tmp_path, GamesPlan(games=1, versions=1, records=1)).write_file()
    with pytest.raises(ConfigError) as caught:
        Pipeline.load(file).run(trigger=trigger)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert caught.value.where == "argument trigger" and repr(trigger) in caught.value.evidence
    assert meant in caught.value.what


def test_other_wrong_arguments_are_errors_of_ours(tmp_path: Path) -> None:
    file = Games(tmp_path, GamesPlan(games=1, versions=1, records=1)).write_file()
    # as `stop` leaves a session: its context has no JVM
    context = type("SparkContext", (), {"_jsc": None})()
    stopped = type("SparkSession", (), {"_sc": context, "version": "4.0.0"})()
    calls: list[Callable[[], object]] = [
        lambda: Pipeline.load(None),  # type: ignore[arg-type]
        lambda: Pipeline.load(b"games.yaml"),  # type: ignore[arg-type]
        lambda: Pipeline(str(file)),  # type: ignore[arg-type]
        lambda: Pipeline.load(file).run(spark="local[2]"),  # type: ignore[arg-type]
        lambda: Pipeline.load(file).run(spark=stopped),  # type: ignore[arg-type]
        lambda: Pipeline.load(file, nmae="x"),
        lambda: Pipeline.load(file, trigger="evry 5s"),
    ]
    for call in calls:
        with pytest.raises(ConfigError):
            call()


def test_a_paused_pipeline_waits_and_goes_on_where_it_stopped(
    tasks: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an idle run says so each half minute
    monkeypatch.setattr(loop, "_HEARTBEAT_SECONDS", 0.2)
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10))
    file = games.write_file()
    games.send_round()
    pipeline = Pipeline.load(file)
    store = pipeline.checkpoint
    states: list[tuple[str, int]] = []

    def follow(event: Event) -> None:
        found = now(pipeline)
        if isinstance(event, Paused):
            states.append((found.state, found.totals.read))
            assert found.pause is not None and found.pause.note == "the registry moves"
            end_pause(store)
        elif isinstance(event, Idle):
            states.append((found.state, found.totals.read))
            if len(states) == 1:
                assert games.send_round() is not None
                write_pause(store, "the registry moves")
            else:
                pipeline.stop.set()

    pipeline.bus.subscribe(follow)
    pipeline.run(trigger="continuous", spark=tasks)
    one, two = (sum(each.messages for each in games.sent[:rounds]) for rounds in (1, 2))
    assert one < two
    assert states == [("running", one), ("paused", one), ("running", two)]


def test_a_pause_refuses_a_run_to_the_end_of_the_source_and_is_no_failure(
    tasks: SparkSession, tmp_path: Path
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=2, records=10))
    file = games.write_file()
    games.send_round()
    Pipeline.load(file).run(trigger="available_now", spark=tasks)
    before = now(Pipeline.load(file)).totals.read
    assert games.send_round() is not None
    store = Pipeline.load(file).checkpoint
    write_pause(store, "x" * 10_000)
    with pytest.raises(PausedError) as caught:
        Pipeline.load(file).run(trigger="available_now", spark=tasks)
    assert caught.value.exit_code == 75
    found = now(Pipeline.load(file))
    # the earlier run was done, and the refused one changed nothing
    assert (found.totals.read, found.failure) == (before, None)
    assert found.pause is not None and len(found.pause.note) == LONGEST_NOTE
    assert end_pause(store) is not None and end_pause(store) is None
    Pipeline.load(file).run(trigger="available_now", spark=tasks)
    assert now(Pipeline.load(file)).totals.read > before > 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"since": 5}', b"\xff", b"[" * 100_000])
def test_a_damaged_pause_still_pauses(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pause.json").write_bytes(content)
    assert read_pause(str(tmp_path)) == Pause()
    first = write_pause(at(str(tmp_path)), "why")
    assert first.since is not None and first.note == "why"
    # a pause that exists keeps its beginning
    assert write_pause(at(str(tmp_path))) == Pause(first.since)
