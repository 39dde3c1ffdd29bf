"""Frames as producers write them, and what a split column says at one position."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from distributary.registry.compile.avro_schema import zigzag
from distributary.registry.frames import FIRST_MESSAGE, SplitFrames


def frame(
    payload: bytes,
    *,
    schema_id: int | None = None,
    guid: UUID | None = None,
    indexes: Sequence[int] | None = FIRST_MESSAGE,
) -> bytes:
    """Put a frame before a payload; the inverse of `parse`. Without a payload it fits a header.

    The schema is named by its id or its GUID; `indexes` is None for formats without messages.
    """
    start = b"\x00" + (schema_id or 0).to_bytes(4, "big") if guid is None else b"\x01" + guid.bytes
    return start + (b"" if indexes is None else encode_indexes(indexes)) + payload


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The bytes of a path to a message."""
    if tuple(indexes) == FIRST_MESSAGE:
        return b"\x00"
    return b"".join(map(zigzag, (len(indexes), *indexes)))


def path_at(frames: SplitFrames, position: int) -> tuple[int, ...]:
    """The path to the message at a position."""
    return frames.paths[frames.path_codes[position]]


def guid_at(frames: SplitFrames, position: int) -> UUID | None:
    """The GUID at a position; None where there is none."""
    code = frames.guid_codes[position]
    return frames.guids[code] if code >= 0 else None
