"""The official parser as a judge: which payloads of an array it does not accept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import length_hint
from typing import Any

from google.protobuf.message import DecodeError as ParseError

_BYTES_PER_MESSAGE = 4 * 1024 * 1024
_PAYLOADS_PER_MESSAGE = 4_096


def rejected(new_message: Callable[[], Any], payloads: Sequence[bytes], *, size: int) -> list[int]:
    """The indices of the payloads that do not parse.

    Args:
        new_message: Makes an empty message of the type.
        payloads: What to parse.
        size: About how many bytes they are together.
    """
    # one message takes many payloads, which is several times faster than a message for each, but
    # it keeps the memory of all of them
    share = _BYTES_PER_MESSAGE * len(payloads) // (size + 1)
    step = max(1, min(_PAYLOADS_PER_MESSAGE, share))
    found = []
    left = iter(payloads)
    while length_hint(left):
        parse = new_message().ParseFromString
        try:
            deque(map(parse, islice(left, step)), maxlen=0)
        except ParseError:
            found.append(len(payloads) - length_hint(left) - 1)
    return found
