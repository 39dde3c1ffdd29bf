"""Bytes to columns: one decoder per format, all behind `decode.base.Decoder`."""

from __future__ import annotations

from collections.abc import Callable

from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.protobuf import ProtobufDecoder
from distributary.model.schema import Format

DECODERS: dict[Format, Callable[[bytes, str, DecodeLimits], Decoder]] = {
    Format.PROTOBUF: ProtobufDecoder,
}
"""Builds a decoder from a schema's compiled body, a message name and the limits."""
