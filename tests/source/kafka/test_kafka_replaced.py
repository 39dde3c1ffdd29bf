"""Topics that were deleted and made again, asked of a real broker, without Spark."""

from __future__ import annotations

import logging
import time
from typing import Any
from unittest.mock import ANY

import pytest

from distributary.errors import DistributaryError, ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import LastRecords, last_records
from distributary.source.base import BatchInput, Position
from distributary.source.kafka import broker
from distributary.source.kafka import source as kafka
from distributary.source.kafka.broker import Broker
from distributary.source.kafka.consumer import ConsumerReader, read
from distributary.source.kafka.source import KafkaSource
from distributary_lab.services.services import Services
from tests.services.shared import unique
from tests.source.kafka.test_kafka_source import offsets, source, values
from tests.topics import Topics
from tests.waiting import patiently


@pytest.fixture(scope="module")
def topics(services: Services) -> Topics:
    return Topics(services.kafka)


def replace(topics: Topics, name: str, *counts: int) -> None:
    """Delete a topic and make it again, with so many records in each of its partitions."""
    topics.delete(name)
    create(topics, name, *counts)


def create(topics: Topics, name: str, *counts: int) -> str:
    patiently(lambda: topics.create(name, partitions=len(counts)))
    for partition, count in enumerate(counts):
        if count:
            patiently(lambda p=partition, n=count: topics.send(name, [b"new"] * n, partition=p))
    return name


def after_all(one: KafkaSource) -> Position:
    """The end of a batch with all there is."""
    end = one.advance(one.first(), one.newest())
    assert end is not None
    return end


def without_ids(position: Position) -> Position:
    return {key: value for key, value in position.items() if key != "ids"}


def next_end(one: KafkaSource, start: Position) -> Position | None:
    """Where the next batch ends; moments in which the broker has no leader are waited out."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return one.advance(start, one.newest())
        except SourceUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def opened(one: KafkaSource, start: Position, end: Position) -> BatchInput:
    nothing = ConsumerReader(tasks=(), group="", fail_on_data_loss=True, options={})
    one._native = lambda *_: nothing  # type: ignore[method-assign]
    return one.open(None, start, end)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [7, 3, 1, 0], ids=["longer", "as long", "shorter", "empty"])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_was_made_anew_is_refused(
    services: Services, topics: Topics, now: int, lenient: bool
) -> None:
    name = create(topics, unique("again"), 3)
    one = source(services, topics=[name], fail_on_data_loss=not lenient)
    end = after_all(one)
    replace(topics, name, now)
    for asked in (one, source(services, topics=[name], fail_on_data_loss=not lenient)):
        with pytest.raises(SourceError) as caught:
            next_end(asked, end)
        assert caught.value.code is ErrorCode.SOURCE_REPLACED
        assert not caught.value.retryable
        assert "source.on_replaced" in (caught.value.next_step or "")
        assert "distributary reset" in (caught.value.next_step or "")
        assert name in (caught.value.evidence or "")


def test_the_new_topic_is_read_from_its_beginning_where_that_is_wanted(
    services: Services, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    name, other = create(topics, unique("again"), 3, 5, 2), create(topics, unique("kept"), 4)
    one = source(services, topics=[name, other], on_replaced="read")
    first = one.first()
    end = after_all(one)
    topics.send(name, [b"unread"] * 6, partition=1)
    one.newest()
    # one partition fewer, one longer, one shorter
    replace(topics, name, 7, 1)
    topics.send(other, [b"more"])
    with caplog.at_level(logging.WARNING):
        after = next_end(one, end)
        assert next_end(one, end) == after
    assert offsets(after) == {name: {"0": 7, "1": 1}, other: {"0": 5}}
    assert after is not None
    assert after["from"] == {name: {"0": 0, "1": 0}}
    assert after["ids"][name] != end["ids"][name]
    assert after["ids"][other] == end["ids"][other]
    (told,) = [r.getMessage() for r in caplog.records if name in r.getMessage()]
    assert "6 records" in told
    read = opened(one, end, after)
    assert [(r.topic, r.partition, r.start, r.end) for r in read.ranges] == sorted(
        [(name, 0, 0, 7), (name, 1, 0, 1), (other, 0, 4, 5)]
    )
    assert read.identities == after["ids"]
    assert sorted(v for v in values(one, end) if v) == [b"more"] + [b"new"] * 8
    assert next_end(one, after) is None
    # a batch of before is found again, also where it began with the new topic
    assert one.retrace(end, read.ranges)["offsets"] == after["offsets"]
    assert one.retrace(first, opened(one, first, end).ranges) == end


def test_a_position_without_ids_goes_on_and_learns_them(services: Services, topics: Topics) -> None:
    name = create(topics, unique("old"), 3)
    one = source(services, topics=[name])
    old = without_ids(after_all(one))
    topics.send(name, [b"x"])
    end = next_end(one, old)
    assert offsets(end) == {name: {"0": 4}}
    replace(topics, name, 9)
    with pytest.raises(SourceError) as caught:
        next_end(one, end or {})
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    # without an id a topic that is longer cannot be told from one that has grown
    assert offsets(next_end(one, old)) == {name: {"0": 9}}
    replace(topics, name, 1)
    with pytest.raises(SourceError) as caught:
        next_end(one, old)
    assert caught.value.code is ErrorCode.SOURCE_REPLACED


def test_a_broker_that_tells_no_ids_is_read_as_ever(
    services: Services, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "described", lambda *_: {})
    name = create(topics, unique("mute"), 3)
    one = source(services, topics=[name])
    end = after_all(one)
    assert "ids" not in end
    topics.send(name, [b"x"])
    after = next_end(one, end)
    assert offsets(after) == {name: {"0": 4}}
    read = opened(one, end, after or {})
    read.verify(decided=False)
    assert read.identities == {}


def test_a_topic_that_is_not_there_again_yet_is_waited_for(
    services: Services, topics: Topics
) -> None:
    name = create(topics, unique("gone"), 3)
    one = source(services, topics=[name])
    after_all(one)
    topics.delete(name)

    def refusal() -> SourceUnavailableError | None:
        try:
            one.newest()
        except SourceUnavailableError as error:
            return error
        return None

    # a broker goes on answering for a topic for a moment after it has agreed to delete it
    assert patiently(refusal).code is ErrorCode.SOURCE_UNAVAILABLE


def test_a_topic_of_a_pattern_that_is_gone_is_told_once_and_refused_when_it_is_back(
    services: Services, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    stem = unique("pattern")
    name, other = create(topics, f"{stem}.a", 3), create(topics, f"{stem}.b", 2)
    one = source(services, topic_pattern=f"{stem}\\..*")
    end = after_all(one)
    topics.delete(name)
    topics.send(other, [b"x"])
    with caplog.at_level(logging.WARNING):
        after = next_end(one, end)
        assert next_end(one, after or {}) is None
    assert offsets(after) == {name: {"0": 3}, other: {"0": 3}}
    assert len([r for r in caplog.records if name in r.getMessage()]) == 1
    create(topics, name, 5)
    with pytest.raises(SourceError) as caught:
        next_end(one, after or {})
    assert caught.value.code is ErrorCode.SOURCE_REPLACED


@pytest.mark.parametrize("choice", ["stop", "read"])
@pytest.mark.parametrize("decided", [False, True])
def test_a_topic_that_is_replaced_while_a_batch_is_read_is_noticed_before_the_batch_counts(
    services: Services, topics: Topics, choice: str, decided: bool
) -> None:
    name = create(topics, unique("under"), 3)
    one = source(services, topics=[name], on_replaced=choice)
    first = one.first()
    read = opened(one, first, after_all(one))
    read.verify(decided=decided)
    replace(topics, name, 9)
    with pytest.raises(DistributaryError) as caught:
        read.verify(decided=decided)
    assert caught.value.code is ErrorCode.SOURCE_REPLACED
    # a batch that nobody has decided may be planned again, with the new topic
    assert caught.value.retryable is (choice == "read" and not decided)
    failure = one.explain(Exception("KAFKA_DATA_LOSS: OffsetOutOfRange"))
    assert failure is not None
    assert failure.code is ErrorCode.SOURCE_REPLACED


def test_what_was_read_of_a_topic_that_is_gone_counts(services: Services, topics: Topics) -> None:
    name = create(topics, unique("gone"), 3)
    one = source(services, topics=[name])
    read = opened(one, one.first(), after_all(one))
    topics.delete(name)
    read.verify(decided=False)


def test_a_log_that_the_broker_has_cut_is_not_a_topic_made_anew(
    services: Services, topics: Topics
) -> None:
    name = create(topics, unique("cut"), 3)
    end = after_all(source(services, topics=[name]))
    beyond: dict[str, Any] = {**end, "offsets": {name: {"0": 5}}}
    with pytest.raises(SourceError) as caught:
        next_end(source(services, topics=[name]), beyond)
    assert caught.value.code is ErrorCode.SOURCE_DATA_LOST
    # nothing is read twice: it goes on with what comes next
    lenient = source(services, topics=[name], fail_on_data_loss=False)
    assert next_end(lenient, beyond) is None


def test_ids_are_asked_for_together_with_the_partitions(
    services: Services, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [create(topics, unique("many"), 0) for _ in range(3)]
    asked: list[list[str]] = []
    described = Broker.described

    def spied(self: Broker, wanted: list[str]) -> Any:
        asked.append(list(wanted))
        return described(self, wanted)

    monkeypatch.setattr(Broker, "described", spied)
    monkeypatch.setattr(Broker, "_topics", lambda _: pytest.fail("asked for all topics"))
    position = source(services, topics=names).newest()
    assert asked == [names]
    assert set(position["ids"]) == set(names)


def test_ids_of_many_topics_are_asked_for_once_a_second(
    services: Services, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [create(topics, unique("many"), 0) for _ in range(3)]
    asked: list[list[str]] = []
    monkeypatch.setattr(broker, "_FEW", 2)
    monkeypatch.setattr(broker, "_BELIEVED_SECONDS", 60)
    monkeypatch.setattr(Broker, "described", lambda _, wanted: asked.append(list(wanted)) or {})
    one = source(services, topics=names)
    for _ in range(3):
        one.newest()
    assert asked == [names]


def test_a_batch_of_before_keeps_the_ids(services: Services, topics: Topics) -> None:
    name = create(topics, unique("again"), 6, 6)
    one = source(services, topics=[name], max_records_per_batch=4)
    first = one.first()
    end = one.advance(first, one.newest())
    ranges = [SourceRange(name, 0, 0, 2, 2), SourceRange(name, 1, 0, 2, 2)]
    assert one.retrace(first, ranges) == end


def decided(one: KafkaSource, start: Position, end: Position) -> Position:
    """Read a batch, and return the position that its manifest would keep."""
    batch = opened(one, start, end)
    found: LastRecords = {}
    for records in read(one._config.consumer_options(), batch.ranges):
        found |= last_records(records)
    return batch.decided_end(found)


@pytest.mark.parametrize("now", [7, 3], ids=["longer", "as long"])
def test_a_topic_without_an_id_is_known_by_the_last_record_that_was_read(
    services: Services, topics: Topics, now: int
) -> None:
    # a broker that was put back to an older copy has the ids of before: these show nothing
    name = create(topics, unique("restored"), 0)
    topics.send(name, [b"a", b"b", b"c"])
    one = source(services, topics=[name])
    position = without_ids(decided(one, one.first(), after_all(one)))
    assert offsets(position) == {name: {"0": 3}}
    assert source(services, topics=[name]).advance(position, one.newest()) is None
    replace(topics, name, now)
    for choice in ("stop", "read"):
        other = source(services, topics=[name], on_replaced=choice)
        if choice == "stop":
            with pytest.raises(SourceError) as caught:
                next_end(other, position)
            assert caught.value.code is ErrorCode.SOURCE_REPLACED
            assert "offset 2" in (caught.value.evidence or "")
            continue
        end = next_end(other, position)
        assert end is not None
        assert end["from"] == {name: {"0": 0}}
        assert decided(other, position, end)["last"] == {name: {"0": ANY}}
        assert other.advance(decided(other, position, end), other.newest()) is None


def test_a_last_record_that_is_gone_proves_nothing(services: Services, topics: Topics) -> None:
    name = create(topics, unique("kept"), 3, 2)
    one = source(services, topics=[name])
    position = decided(one, one.first(), after_all(one))
    topics.send(name, [b"more"] * 2, partition=0)
    topics.forget(name, {0: 3, 1: 2})
    end = source(services, topics=[name]).advance(position, one.newest())
    assert offsets(end) == {name: {"0": 5, "1": 2}}


def test_last_records_of_partitions_that_a_batch_did_not_read_are_kept(
    services: Services, topics: Topics
) -> None:
    name = create(topics, unique("quiet"), 3, 2)
    one = source(services, topics=[name])
    before = decided(one, one.first(), after_all(one))
    topics.send(name, [b"more"] * 2, partition=0)
    end = next_end(one, before)
    assert end is not None
    assert "last" not in end
    after = decided(one, before, end)
    assert after["last"][name]["1"] == before["last"][name]["1"]
    assert after["last"][name]["0"][0] == 4


def test_last_records_are_compared_again_after_an_interruption(
    services: Services, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = create(topics, unique("cut"), 3)
    one = source(services, topics=[name])
    position = decided(one, one.first(), after_all(one))
    compared = []
    monkeypatch.setattr(kafka, "read", lambda *_: compared.append(1) or iter(()))
    later = source(services, topics=[name])
    for _ in range(3):
        later.advance(position, later.newest())
    later._broker.interruptions += 1
    later.advance(position, later.newest())
    assert len(compared) == 2
