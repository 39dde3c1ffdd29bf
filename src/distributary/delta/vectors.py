"""Deletion vectors: the deleted rows of data files that stay as they are.

A vector is a set of row numbers, stored as a Roaring bitmap. The vectors of one commit share a file
beside the table's data; the log names the file, offset and length of each vector. Other writers
also put small vectors into the log itself; both kinds are read.
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
"""The table feature that readers and writers of deletion vectors must support."""
PROPERTY = "delta.enableDeletionVectors"
"""The table property without which no writer may add deletion vectors."""
_MAGIC = (1681511377).to_bytes(4, "little")
_VERSION = b"\x01"
_HELD, _INLINE = "u", "i"
_UUID_TEXT = 20
_MOST_KEPT = 128
"""The number of vectors that a process caches: a merge reads each vector several times."""

_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)


class BrokenVectorError(Exception):
    """An error for a vector that differs from the log: the rows of its file are unknown."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The location of a vector, as a log spells it."""

    storage: str
    place: str
    """The name of the vector's file, or the encoded vector."""
    offset: int | None
    size: int
    cardinality: int
    """The number of deleted rows."""

    @classmethod
    def parse(cls, descriptor: Mapping[str, Any] | None) -> Vector | None:
        """Parse the `deletionVector` of an action in a log; None if there is none."""
        if not descriptor:
            return None
        return cls(
            storage=str(descriptor["storageType"]),
            place=str(descriptor["pathOrInlineDv"]),
            offset=None if descriptor.get("offset") is None else int(descriptor["offset"]),
            size=int(descriptor["sizeInBytes"]),
            cardinality=int(descriptor["cardinality"]),
        )

    def spelled(self) -> dict[str, Any]:
        """Return the `deletionVector` of an action in a log."""
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.place,
            **({} if self.offset is None else {"offset": self.offset}),
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }

    @property
    def id(self) -> str:
        """Return the vector's unique id, as the protocol defines it."""
        return f"{self.storage}{self.place}" + ("" if self.offset is None else f"@{self.offset}")

    @property
    def path(self) -> str | None:
        """Return the path of the vector's file.

        None if it is in the log or outside of the folder.
        """
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
    """Read the numbers of the rows that a vector deletes, in order.

    Raises BrokenVectorError, and FileNotFoundError if the vector's file is gone.
    """
    # The name of a file of vectors is never used again, so it can be a cache key.
    key = f"{store.address} {vector.id}"
    rows = _kept.find(key)
    if rows is None:
        rows = _decoded(_inline(vector) if vector.storage == _INLINE else _held(store, vector))
        _kept.keep(key, rows)
    if len(rows) != vector.cardinality:
        raise BrokenVectorError(
            f"the vector has {len(rows)} rows; the log says {vector.cardinality}"
        )
    return rows


def write_vectors(store: Store, sets: Sequence[Ints]) -> list[Vector]:
    """Write one durable file with a vector for each set of row numbers."""
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
    # Z85 encodes groups of four bytes, so up to three bytes are padding.
    if not 0 <= len(data) - vector.size < 4:
        raise BrokenVectorError(f"the vector has {len(data)} bytes; the log says {vector.size}")
    return data[: vector.size]


def _held(store: Store, vector: Vector) -> bytes:
    """Read a vector from its file, where a length precedes it and a checksum follows it."""
    path = vector.path
    if path is None:
        raise BrokenVectorError(f"the vector is not in the table's folder: {vector.id[:200]}")
    framed = store.read_range(path, vector.offset or 0, max(vector.size, 0) + 8)
    data = framed[4:-4]
    if len(data) != vector.size or int.from_bytes(framed[:4], "big") != vector.size:
        raise BrokenVectorError(f"{path} has no vector at the offset that the log names")
    if int.from_bytes(framed[-4:], "big") != zlib.crc32(data):
        raise BrokenVectorError(f"{path} was changed since it was written")
    return data


def _decoded(data: bytes) -> Ints:
    if not data.startswith(_MAGIC):
        raise BrokenVectorError("the vector is of an unknown format")
    try:
        bitmap = BitMap64.deserialize(data[len(_MAGIC) :])
    except (ValueError, IndexError) as error:
        raise BrokenVectorError(str(error)) from error
    return np.asarray(bitmap.to_array()).astype(np.int64)


def _from_z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
    except ValueError as error:
        raise BrokenVectorError(f"the text is not valid Z85: {text[:100]}") from error
