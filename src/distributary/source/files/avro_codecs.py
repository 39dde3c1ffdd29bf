"""The codecs of Avro files, each with a limit to the size of an unpacked block."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from distributary.registry.frames import read_varint

MOST_BLOCK_BYTES = 256 * 1024 * 1024
"""The largest number of bytes of a block, stored and unpacked: a few bytes could unpack to any
number."""


class UnpackError(Exception):
    """An error for a block that its codec cannot unpack."""


class TooLargeError(UnpackError):
    """An error for a block that would unpack to too many bytes."""

    def __init__(self) -> None:
        super().__init__(f"the block holds more than {MOST_BLOCK_BYTES} bytes")


def _stream(unpacker: Any, data: bytes) -> bytes:
    unpacked: bytes = unpacker.decompress(data, MOST_BLOCK_BYTES)
    if not unpacker.eof:
        if len(unpacked) < MOST_BLOCK_BYTES:
            raise UnpackError("the block ends too early")
        raise TooLargeError
    return unpacked


def _snappy(data: bytes) -> bytes:
    packed, checksum = data[:-4], int.from_bytes(data[-4:], "big")
    size, _ = read_varint(packed, 0)
    if size > MOST_BLOCK_BYTES:
        raise TooLargeError
    unpacked: bytes = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(unpacked) != checksum:
        raise UnpackError("the checksum does not match")
    return unpacked


def _zstandard(data: bytes) -> bytes:
    with pa.input_stream(pa.BufferReader(data), compression="zstd") as stream:
        unpacked: bytes = stream.read(MOST_BLOCK_BYTES + 1)
    if len(unpacked) > MOST_BLOCK_BYTES:
        raise TooLargeError
    return unpacked


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: _stream(zlib.decompressobj(wbits=-15), data),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": lambda data: _stream(bz2.BZ2Decompressor(), data),
    "xz": lambda data: _stream(lzma.LZMADecompressor(memlimit=MOST_BLOCK_BYTES), data),
}


def unpack(codec: str, data: bytes) -> bytes:
    """Unpack a block; raise UnpackError if it is damaged or too large."""
    try:
        return CODECS[codec](data)
    except (OSError, EOFError, IndexError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise UnpackError(f"{type(error).__name__}: {error}") from error
