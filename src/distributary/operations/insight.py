"""The readable parts of one record: its schema, its payload and its text, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.decode.formats import FORMATS, guessed_format
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.schema_lookup import SchemaLookup, choose_envelope
from distributary.errors import RegistryError
from distributary.model.deadletter import ENCRYPTED
from distributary.model.record import RAW, WriterSchema
from distributary.model.routing import Rejected
from distributary.registry.base import SchemaRegistry
from distributary.registry.frames import Framed, parse
from distributary.stage.exchange import group
from distributary.stage.unwrap import Unwrapped, unwrap

_MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Insight:
    """A record's schema, payload and text, as far as they are known."""

    schema: str = ""
    """The schema as `12 (chess_game-value v3)`."""
    payload_start: int | None = None
    """The offset of the payload in the value."""
    mark: int | None = None
    """The byte of the value at which decoding failed."""
    label: str = ""
    text: str = ""


def look_inside(
    pipeline: Pipeline | None,
    letter: Mapping[str, Any],
    *,
    unwrapped: Unwrapped | None = None,
    registry: SchemaRegistry | None = None,
) -> Insight:
    """Return as much about a record as can be read; without a pipeline only its bytes.

    `unwrapped` is the record alone, if it was unwrapped before; `registry` the open registry of
    the pipeline, if there are many records.
    """
    if letter.get("note") == ENCRYPTED:
        return Insight()
    value: bytes = letter["value"] or b""
    if registry is None and pipeline is not None:
        registry = pipeline.registry()
    if pipeline is None or registry is None:
        known = "" if pipeline is None else pipeline.config.records.format
        return _without_schemas(value, letter, known)
    schema = _schema(registry, letter["schema_id"])
    if unwrapped is None and value:
        unwrapped = _unwrapped(pipeline, letter)
    payload = (
        unwrapped.payloads[0].as_py() if unwrapped is not None and len(unwrapped.rows) else None
    )
    # a payload that is base64, compressed or a part of JSON is not found as bytes in the value
    place = value.rfind(payload) if payload else -1
    start = place if place >= 0 else _after_frame(value)
    writer = schema if payload else _envelope(pipeline, registry)
    message: str | Rejected = ""
    if writer is not None and payload and unwrapped is not None:
        lookup = SchemaLookup(pipeline.config, registry, None)
        message = lookup.message(group(unwrapped).keys[0], writer)
    elif writer is not None and pipeline.config.envelope is not None:
        message = choose_envelope(pipeline.config.envelope, writer)
    text = _readable(writer, message, payload or value[start:]) if value else ""
    position = letter["error_position"]
    return Insight(
        schema=_named(letter, schema),
        payload_start=place if place >= 0 else None,
        mark=None if position is None or not value or (payload and place < 0) else start + position,
        label=""
        if position is None
        else f"byte {position} of the {'payload' if payload else 'message'}",
        text=text[:_MOST_CHARACTERS],
    )


def _readable(writer: WriterSchema | None, message: str | Rejected, payload: bytes) -> str:
    refused = isinstance(message, Rejected)
    if writer is None or (refused and FORMATS[writer.format].many_messages):
        return _without_schema(payload)
    name = writer.message if isinstance(message, Rejected) else message
    return FORMATS[writer.format].view(writer.body, name, payload)


def _without_schema(payload: bytes, known: str = "") -> str:
    """Return JSON as text, and anything else as protobuf without a schema.

    Without a schema, protobuf fields have only numbers. `known` is the pipeline's payload format.
    """
    if known and FORMATS[known].as_json is not None:
        return FORMATS[known].view(None, "", payload)
    return guessed_format(payload).view(None, "", payload)


def _without_schemas(value: bytes, letter: Mapping[str, Any], known: str) -> Insight:
    start, position = _after_frame(value), letter["error_position"]
    marked = letter["stage"] == "unwrap" and position is not None and value
    schema_id = letter["schema_id"]
    return Insight(
        schema="unknown" if schema_id is None else str(schema_id),
        mark=start + position if marked else None,
        label=f"byte {position} of the message" if marked else "",
        text=_without_schema(value[start:], known)[:_MOST_CHARACTERS] if value else "",
    )


def _unwrapped(pipeline: Pipeline, letter: Mapping[str, Any]) -> Unwrapped:
    raw = pa.RecordBatch.from_pylist([{name: letter[name] for name in RAW.names}], schema=RAW)
    return unwrap(raw, pipeline.planner().task_plan())


def _after_frame(value: bytes) -> int:
    framed = parse(value)
    return framed.payload_start if isinstance(framed, Framed) else 0


def _schema(registry: SchemaRegistry, schema_id: int | None) -> WriterSchema | None:
    try:
        return None if schema_id is None else registry.by_id(schema_id)
    except RegistryError:
        return None


def _envelope(pipeline: Pipeline, registry: SchemaRegistry) -> WriterSchema | None:
    envelope = pipeline.config.envelope
    try:
        return registry.latest(envelope.subject) if envelope and envelope.subject else None
    except RegistryError:
        return None


def _named(letter: Mapping[str, Any], schema: WriterSchema | None) -> str:
    schema_id = letter["schema_id"]
    if schema_id is None:
        return "unknown"
    known = schema.label(letter["topic"]) if schema else "not in the registry"
    return f"{schema_id} ({known})"
