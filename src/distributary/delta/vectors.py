"""Deletion vectors: rows that left a table, while the file they are in stays as it is.

A vector is a set of row numbers, as a Roaring bitmap. Those of one commit share a file beside the
table's data; a log names file, place and length of each. Other writers also put small ones into
the log itself: both are read.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from distributary.model.cache import Cache
from distributary.model.table import is_below
from distributary.store.base import Store

Ints = npt.NDArray[np.int64]

FEATURE = "deletionVectors"
"""What a table with vectors asks of its readers and writers."""
PROPERTY = "delta.enableDeletionVectors"
"""Without it, nobody may write new ones."""
_MAGIC = (1681511377).to_bytes(4, "little")
_VERSION = b"\x01"
_HELD, _INLINE = "u", "i"
_UUID_TEXT = 20
_MOST_KEPT = 128
"""Vectors that a process remembers: a merge asks for each several times."""

_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)


class BrokenVectorError(Exception):
    """A vector that is not what the log says: nobody can tell which rows a file still has."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Where a vector is, as a log has it."""

    storage: str
    place: str
    """The name of its file, or the vector itself."""
    offset: int | None
    size: int
    cardinality: int
    """How many rows it takes away."""

    @classmethod
    def told(cls, told: Mapping[str, Any] | None) -> Vector | None:
        """The vector of an action in a log, if it has one."""
        if not told:
            return None
        return cls(
            storage=str(told["storageType"]),
            place=str(told["pathOrInlineDv"]),
            offset=None if told.get("offset") is None else int(told["offset"]),
            size=int(told["sizeInBytes"]),
            cardinality=int(told["cardinality"]),
        )

    def spelled(self) -> dict[str, Any]:
        """The same for an action in a log."""
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.place,
            **({} if self.offset is None else {"offset": self.offset}),
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }

    @property
    def id(self) -> str:
        """Tells it from other vectors of the same file, as the protocol has it."""
        return f"{self.storage}{self.place}" + ("" if self.offset is None else f"@{self.offset}")

    @property
    def path(self) -> str | None:
        """Its file in the table's folder; None where it is in the log, or anywhere else."""
        prefix, name = self.place[:-_UUID_TEXT], self.place[-_UUID_TEXT:]
        if self.storage != _HELD or len(name) != _UUID_TEXT:
            return None
        try:
            file = f"deletion_vector_{uuid.UUID(bytes=_from_z85(name))}.bin"
        except BrokenVectorError:
            return None
        path = f"{prefix}/{file}" if prefix else file
        return path if is_below(path) else None


_kept: Cache[Ints] = Cache(_MOST_KEPT)


def read_vector(store: Store, vector: Vector) -> Ints:
    """The numbers of the rows that a vector takes away, in order.

    Raises BrokenVectorError, and FileNotFoundError where its file is gone.
    """
    # a file of vectors has a name of its own for ever
    key = f"{store.address} {vector.id}"
    found = _kept.find(key)
    if found is None:
        found = _decoded(_inline(vector) if vector.storage == _INLINE else _held(store, vector))
        _kept.keep(key, found)
    if len(found) != vector.cardinality:
        raise BrokenVectorError(f"it has {len(found)} rows; by the log {vector.cardinality}")
    return found


def write_vectors(store: Store, sets: Sequence[Ints]) -> list[Vector]:
    """Write a file with vectors of these row numbers; on disk for good when it returns."""
    name = uuid.uuid4()
    place = base64.b85encode(name.bytes).translate(_TO_Z85).decode()
    parts, at = [_VERSION], len(_VERSION)
    vectors = []
    for rows in sets:
        bitmap = BitMap64(array("Q", np.asarray(rows, np.uint64).tobytes()))
        data = _MAGIC + bitmap.serialize()
        length, check = (n.to_bytes(4, "big") for n in (len(data), zlib.crc32(data)))
        parts += [length, data, check]
        vectors.append(Vector(_HELD, place, at, len(data), len(bitmap)))
        at += len(data) + 8
    store.write(f"deletion_vector_{name}.bin", b"".join(parts))
    return vectors


def _inline(vector: Vector) -> bytes:
    data = _from_z85(vector.place)
    # texts of this kind stand for whole groups of four bytes
    if not 0 <= len(data) - vector.size < 4:
        raise BrokenVectorError(f"it has {len(data)} bytes; by the log {vector.size}")
    return data[: vector.size]


def _held(store: Store, vector: Vector) -> bytes:
    """The bytes of a vector in a file, which has its length before and a checksum behind it."""
    path = vector.path
    if path is None:
        raise BrokenVectorError(f"it is not in the table's folder: {vector.id[:200]}")
    found = store.read_range(path, vector.offset or 0, max(vector.size, 0) + 8)
    data = found[4:-4]
    if len(data) != vector.size or int.from_bytes(found[:4], "big") != vector.size:
        raise BrokenVectorError(f"{path} does not have it where the log says")
    if int.from_bytes(found[-4:], "big") != zlib.crc32(data):
        raise BrokenVectorError(f"{path} was changed since it was written")
    return data


def _decoded(data: bytes) -> Ints:
    if not data.startswith(_MAGIC):
        raise BrokenVectorError("it is of a kind that is not known")
    try:
        bitmap = BitMap64.deserialize(data[len(_MAGIC) :])
    except (ValueError, IndexError) as error:
        raise BrokenVectorError(str(error)) from error
    return np.asarray(bitmap.to_array()).astype(np.int64)


def _from_z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
    except ValueError as error:
        raise BrokenVectorError(f"no text of the kind Z85: {text[:100]}") from error
