"""Values that a message can carry and the lake cannot hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distributary.decode.protobuf_shape import Kind
from distributary.errors import ErrorCode

_SECONDS = {
    # 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z, as timestamp.proto defines it
    Kind.TIMESTAMP: (-62_135_596_800, 253_402_300_799),
    # ten thousand years either way, as duration.proto defines it
    Kind.DURATION: (-315_576_000_000, 315_576_000_000),
}
_MAX_NANOS = 999_999_999


class UnfitValueError(Exception):
    """A value has no place in the lake; `code` says why."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def microseconds(
    kind: Kind, seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Timestamps or durations in microseconds, and a mask of what is outside their range."""
    low, high = _SECONDS[kind]
    if len(seconds) and kind is Kind.TIMESTAMP:
        # the usual case, in few steps: small arrays are many
        usual = nanos.min() >= 0 and nanos.max() <= _MAX_NANOS
        if usual and seconds.min() >= low and seconds.max() <= high:
            return seconds * 1_000_000 + nanos // 1_000, np.zeros(len(seconds), np.bool_)
    least = 0 if kind is Kind.TIMESTAMP else -_MAX_NANOS
    outside = (seconds < low) | (seconds > high) | (nanos < least) | (nanos > _MAX_NANOS)
    # nanoseconds are cut off towards zero: half a microsecond less than nothing is nothing
    rest = np.sign(nanos).astype(np.int64) * (np.abs(nanos.astype(np.int64)) // 1_000)
    return np.where(outside, 0, seconds) * 1_000_000 + rest, outside
