"""What can be read in a record that could not be ingested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.decode import VIEWS
from distributary.decode.protobuf_view import best_effort_text
from distributary.errors import RegistryError
from distributary.model.plan import Rejected
from distributary.model.record import RAW
from distributary.model.schema import Format, WriterSchema
from distributary.registry.base import SchemaRegistry
from distributary.registry.wire import Framed, parse
from distributary.run.pipeline import Pipeline
from distributary.run.schema_lookup import SchemaLookup, choose_envelope
from distributary.stage.group import group
from distributary.stage.unwrap import unwrap
from distributary.stage.unwrapped import Unwrapped

_MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Insight:
    """A record's schema, payload and text, as far as they could be found."""

    schema: str = ""
    """`12 (chess_game-value v3)`."""
    payload_start: int | None = None
    """Where the payload begins in the value."""
    mark: int | None = None
    """The byte of the value at which decoding failed."""
    label: str = ""
    text: str = ""


def look_inside(pipeline: Pipeline | None, letter: Mapping[str, Any]) -> Insight:
    """As much as can be found out; without a pipeline the bytes must do."""
    value: bytes = letter["value"] or b""
    registry = pipeline.registry() if pipeline is not None else None
    if pipeline is None or registry is None:
        return _without_schemas(value, letter)
    schema = _schema(registry, letter["schema_id"])
    found = _unwrapped(pipeline, letter) if value else None
    payload = found.payloads[0].as_py() if found is not None and len(found.rows) else None
    start = value.rfind(payload) if payload else _after_frame(value)
    writer = schema if payload else _envelope(pipeline, registry)
    message: str | Rejected = ""
    if writer is not None and payload and found is not None:
        lookup = SchemaLookup(pipeline.config, registry, None)
        message = lookup.message(group(found).keys[0], writer)
    elif writer is not None and pipeline.config.envelope is not None:
        message = choose_envelope(pipeline.config.envelope, writer)
    text = _readable(writer, message, payload or value[start:]) if value else ""
    position = letter["error_position"]
    return Insight(
        schema=_named(letter["schema_id"], schema),
        payload_start=start if payload else None,
        mark=None if position is None or not value else start + position,
        label=""
        if position is None
        else f"byte {position} of the {'payload' if payload else 'message'}",
        text=text[:_MOST_CHARACTERS],
    )


def _readable(writer: WriterSchema | None, message: str | Rejected, payload: bytes) -> str:
    if writer is None or (isinstance(message, Rejected) and writer.format is Format.PROTOBUF):
        # protobuf can be told field by field without a schema
        return best_effort_text(None, "", payload)
    view = VIEWS.get(writer.format)
    name = writer.message if isinstance(message, Rejected) else message
    return view(writer.body, name, payload) if view else ""


def _without_schemas(value: bytes, letter: Mapping[str, Any]) -> Insight:
    start, position = _after_frame(value), letter["error_position"]
    known = letter["stage"] == "unwrap" and position is not None and value
    schema_id = letter["schema_id"]
    return Insight(
        schema="unknown" if schema_id is None else str(schema_id),
        mark=start + position if known else None,
        label=f"byte {position} of the message" if known else "",
        text=best_effort_text(None, "", value[start:])[:_MOST_CHARACTERS] if value else "",
    )


def _unwrapped(pipeline: Pipeline, letter: Mapping[str, Any]) -> Unwrapped:
    raw = pa.RecordBatch.from_pylist([{name: letter[name] for name in RAW.names}], schema=RAW)
    return unwrap(raw, pipeline.planner().catalog())


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


def _named(schema_id: int | None, schema: WriterSchema | None) -> str:
    if schema_id is None:
        return "unknown"
    return f"{schema_id} ({schema.label()})" if schema else f"{schema_id} (not in the registry)"
