"""The entry of a payload format: everything that the rest of the program asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.message_fields import FieldReader
from distributary.model.deadletter import Failure
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected


def _nothing_imported(text: str) -> Iterable[str]:
    return ()


def _only_message(schema: WriterSchema, path: tuple[int, ...]) -> str | Rejected:
    return schema.message


def _always_row(schema: WriterSchema) -> bool:
    return True


class Parse(Protocol):
    """A parser of payloads without a schema."""

    def __call__(self, data: bytes, *, max_depth: int) -> Any:
        """Parse one payload; raise `RefusedError` with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFormat:
    """Everything that the rest of the program asks of a payload format."""

    name: str
    """The name in a pipeline file."""
    title: str
    """The name for people."""
    language: Format
    """The language of its schemas, which the registry compiles and compares."""
    suffix: str
    """The suffix of files with its schemas."""
    decoder: Callable[[bytes, str, DecodeLimits], Decoder]
    """The constructor of decoders, given a schema's compiled body, a message name and the
    limits."""
    view: Callable[[bytes | None, str, bytes], str]
    """Shows as much of a payload as can be read, with its schema where there is one."""
    as_json: Callable[[pa.BinaryArray, int], tuple[pa.BinaryArray, list[Failure]]] | None = None
    """Writes payloads, given the deepest nesting, as the JSON texts that the decoder reads, null
    for failures; None if the decoder reads payloads as they are."""
    parse: Parse | None = None
    """Parses a payload without a schema to Python's values."""
    messages: Callable[[Mapping[int, str], int], FieldReader] | None = None
    """Builds a reader of envelopes without a schema, given the paths of their fields and the
    deepest nesting; None if envelopes need a schema."""
    needs_schema: bool = True
    """False if records without a schema get one from their shapes."""
    names_records: bool = True
    """True if the names in schemas distinguish kinds of records."""
    many_messages: bool = False
    """True if a schema declares several messages, of which a payload or the registry's header
    names one by its path."""
    unions: bool = False
    """True if a schema may be a union, of which a payload names the branch."""
    needs_writer: bool = False
    """True if only the schema that wrote a payload can read it, and not a newer one."""
    bare_bytes: str = ""
    """The message whose payloads are nothing but its bytes, behind the registry's header."""
    message_at: Callable[[WriterSchema, tuple[int, ...]], str | Rejected] = _only_message
    """Returns the message at a path, or the branch of a union, that a record names."""
    is_row: Callable[[WriterSchema], bool] = _always_row
    """Returns true if each payload of a schema is one row."""
    imports: Callable[[str], Iterable[str]] = _nothing_imported
    """Returns the names of the files that the text of a schema imports."""

    def branches(self, schema: WriterSchema) -> tuple[int, ...]:
        """Return the branches of a schema that are records; none if it is no union."""
        if not self.unions or len(schema.messages) < 2:
            return ()
        return tuple(number for number, name in enumerate(schema.messages) if name)

    def is_union(self, schema: WriterSchema) -> bool:
        """Return true if payloads of a schema name the branch of a union."""
        return self.unions and len(schema.messages) > 1
