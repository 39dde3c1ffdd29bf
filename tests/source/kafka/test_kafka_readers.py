"""What every way to read Kafka gives for the same offsets, asked of a real broker.

`native` is a task that reads by itself, `spark` is Spark's Kafka connector.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.config.sources.kafka import KafkaSourceConfig as Config
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW
from distributary.source.base import Position
from distributary.source.kafka.consumer import Client, read, shares
from distributary.source.kafka.source import KafkaSource
from distributary_lab.services.services import Services
from tests.services.brokers import FIRST, SECOND, TwoBrokers
from tests.services.secured import SecuredServices
from tests.services.shared import unique
from tests.topics import Topics
from tests.waiting import eventually, patiently

_COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, offset long, timestamp timestamp"
)
COMMITTED = {"kafka.isolation.level": "read_committed"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """One of the two ways, with a session to run it in."""

    way: str
    spark: SparkSession

    def source(self, servers: str, topic: str, **settings: Any) -> KafkaSource:
        base = {"type": "kafka", "bootstrap_servers": servers, "topics": [topic]}
        return KafkaSource(Config.model_validate(base | {"reader": self.way} | settings))

    def between(self, one: KafkaSource, start: Position, end: Position) -> list[Row]:
        """The records, in order."""
        opened = one.open(self.spark, start, end)
        table = opened.frame(self.spark).mapInArrow(opened.reader, _COLUMNS).toArrow()
        in_order = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
        rows: list[Row] = in_order.to_pylist()
        return rows

    def all(self, one: KafkaSource) -> list[Row]:
        """Everything that is there."""
        first = one.first()
        end = one.advance(first, one.newest())
        return self.between(one, first, end) if end is not None else []

    def failure(self, one: KafkaSource, start: Position, end: Position) -> SourceError:
        """What the source makes of a job that fails."""
        with pytest.raises((PySparkException, Py4JError)) as caught:
            self.between(one, start, end)
        found = one.explain(caught.value)
        assert isinstance(found, SourceError), caught.value
        return found


@pytest.fixture(params=["native", "spark"])
def reading(request: pytest.FixtureRequest, spark: SparkSession) -> Reading:
    return Reading(request.param, spark)


@pytest.fixture(scope="module")
def topics(services: SecuredServices) -> Topics:
    return Topics(services.kafka)


def position(topic: str, offsets: Mapping[int, int]) -> Position:
    return {"offsets": {topic: {str(number): offset for number, offset in offsets.items()}}}


def offsets(rows: Sequence[Row]) -> list[int]:
    return [row["offset"] for row in rows]


def test_records_come_with_everything_they_had(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("whole"), partitions=2)
    topics.send(name, [b"a", None], keys=[b"k", b"gone"], partition=0)
    topics.send(name, [b""], keys=[b""], partition=1)
    topics.send(name, [b"h"], headers=[("a", b"1"), ("a", None), ("", b"")], partition=1)  # type: ignore[list-item]
    rows = reading.all(reading.source(services.kafka, name))
    assert [(r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in rows] == [
        (name, 0, 0, b"k", b"a"),
        (name, 0, 1, b"gone", None),
        (name, 1, 0, b"", b""),
        (name, 1, 1, None, b"h"),
    ]
    assert [r["headers"] for r in rows[:3]] == [None, None, None]
    assert rows[3]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "", "value": b""},
    ]
    assert all(abs(r["timestamp"].timestamp() - time.time()) < 600 for r in rows)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_may_begin_and_end_inside_of_a_compressed_batch(
    reading: Reading, services: SecuredServices, topics: Topics, codec: str
) -> None:
    name = topics.create(unique("codec"))
    options = {"bootstrap.servers": services.kafka, "linger.ms": 200, "compression.type": codec}
    producer = Producer(options)
    for number in range(1000):
        producer.produce(name, value=b"%d" % number, timestamp=1_700_000_000_000 + number)
    assert producer.flush(60) == 0
    one = reading.source(services.kafka, name)
    rows = reading.between(one, position(name, {0: 123}), position(name, {0: 877}))
    assert [(row["offset"], row["value"]) for row in rows] == [
        (number, b"%d" % number) for number in range(123, 877)
    ]
    assert [round(r["timestamp"].timestamp() * 1000) for r in rows] == [
        1_700_000_000_000 + number for number in range(123, 877)
    ]


def test_a_range_without_records_and_partitions_of_different_lengths(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("uneven"), partitions=3)
    topics.send(name, [b"x"] * 500, partition=0)
    topics.send(name, [b"y"] * 3, partition=2)
    one = reading.source(services.kafka, name)
    rows = reading.all(one)
    assert [(r["partition"], r["offset"]) for r in rows] == [
        *((0, number) for number in range(500)),
        *((2, number) for number in range(3)),
    ]
    same = position(name, {0: 5, 1: 0, 2: 3})
    if reading.way == "native":
        # Spark's connector takes no empty list of partitions; the loop never opens such a batch
        assert reading.between(one, same, same) == []


def _transactions(services: SecuredServices, name: str) -> Producer:
    options = {"bootstrap.servers": services.kafka, "transactional.id": name, "log_level": 2}
    producer = Producer(options)
    producer.init_transactions(60)
    for number, ending in enumerate(["commit", "abort", "commit", "abort"]):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(name, value=b"%d" % number, partition=0)
        producer.flush(60)
        if ending == "commit":
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    return producer


def test_of_transactions_only_what_was_committed_where_that_is_wanted(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("transactions"))
    producer = _transactions(services, name)
    one = reading.source(services.kafka, name, options=COMMITTED)
    # the last transaction was aborted: at the end are five records that nobody gets, and a marker
    assert [r["value"] for r in reading.all(one)] == [b"0"] * 5 + [b"2"] * 5
    everything = reading.all(reading.source(services.kafka, name))
    assert [r["value"] for r in everything] == [b"%d" % n for n in range(4) for _ in range(5)]
    # each range ends in a marker: 6 offsets are 5 records
    ends = [
        reading.between(one, position(name, {0: s}), position(name, {0: s + 6})) for s in (0, 6)
    ]
    assert [len(rows) for rows in ends] == [5, 0]
    # one that is open stands in nobody's way
    producer.begin_transaction()
    producer.produce(name, value=b"open", partition=0)
    producer.flush(60)
    assert len(reading.all(one)) == 10
    producer.abort_transaction(60)


@pytest.mark.slow
def test_a_compacted_topic_has_gaps(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(
        unique("compacted"),
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
    )
    topics.send(name, [b"%d" % n for n in range(100)], keys=[b"%d" % (n % 7) for n in range(100)])
    one = reading.source(services.kafka, name)

    def compacted() -> bool:
        # a new segment, so that the one before may be cleaned
        topics.send(name, [b"last"], keys=[b"last"])
        time.sleep(1)
        return sum(batch.num_rows for batch in one.peek(one.first())) < 90

    eventually(compacted, seconds=120)
    newest = one.newest()
    end = newest["offsets"][name]["0"]
    rows = reading.between(one, one.first(), newest)
    assert len(rows) < end
    assert rows[-1]["offset"] == end - 1
    # the records at the end of this range are gone
    assert reading.between(one, one.first(), position(name, {0: 50})) == []


@pytest.mark.parametrize("left", [7, 15, 20])
def test_records_that_are_deleted_before_a_task_reads_them(
    reading: Reading, services: SecuredServices, topics: Topics, left: int
) -> None:
    name = topics.create(unique("eaten"))
    topics.send(name, [b"x"] * 20)
    start, end = position(name, {0: 0}), position(name, {0: 20})
    topics.forget(name, {0: left})
    failed = reading.failure(reading.source(services.kafka, name), start, end)
    assert failed.code is ErrorCode.SOURCE_DATA_LOST
    assert not failed.retryable
    lenient = reading.source(services.kafka, name, fail_on_data_loss=False)
    assert offsets(reading.between(lenient, start, end)) == list(range(left, 20))


def test_a_log_that_is_shorter_than_it_was(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("cut"))
    topics.send(name, [b"x"] * 5)
    start, end = position(name, {0: 8}), position(name, {0: 12})
    failed = reading.failure(reading.source(services.kafka, name), start, end)
    assert failed.code is ErrorCode.SOURCE_DATA_LOST


def test_a_topic_that_was_made_anew_is_another_one(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("again"))
    topics.send(name, [b"old"] * 20)
    one = reading.source(services.kafka, name, on_replaced="read")
    first = one.first()
    end = one.advance(first, one.newest())
    assert end is not None
    assert len(reading.between(one, first, end)) == 20
    topics.delete(name)
    patiently(lambda: topics.create(name), seconds=60)
    topics.send(name, [b"new"] * 9)
    failed = reading.failure(one, position(name, {0: 15}), end)
    assert failed.code is ErrorCode.SOURCE_REPLACED
    after = patiently(lambda: one.advance(end, one.newest()), seconds=60)
    assert [r["value"] for r in reading.between(one, end, after)] == [b"new"] * 9


def test_a_record_may_be_larger_than_what_is_fetched_at_once(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("large"), max_message_bytes="50000000")
    sizes = [10, 20_000_000, 3, 5_000_000, 7]
    topics.send(name, [b"x" * size for size in sizes])
    options = {"kafka.max.partition.fetch.bytes": "1000", "kafka.fetch.max.bytes": "1000"}
    one = reading.source(services.kafka, name, options=options)
    assert [len(row["value"]) for row in reading.all(one)] == sizes


@pytest.mark.parametrize("way_in", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "mtls", "jaas"])
def test_a_task_says_who_it_is(
    reading: Reading, services: SecuredServices, topics: Topics, way_in: str
) -> None:
    name = topics.create(unique("secured"))
    topics.send(name, [b"x"] * 10)
    door = services.security
    settings: dict[str, Any] = {
        "security": {
            "protocol": "SASL_SSL",
            "mechanism": way_in,
            "username": door.username,
            "password": door.password,
            "ca_location": str(door.authority),
        }
    }
    servers = door.sasl_ssl
    if way_in == "mtls":
        servers = door.ssl
        files = {"certificate_location": str(door.certificate), "key_location": str(door.key)}
        security = {"protocol": "SSL", "ca_location": str(door.authority)} | files
        settings = {"security": security}
    elif way_in == "jaas":
        servers = door.sasl_plaintext
        login = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{door.username}" password="{door.password}";'
        )
        options = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": login,
        }
        settings = {"options": options}
    one = reading.source(servers, name, **settings)
    assert offsets(reading.all(one)) == list(range(10))
    opened = one.open(reading.spark, position(name, {0: 0}), position(name, {0: 1}))
    assert door.password not in repr(opened.reader)


def test_a_header_whose_name_is_no_text(
    reading: Reading, services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("names"))
    _send_headers(services.kafka, name, [(b"good", b"1"), (b"b\xffad", b"2"), (b"\xfe", None)])
    topics.send(name, [b"next"], headers=[("good", b"3")])
    rows = reading.all(reading.source(services.kafka, name))
    assert [h["value"] for h in rows[0]["headers"]] == [b"1", b"2", None]
    names = [h["key"] for h in rows[0]["headers"]]
    assert names[0] == "good"
    assert all("\ufffd" in each for each in names[1:])
    assert rows[1]["headers"] == [{"key": "good", "value": b"3"}]


def _send_headers(servers: str, topic: str, headers: Sequence[tuple[bytes, bytes | None]]) -> None:
    """What no client for Python or Java would write: by librdkafka itself."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for made in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, made).restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), error, 512)
    client = ctypes.c_void_p(library.rd_kafka_new(0, conf, error, 512))
    given = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for key, value in headers:
        sizes = [ctypes.c_ssize_t(len(part or b"")) for part in (key, value)]
        library.rd_kafka_header_add(given, key, sizes[0], value, sizes[1])
    number, size = ctypes.c_int, ctypes.c_size_t
    # pairs of what comes next and its value: topic, partition, copy, value, headers, the end
    arguments = (number(1), topic.encode(), number(3), ctypes.c_int32(0), number(7), number(2))
    arguments += (number(4), b"odd", size(3), number(10), given, number(0))
    assert library.rd_kafka_producev(client, *arguments) == 0
    assert library.rd_kafka_flush(client, 30_000) == 0
    library.rd_kafka_destroy(client)


# Brokers that go away.


@pytest.mark.parametrize(
    "reading", ["native", pytest.param("spark", marks=pytest.mark.slow)], indirect=True
)
def test_a_broker_that_is_gone_may_come_back(reading: Reading, mortal: Services) -> None:
    name = Topics(mortal.kafka).create(unique("gone"))
    Topics(mortal.kafka).send(name, [b"x"] * 10)
    quick = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    one = reading.source(mortal.kafka, name, options=quick)
    start, end = position(name, {0: 0}), position(name, {0: 10})
    assert len(reading.between(one, start, end)) == 10
    mortal.kill_kafka()
    try:
        failed = reading.failure(one, start, end)
    finally:
        mortal.restart_kafka()
    assert isinstance(failed, SourceUnavailableError)
    assert failed.retryable
    assert len(reading.between(one, start, end)) == 10


@pytest.mark.slow
def test_a_broker_that_is_started_again_in_the_middle_of_a_read_is_not_noticed(
    mortal: Services,
) -> None:
    name = Topics(mortal.kafka).create(unique("middle"), partitions=2)
    count = 200_000
    for partition in range(2):
        Topics(mortal.kafka).send(name, [b"x" * 500] * (count // 2), partition=partition)
    ranges = [SourceRange(name, p, 0, count // 2, count // 2) for p in range(2)]
    found: list[pa.RecordBatch] = []
    batches = read({"bootstrap.servers": mortal.kafka}, ranges)
    found.append(next(batches))
    mortal.kill_kafka()
    mortal.restart_kafka()
    found += batches
    table = pa.Table.from_batches(found).sort_by([("partition", "ascending")])
    for partition in range(2):
        seen = table.filter(pa.compute.equal(table["partition"], partition))["offset"]
        assert seen.to_pylist() == list(range(count // 2))


# What only a task that reads by itself has.


def test_a_consumer_is_kept_for_the_next_batch(services: SecuredServices, topics: Topics) -> None:
    name = topics.create(unique("kept"), partitions=2)
    for partition in range(2):
        topics.send(name, [b"%d" % n for n in range(5000)], partition=partition)
    client = Client({"bootstrap.servers": services.kafka}, group=unique("kept"))
    try:
        for start in (0, 1000, 4000, 2000):
            # what was fetched beyond the end of the range before is not given again
            ranges = [SourceRange(name, p, start, start + 1000, 1000) for p in range(2)]
            rows = pa.Table.from_batches(list(client.read(ranges, strict=True)))
            assert sorted(rows["offset"].to_pylist()) == sorted([*range(start, start + 1000)] * 2)
    finally:
        client.close()


def test_several_topics_are_read_side_by_side(services: SecuredServices, topics: Topics) -> None:
    names = [topics.create(unique("many")) for _ in range(5)]
    for number, name in enumerate(names):
        topics.send(name, [name.encode()] * (number * 100))
    ranges = [SourceRange(name, 0, 0, n * 100, n * 100) for n, name in enumerate(names)]
    found = pa.Table.from_batches(list(read({"bootstrap.servers": services.kafka}, ranges)))
    assert found.schema == RAW
    assert all(r["value"] == r["topic"].encode() for r in found.to_pylist())
    assert found.num_rows == 1000


def test_wrong_credentials_and_settings_are_refused(
    services: SecuredServices, topics: Topics
) -> None:
    name = topics.create(unique("refused"))
    topics.send(name, [b"x"])
    door = services.security
    options = {
        "bootstrap.servers": door.sasl_plaintext,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": door.username,
        "sasl.password": "not-the-password",
    }
    wanted = [SourceRange(name, 0, 0, 1, 1)]
    refused: list[Callable[[], Any]] = [
        lambda: list(read(options, wanted)),
        lambda: list(read(options | {"fetch.min.bytes": "-7"}, wanted)),
    ]
    for attempt in refused:
        with pytest.raises(SourceError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.SOURCE_INVALID
        assert not caught.value.retryable
        assert "not-the-password" not in str(caught.value)


@given(st.lists(st.integers(0, 10_000), max_size=20), st.integers(1, 12), st.integers(0, 10**12))
def test_shares_hold_every_offset_once_and_are_alike(
    counts: list[int], tasks: int, start: int
) -> None:
    ranges = [SourceRange("t", p, start, start + n, n) for p, n in enumerate(counts) if n]
    cut = shares(ranges, tasks)
    pieces = [piece for share in cut for piece in share]
    assert len(cut) <= tasks
    assert all(piece.records == piece.end - piece.start > 0 for piece in pieces)
    for r in ranges:
        mine = [piece for piece in pieces if piece.partition == r.partition]
        assert [p.start for p in mine] == [r.start, *(p.end for p in mine[:-1])]
        assert mine[-1].end == r.end
    # a partition is read by a task from one place to another, never in two pieces
    assert all(len({p.partition for p in share}) == len(share) for share in cut)
    if len(cut) > 1:
        total = sum(counts)
        assert max(sum(p.records for p in share) for share in cut) <= total / tasks * 1.3 + 1


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    with TwoBrokers(tmp_path_factory.mktemp("brokers")) as started:
        yield started


@pytest.mark.slow
def test_a_partition_gets_another_leader_in_the_middle_of_a_batch(
    reading: Reading, brokers: TwoBrokers, tmp_path: Path
) -> None:
    """The leader is killed; then it is there again, and elected."""
    name = unique("moved")
    brokers.create(name)
    # more than what clients and sockets hold while nobody takes it
    values = [b"%06d" % number + b"x" * 4000 for number in range(20_000)]
    Topics(brokers.servers, {"acks": "all"}).send(name, values)
    one = reading.source(brokers.servers, name)
    expected = [(number, value) for number, value in enumerate(values)]

    def killed() -> None:
        brokers.kill_second()
        brokers.wait_for(name, leader=FIRST)

    def elected() -> None:
        brokers.restart_second()
        brokers.wait_for(name, leader=SECOND)

    assert _interrupted(reading, one, tmp_path / "killed", killed) == expected
    assert _interrupted(reading, one, tmp_path / "elected", elected) == expected


def _interrupted(
    reading: Reading, one: KafkaSource, folder: Path, event: Callable[[], None]
) -> list[tuple[int, bytes]]:
    """All records; something happens when a task has read some of them, and waits."""
    folder.mkdir()
    begun, done = folder / "begun", folder / "done"
    # tried again, as a run would: a broker has died just now
    first = patiently(one.first, seconds=60)
    end = patiently(lambda: one.advance(first, one.newest()), seconds=60)
    opened = patiently(lambda: one.open(reading.spark, first, end), seconds=60)
    read, has_begun, is_done = opened.reader, str(begun), str(done)

    def waiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(batches):
            yield batch
            open(has_begun, "w").close()
            while not os.path.exists(is_done):
                time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(opened.frame(reading.spark).mapInArrow(waiting, _COLUMNS).toArrow)
        try:
            eventually(begun.exists, seconds=120)
            event()
        finally:
            done.touch()
        rows = found.result().sort_by("offset")
    return list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
