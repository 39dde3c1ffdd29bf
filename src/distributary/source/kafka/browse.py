"""Single messages of one partition, read in this process for the page and the terminal."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.errors import missing
from distributary.model.record import RAW
from distributary.source.kafka.broker import Broker, Offsets
from distributary.source.kafka.consumer import read
from distributary.source.kafka.source import ranges_of
from distributary.source.source_entry import Browsing, Messages

_MOST_BYTES = 8 << 20
"""Of the messages of one page together; one message may be larger, and is then the last."""


def browse_topic(source: KafkaSourceConfig, wanted: Browsing) -> Messages:
    """Read a few messages of one partition; commit nothing at the broker.

    Raises ConfigError for a partition that the pipeline does not read.
    """
    broker = Broker(source.client_options())
    partitions = broker.partitions(source.topics, source.topic_pattern)
    if not partitions:
        return Messages({}, None, 0, RAW.empty_table())
    place = wanted.partition or partitions[0]
    if place not in partitions:
        named = (f"{topic}/{partition}" for topic, partition in partitions)
        what = "the pipeline reads no such partition"
        raise missing(what, f"{place[0]}/{place[1]}", named, command="distributary messages FILE")
    first, end = broker.earliest(partitions), broker.latest(partitions)
    bounds = {one: (first[one], end[one]) for one in partitions}
    start: int | datetime = end[place] - wanted.most if wanted.start is None else wanted.start
    if isinstance(start, datetime):
        start = broker.since([place], int(start.timestamp() * 1000))[place]
    begin = min(max(start, first[place]), end[place])
    rows = _read(source, {place: begin}, {place: end[place]}, wanted.most)
    return Messages(bounds, place, begin, rows)


def _read(source: KafkaSourceConfig, begin: Offsets, end: Offsets, most: int) -> pa.Table:
    """Read until there are enough: offsets have gaps, so their difference is no count."""
    batches: list[pa.RecordBatch] = []
    left = most
    options = source.consumer_options()
    for batch in read(options, ranges_of(begin, end), most_bytes=_MOST_BYTES):
        batches.append(batch.select(RAW.names).cast(RAW).slice(0, left))
        left -= batches[-1].num_rows
        if not left:
            break
    return pa.Table.from_batches(batches, RAW)
