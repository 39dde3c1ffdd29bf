"""The settings of a record's envelope and payload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from distributary.config.base import (
    Conflict,
    FieldName,
    FieldPath,
    Section,
    SubjectRule,
    Text,
    TypePlace,
)
from distributary.config.plugged import FORMATS_GROUP, plugged

Framing = Literal["none", "confluent", "auto"]
WITH_SCHEMA = frozenset({"protobuf", "avro"})
"""Formats whose records need a schema."""


def _or_plugged(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Accept the name of a payload format that an installed package brings."""
    try:
        return validate(value)
    except ValidationError:
        if isinstance(value, str) and value in plugged(FORMATS_GROUP):
            return value
        raise


PayloadFormatName = Annotated[
    Literal["protobuf", "avro", "json", "msgpack"], WrapValidator(_or_plugged)
]


def _default_field(name: str) -> Callable[[dict[str, Any]], str | None]:
    """Build the default of a field's name, for envelopes in protobuf and Avro."""

    def default(given: dict[str, Any]) -> str | None:
        message = given.get("format") in ("protobuf", "avro")
        return name if message and not str(given.get("type", "")).startswith("{") else None

    return default


class Envelope(Section):
    """The fields of a record that hold its type, the id of its schema and its payload."""

    format: Literal["protobuf", "avro", "json", "msgpack", "cloudevents"] = "protobuf"
    """Encoding of the envelope. cloudevents: the type of the record is the type of the event. The
    payload is its `data`; in binary mode, with a header `ce_type`, the payload is the whole
    value."""
    framing: Framing = "auto"
    """Whether the schema registry's header precedes the envelope: none, confluent, or auto for
    either."""
    subject: Text | None = Field(default=None, examples=["wrapper-value"])
    """Subject of the envelope's schema, for protobuf and Avro. Required unless every record has a
    header."""
    type: TypePlace | None = Field(
        default=None, examples=["game_name", "event.name", "{header:event}", "{key}"]
    )
    """Where the type of the payload is: a field, a path such as event.name, `{header:NAME}` or
    `{key}`."""
    schema_id: Annotated[
        FieldPath | None,
        AfterValidator(lambda value: None if value == "none" else value),
        Field(default_factory=_default_field("schema_id")),
    ]
    """Field with the id of the payload's schema; `schema_id` for protobuf and Avro when left out.
    With none, or when left out for other formats, the payload names its own schema, or the newest
    schema of its type is used. JSON and MessagePack without a registry have no schema."""
    payload: Annotated[FieldPath | None, Field(default_factory=_default_field("payload"))]
    """Field with the payload as bytes, text or a nested value; `payload` for protobuf and Avro when
    left out. When left out for other formats, the payload is the whole value."""
    encoding: Literal["none", "base64"] = "none"
    """Encoding of the payload inside its field: none or base64."""
    message: FieldName | None = None
    """Name of the envelope's message, with or without its package. When left out, the message is
    used that has the three fields, has the name of the subject, or is not nested in another
    message."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that the format of the envelope requires or does not support."""
        if self.format == "cloudevents":
            for name in ("subject", "type", "schema_id", "payload", "message"):
                if getattr(self, name) is not None:
                    yield (name,), "has no effect here: CloudEvents define it themselves"
            if self.encoding != "none":
                yield ("encoding",), "has no effect here: the attribute data_base64 marks base64"
            return
        if self.type is None:
            yield (), "needs type, such as type: event.name"
        if self.has_schema:
            if self.payload is None:
                yield (
                    (),
                    "needs payload: in this format the envelope and the payload are two messages",
                )
            if self.subject is None and (self.framing != "confluent" or self.format == "avro"):
                yield (), "needs subject, or framing: confluent"
        elif self.subject is not None or self.message is not None:
            name = "subject" if self.subject is not None else "message"
            yield (name,), "has no effect here: this envelope has no schema"
        if self.encoding != "none" and self.payload is None:
            yield ("encoding",), "needs payload, the field with this encoding"
        fields = [name for name in (self.type, self.schema_id, self.payload) if name is not None]
        if len(set(fields)) != len(fields):
            yield (), "needs three different fields for type, schema_id and payload"

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the message that hold type, schema id and payload."""
        named = None if self.type is None or self.type.startswith("{") else self.type
        return tuple(name for name in (named, self.schema_id, self.payload) if name is not None)

    @property
    def has_schema(self) -> bool:
        """Return true when the envelope is read with a schema of its own."""
        return self.format in ("protobuf", "avro") and bool(self.fields)


class PayloadConfig(Section):
    """The message inside the envelope, or the whole record."""

    format: PayloadFormatName
    """Encoding of the payload, or the name of a format that another package brings."""
    framing: Framing = "confluent"
    """Whether the schema registry's header precedes the payload: none, confluent, or auto for
    either. When left out: none for a payload in a field of an envelope; for json and
    msgpack, auto with a registry and none without; otherwise confluent."""
    subject: SubjectRule = Field(default="auto", examples=["{topic}-value"])
    """Subject that a schema must belong to. auto: `{type}-value` or `{type}`, where the registry
    has it; any: every subject is accepted; or a template with {topic}, {type} or {record}."""
    validation: Literal["registry", "none"] = Field(default="none", alias="validate")
    """registry: the schema id must belong to the subject. Otherwise the record is dead-lettered as
    WRONG_SUBJECT."""
    message: FieldName | None = None
    """Name of the message, with or without its package, for payloads without a message index. When
    left out, the message is used that has the name of the type, or the only message of its file
    that is not nested in another. If several remain, records are dead-lettered as
    AMBIGUOUS_MESSAGE."""
    unknown_fields: Literal["dead_letter", "drop"] = "dead_letter"
    """What to do with protobuf payloads that have fields which their schema lacks, and so were
    written with another schema. dead_letter: dead-letter the record as PAYLOAD_MISMATCH; drop: drop
    the fields and count the records."""
