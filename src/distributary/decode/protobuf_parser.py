"""The official parser as a judge: which payloads of an array are not messages of a type."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError as ParseError
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary.decode.protobuf_wire import may_be_extended

_BYTES_PER_MESSAGE = 4 * 1024 * 1024
_PAYLOADS_PER_MESSAGE = 4_096


class Judged(NamedTuple):
    """Indices of payloads that are out of the ordinary."""

    rejected: list[int]
    """They do not parse."""
    foreign: dict[int, bool]
    """They parse, and hold a field that the type does not have or has otherwise; False where it is
    certain that it does not have it."""


def judge(new_message: Callable[[], Any], payloads: Sequence[bytes], *, size: int) -> Judged:
    """Parse payloads, without looking at what comes out of it.

    Args:
        new_message: Makes an empty message of the type, or of one `with_nothing_replaced`.
        payloads: What to parse.
        size: About how many bytes they are together.
    """
    # one message takes many payloads, which is several times faster than a message for each, but
    # it keeps the memory of all of them
    share = _BYTES_PER_MESSAGE * len(payloads) // (size + 1)
    step = max(1, min(_PAYLOADS_PER_MESSAGE, share))
    judged = Judged([], {})
    left = iter(payloads)
    start = 0
    while length_hint(left):
        message = new_message()
        try:
            # merged, not parsed one after the other: so the unknown fields of all of them are there
            deque(map(message.MergeFromString, islice(left, step)), maxlen=0)
            parsed = end = len(payloads) - length_hint(left)
        except ParseError:
            end = len(payloads) - length_hint(left)
            parsed = end - 1
            judged.rejected.append(parsed)
        if parsed > start and _holds_unknown(message):
            message = new_message()
            deque(map(message.MergeFromString, payloads[start:parsed]), maxlen=0)
            doubtful = not _only_beyond(message)
            for index in range(start, parsed):
                message = new_message()
                message.MergeFromString(payloads[index])
                if _holds_unknown(message):
                    judged.foreign[index] = doubtful
        start = end
    return judged


def _holds_unknown(message: Any) -> bool:
    """Whether there are unknown fields in a message, down to the 60th level; they are gone then."""
    size = len(message.SerializePartialToString())
    message.DiscardUnknownFields()
    return size != len(message.SerializePartialToString())


def _only_beyond(message: Any) -> bool:
    """Whether all unknown fields of a message have numbers that mean nothing in its types."""
    type_ = message.DESCRIPTOR
    numbers = {field.field_number for field in UnknownFieldSet(message)}
    if any(n in type_.fields_by_number or may_be_extended(type_, n) for n in numbers):
        return False
    below = [(f, content) for f, content in message.ListFields() if f.message_type is not None]
    # of extensions nothing is asked, and lists are there only where nobody asks
    return all(not (f.is_extension or f.is_repeated) and _only_beyond(c) for f, c in below)
