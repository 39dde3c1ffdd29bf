"""The raw record of a source, and the schema it was written with."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
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
"""One row for each source record. A Delta table is read as a topic with one partition."""

Partition = tuple[str, int]
"""A topic and the number of a partition."""
LastRecords = dict[Partition, tuple[int, int]]
"""The offset and the checksum of the last record that was read, by partition."""


def last_records(raw: pa.RecordBatch) -> LastRecords:
    """Return the last record of each partition; records of a partition come in their order."""
    if not raw.num_rows:
        return {}
    names = raw.column("topic").dictionary_encode()
    numbers = raw.column("partition").to_numpy().astype(np.int64)
    places = pa.array(names.indices.to_numpy().astype(np.int64) << 32 | numbers).dictionary_encode()
    rows = np.zeros(len(places.dictionary), np.int64)
    # of several rows that are put in one place the last one stays
    rows[places.indices.to_numpy()] = np.arange(raw.num_rows)
    found: LastRecords = {}
    for place, row in zip(places.dictionary.to_pylist(), rows.tolist(), strict=True):
        one = {name: raw.column(name)[row] for name in ("offset", "key", "value", "timestamp")}
        checksum = zlib.crc32(str(one["timestamp"].value).encode())
        for part in (one["key"].as_py(), one["value"].as_py()):
            checksum = zlib.crc32(b"null" if part is None else b"=" + part, checksum)
        topic = names.dictionary[place >> 32].as_py()
        found[topic, place & 0xFFFFFFFF] = one["offset"].as_py(), checksum
    return found


FAMILIAR = pa.field("familiar", pa.bool_(), nullable=False)
"""A column that some readers append: true when a record adds nothing to the known shape of its
claim."""
Shapes = Callable[[str], Mapping[str, Any]]
"""A function that returns the known shape of a claim's records, as JSON Schema; empty if
unknown."""


# Schemas of writers, compiled, as they are sent to executors.


class Format(StrEnum):
    """The encoding of a payload."""

    PROTOBUF = "protobuf"
    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A subject and version under which the registry has a schema."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The parts of a WriterSchema that follow from the text of the schema alone."""

    body: bytes
    message: str
    messages: tuple[str, ...]

    def writer(
        self, schema_id: int, format: Format, subjects: tuple[SubjectVersion, ...] = ()
    ) -> WriterSchema:
        """Return the schema with its id, and its subjects and versions."""
        return WriterSchema(schema_id, format, self.body, self.message, subjects, self.messages)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """Everything needed to decode payloads that were written with one schema id."""

    id: int
    format: Format
    body: bytes
    """Protobuf: a serialized FileDescriptorSet, dependencies first, the schema's own file last.

    Avro: the schema's JSON with all its references, every named type defined at its first use.
    JSON: the schema, the documents that it refers to, and its draft."""
    message: str
    """Protobuf: full name of the first message of the file; `registry.messages` decides which
    message a payload without an index is.

    Avro: full name of the record, of the records in an array, or of a union's first record. JSON:
    the schema's title; without one the last part of its `$id`, and `value` without either."""
    subjects: tuple[SubjectVersion, ...] = ()
    messages: tuple[str, ...] = ()
    """Full names of the file's top-level messages in file order, for message indexes.

    Avro: the records of a union by branch, empty for null; otherwise `message` alone."""

    def version_in(self, subject: str) -> int | None:
        """Return the version of this schema under a subject; None when it has none."""
        return next((s.version for s in self.subjects if s.subject == subject), None)

    def label(self, topic: str = "") -> str:
        """Return subject and version, such as `chess-value v3`; of several the topic's own."""
        own = (place for place in self.subjects if place.subject.startswith(f"{topic}-"))
        first = next(own, self.subjects[0] if self.subjects else None)
        return f"{first.subject} v{first.version}" if first else f"id {self.id}"
