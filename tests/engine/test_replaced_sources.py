"""Sources that are replaced under a pipeline: nothing is passed over, whenever it happens."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.config.runtime import Trigger
from distributary.engine import batch as batch_module
from distributary.engine.pipeline import Pipeline
from distributary.errors import DistributaryError, ErrorCode, SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.model.record import Format
from distributary.observe.events import Event
from distributary_lab.services.services import Services
from distributary_lab.simulate.game_records import GamesPlan
from tests.engine.test_kafka_streams import person
from tests.lakes.games import Games
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.source.kafka.test_kafka_replaced import patiently
from tests.waiting import eventually, until_read


class _Going:
    """A continuous run in a thread of its own, and how it ended."""

    def __init__(self, pipeline: Pipeline, tasks: SparkSession) -> None:
        self.pipeline, self.events = pipeline, list[Event]()
        self.pipeline.bus.subscribe(self.events.append)
        self.failure: DistributaryError | None = None
        self._thread = threading.Thread(target=self._run, args=(tasks,))
        self._thread.start()

    def _run(self, tasks: SparkSession) -> None:
        try:
            self.pipeline.run(trigger=Trigger.parse("continuous"), spark=tasks)
        except DistributaryError as error:
            self.failure = error

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.pipeline.stop.set()
        self._thread.join(180)
        assert self.ended()


def test_a_topic_made_anew_stops_a_run_that_goes_on_or_is_read_from_its_beginning(
    services: Services, tmp_path: Path, tasks: SparkSession
) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf}", tables="{each: people}")
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)

    def send(count: int, value: int) -> None:
        record = frame(bytes([8, value]), schema_id=number)
        patiently(lambda: stream.topics.send(stream.topic, [record] * count))

    def replace(count: int, value: int) -> None:
        stream.topics.delete(stream.topic)
        patiently(lambda: stream.topics.create(stream.topic))
        send(count, value)

    send(30, 1)
    strict = _Going(stream.pipeline(), tasks)
    try:
        until_read(strict.events, 30)
        replace(70, 2)
        eventually(strict.ended, seconds=120)
    finally:
        strict.stop()
    assert strict.failure is not None
    assert strict.failure.code is ErrorCode.SOURCE_REPLACED
    assert len(stream.rows("people")) == 30
    reading = _Going(stream.pipeline(source="  on_replaced: read"), tasks)
    try:
        until_read(reading.events, 70)
        replace(50, 3)
        until_read(reading.events, 120)
        send(5, 4)
        until_read(reading.events, 125)
    finally:
        reading.stop()
    assert reading.failure is None
    found = [(row["id"], row["_offset"]) for row in stream.rows("people")]
    assert sorted(found) == [
        *((1, offset) for offset in range(30)),
        *((2, offset) for offset in range(70)),
        *((3, offset) for offset in range(50)),
        *((4, offset) for offset in range(50, 55)),
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["only published", "read again"])
def test_a_batch_that_is_decided_needs_the_old_table_only_if_its_files_are_lost(
    tmp_path: Path, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=6))
    games.send_all()
    pipeline = games.pipeline(extra="run: {batch_attempts: 1}")
    publish = batch_module.publish_all
    decided: list[Any] = []

    def away(context: Any, manifest: Any, *, fresh: bool) -> Any:
        decided.append(manifest)
        raise SourceUnavailableError("the process ends here")

    monkeypatch.setattr(batch_module, "publish_all", away)
    with pytest.raises(SourceUnavailableError):
        pipeline.run(spark=tasks)
    monkeypatch.setattr(batch_module, "publish_all", publish)
    if lost:
        entry = next(iter(decided[0].primary()))
        (Path(entry.table.path) / entry.files[0].path).unlink()
    _replace_source(games)

    with pytest.raises(DistributaryError) as caught:
        pipeline.run(spark=tasks)
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    assert not caught.value.retryable
    manifests = Path(pipeline.checkpoint.address) / "manifests"
    assert (manifests / f"{0:020d}.json").exists()
    file = games.root / "games.yaml"
    file.write_text(file.read_text().replace("value: wrapper", "value: wrapper, on_replaced: read"))
    reading = Pipeline.load(file)
    if lost:
        with pytest.raises(DistributaryError) as caught:
            reading.run(spark=tasks)
        assert caught.value.code is ErrorCode.SOURCE_REPLACED
        assert not caught.value.retryable
        assert not list(manifests.glob("*.broken-*"))
    else:
        assert reading.run(spark=tasks).counts == Counts(read=24, written=24)
        assert sorted(games.offsets()) == list(range(36))


def _replace_source(games: Games) -> None:
    """Another table in the place of the source's, with everything twice."""
    path = games.lake / "wrapper"
    rows = DeltaTable(str(path)).to_pyarrow_table()
    shutil.rmtree(path)
    for _ in range(2):
        write_deltalake(str(path), rows, mode="append")


@pytest.mark.slow
def test_a_broker_that_was_put_back_to_an_older_copy_and_has_grown_since_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, tasks: SparkSession
) -> None:
    folder = tmp_path_factory.mktemp("restored")
    data, copy = folder / "kafka" / "data", tmp_path / "copy"
    with Services(folder) as services:
        stream = Stream(services, tmp_path, payload="{format: protobuf}", tables="{each: people}")
        number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)

        def send(count: int, value: int) -> None:
            record = frame(bytes([8, value]), schema_id=number)
            patiently(lambda: stream.topics.send(stream.topic, [record] * count))

        send(10, 1)
        services.stop()
        shutil.copytree(data, copy)
        services.start()
        send(20, 2)
        stream.pipeline().run(spark=tasks)
        assert len(stream.rows("people")) == 30
        services.stop()
        shutil.rmtree(data)
        copy.rename(data)
        services.start()
        send(40, 3)
        with pytest.raises(DistributaryError) as caught:
            stream.pipeline().run(spark=tasks)
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    assert "offset 29" in (caught.value.evidence or "")
    assert len(stream.rows("people")) == 30
