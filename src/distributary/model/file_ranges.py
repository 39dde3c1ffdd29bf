"""Which files a range of a files source stands for.

An offset of such a range is `n << 32 | fingerprint of the first n files`. The records of a file
have its path as their topic, its number as their partition, their place in it as their offset.
"""

from __future__ import annotations

from distributary.model.manifest import SourceRange

FINGERPRINT_BITS = 32


def files_of(covered: SourceRange) -> range:
    """The numbers of the files that a range stands for: the partitions of their records."""
    return range(covered.start >> FINGERPRINT_BITS, covered.end >> FINGERPRINT_BITS)
