"""Defaults of fields, encoded as the data that they stand for, as the Java library does it.

A default of a union may be of any of its branches, not of the first one only: schemas with such
defaults are in use, and since Avro 1.12 they are right.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

from distributary.registry.avro_model import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    Named,
    Primitive,
    Record,
    Type,
    Union,
)

_MOST_STEPS = 100_000
"""For all defaults of a schema; one that tries every way through unions of records needs more."""
_MOST_BYTES = 64 * 1024
_MOST_LEVELS = 100
_BITS = {"int": 32, "long": 64}


class _UnfitError(Exception):
    """A default does not fit its type, or is beyond all measure."""


class Defaults:
    """Encodes the defaults of one schema's fields."""

    def __init__(self, named: Mapping[str, Named]) -> None:
        self._named = named
        self._known: dict[tuple[str, str], bytes | None] = {}
        self._steps = 0

    def encoded(self, record: str, field: Field) -> bytes | None:
        """A field's default as Avro data; None when it has none that fits its type."""
        if field.default is None:
            return None
        key = (record, field.name)
        if key not in self._known:
            # a default that needs itself never ends
            self._known[key] = None
            try:
                data = self._type(field.type, json.loads(field.default), 0)
            except (_UnfitError, RecursionError):
                return None
            self._known[key] = data if len(data) <= _MOST_BYTES else None
        return self._known[key]

    def _type(self, type_: Type, value: Any, level: int) -> bytes:
        self._steps += 1
        if self._steps > _MOST_STEPS or level > _MOST_LEVELS:
            raise _UnfitError
        match type_:
            case Primitive(name=name):
                return _primitive(name, value)
            case Name(full):
                return self._of_named(self._named[full], value, level)
            case Array(items) if isinstance(value, list):
                return _block([self._type(items, each, level + 1) for each in value])
            case Map(values) if isinstance(value, dict):
                return _block(
                    [_text(k) + self._type(values, each, level + 1) for k, each in value.items()]
                )
            case Union(branches):
                return self._union(branches, value, level)
        raise _UnfitError

    def _union(self, branches: tuple[Type, ...], value: Any, level: int) -> bytes:
        for index, branch in enumerate(branches):
            try:
                return zigzag(index) + self._type(branch, value, level + 1)
            except _UnfitError:
                continue
        raise _UnfitError

    def _of_named(self, named: Named, value: Any, level: int) -> bytes:
        match named:
            case Enum(symbols=symbols) if value in symbols:
                return zigzag(symbols.index(value))
            case Fixed(size=size) if isinstance(value, str) and len(value) == size:
                return _latin(value)
            case Record(name=name, fields=fields) if isinstance(value, dict):
                return b"".join(self._member(name, each, value, level) for each in fields)
        raise _UnfitError

    def _member(self, record: str, field: Field, value: dict[str, Any], level: int) -> bytes:
        if field.name in value:
            return self._type(field.type, value[field.name], level + 1)
        data = self.encoded(record, field)
        if data is None:
            raise _UnfitError
        return data


def zigzag(number: int) -> bytes:
    """A number as Avro writes ints, longs, lengths and indexes."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _primitive(name: str, value: Any) -> bytes:
    match name:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return b"\1" if value else b"\0"
        case "int" | "long" if type(value) is int:
            half = 1 << (_BITS[name] - 1)
            if -half <= value < half:
                return zigzag(value)
        case "float" | "double" if type(value) in (int, float):
            return _real(name, value)
        case "string" if isinstance(value, str):
            return _text(value)
        case "bytes" if isinstance(value, str):
            return zigzag(len(value)) + _latin(value)
    raise _UnfitError


def _real(name: str, value: float) -> bytes:
    try:
        number = float(value)
        if math.isfinite(number):
            return struct.pack("<f" if name == "float" else "<d", number)
    except OverflowError:
        pass
    raise _UnfitError


def _text(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise _UnfitError from None
    return zigzag(len(data)) + data


def _latin(value: str) -> bytes:
    # bytes are written as the characters with these numbers
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise _UnfitError from None


def _block(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"
