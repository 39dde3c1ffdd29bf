"""The Kafka source's account of its own records, asked of a real broker, without Spark."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from distributary.config.sources.kafka import KafkaSourceConfig as Config
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.source.base import Position
from distributary.source.kafka.broker import Broker
from distributary.source.kafka.source import KafkaSource, alike
from distributary.spark.in_process import in_process
from tests.services.secured import SecuredServices
from tests.services.shared import unique
from tests.topics import Topics
from tests.waiting import patiently


@pytest.fixture(scope="module")
def topics(services: SecuredServices) -> Topics:
    return Topics(services.kafka)


def source(services: SecuredServices, **settings: Any) -> KafkaSource:
    base = {"type": "kafka", "bootstrap_servers": services.kafka}
    return KafkaSource(Config.model_validate(base | settings))


def offsets(position: Position | None) -> dict[str, dict[str, int]]:
    assert position is not None
    found: dict[str, dict[str, int]] = position["offsets"]
    return found


def values(one: KafkaSource, start: Position) -> list[bytes | None]:
    batches = list(one.peek(start))
    if not batches:
        return []
    table = pa.Table.from_batches(batches).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    found: list[bytes | None] = table["value"].to_pylist()
    return found


def test_batches_are_bounded_and_no_partition_starves(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("bounded"), partitions=2)
    topics.send(name, [b"x"] * 90, partition=0)
    topics.send(name, [b"y"] * 10, partition=1)
    one = source(services, topics=[name], max_records_per_batch=20)
    position: Position | None = one.first()
    until = one.newest()
    seen = []
    while (position := one.advance(position or {}, until)) is not None:
        seen.append(offsets(position)[name])
    assert seen[0] == {"0": 18, "1": 2}
    assert seen[-1] == {"0": 90, "1": 10}
    assert all(later["1"] > earlier["1"] or later["1"] == 10 for earlier, later in pairwise(seen))


def test_an_open_batch_can_end_earlier_or_later(services: SecuredServices, topics: Topics) -> None:
    name = topics.create(unique("ends"), partitions=2)
    topics.send(name, [b"x"] * 9, partition=0)
    topics.send(name, [b"y"], partition=1)
    one = source(services, topics=[name], max_records_per_batch=5)
    begin, until = one.first(), one.newest()
    end = one.advance(begin, until)
    assert end is not None
    batch = one.open(in_process(partial(pytest.fail, "no Spark")), begin, end)
    assert offsets(batch.end)[name] == {"0": 4, "1": 1}
    assert batch.shorter is not None and batch.longer is not None and batch.read is not None
    earlier = batch.shorter({(name, 0): 2, (name, 1): 0})
    assert offsets(earlier.end)[name] == {"0": 2, "1": 0}
    assert earlier.ranges == (SourceRange(name, 0, 0, 2, 2),)
    assert earlier.lag_by_partition == {f"{name}/0": 7, f"{name}/1": 1}
    assert batch.shorter({(name, 0): 0, (name, 1): 0}).ranges == ()
    later = batch.longer()
    assert later is not None and offsets(later.end)[name] == {"0": 9, "1": 1}
    assert later.longer is not None and later.longer() is None
    assert sum(found.num_rows for found in batch.read([name])) == 5
    assert list(batch.read([])) == []
    assert batch.reads(name) and not batch.reads("another")


def test_records_come_with_everything_they_had(services: SecuredServices, topics: Topics) -> None:
    name = topics.create(unique("whole"))
    topics.send(name, [b"a", None], keys=[b"k", b"gone"], headers=[("h", b"1"), ("h", b"2")])
    one = source(services, topics=[name])
    rows = pa.Table.from_batches(list(one.peek(one.first()))).to_pylist()
    assert [(r["key"], r["value"], r["topic"], r["partition"], r["offset"]) for r in rows] == [
        (b"k", b"a", name, 0, 0),
        (b"gone", None, name, 0, 1),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
    assert abs(rows[0]["timestamp"].timestamp() - time.time()) < 600


@pytest.mark.parametrize("start", ["earliest", "latest", "moment", "offsets"])
def test_a_first_run_starts_where_the_settings_say(
    services: SecuredServices, topics: Topics, start: str
) -> None:
    name = topics.create(unique("start"))
    topics.send(name, [b"old"] * 3)
    time.sleep(0.05)
    moment = datetime.now(UTC)
    time.sleep(0.05)
    topics.send(name, [b"new"] * 2)
    settings: dict[str, Any] = {
        "earliest": "earliest",
        "latest": "latest",
        "moment": moment.isoformat(),
        "offsets": {name: {"0": 4}},
    }
    one = source(services, topics=[name], starting_offsets=settings[start])
    first = one.first()
    assert offsets(first)[name] == {
        "0": {"earliest": 0, "latest": 5, "moment": 3, "offsets": 4}[start]
    }
    topics.send(name, [b"later"])
    assert values(one, first)[-1] == b"later"


def test_a_moment_after_the_last_record_is_the_end(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("late"))
    topics.send(name, [b"x"] * 2)
    one = source(services, topics=[name], starting_offsets="2100-01-01T00:00:00Z")
    assert offsets(one.first())[name] == {"0": 2}


def test_new_partitions_are_read_from_their_beginning(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("grows"))
    topics.send(name, [b"a"])
    one = source(services, topics=[name], starting_offsets="latest")
    first = one.first()
    topics.grow(name, 2)
    patiently(lambda: topics.send(name, [b"b"], partition=1))
    end = patiently(lambda: one.advance(first, one.newest()))
    assert offsets(end)[name] == {"0": 1, "1": 1}
    assert end["from"] == {name: {"1": 0}}
    assert values(one, first) == [b"b"]


def test_new_topics_join_by_pattern(services: SecuredServices, topics: Topics) -> None:
    stem = unique("pattern")
    topics.create(f"{stem}.a")
    topics.send(f"{stem}.a", [b"1"])
    one = source(services, topic_pattern=f"{stem}\\..*")
    end = one.advance(one.first(), one.newest())
    assert end is not None
    topics.create(f"{stem}.b")
    topics.create(f"not-{stem}.c")
    topics.send(f"{stem}.b", [b"2"])
    after = patiently(lambda: one.advance(end, one.newest()))
    assert offsets(after) == {f"{stem}.a": {"0": 1}, f"{stem}.b": {"0": 1}}


def test_records_that_retention_ate_are_named(services: SecuredServices, topics: Topics) -> None:
    name = topics.create(unique("eaten"), partitions=2)
    topics.send(name, [b"x"] * 10, partition=0)
    topics.send(name, [b"y"] * 4, partition=1)
    one = source(services, topics=[name])
    first = one.first()
    topics.forget(name, {0: 7})
    with pytest.raises(SourceError) as caught:
        one.advance(first, one.newest())
    error = caught.value
    assert error.code is ErrorCode.SOURCE_DATA_LOST
    assert not error.retryable
    assert f"{name}/0: 7 records from 0 on" in (error.evidence or "")
    assert f"{name}/1" not in (error.evidence or "")
    lenient = source(services, topics=[name], fail_on_data_loss=False)
    end = lenient.advance(first, lenient.newest())
    assert offsets(end)[name] == {"0": 10, "1": 4}
    assert values(lenient, first) == [b"x"] * 3 + [b"y"] * 4


def test_a_missing_topic_may_come_and_a_near_name_is_told(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("orders"))
    with pytest.raises(SourceUnavailableError) as caught:
        source(services, topics=[f"{name}x"]).first()
    assert caught.value.retryable
    assert name in (caught.value.evidence or "")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_broker_that_is_not_there(protocol: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free_port = taken.getsockname()[1]
    login = {"mechanism": "PLAIN", "username": "u", "password": "p"}
    config = {
        "type": "kafka",
        "bootstrap_servers": f"127.0.0.1:{free_port}",
        "topics": ["t"],
        "security": {"protocol": protocol, **(login if protocol.startswith("SASL") else {})},
    }
    with pytest.raises(SourceUnavailableError) as caught:
        KafkaSource(Config.model_validate(config)).first()
    assert caught.value.retryable
    assert str(free_port) in (caught.value.where or "")


@pytest.mark.parametrize(
    ("answer", "told_before", "retryable"),
    [
        (KafkaError._TRANSPORT, None, True),
        (KafkaError._ALL_BROKERS_DOWN, None, True),
        (KafkaError._TIMED_OUT, None, True),
        (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, True),
        (KafkaError._TIMED_OUT, KafkaError._AUTHENTICATION, False),
        (KafkaError._AUTHENTICATION, None, False),
        (KafkaError.SASL_AUTHENTICATION_FAILED, None, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, None, False),
        # the answer itself says more than what a connection once had to say
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._TRANSPORT, False),
    ],
)
def test_a_refusal_is_told_from_an_outage_by_its_code(
    answer: int, told_before: int | None, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "sasl_plaintext://127.0.0.1:9092/bootstrap: SASL said something"

    class Admin:
        def __init__(self, options: dict[str, Any]) -> None:
            self.complain = options["error_cb"]

        def describe_topics(self, *_: Any, **__: Any) -> None:
            raise KafkaException(KafkaError(answer, text))

        def poll(self, _: float) -> None:
            if told_before is not None:
                self.complain(KafkaError(told_before, text))

    monkeypatch.setattr("distributary.source.kafka.broker.AdminClient", Admin)
    with pytest.raises(SourceError) as caught:
        Broker({"bootstrap.servers": "127.0.0.1:9092"}).described(["t"])
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_is_asked_for(services: SecuredServices, topics: Topics, mechanism: str) -> None:
    name = topics.create(unique("sasl"))
    topics.send(name, [b"x"])
    door = services.security
    settings = {"protocol": "SASL_PLAINTEXT", "mechanism": mechanism, "username": door.username}
    servers = {"bootstrap_servers": door.sasl_plaintext, "topics": [name]}
    one = source(services, **servers, security=settings | {"password": door.password})
    assert values(one, one.first()) == [b"x"]
    wrong = source(services, **servers, security=settings | {"password": "not-the-password"})
    with pytest.raises(SourceError) as caught:
        wrong.first()
    assert not caught.value.retryable
    assert "not-the-password" not in str(caught.value)


def test_certificates_on_both_sides(services: SecuredServices, topics: Topics) -> None:
    name = topics.create(unique("mtls"))
    topics.send(name, [b"x"])
    door = services.security
    security = {
        "protocol": "SSL",
        "ca_location": str(door.authority),
        "certificate_location": str(door.certificate),
        "key_location": str(door.key),
    }
    one = source(services, bootstrap_servers=door.ssl, topics=[name], security=security)
    assert values(one, one.first()) == [b"x"]
    del security["certificate_location"], security["key_location"]
    with pytest.raises(SourceError):
        source(services, bootstrap_servers=door.ssl, topics=[name], security=security).first()


def test_a_batch_of_before_is_found_again_by_its_ranges(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("again"), partitions=2)
    topics.send(name, [b"x"] * 6, partition=0)
    topics.send(name, [b"y"] * 6, partition=1)
    one = source(services, topics=[name], max_records_per_batch=4)
    first = one.first()
    end = one.advance(first, one.newest())
    ranges = [SourceRange(name, 0, 0, 2, 2), SourceRange(name, 1, 0, 2, 2)]
    assert one.retrace(first, ranges) == end


@pytest.mark.parametrize(
    ("counts", "tasks", "expected"),
    [
        ([100, 100, 100, 100], 2, True),
        ([100, 90, 100, 95], 2, True),
        # the three would be two and one
        ([100, 100, 100], 2, False),
        # two large ones might be one task's
        ([100, 100, 1, 1], 2, False),
        # as many as there are tasks: nothing to gain
        ([100, 100], 2, False),
        ([0, 0, 0], 2, False),
        ([], 2, False),
    ],
)
def test_partitions_share_a_task_only_where_no_task_could_get_much_more_than_another(
    counts: list[int], tasks: int, expected: bool
) -> None:
    assert alike(counts, tasks) is expected
