"""The settings of a source in the words of Spark's streaming readers."""

from __future__ import annotations

import json
from datetime import datetime

from distributary.config.kafka import KafkaSource
from distributary.config.source import DeltaSource


def kafka_options(source: KafkaSource) -> dict[str, str]:
    """Options of Spark's Kafka stream; holds secrets."""
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


def delta_options(source: DeltaSource) -> dict[str, str]:
    """Options of Delta's stream."""
    if source.starting_version is not None:
        return {"startingVersion": str(source.starting_version)}
    if source.starting_timestamp is not None:
        return {"startingTimestamp": source.starting_timestamp.isoformat()}
    return {}
