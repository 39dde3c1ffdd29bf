"""Bytes to columns: one decoder per format, all behind `decode.base.Decoder`."""

from __future__ import annotations

from collections.abc import Callable

from distributary.decode.avro import decoder
from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.change.base import ChangeDecoder
from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.json import text
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.protobuf import wire
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.model.cache import Cache
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema

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
    Format.PROTOBUF: wire.best_effort_text,
    Format.AVRO: decoder.best_effort_text,
    Format.JSON: text.best_effort_text,
}
"""Shows a person as much of a payload as can be read with its schema."""


# Decoders that were built once in this process.

CAPACITY = 10_000
"""Decoders kept at most, 50 to 300 kB each; the longest unused goes first."""

_decoders: Cache[Decoder] = Cache(CAPACITY)
_change_decoders: Cache[ChangeDecoder] = Cache(CAPACITY)


def decoder_for(schema: WriterSchema, message: str, limits: DecodeLimits) -> Decoder:
    """The decoder of one message of a writer schema, built at its first use."""
    # the schema's content is the key, not its id: ids belong to one registry, contents to none
    key = (schema.format, schema.body, message, limits)
    return _decoders.get(key, lambda: DECODERS[schema.format](schema.body, message, limits))


def change_decoder_for(
    schema: WriterSchema,
    settings: ChangeSettings,
    limits: DecodeLimits,
    *,
    keys: WriterSchema | None = None,
) -> ChangeDecoder:
    """The decoder of change events, by their schema and by that of the records' own keys."""
    key = (schema.format, schema.body, settings, limits, keys.body if keys else b"")
    build, more = CHANGE_DECODERS[settings.format], {"key": keys} if keys else {}
    return _change_decoders.get(key, lambda: build(schema, settings, limits, **more))


def built() -> int:
    """How many decoders there are in this process."""
    return len(_decoders) + len(_change_decoders)


def clear() -> None:
    """Forget every decoder."""
    _decoders.clear()
    _change_decoders.clear()
