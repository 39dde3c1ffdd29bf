"""The raw record: what every source gives, before anything is parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TIMESTAMP = pa.timestamp("us", "UTC")

RAW = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER)),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
    ]
)
"""One row a source record. A Delta table counts as a topic of one partition."""

FAMILIAR = pa.field("familiar", pa.bool_(), nullable=False)
"""What a reader that knows shapes puts behind: whether a record adds nothing to that of its claim.
"""
Shapes = Callable[[str], Mapping[str, Any]]
"""What the records of a claim looked like until now, as JSON Schema; empty where nobody knows."""


# A writer's schema as the registry gave it, compiled and ready to be sent to executors.


class Format(StrEnum):
    """How a payload is encoded."""

    PROTOBUF = "protobuf"
    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """One place of a schema in the registry."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the text of a schema decides of a WriterSchema, in the same words."""

    body: bytes
    message: str
    messages: tuple[str, ...]

    def writer(
        self, schema_id: int, format: Format, subjects: tuple[SubjectVersion, ...] = ()
    ) -> WriterSchema:
        """The schema under an id, at its places."""
        return WriterSchema(schema_id, format, self.body, self.message, subjects, self.messages)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """Everything that is needed to decode what was written with one schema id."""

    id: int
    format: Format
    body: bytes
    """Protobuf: a serialized FileDescriptorSet, dependencies first, the schema's own file last.

    Avro: the schema's JSON with all that it refers to, every named type defined where it is first
    used. JSON: the schema, the documents that it refers to, and the draft it is written in.
    """
    message: str
    """Protobuf: full name of the first message of the file; which one a payload is without saying
    so, `registry.messages` decides.

    Avro: full name of the record, of the records in an array, or of a union's first record. JSON:
    the schema's title; without one the last part of its `$id`, and `value` without either.
    """
    subjects: tuple[SubjectVersion, ...] = ()
    messages: tuple[str, ...] = ()
    """Full names of the file's top-level messages in file order, for message indexes.

    Avro: of a union of records the records by branch, empty for null; else `message` alone.
    """

    def version_in(self, subject: str) -> int | None:
        """This schema's version under a subject, if it has one there."""
        return next((s.version for s in self.subjects if s.subject == subject), None)

    def label(self) -> str:
        """`chess-value v3`, for people."""
        first = self.subjects[0] if self.subjects else None
        return f"{first.subject} v{first.version}" if first else f"id {self.id}"
