"""The dead-letter table: each original record, whole, with the reason of its failure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.record import HEADER, TIMESTAMP
from distributary.model.table import Column

FAULT_HEADER, REASON_HEADER = "distributary.fault", "distributary.reason"
"""Headers with which a reader of files marks content it could not read: error code, message."""


class DeadLetterStatus(StrEnum):
    """The state of a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


MAY_HEAL = frozenset(
    {ErrorCode.UNKNOWN_SCHEMA_ID, ErrorCode.WRONG_SUBJECT, ErrorCode.TYPE_NAME_CASE_CLASH}
)
"""Reasons that may disappear by themselves, for instance when the missing schema is registered.
Names that differ in case only are no longer refused."""

DEAD_LETTER_COLUMNS: tuple[Column, ...] = (
    Column("id", pa.string(), "stable id: 16 hex digits of pipeline, source and coordinates"),
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

WITHHELD = "not kept: masking.raw is withhold"
"""The note of a dead letter without key, value and headers."""
ENCRYPTED = "encrypted: masking.raw is encrypt"
"""The note of a dead letter with encrypted key, value and headers."""
SECRETS = ("key", "value", "headers")
"""The columns with the contents of a record."""

DEAD_LETTER_SCHEMA = pa.schema([pa.field(c.name, c.type) for c in DEAD_LETTER_COLUMNS])


CONTENT = ("topic", "partition", "offset", "timestamp", "key", "value")
"""The columns that distinguish a record from another one that had its coordinates before."""


def dead_letter_id(pipeline: str, source: str, topic: str, partition: int, offset: int) -> str:
    """Return the stable id of a record's dead letter.

    `source` is the identity of the source, which survives a reset of the pipeline. Where that is
    not known, it is the life of the checkpoint: a source that was created again has other records
    at the same coordinates, and another life reads it.
    """
    text = f"{pipeline}\0{source}\0{topic}\0{partition}\0{offset}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_keys(letters: pa.Table) -> list[str]:
    """Return a key for each letter that two letters share only if they are of the same record."""
    return [_content_key(row) for row in letters.select(CONTENT).to_pylist()]


def _content_key(row: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in CONTENT:
        part = row[name] if isinstance(row[name], bytes) else str(row[name]).encode()
        digest.update(b"-" if row[name] is None else b"%d:" % len(part) + part)
    return digest.hexdigest()[:32]


# Results of decoders: failed records are returned, not raised.


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that could not be decoded."""

    index: int
    """Position in the array of payloads."""
    code: ErrorCode
    message: str
    """Message of the decoder, without content of the payload."""
    position: int | None = None
    """The byte at which decoding failed, if known."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of the records that were decoded, and the records that failed."""

    ok: pa.RecordBatch
    """The decoded columns, in the order of the decoder's columns."""
    origin: pa.Int64Array | None
    """The position of the payload for each row of `ok`; None when row i is payload i."""
    failed: tuple[Failure, ...] = ()
    empty: int = 0
    """Number of payloads that are valid and have no row."""
    unknown: tuple[int, ...] = ()
    """Positions of payloads with fields that their schema lacks; the rows leave these fields
    out."""
