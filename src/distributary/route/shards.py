"""Which of several jobs keeps the table of a type: the same answer everywhere and for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from distributary.route.type_names import casefold_key

_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Move:
    """A type that changes its job."""

    type: str
    before: int
    after: int


def shard_of(type_name: str, shards: int) -> int:
    """The shard of a type, by jump consistent hashing (Lamping and Veach).

    One shard more takes an equal share from each of the others, and nothing else moves; one less
    gives the last one's types away. Names that differ in case only stay together: to change that
    would move types.
    """
    folded = casefold_key(type_name).encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.sha256(folded).digest()[:8], "big")
    bucket, jump = -1, 0
    while jump < shards:
        bucket = jump
        key = (key * _MULTIPLIER + 1) & _MASK
        jump = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def moves(types: Iterable[str], before: int, after: int) -> tuple[Move, ...]:
    """The types whose tables another job keeps when the number of shards changes."""
    pairs = ((name, shard_of(name, before), shard_of(name, after)) for name in sorted(types))
    return tuple(Move(*pair) for pair in pairs if pair[1] != pair[2])
