"""The entry of Debezium: messages of a topic in JSON or Avro, with an envelope or flattened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import (
    CHANGE,
    HEARTBEAT,
    OTHER,
    TOMBSTONE,
    ChangeDecoder,
    ChangeFormat,
    Named,
    Recognized,
    Records,
    Sampled,
    Subject,
    mostly,
)
from distributary.decode.change.connect_frames import split_connect
from distributary.decode.change.debezium.connect_schema import is_envelope
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.change.debezium.message_kinds import (
    KINDS,
    MessageKind,
    look,
    schema_claim,
    schema_kind,
    type_of,
)
from distributary.errors import DecodeError
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema

_KINDS = {
    MessageKind.CHANGE: CHANGE,
    MessageKind.HEARTBEAT: HEARTBEAT,
    MessageKind.TOMBSTONE: TOMBSTONE,
}
_NUMBERS = np.array([_KINDS.get(kind, OTHER) for kind in KINDS])


class Debezium(ChangeFormat):
    """JSON names its table and may carry its schema; of Avro, the schema names the table."""

    name = "debezium"
    label = "Debezium"
    images = ("before", "after")
    tombstones_may_delete = True

    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for a schema of messages, and one of their keys."""
        return DebeziumDecoder(schema, settings, limits, key=keys)

    def carries_schemas(self, payload: Format) -> bool:
        """Return whether messages may carry schemas: Kafka Connect writes them into JSON."""
        return payload is Format.JSON

    def name_tables(self, records: Records, settings: ChangeSettings) -> Named:
        """Return the table of each message; where tombstones delete, some only by its topic."""
        frames = split_connect(records.payloads)
        by_topic = settings.tombstones == "delete"
        looked = look(records.topics, frames.payloads, by_topic=by_topic)
        return Named(
            _NUMBERS[looked.kinds], looked.claims, frames.payloads, frames.codes, frames.schemas
        )

    def subject(self, schema: WriterSchema, claim: str) -> Subject:
        """Return the table of messages with a schema; in Avro, `claim` is their topic."""
        if schema.format is Format.JSON:
            return Subject(claim)
        kind = schema_kind(schema)
        if kind is MessageKind.CHANGE:
            return Subject(schema_claim(schema, claim))
        return Subject(None, kind is MessageKind.HEARTBEAT)

    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Recognise JSON messages of Debezium by their field about the source."""
        events = [record.event for record in records if record.event is not None]
        sources = mostly(events, _source)
        if sources is None:
            return None
        flat = any("flat" in source for source in sources)
        schemas = any(source.get("schema") for source in sources)
        return Recognized(
            f"Change events of Debezium in JSON{', flattened' * flat}",
            frozenset(".".join(filter(None, map(str, _place(source)))) for source in sources),
            None if flat else _template(schemas=schemas),
            {"format": self.name},
        )

    def recognize_schema(self, schema: WriterSchema) -> Recognized | None:
        """Return what messages with a schema of Avro are."""
        try:
            type_ = type_of(schema)
        except DecodeError:
            return None
        if schema.format is not Format.AVRO or not is_envelope(type_):
            return None
        source = type_.member("source")
        schemas = source is not None and source.member("schema") is not None
        what = "Change events of Debezium in Avro, with the registry's header"
        return Recognized(what, frozenset(), _template(schemas=schemas), {"format": self.name})


def _template(*, schemas: bool) -> str:
    return "{schema}_{table}" if schemas else "{database}_{table}"


def _source(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the field about the source in a message of Debezium; None for other messages."""
    inner = event["payload"] if {"schema", "payload"} <= event.keys() else event
    if not isinstance(inner, dict):
        return None
    source = inner.get("source")
    if isinstance(source, dict) and source.get("connector") and "op" in inner:
        return source
    # flattened by the connector, with the fields of its setting `add.fields`
    return {"flat": True} if any(key.startswith("__op") for key in inner) else None


def _place(source: Mapping[str, Any]) -> tuple[Any, ...]:
    return source.get("db"), source.get("schema"), source.get("table") or source.get("collection")
