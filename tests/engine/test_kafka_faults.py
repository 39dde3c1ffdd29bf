"""Brokers and registries that go away, and what a run makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from distributary.config.runtime import Trigger
from distributary.engine.loop import RunSummary
from distributary.engine.progress.claim import liveness
from distributary.errors import ErrorCode, RegistryUnavailableError, SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.model.record import Format
from distributary.observe.alerts.rules import Rules
from distributary.observe.events import BatchSettled, Event, Failed
from distributary.observe.metrics import Metrics
from distributary.observe.status.status import PipelineStatus, status
from distributary_lab.services.services import Services
from tests.engine.test_kafka_streams import person
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.waiting import eventually


class Going:
    """A continuous run in a thread of its mortal."""

    def __init__(
        self, stream: Stream, spark: SparkSession, trigger: str = "continuous", source: str = ""
    ) -> None:
        self.pipeline, self._trigger = stream.pipeline(source=source), trigger
        self.events: list[Event] = []
        self.pipeline.bus.subscribe(self.events.append)
        self.summary: RunSummary | None = None
        self._thread = threading.Thread(target=self._run, args=(spark,))

    def __enter__(self) -> Going:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline.stop.set()
        self._thread.join(180)
        assert not self._thread.is_alive()

    def _run(self, spark: SparkSession) -> None:
        self.summary = self.pipeline.run(trigger=Trigger.parse(self._trigger), spark=spark)

    def read(self) -> int:
        return sum(e.counts.read for e in self.events if isinstance(e, BatchSettled))

    def failures(self) -> list[ErrorCode]:
        return [e.error.code for e in self.events if isinstance(e, Failed)]

    def wait_for(self, records: int) -> None:
        eventually(lambda: self.read() >= records, seconds=180)

    def status(self) -> PipelineStatus:
        """As another process sees it."""
        (found,) = status(self.pipeline.lake, liveness=liveness).pipelines
        return found


def make(mortal: Services, root: Path) -> Stream:
    return Stream(mortal, root, payload="{format: protobuf}", tables="{each: people}")


def send(stream: Stream, count: int, version: int) -> None:
    number = stream.registry.register(stream.subject, person(version), format=Format.PROTOBUF)
    stream.topics.send(stream.topic, [frame(b"\x08\x01", schema_id=number)] * count)


@pytest.mark.parametrize("victim", ["kafka", pytest.param("registry", marks=pytest.mark.slow)])
def test_one_of_them_dies_in_the_middle_and_comes_back(
    mortal: Services, tmp_path: Path, tasks: SparkSession, victim: str
) -> None:
    stream = make(mortal, tmp_path)
    send(stream, 20, version=1)
    kill: Callable[[], None] = mortal.kill_kafka if victim == "kafka" else mortal.kill_registry
    restart: Callable[[], None] = (
        mortal.restart_kafka if victim == "kafka" else mortal.restart_registry
    )
    with Going(stream, tasks) as run:
        run.wait_for(20)
        if victim == "registry":
            # a schema that the run has not met, so that it must ask
            send(stream, 0, version=2)
            number = stream.registry.latest(stream.subject).id
        kill()
        try:
            if victim == "registry":
                stream.topics.send(stream.topic, [frame(b"\x08\x02", schema_id=number)] * 15)
            eventually(lambda: bool(run.failures()), seconds=120)
        finally:
            restart()
        if victim == "kafka":
            send(stream, 15, version=1)
        run.wait_for(35)
    assert run.summary is not None
    assert run.summary.counts == Counts(read=35, written=35)
    offsets = [row["_offset"] for row in stream.rows("people")]
    assert sorted(offsets) == list(range(35))
    expected = {"kafka": ErrorCode.SOURCE_UNAVAILABLE, "registry": ErrorCode.REGISTRY_UNAVAILABLE}
    assert set(run.failures()) == {expected[victim]}
    assert not stream.letters()


@pytest.mark.slow
def test_everybody_sees_that_the_broker_is_away_and_when_it_is_back(
    mortal: Services, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = make(mortal, tmp_path)
    send(stream, 20, version=1)
    with Going(stream, tasks) as run:
        metrics, rules = Metrics(), Rules(run.pipeline.config, now=datetime.now(UTC))
        run.pipeline.bus.subscribe(metrics.listen)
        run.pipeline.bus.subscribe(rules.hear)

        def retrying() -> float | None:
            labels = {"pipeline": stream.topic, "code": "SOURCE_UNAVAILABLE"}
            return metrics.registry.get_sample_value("distributary_pipeline_retrying", labels)

        run.wait_for(20)
        eventually(lambda: run.status().state == "running", seconds=60)
        # What is known last must be the end, not the lag from before the batch.
        eventually(lambda: run.status().lag.lag_records == 0, seconds=60)
        mortal.kill_kafka()
        try:
            eventually(lambda: run.status().state == "retrying", seconds=60)
            failure = run.status().failure
            assert failure is not None and failure["code"] == "SOURCE_UNAVAILABLE"
            assert failure["since"] and failure["next_try"]
            assert retrying() == 1
            lag = run.status().lag
            assert (lag.trend, lag.lag_records, lag.last_known_records) == ("unknown", None, 0)
            assert lag.unknown_since is not None
            assert [each["code"] for each in rules.memory()["open"]] == ["SOURCE_UNAVAILABLE"]
        finally:
            mortal.restart_kafka()
        eventually(lambda: run.status().state == "running", seconds=60)
        assert (run.status().failure, retrying(), rules.memory()["open"]) == (None, 0, [])
        send(stream, 15, version=1)
        run.wait_for(35)
    assert run.status().state == "stopped"


def test_lag_is_what_the_broker_holds_and_nobody_has_read(
    mortal: Services, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = make(mortal, tmp_path)
    send(stream, 20, version=1)
    with Going(stream, tasks, trigger="every 1h") as run:
        run.wait_for(20)
        eventually(lambda: run.status().lag.lag_records == 0, seconds=60)
        send(stream, 7, version=1)
        # no batch is due for an hour
        eventually(lambda: run.status().lag.lag_records == 7, seconds=60)
        found = run.status()
        assert found.backlog is not None
        assert found.backlog.partitions == {f"{stream.topic}/0": 7}
    # and what was measured last stays, with its time
    assert run.status().lag.lag_records == 7


@pytest.mark.parametrize("missing", ["kafka", "registry"])
def test_one_of_them_is_not_there_at_the_start(
    mortal: Services, tmp_path: Path, tasks: SparkSession, missing: str
) -> None:
    stream = make(mortal, tmp_path)
    send(stream, 1, version=1)
    nobody = "127.0.0.1:1"
    extra = "run: {batch_attempts: 1}"
    pipeline = stream.pipeline(servers=nobody if missing == "kafka" else "", extra=extra)
    if missing == "registry":
        text = (tmp_path / "pipeline.yaml").read_text().replace(mortal.registry, f"http://{nobody}")
        (tmp_path / "pipeline.yaml").write_text(text)
        pipeline = type(pipeline).load(tmp_path / "pipeline.yaml")
    expected = SourceUnavailableError if missing == "kafka" else RegistryUnavailableError
    with pytest.raises(expected) as caught:
        pipeline.run(spark=tasks)
    assert caught.value.retryable
    assert nobody in (caught.value.where or "")
    assert caught.value.next_step
    assert not stream.letters()
