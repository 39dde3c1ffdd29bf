"""Repeatable chance: a draw is a function of a seed and an index, so it can be made again.

The standard library promises only `random()` to stay the same between Python versions; the bytes
of a simulated stream must not depend on the interpreter.
"""

from __future__ import annotations

from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def seed_for(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, so that one kind of draw never shifts another."""
    return int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "big")


def roll(seed: int, index: int) -> int:
    """64 even bits for one index (the finaliser of splitmix64)."""
    x = (seed + index * _STEP) & _MASK
    for shift, factor in _MIX:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> _LAST_SHIFT)


def rolls(seed: int, indexes: pa.UInt64Array) -> pa.UInt64Array:
    """`roll` for many indexes at once; unsigned numbers wrap around, as they must."""
    x = pc.add(pc.multiply(indexes, u64(_STEP)), u64(seed))
    for shift, factor in _MIX:
        x = pc.multiply(pc.bit_wise_xor(x, pc.shift_right(x, u64(shift))), u64(factor))
    return pc.bit_wise_xor(x, pc.shift_right(x, u64(_LAST_SHIFT)))


def sample(seed: int, population: int, count: int) -> list[int]:
    """`count` different numbers below `population`, in a random order.

    A longer sample of the same seed begins with the shorter one.
    """
    moved: dict[int, int] = {}
    picked = []
    for k in range(count):
        j = k + roll(seed, k) % (population - k)
        picked.append(moved.get(j, j))
        moved[j] = moved.get(k, k)
    return picked


def u64(number: int) -> pa.UInt64Scalar:
    """A number that Arrow will not mistake for a signed one."""
    return pa.scalar(number, pa.uint64())
