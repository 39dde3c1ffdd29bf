"""Payloads of several versions of a message in one call.

A call costs as much as decoding a few hundred records, and a table gets records of several versions
in every batch. Where one version has every field of the others, exactly as they have it, it reads
their payloads as they would themselves: what it has beyond is left out of the result again. As soon
as anything is unusual, each version decodes its own, so that no record is judged by another schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from distributary.decode.base import Decoder
from distributary.decode.expansion import SLICE_BYTES
from distributary.decode.protobuf import ProtobufDecoder
from distributary.decode.protobuf_shape import Field
from distributary.model.decoded import Decoded
from distributary.model.identity import ByIdentity

_MOST_COVERS = 50_000


class _Cover:
    """The widest of some decoders, and where each of them finds its columns in its batches."""

    def __init__(self, decoders: tuple[Decoder, ...]) -> None:
        self.widest: ProtobufDecoder | None = None
        self.picks: list[list[int]] = []
        self.versions = [d for d in decoders if isinstance(d, ProtobufDecoder)]
        widest = max(self.versions, key=lambda d: len(d.columns), default=None)
        if widest is None or len(self.versions) < len(decoders):
            return
        if all(d is widest or _covers(widest, d) for d in self.versions):
            self.widest = widest
            place = {column.name: index for index, column in enumerate(widest.columns)}
            self.picks = [[place[c.name] for c in d.columns] for d in self.versions]


_COVERS: ByIdentity[_Cover] = ByIdentity(_MOST_COVERS)


def decode_together(
    decoders: tuple[Decoder, ...], arrays: Sequence[pa.BinaryArray]
) -> list[Decoded] | None:
    """What each decoder makes of its array, or None where they must be asked one by one."""
    # worked out once: decoders live as long as a worker
    cover = _COVERS.get(decoders, lambda: _Cover(decoders))
    if cover.widest is None:
        return None
    if sum(d.expansion.most(a) for d, a in zip(decoders, arrays, strict=True)) > SLICE_BYTES:
        return None
    # judged by the schema of each: the widest one knows fields that others do not
    if not all(d.accepts(a) for d, a in zip(cover.versions, arrays, strict=True)):
        return None
    decoded = cover.widest.decode(pa.concat_arrays(arrays), accepted=True)
    if decoded.failed or decoded.origin is not None:
        return None
    results, start = [], 0
    for pick, array in zip(cover.picks, arrays, strict=True):
        batch = decoded.ok.slice(start, len(array)).select(pick)
        results.append(Decoded(batch, None))
        start += len(array)
    return results


def _covers(wide: ProtobufDecoder, narrow: ProtobufDecoder) -> bool:
    """Whether one reads the other's payloads just as that one does."""
    if not narrow.columns:
        # a batch without columns does not remember how many rows it has
        return False
    ours, theirs = wide.message, narrow.message
    by_name = {field.name: field for field in ours.fields}
    shared = {field.name for field in theirs.fields}
    if any(_unplaced(by_name.get(f.name)) != _unplaced(f) for f in theirs.fields):
        return False
    # a new member of a oneof would take the place of an old one, a new required field be missed
    for oneof in ours.oneofs:
        members = {f.name for f in oneof}
        if members & shared and members - shared:
            return False
    return not (wide.required - narrow.required)


def _unplaced(field: Field | None) -> Field | None:
    return None if field is None else replace(field, place=0)
