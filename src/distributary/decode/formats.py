"""The table of payload formats, and the decoders that this process has built."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.config.plugged import FORMATS_GROUP, load_plugged
from distributary.decode.avro.format import AVRO
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.change.base import ChangeDecoder
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.decode.json.format import JSON
from distributary.decode.msgpack.format import MSGPACK
from distributary.decode.payload_format import PayloadFormat
from distributary.decode.protobuf.format import PROTOBUF
from distributary.model.cache import Cache
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema


class _Formats(dict[str, PayloadFormat]):
    """Payload formats by name; formats of other packages are loaded on first use."""

    def __missing__(self, name: str) -> PayloadFormat:
        entry: PayloadFormat = load_plugged(FORMATS_GROUP, name)
        self[name] = entry
        return entry


FORMATS: Mapping[str, PayloadFormat] = _Formats(
    {entry.name: entry for entry in (PROTOBUF, AVRO, JSON, MSGPACK)}
)
"""Payload formats by their name in a pipeline file. A language of schemas has the name of the
format that it belongs to, so that `FORMATS[schema.format]` reads the payloads of a schema."""


def language_of(suffix: str) -> Format:
    """Return the language of a schema's file; protobuf if no other has this suffix."""
    known = (entry.language for entry in FORMATS.values() if entry.suffix == suffix)
    return next(known, Format.PROTOBUF)


def guessed_format(payload: bytes) -> PayloadFormat:
    """Return the format to show a payload without a schema: JSON by its brackets, or protobuf."""
    return JSON if payload.lstrip()[:1] in (b"{", b"[") else PROTOBUF


# A cache of the decoders that this process has built.

CAPACITY = 10_000
"""The largest number of decoders kept, at 50 to 300 kB each; the least recently used goes first."""

_decoders: Cache[Decoder] = Cache(CAPACITY)
_change_decoders: Cache[ChangeDecoder] = Cache(CAPACITY)


def decoder_for(schema: WriterSchema, message: str, limits: DecodeLimits) -> Decoder:
    """Return the decoder of one message of a writer schema, building it at its first use."""
    # The key is the schema's content and not its id, because ids are unique only within one
    # registry.
    key = (schema.format, schema.body, message, limits)
    return _decoders.get(key, lambda: FORMATS[schema.format].decoder(schema.body, message, limits))


def change_decoder_for(
    schema: WriterSchema,
    settings: ChangeSettings,
    limits: DecodeLimits,
    *,
    keys: WriterSchema | None = None,
) -> ChangeDecoder:
    """Return the decoder of change events for their schema and the schema of the record keys."""
    key = (schema.format, schema.body, settings, limits, keys.body if keys else b"")
    build = CHANGE_FORMATS[settings.format].decoder
    return _change_decoders.get(key, lambda: build(schema, settings, limits, keys=keys))


def built() -> int:
    """Return the number of decoders in this process."""
    return len(_decoders) + len(_change_decoders)


def clear() -> None:
    """Drop all decoders of this process."""
    _decoders.clear()
    _change_decoders.clear()
