"""Cuts a block of Avro data into its events, without decoding them.

Avro says nowhere how long a record is: to find its end, every field must be stepped over, which
`files_steps` writes a function for. On its way it notes the names of the source table and the
source's time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from distributary.errors import DecodeError
from distributary.registry.avro_model import Schema
from distributary.registry.avro_parse import parse_avro
from distributary.source.files_steps import StepWriter, takes_no_bytes

_MOST_NUMBER_BYTES = 10


@dataclass(slots=True)
class Slices:
    """Where events end, and what they say about themselves, in the order of the data."""

    start: int
    """Where the first of them begins."""

    ends: list[int]
    names: list[tuple[bytes, ...]]
    """Of each event, the bytes of NAMES; empty where it has none."""
    times: list[int]
    """Of each event, where the number of its time begins; -1 where it has none."""
    time_micros: bool
    """Whether times are microseconds, not milliseconds."""
    fault: str = ""
    """Why the rest could not be cut."""

    @property
    def end(self) -> int:
        """Where the last of them ends."""
        return self.ends[-1] if self.ends else self.start


class Slicer:
    """Cuts data of one schema."""

    def __init__(self, schema: Schema) -> None:
        if takes_no_bytes(schema, schema.top):
            raise DecodeError("events of this schema take no bytes, so nothing tells their number")
        writer = StepWriter(schema)
        names: dict[str, Any] = {"wide": _wide, "block": _block, "items": _items}
        names["Unfit"] = _UnfitError
        # the text is our own: schemas reach it as numbers of branches and sizes only
        exec(compile(writer.text(), "<slices>", "exec"), names)  # noqa: S102
        self._run: Callable[..., None] = names["run"]
        self._time_micros = writer.time_micros

    def __call__(self, data: bytes, count: int, *, start: int = 0, last: bool = True) -> Slices:
        """As many events as there are said to be, or as many as make sense."""
        cut = Slices(start, [], [], [], self._time_micros)
        try:
            self._run(data, start, count, cut.ends.append, cut.names.append, cut.times.append)
        except IndexError:
            cut.fault = "the data end inside of an event"
        except RecursionError:
            cut.fault = "an event nests deeper than the interpreter can follow"
        except _UnfitError as error:
            cut.fault = str(error)
        within = bisect_right(cut.ends, len(data))
        if within < len(cut.ends):
            # a length that leads behind the end is noticed only where something is read there
            for each in (cut.ends, cut.names, cut.times):
                del each[within:]
            cut.fault = "the data end inside of an event"
        left = len(data) - cut.end
        if last and not cut.fault and left:
            cut.fault = f"{left} bytes are left after the last event"
        return cut


@lru_cache(maxsize=512)
def slicer_for(text: str) -> Slicer:
    """The slicer of a schema's text.

    Raises:
        InvalidSchemaError: The text is no Avro schema.
        DecodeError: It is one of which data cannot be cut.
    """
    return Slicer(parse_avro(text))


class _UnfitError(Exception):
    """The data cannot be of this schema."""


def _number(data: bytes, position: int) -> tuple[int, int]:
    """A number of which the first byte has been read, still as it is written, and what is next."""
    start, value = position - 1, 0
    while data[position - 1] > 0x7F:
        position += 1
        if position - start > _MOST_NUMBER_BYTES:
            raise _UnfitError("a number is longer than ten bytes")
    for byte in reversed(data[start:position]):
        value = value << 7 | byte & 0x7F
    return value, position


def _wide(data: bytes, position: int) -> tuple[int, int]:
    """A length, and the position behind it."""
    value, position = _number(data, position)
    if value & 1:
        raise _UnfitError("a length or an index is below zero")
    return value >> 1, position


def _block(data: bytes, position: int) -> tuple[int, int]:
    """How many items a block has, and the position behind that and the block's size."""
    value, position = _number(data, position)
    if not value & 1:
        return value >> 1, position
    _, position = _number(data, position + 1)
    return (value >> 1) + 1, position


def _items(data: bytes, position: int) -> tuple[int, int]:
    """The same, of items that take bytes: those of a fixed size are stepped over without a look."""
    count, position = _block(data, position)
    if count > len(data):
        raise _UnfitError("an array has more items than bytes")
    return count, position
