"""The raw record: what every source gives, before anything is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

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


# Values that are found again by the very objects they were made of.

V = TypeVar("V")


class ByIdentity(Generic[V]):
    """What was worked out of some objects, for as long as the same objects come again.

    Comparing schemas or columns would cost more than most of what is made of them. The objects are
    kept beside the value: as long as they are, no other object can have their ids.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[int, ...], tuple[tuple[object, ...], V]] = {}

    def get(self, objects: tuple[object, ...], make: Callable[[], V]) -> V:
        """The value for these objects, made if they were not seen before."""
        key = tuple(map(id, objects))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[key] = (objects, make())
        return known[1]

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


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
class WriterSchema:
    """Everything that is needed to decode what was written with one schema id."""

    id: int
    format: Format
    body: bytes
    """Protobuf: a serialized FileDescriptorSet, dependencies first, the schema's own file last.

    Avro: the schema's JSON with all that it refers to, every named type defined once.
    """
    message: str
    """Protobuf: full name of the first message of the file; which one a payload is without saying
    so, `registry.messages` decides.

    Avro: full name of the record, of the records in an array, or of a union's first record.
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
