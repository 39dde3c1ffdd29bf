"""The exchange of rows by the number of their target partition.

Spark sends a row to the partition that the hash of its key selects. So each partition gets a key
whose hash selects it, and rows carry these keys instead of the numbers. Spark 4.1 has a method
of its own for this, `repartitionById`; keys work with all versions.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from pyspark.sql import DataFrame, functions

_BITS = 0xFFFF_FFFF
_SEED = 42
"""The seed of Spark's hash of rows."""


def to_partitions(frame: DataFrame, column: str, partitions: int) -> DataFrame:
    """Send each row to the partition whose number is in a column of integers, from 0 on."""
    keys = functions.array(*map(functions.lit, partition_keys(partitions)))
    return frame.repartition(partitions, functions.element_at(keys, functions.col(column) + 1))


@lru_cache(maxsize=8)
def partition_keys(partitions: int) -> tuple[int, ...]:
    """Return for each partition the smallest integer that Spark's hash sends there."""
    keys: dict[int, int] = {}
    candidates = count()
    while len(keys) < partitions:
        key = next(candidates)
        keys.setdefault(hash_of(key) % partitions, key)
    return tuple(keys[number] for number in range(partitions))


def hash_of(key: int) -> int:
    """Return the hash of an integer as Spark computes it: Murmur3 with 32 bits, signed."""
    bits = _rotated(key * 0xCC9E_2D51 & _BITS, 15) * 0x1B87_3593 & _BITS
    bits = (_rotated(_SEED ^ bits, 13) * 5 + 0xE654_6B64) & _BITS
    # The length of the key, and the final mix.
    bits ^= 4
    bits = (bits ^ bits >> 16) * 0x85EB_CA6B & _BITS
    bits = (bits ^ bits >> 13) * 0xC2B2_AE35 & _BITS
    bits ^= bits >> 16
    return bits - (1 << 32) if bits >> 31 else bits


def _rotated(bits: int, by: int) -> int:
    return (bits << by | bits >> 32 - by) & _BITS
