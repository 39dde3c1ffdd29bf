"""Bytes, texts and trees that are almost right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

WORDS: Sequence[bytes] = (
    *(b"\x00", b"\xff", b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\x7f\xff\xff\xff", b"{", b"}", b"["),
    *(b"]", b'"', b"\\u0000", b"\\ud800", b"null", b"true", b"1e999", b"-0", b"NaN", b"..", b"/"),
    *(b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"9" * 40, b"\r\n", b"%00", b"${env:X}"),
)
VALUES: Sequence[Any] = (
    *(None, True, False, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 1e308, float("nan"), ""),
    *("x", "\x00", "../../x", "/etc/passwd", "\ud800", "9" * 400, [], {}, [[]], {"a": {"b": []}}),
    *(["x"] * 50, {"type": "record"}, b"\x00"),
)


def mutated(data: bytes, dice: random.Random, *, most: int = 6) -> bytes:
    """Some bytes are changed, doubled, lost or moved."""
    found = bytearray(data)
    for _ in range(dice.randrange(1, most)):
        at = dice.randrange(len(found) + 1)
        end = min(len(found), at + dice.randrange(1, 40))
        match dice.randrange(8):
            case 0:
                del found[at:]
            case 1:
                del found[at:end]
            case 2:
                found[at:end] = dice.randbytes(end - at)
            case 3:
                found[at:at] = dice.choice(WORDS)
            case 4:
                found[at:end] = dice.choice(WORDS)
            case 5:
                found[at:at] = found[at:end] * dice.randrange(1, 5)
            case 6 if found:
                found[at % len(found)] ^= 1 << dice.randrange(8)
            case _:
                found += found[:at]
    return bytes(found)


def replanted(tree: Any, dice: random.Random) -> Any:
    """A document in which one place holds something else, or is gone, or is there twice."""
    if isinstance(tree, dict) and tree and dice.random() < 0.8:
        key = dice.choice(sorted(tree, key=str))
        match dice.randrange(5):
            case 0:
                return {name: value for name, value in tree.items() if name != key}
            case 1:
                return tree | {f"{key}x": tree[key]}
            case _:
                return tree | {key: replanted(tree[key], dice)}
    if isinstance(tree, list) and tree and dice.random() < 0.8:
        at = dice.randrange(len(tree))
        return [*tree[:at], replanted(tree[at], dice), *tree[at + 1 :]]
    return dice.choice(VALUES)
