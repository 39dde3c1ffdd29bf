"""A packer of MessagePack that is nobody's library, and may choose any form of a value."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ext:
    """An extension value."""

    code: int
    data: bytes


@dataclass(frozen=True)
class Single:
    """A number in 32 bits."""

    number: float


def pack(value: Any, dice: random.Random | None = None) -> bytes:
    """Pack a value in its shortest form, or with `dice` in any form that holds it."""
    wider = dice.randrange(4) if dice is not None else 0
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return _integer(value, wider)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case Single():
            return b"\xca" + struct.pack(">f", value.number)
        case str():
            data = value.encode("utf-8", "surrogatepass")
            return _header(len(data), wider, 0xA0, 31, (0xD9, 0xDA, 0xDB)) + data
        case bytes():
            return _header(len(value), wider, 0, -1, (0xC4, 0xC5, 0xC6)) + value
        case list():
            head = _header(len(value), wider, 0x90, 15, (None, 0xDC, 0xDD))
            return head + b"".join(pack(item, dice) for item in value)
        case dict():
            head = _header(len(value), wider, 0x80, 15, (None, 0xDE, 0xDF))
            return head + b"".join(pack(k, dice) + pack(v, dice) for k, v in value.items())
        case Ext():
            return _extension(value, wider)
    raise TypeError(value)


def _integer(value: int, wider: int) -> bytes:
    forms = []
    if -32 <= value < 128:
        forms.append(struct.pack("b" if value < 0 else "B", value))
    for first, code, low, high in (
        (0xCC, "B", 0, 8), (0xCD, ">H", 0, 16), (0xCE, ">I", 0, 32), (0xCF, ">Q", 0, 64),
        (0xD0, "b", 7, 7), (0xD1, ">h", 15, 15), (0xD2, ">i", 31, 31), (0xD3, ">q", 63, 63),
    ):  # fmt: skip
        if -(2**low) * bool(low) <= value < 2**high:
            forms.append(bytes([first]) + struct.pack(code, value))
    forms.sort(key=len)
    return forms[min(wider, len(forms) - 1)]


def _header(
    count: int, wider: int, short: int, most: int, firsts: tuple[int | None, int, int]
) -> bytes:
    forms = [bytes([short | count])] if count <= most else []
    for first, code, bits in zip(firsts, (">B", ">H", ">I"), (8, 16, 32), strict=True):
        if first is not None and count < 2**bits:
            forms.append(bytes([first]) + struct.pack(code, count))
    return forms[min(wider, len(forms) - 1)]


def _extension(value: Ext, wider: int) -> bytes:
    size = len(value.data)
    code = struct.pack("b", value.code)
    if size in (1, 2, 4, 8, 16) and not wider:
        return bytes([0xD4 + size.bit_length() - 1]) + code + value.data
    return _header(size, wider, 0, -1, (0xC7, 0xC8, 0xC9)) + code + value.data
