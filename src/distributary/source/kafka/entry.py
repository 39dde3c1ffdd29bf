"""Kafka topics as an entry of the table of sources."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distributary.config.base import is_loopback
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.errors import SourceUnavailableError
from distributary.model.check import Check, CheckState
from distributary.model.record import RAW, Partition
from distributary.observe.log_format import counted, listed
from distributary.source.kafka.broker import Broker
from distributary.source.kafka.browse import browse_topic
from distributary.source.kafka.sample import sample_topic
from distributary.source.kafka.source import KafkaEnds, KafkaSource
from distributary.source.source_entry import Browsing, Messages, SourceEntry
from distributary.source.source_sample import Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PORT = 9092
"""The port of a broker that names none."""


class KafkaEntry(SourceEntry[KafkaSourceConfig]):
    """Kafka topics."""

    def open(self, settings: KafkaSourceConfig, config: PipelineConfig) -> KafkaSource:
        """Return the source that reads the topics."""
        return KafkaSource(settings)

    def sample(self, settings: KafkaSourceConfig) -> Sample:
        """Read the first and the last records of each partition."""
        return sample_topic(settings)

    def checks(
        self, settings: KafkaSourceConfig, config: PipelineConfig
    ) -> Iterator[tuple[str, Callable[[], Check]]]:
        """Yield the checks of the broker and of the client that reads it."""
        yield "broker", lambda: _broker(settings)
        yield "reader", lambda: _reader(settings)

    def require(self, settings: KafkaSourceConfig) -> None:
        """Raise SourceUnavailableError if the broker does not answer."""
        KafkaSource(settings).newest()

    def ends(self, settings: KafkaSourceConfig, config: PipelineConfig) -> KafkaEnds:
        """Return the ends of the partitions."""
        return KafkaEnds(settings)

    def bounds(
        self, settings: KafkaSourceConfig
    ) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
        """Ask the broker for the oldest and newest offset of each partition."""
        broker = Broker(settings.client_options())
        partitions = broker.partitions(settings.topics, settings.topic_pattern)
        return broker.earliest(partitions), broker.latest(partitions)

    def browse(self, settings: KafkaSourceConfig, wanted: Browsing) -> Messages:
        """Read single messages of one partition."""
        return browse_topic(settings, wanted)

    def stream(self, spark: SparkSession, settings: KafkaSourceConfig) -> DataFrame:
        """Return the topics as a stream of Spark's."""
        from pyspark.sql import functions

        reader = spark.readStream.format("kafka").options(**stream_options(settings))
        frame = reader.load().select(*RAW.names)
        return frame.withColumn("headers", functions.to_json("headers"))


ENTRY = KafkaEntry()


def stream_options(source: KafkaSourceConfig) -> dict[str, str]:
    """Return the options of Spark's Kafka stream; they hold secrets."""
    options = {**source.spark_options(), "maxOffsetsPerTrigger": str(source.max_records_per_batch)}
    if source.topic_pattern is not None:
        options["subscribePattern"] = source.topic_pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    start = source.starting_offsets
    if isinstance(start, datetime):
        options["startingTimestamp"] = str(int(start.timestamp() * 1000))
        # a partition without newer records is read from its end on
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif isinstance(start, str):
        options["startingOffsets"] = start
    else:
        given = {t: {str(p): offset for p, offset in parts.items()} for t, parts in start.items()}
        options["startingOffsets"] = json.dumps(given)
    return options


def _broker(source: KafkaSourceConfig) -> Check:
    servers = source.bootstrap_servers
    broker = Broker(source.client_options())
    try:
        partitions = broker.partitions(source.topics, source.topic_pattern)
        newest, oldest = broker.latest(partitions), broker.earliest(partitions)
    except SourceUnavailableError as error:
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        fix = _create(source) if error.what.startswith("the topic") else start_broker(servers)
        return Check("broker", CheckState.FAIL, found, f"a broker at {servers}", fix)
    if not partitions:
        pattern = source.topic_pattern or ""
        return Check(
            "broker",
            CheckState.WARN,
            f"{servers} answers, but no topic fits {pattern}",
            "a topic to read",
            "create one, or correct source.topic_pattern",
        )
    topics = sorted({topic for topic, _ in partitions})
    records = sum(newest[one] - oldest[one] for one in partitions)
    found = (
        f"{servers} has {counted(len(partitions), 'partition')} of {listed(topics, most=3)}, "
        f"with {counted(records, 'offset')} to read"
    )
    return Check("broker", CheckState.PASS, found)


def _reader(source: KafkaSourceConfig) -> Check:
    """Return which reader is used, and why."""
    if source.is_native:
        return Check("reader", CheckState.PASS, "native: tasks read by themselves, with librdkafka")
    if source.reader == "spark":
        return Check("reader", CheckState.PASS, "spark: source.reader says so")
    why = [f"source.{'.'.join(map(str, place))} {why}" for place, why in source.only_for_java()]
    found = f"spark: {listed(why, most=3)}"
    return Check("reader", CheckState.PASS, found)


def start_broker(servers: str) -> str:
    """Return the command that starts a broker on this machine, or that looks for another."""
    addresses = [urlsplit(f"//{each.rpartition('://')[2]}") for each in servers.split(",")]
    host, port = addresses[0].hostname or "", addresses[0].port or _PORT
    if all(is_loopback(each.hostname or "") for each in addresses):
        other = f" --kafka-port {port}" if port != _PORT else ""
        return f"distributary dev up{other}"
    return f"nc -vz {shlex.quote(host)} {port}"


def _create(source: KafkaSourceConfig) -> str:
    topics = " ".join(f"--topic {shlex.quote(each)}" for each in source.topics[:1])
    server = source.bootstrap_servers.split(",")[0]
    return f"kafka-topics.sh --bootstrap-server {server} --create --if-not-exists {topics}"
