"""The oldest and the newest records of a topic, for `init`."""

from __future__ import annotations

from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.source.kafka.broker import Broker
from distributary.source.kafka.consumer import read
from distributary.source.kafka.source import ranges_of
from distributary.source.source_sample import MOST_BYTES, MOST_RECORDS, Sample, records_of

_MOST_PARTITIONS = 50


def sample_topic(source: KafkaSourceConfig) -> Sample:
    """Read the first and last records of each partition; commit nothing at the broker."""
    broker = Broker(source.client_options())
    partitions = broker.partitions(source.topics, source.topic_pattern)
    first, end = broker.earliest(partitions), broker.latest(partitions)
    total = sum(end[one] - first[one] for one in partitions)
    filled = [one for one in partitions if end[one] > first[one]][:_MOST_PARTITIONS]
    each = max(MOST_RECORDS // (2 * max(len(filled), 1)), 1)
    until = {one: min(first[one] + each, end[one]) for one in filled}
    since = {one: max(end[one] - each, until[one]) for one in filled}
    records = [
        record
        for ranges in (ranges_of(first, until), ranges_of(since, end))
        for batch in read(source.consumer_options(), ranges, most_bytes=MOST_BYTES // 2)
        for record in records_of(batch)
    ]
    topic = source.topics[0]
    what = f"{len(records):,} of {total:,} records of topic {topic} at {source.bootstrap_servers}"
    return Sample(topic, tuple(records), f"{what}, the oldest and the newest")
