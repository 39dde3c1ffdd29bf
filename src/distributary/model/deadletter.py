"""The dead-letter table: the whole original record, and why it is there."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column


class DeadLetterStatus(StrEnum):
    """What has become of a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


MAY_HEAL = frozenset(
    {ErrorCode.UNKNOWN_SCHEMA_ID, ErrorCode.WRONG_SUBJECT, ErrorCode.TYPE_NAME_CASE_CLASH}
)
"""Reasons that can go away by themselves: somebody registers what was missing. Names that differ
in case only clashed once, and do no longer."""

DEAD_LETTER_COLUMNS: tuple[Column, ...] = (
    Column("id", pa.string(), "stable id: 16 hex digits of pipeline, topic, partition and offset"),
    Column("pipeline", pa.string(), "the pipeline that read the record"),
    Column("topic", pa.string(), "where the record was read"),
    Column("partition", pa.int32(), "partition of the topic"),
    Column("offset", pa.int64(), "offset in the partition"),
    Column("timestamp", TIMESTAMP, "the record's own time"),
    Column("key", pa.binary(), "the record's key, untouched"),
    Column("value", pa.binary(), "the record's value, untouched"),
    Column("headers", pa.list_(HEADER), "the record's headers, untouched"),
    Column("type", pa.string(), "type of the record, as far as it was known"),
    Column("schema_id", pa.int64(), "schema id of the record, as far as it was known"),
    Column("stage", pa.string(), "where it failed: unwrap, route, decode, rules or write"),
    Column("error_code", pa.string(), "stable code of the reason"),
    Column("error_message", pa.string(), "the decoder's own words"),
    Column("error_position", pa.int32(), "byte of the payload at which decoding failed, if known"),
    Column("batch", pa.int64(), "batch in which it was first dead-lettered"),
    Column("first_seen", TIMESTAMP, "when it was first dead-lettered"),
    Column("last_seen", TIMESTAMP, "when it was last tried"),
    Column("attempts", pa.int32(), "how often decoding was tried"),
    Column("status", pa.string(), "open, replayed or discarded"),
    Column("note", pa.string(), "why it was discarded, or which replay took it"),
)

DEAD_LETTER_SCHEMA = pa.schema([pa.field(c.name, c.type) for c in DEAD_LETTER_COLUMNS])


def dead_letter_id(pipeline: str, topic: str, partition: int, offset: int) -> str:
    """The same record has the same id, however often it is dead-lettered."""
    text = f"{pipeline}\0{topic}\0{partition}\0{offset}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
