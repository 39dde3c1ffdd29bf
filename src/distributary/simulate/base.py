"""The seams of a simulator: where schemas go, where messages go, and what a message is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from distributary.model.record import TIMESTAMP
from distributary.model.schema import Format, WriterSchema
from distributary.registry.local import References

MESSAGES = pa.schema(
    [
        pa.field("type", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("produced_at", TIMESTAMP),
        pa.field("key", pa.binary()),
    ]
)
"""Messages as Arrow columns, for sinks that take them by the thousand."""


class Message(NamedTuple):
    """One message on its way to a sink; a tuple, because they are made by the million."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int
    """When it is sent: milliseconds since 1970, UTC."""
    type: str | None
    """The readable name of its type; None for a record that is bad on purpose."""


class SchemaSink(Protocol):
    """A registry that can be written to."""

    def set_compatibility(self, subject: str, level: str) -> object:
        """Set the level of a subject, which need not exist yet."""
        ...

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Register a schema (the same text twice is one version) and return its id."""
        ...


class Registry(SchemaSink, Protocol):
    """One that can also be asked where it keeps a schema, as a reference to it must say."""

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with its subjects and versions."""
        ...


class Sink(Protocol):
    """Where messages go."""

    def write(self, messages: Iterable[Message]) -> int:
        """Take all messages, in order, and return how many there were."""
        ...


@runtime_checkable
class ArrowSink(Protocol):
    """A sink that also takes columns."""

    def write_arrow(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Take all batches of schema `MESSAGES`, in order, and return how many rows there were."""
        ...
