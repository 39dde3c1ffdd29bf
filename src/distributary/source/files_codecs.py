"""The codecs of Avro files, each with an end to what a block may become."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

MOST_BLOCK_BYTES = 256 * 1024 * 1024
"""Of a block, stored and unpacked: a few bytes could unpack to any number of them."""


class UnpackError(Exception):
    """A block is not what its codec makes."""


class TooLargeError(UnpackError):
    """A block would become more than anybody can hold."""

    def __init__(self) -> None:
        super().__init__(f"it holds more than {MOST_BLOCK_BYTES} bytes")


def _deflate(data: bytes) -> bytes:
    return _stream(zlib.decompressobj(wbits=-15), data)


def _bzip2(data: bytes) -> bytes:
    return _stream(bz2.BZ2Decompressor(), data)


def _xz(data: bytes) -> bytes:
    return _stream(lzma.LZMADecompressor(memlimit=MOST_BLOCK_BYTES), data)


def _stream(unpacker: Any, data: bytes) -> bytes:
    unpacked: bytes = unpacker.decompress(data, MOST_BLOCK_BYTES)
    if not unpacker.eof:
        if len(unpacked) < MOST_BLOCK_BYTES:
            raise UnpackError("it ends too early")
        raise TooLargeError
    return unpacked


def _snappy(data: bytes) -> bytes:
    packed, checksum = data[:-4], int.from_bytes(data[-4:], "big")
    size, shift = 0, 0
    for byte in packed[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > MOST_BLOCK_BYTES:
        raise TooLargeError
    unpacked: bytes = pa.Codec("snappy").decompress(packed, size, asbytes=True)
    if zlib.crc32(unpacked) != checksum:
        raise UnpackError("its checksum is another one")
    return unpacked


def _zstandard(data: bytes) -> bytes:
    with pa.input_stream(pa.BufferReader(data), compression="zstd") as stream:
        unpacked: bytes = stream.read(MOST_BLOCK_BYTES + 1)
    if len(unpacked) > MOST_BLOCK_BYTES:
        raise TooLargeError
    return unpacked


def _null(data: bytes) -> bytes:
    return data


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": _null,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": _bzip2,
    "xz": _xz,
}


def unpack(codec: str, data: bytes) -> bytes:
    """What a block holds; UnpackError where it is damaged or too large."""
    try:
        return CODECS[codec](data)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise UnpackError(f"{type(error).__name__}: {error}") from error
