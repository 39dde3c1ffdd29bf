"""The key of a change: which columns, as the key of its message says, and what they hold.

A message's key is JSON, with a schema or without, or Avro in the registry's frame; a table without
a key has messages without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_frames import NONE, split_connect
from distributary.decode.debezium_schema import avro_type, connect_type
from distributary.errors import DecodeError
from distributary.model.schema import Format, WriterSchema
from distributary.registry.wire_arrow import payloads, split

Names = tuple[str, ...]
_MANY = 16
"""Different keys, from which on each is read by itself."""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by number: the messages of a table have few different ones."""

    codes: npt.NDArray[np.int64]
    names: tuple[Names | None, ...]
    """By number: the columns in the source; None for a key that says none."""

    def unreadable(self) -> Mask:
        """Which messages have a key of which nobody can say the columns."""
        return self._where([names is None for names in self.names])

    def foreign(self, columns: Mapping[str, str]) -> Mask:
        """Which keys name something that is no column."""
        return self._where([any(n not in columns for n in each or ()) for each in self.names])

    def columns(self, columns: Mapping[str, str]) -> list[list[str]]:
        """By number: what the key's columns are called in the log."""
        return [[columns[n] for n in each or () if n in columns] for each in self.names]

    def only(self, kept: Mask) -> Keys:
        """Those that a mask selects."""
        return Keys(self.codes[kept], self.names)

    def without(self, rows: Mask) -> Keys:
        """The same, but no key for some."""
        return Keys(np.where(rows, len(self.names), self.codes), (*self.names, ()))

    def _where(self, flags: list[bool]) -> Mask:
        mask: Mask = np.array(flags, np.bool_)[self.codes]
        return mask


class KeyReader:
    """Reads the keys of the messages of one table."""

    def __init__(self, schema: WriterSchema | None, limits: DecodeLimits) -> None:
        self._names: Names | None = None
        self._decoder: AvroDecoder | None = None
        if schema is not None and schema.format is Format.AVRO:
            type_, body = avro_type(schema.body)
            self._names = tuple(field.name for field in type_.fields)
            self._decoder = AvroDecoder(body, schema.message, limits)

    def read(self, keys: pa.BinaryArray) -> Keys:
        """The columns of each key."""
        if self._names is not None or keys.null_count == len(keys):
            missing = keys.is_null().to_numpy(zero_copy_only=False)
            return Keys(missing.astype(np.int64), (self._names or (), ()))
        frames = split_connect(keys)
        by_schema = [_names_in(text) for text in frames.schemas]
        if (frames.codes != NONE).all():
            return Keys(frames.codes, tuple(by_schema))
        bare = np.flatnonzero(frames.codes == NONE)
        some = _grouped(frames.payloads.take(pa.array(bare)))
        codes = frames.codes.copy()
        codes[bare] = some.codes + len(by_schema)
        return Keys(codes, (*by_schema, *some.names))

    def values(self, keys: pa.BinaryArray) -> list[dict[str, Any] | None]:
        """What keys hold, by column, as the events themselves would say it."""
        if self._decoder is None or self._names is None:
            return [_object(key) for key in split_connect(keys).payloads.to_pylist()]
        found: list[dict[str, Any] | None] = [None] * len(keys)
        there = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        some = keys.take(pa.array(there))
        bodies = payloads(some, split(some, None, protobuf=False).payload_start)
        decoded = self._decoder.decode(bodies)
        rows = there if decoded.origin is None else there[decoded.origin.to_numpy()]
        for row, each in zip(rows.tolist(), decoded.ok.to_pylist(), strict=True):
            found[row] = dict(zip(self._names, each.values(), strict=True))
        return found


def _grouped(keys: pa.BinaryArray) -> Keys:
    """Keys in JSON by their names: one is read, and the others that look like it are not."""
    codes = np.zeros(len(keys), np.int64)
    found: dict[Names | None, int] = {(): 0}
    left = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
    while len(left) and len(found) <= _MANY:
        names = _names_of(keys[int(left[0])].as_py())
        if not names:
            break
        same = pc.match_substring_regex(keys.take(pa.array(left)), _pattern(names))
        alike = same.to_numpy(zero_copy_only=False).copy()
        alike[0] = True
        codes[left[alike]] = found.setdefault(names, len(found))
        left = left[~alike]
    for row in left.tolist():
        codes[row] = found.setdefault(_names_of(keys[row].as_py()), len(found))
    return Keys(codes, tuple(found))


def _pattern(names: Names) -> str:
    """Matches objects that have these names and simple values, as Connect writes them."""
    quoted = (re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    return f"^{{{','.join(f'{each}:{_VALUE}' for each in quoted)}}}$"


def _names_in(schema: bytes) -> Names | None:
    given = json.loads(schema)
    if given is None:
        return ()
    try:
        type_ = connect_type(given)
    except DecodeError:
        return None
    return tuple(field.name for field in type_.fields) if type_.kind == "struct" else None


def _names_of(key: bytes | None) -> Names | None:
    if key is None:
        return ()
    content = _object(key)
    return None if content is None else tuple(content)


def _object(key: bytes | None) -> dict[str, Any] | None:
    try:
        content = json.loads(key or b"null")
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def fill(column: pa.Array, rows: Sequence[int], values: Sequence[Any]) -> pa.Array | None:
    """A column with some values in it; None if it cannot hold them."""
    try:
        some = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    places = np.arange(len(column))
    places[list(rows)] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, some]).take(pa.array(places))
