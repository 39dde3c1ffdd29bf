"""The seam that every format implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from distributary.decode.expansion import Expansion
from distributary.model.decoded import Decoded
from distributary.model.table import Column


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What a decoder refuses, so that one record cannot hurt the others."""

    max_payload_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 128 * 1024 * 1024
    """Of the columns that one payload becomes, estimated before it is decoded."""
    max_depth: int = 100
    """Nesting of messages in one payload, as the official runtimes limit it."""
    recursion_depth: int = 3
    """How often a message may contain itself as columns; what lies deeper is kept as JSON text."""
    drop_unknown_fields: bool = False
    """Protobuf: fields that the schema does not have are left out, and only counted."""
    raw_bytes: bool = False
    """Avro: a payload that is bytes at the top comes as it is, without its length before it."""


class HasColumns(Protocol):
    """What is known of a decoder by those who only want to know where its columns go."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake columns that this writer schema gives, in the schema's order."""
        ...


class Decoder(HasColumns, Protocol):
    """Decodes payloads of one writer schema. Built once per schema and process, then reused."""

    @property
    def expansion(self) -> Expansion:
        """How large payloads become; what is decoded at once should be one of its slices."""
        ...

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls. Never raises for what a payload contains."""
        ...
