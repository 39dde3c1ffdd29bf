"""How many of the records of the last minutes became dead letters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from distributary.config.alerts import DeadLetterRate

_SLOTS = 60
_MOST_CODES = 1000


@dataclass(slots=True)
class _Slot:
    """Batches that were settled within one part of the window."""

    at: float
    """When the first of them was settled, in seconds since 1970."""
    read: int
    codes: Counter[str]


class DeadLetterWindow:
    """Sums over a time that slides. Its size does not grow with the number of batches."""

    def __init__(self, rate: DeadLetterRate) -> None:
        self._rate = rate
        self._slots: deque[_Slot] = deque()
        self.read = 0
        """Records that were read."""
        self._letters = 0

    def add(self, at: float, *, read: int, codes: Mapping[str, int]) -> None:
        """A batch was settled."""
        width = self._rate.within.total_seconds() / _SLOTS
        if not self._slots or at - self._slots[-1].at > width:
            self._slots.append(_Slot(at, 0, Counter()))
        self._slots[-1].read += read
        self._slots[-1].codes.update(codes)
        self.read += read
        self._letters += sum(codes.values())
        self.slide(at)

    def slide(self, now: float) -> None:
        """Forget what is older than the window."""
        oldest = now - self._rate.within.total_seconds()
        while self._slots and self._slots[0].at <= oldest:
            gone = self._slots.popleft()
            self.read -= gone.read
            self._letters -= gone.codes.total()

    @property
    def codes(self) -> Counter[str]:
        """Dead letters by error code."""
        return sum((slot.codes for slot in self._slots), Counter())

    @property
    def too_many(self) -> bool:
        """Whether a limit is passed."""
        count, share = self._rate.count, self._rate.share
        return (count is not None and self._letters > count) or (
            share is not None and self._letters > share * self.read
        )

    @property
    def within(self) -> timedelta:
        """How much time it looks at."""
        return self._rate.within

    def memory(self) -> list[Any]:
        """For a file."""
        return [[slot.at, slot.read, dict(slot.codes)] for slot in self._slots]

    def recall(self, memory: object) -> None:
        """The inverse of `memory`; what is no such memory is passed over."""
        for entry in memory if isinstance(memory, list) else []:
            match entry:
                case [int() | float() as at, int() as read, dict() as codes] if len(
                    codes
                ) <= _MOST_CODES and all(isinstance(n, int) for n in codes.values()):
                    self._slots.append(_Slot(float(at), read, Counter(codes)))
                    self.read += read
                    self._letters += sum(codes.values())
