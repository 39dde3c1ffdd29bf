"""Bytes to columns: one decoder per format, all behind `decode.base.Decoder`."""

from __future__ import annotations

from collections.abc import Callable

from distributary.decode import avro_view, json_view, protobuf_view
from distributary.decode.avro import AvroDecoder
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.changes import ChangeDecoder
from distributary.decode.datastream import DatastreamDecoder
from distributary.decode.debezium import DebeziumDecoder
from distributary.decode.json_schema import JsonDecoder
from distributary.decode.protobuf import ProtobufDecoder
from distributary.model.schema import Format

DECODERS: dict[Format, Callable[[bytes, str, DecodeLimits], Decoder]] = {
    Format.PROTOBUF: ProtobufDecoder,
    Format.AVRO: AvroDecoder,
    Format.JSON: JsonDecoder,
}
"""Builds a decoder from a schema's compiled body, a message name and the limits."""

CHANGE_DECODERS: dict[str, Callable[..., ChangeDecoder]] = {
    "datastream": DatastreamDecoder,
    "debezium": DebeziumDecoder,
}
"""Builds a decoder of change events from their schema, the settings, the limits and, by `key`, the
schema of the records' own keys."""

VIEWS: dict[Format, Callable[[bytes | None, str, bytes], str]] = {
    Format.PROTOBUF: protobuf_view.best_effort_text,
    Format.AVRO: avro_view.best_effort_text,
    Format.JSON: json_view.best_effort_text,
}
"""Shows a person as much of a payload as can be read with its schema."""
