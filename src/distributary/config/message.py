"""What is inside a record: an envelope around a payload, or the payload alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from distributary.config.base import Conflict, Section
from distributary.config.text import FieldName, SubjectRule, Text

Framing = Literal["none", "confluent", "auto"]


class Envelope(Section):
    """A message that wraps another one and names its type and schema."""

    format: Literal["protobuf"] = "protobuf"
    """Encoding of the envelope."""
    framing: Framing = "auto"
    """Whether the registry's header stands before it: none, confluent, or auto for either."""
    subject: Text | None = Field(default=None, examples=["wrapper-value"])
    """Subject of the envelope's own schema; needed unless every record has a header."""
    type: FieldName = Field(examples=["game_name"])
    """Field that names the type of the payload."""
    schema_id: FieldName = "schema_id"
    """Field that holds the id of the payload's schema."""
    payload: FieldName = "payload"
    """Field that holds the payload's bytes."""
    message: FieldName | None = None
    """Name of the envelope's message, with its package or without. When left out: the one that has
    the three fields, is named like the subject, or is a part of no other."""

    def conflicts(self) -> Iterator[Conflict]:
        """A bare envelope can only be read by the schema of a named subject."""
        if self.subject is None and self.framing != "confluent":
            yield (), "needs subject, or framing: confluent"
        if len({self.type, self.schema_id, self.payload}) != 3:
            yield (), "needs three different fields for type, schema_id and payload"


class Payload(Section):
    """The message itself."""

    format: Literal["protobuf", "avro", "json"]
    """Encoding of the payload."""
    framing: Framing = "confluent"
    """Whether the registry's header stands before it: none, confluent, or auto for either.
    When left out: none inside an envelope; for json, auto with a registry and none without one;
    otherwise confluent."""
    subject: SubjectRule = Field(default="auto", examples=["{topic}-value"])
    """Which subject a schema must belong to: auto (the type's own, `{type}-value` or `{type}`,
    where the registry has it), any, or a template with {topic}, {type} or {record}."""
    validation: Literal["registry", "none"] = Field(default="none", alias="validate")
    """registry: the id must belong to the subject, else the record is dead-lettered as
    WRONG_SUBJECT."""
    message: FieldName | None = None
    """Name of the message that a payload without a message index is, with its package or without,
    because that may differ by type. When left out: the one that is named like the type, or the only
    one of its file that is a part of no other; where that leaves several, records are dead-lettered
    as AMBIGUOUS_MESSAGE."""
    unknown_fields: Literal["dead_letter", "drop"] = "dead_letter"
    """Protobuf payloads with fields that their schema does not have, which therefore is not the one
    that they were written with: dead_letter as PAYLOAD_MISMATCH, or drop the fields and count the
    records."""
