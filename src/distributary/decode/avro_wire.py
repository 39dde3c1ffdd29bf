"""Avro's binary encoding, read byte by byte, with the byte at which it stops to make sense."""

from __future__ import annotations

from dataclasses import dataclass

from distributary.errors import ErrorCode

ITEMS_FROM_NOTHING = 1_000
"""Items of lists in one payload that take no bytes: a length of a few bytes could ask for any."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class Fault:
    """What is wrong with a payload, and where."""

    code: ErrorCode
    reason: str
    position: int | None


class StoppedAtError(Exception):
    """The payload cannot be read any further."""

    def __init__(self, code: ErrorCode, position: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.position = position
        self.reason = reason
        self.label = ""

    def inside(self, label: str) -> StoppedAtError:
        """The same error, knowing the field it happened in; the innermost field counts."""
        self.label = self.label or label
        return self

    def fault(self) -> Fault:
        """What to report."""
        place = f"field {self.label}: " if self.label else ""
        return Fault(self.code, f"{place}{self.reason}", self.position)


class Cursor:
    """A place in a payload, and what may still be spent on it."""

    __slots__ = ("_most_levels", "data", "from_nothing", "level", "position")

    def __init__(self, data: bytes, most_levels: int) -> None:
        self.data = data
        self.position = 0
        self.level = 0
        self.from_nothing = 0
        self._most_levels = most_levels

    def long(self) -> int:
        """An int, a long, a length or an index."""
        data, start = self.data, self.position
        at = start
        try:
            byte = data[at]
            if byte < 0x80:
                self.position = at + 1
                return (byte >> 1) ^ -(byte & 1)
            value, shift = byte & 0x7F, 7
            while True:
                at += 1
                byte = data[at]
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    reason = "a number is longer than ten bytes"
                    raise StoppedAtError(ErrorCode.PAYLOAD_MISMATCH, start, reason)
        except IndexError:
            reason = "the payload ends inside a number"
            raise StoppedAtError(ErrorCode.PAYLOAD_TRUNCATED, start, reason) from None
        self.position = at + 1
        value &= _MASK
        return (value >> 1) ^ -(value & 1)

    def take(self, count: int) -> bytes:
        """So many bytes."""
        start = self.position
        end = start + count
        if end > len(self.data):
            left = len(self.data) - start
            reason = f"a value needs {count} bytes, {left} are left"
            raise StoppedAtError(ErrorCode.PAYLOAD_TRUNCATED, start, reason)
        self.position = end
        return self.data[start:end]

    def counted(self) -> bytes:
        """Bytes with their length before them."""
        start = self.position
        count = self.long()
        if count < 0:
            reason = "a value has a length below zero"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return self.take(count)

    def text(self) -> str:
        """A string."""
        data = self.counted()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            position = self.position - len(data) + error.start
            reason = "the text is not UTF-8"
            raise StoppedAtError(ErrorCode.INVALID_UTF8, position, reason) from None

    def index(self, below: int, what: str) -> int:
        """The number of a branch or of a symbol."""
        start = self.position
        number = self.long()
        if not 0 <= number < below:
            reason = f"there is no {what} with this number, only {below}"
            raise StoppedAtError(ErrorCode.INVALID_INDEX, start, reason)
        return number

    def block(self) -> int:
        """How many items follow, before the next number; zero at the end."""
        start = self.position
        count = self.long()
        if count >= 0:
            return count
        # the size of the block in bytes is for readers that skip it
        self.long()
        if -count > _MASK >> 1:
            reason = "a block has more items than a number can say"
            raise StoppedAtError(ErrorCode.INVALID_LENGTH, start, reason)
        return -count

    def nothing(self, items: int) -> None:
        """Account for items that take no bytes."""
        self.from_nothing += items
        if self.from_nothing > ITEMS_FROM_NOTHING:
            reason = f"more than {ITEMS_FROM_NOTHING} items take no bytes at all"
            raise StoppedAtError(ErrorCode.PAYLOAD_TOO_LARGE, self.position, reason)

    def down(self) -> None:
        """Enter a record, an array or a map."""
        self.level += 1
        if self.level > self._most_levels:
            reason = f"records, arrays and maps nest deeper than {self._most_levels} levels"
            raise StoppedAtError(ErrorCode.NESTING_TOO_DEEP, self.position, reason)

    def up(self) -> None:
        """Leave it again."""
        self.level -= 1

    def finish(self) -> None:
        """Nothing may follow."""
        left = len(self.data) - self.position
        if left:
            reason = f"{left} bytes are left after the end of the data"
            raise StoppedAtError(ErrorCode.TRAILING_BYTES, self.position, reason)
