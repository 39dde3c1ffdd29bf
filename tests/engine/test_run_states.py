"""How a run ended is seen by `status`: done, stopped or failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import liveness
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.observe.events import Event, Idle
from distributary.observe.status import PipelineStatus, status
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games


def now(pipeline: Pipeline) -> PipelineStatus:
    (found,) = status(pipeline.lake, liveness=liveness).pipelines
    return found


def test_the_three_ends_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file(extra="run: {batch_attempts: 1}")
    games.send_all()
    Pipeline.load(file).run(trigger="available_now", spark=spark)
    assert (now(Pipeline.load(file)).state, now(Pipeline.load(file)).failure) == ("done", None)

    source, away = games.lake / "wrapper", tmp_path / "away"
    shutil.move(source, away)
    with pytest.raises(DistributaryError):
        Pipeline.load(file).run(trigger="available_now", spark=spark)
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
    pipeline.run(trigger="continuous", spark=spark)
    assert seen == ["running"]
    assert (now(pipeline).state, now(pipeline).failure) == ("stopped", None)


def test_an_interrupted_run_is_stopped_and_a_defect_is_a_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file()
    games.send_all()
    for error, state in ((KeyboardInterrupt, "stopped"), (AssertionError, "failed")):
        pipeline = Pipeline.load(file)
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(StreamRun, "_loop", Mock(side_effect=error))
            pipeline.run(trigger="available_now", spark=spark)
        assert now(pipeline).state == state


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
    calls: list[Callable[[], object]] = [
        lambda: Pipeline.load(None),  # type: ignore[arg-type]
        lambda: Pipeline.load(b"games.yaml"),  # type: ignore[arg-type]
        lambda: Pipeline(str(file)),  # type: ignore[arg-type]
        lambda: Pipeline.load(file).run(spark="local[2]"),  # type: ignore[arg-type]
        lambda: Pipeline.load(file, nmae="x"),
        lambda: Pipeline.load(file, trigger="evry 5s"),
    ]
    for call in calls:
        with pytest.raises(ConfigError):
            call()
