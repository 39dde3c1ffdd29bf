"""Throws of repeatable dice, one after the other: the same seed and purpose, the same throws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from distributary.simulate.dice import roll, sample, seed_for

T = TypeVar("T")

_GRAIN = 1 << 32


class Dice:
    """Each purpose has dice of its own, so that a new kind of draw does not shift the others."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._seed = seed_for(seed, purpose)
        self._thrown = 0

    def bits(self) -> int:
        """64 even bits."""
        self._thrown += 1
        return roll(self._seed, self._thrown)

    def below(self, limit: int) -> int:
        """A number from 0 up to the limit, which itself never comes."""
        if limit <= _GRAIN:
            return self.bits() % limit
        return (self.bits() << 64 | self.bits()) % limit

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of all cases."""
        return self.bits() % _GRAIN < share * _GRAIN

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], share: float, *, least: int = 1) -> list[T]:
        """About this share of them in a random order, and at least so many if there are."""
        count = min(len(items), max(least, round(share * len(items))))
        return [items[i] for i in sample(self.bits(), len(items), count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of them in a random order."""
        return self.some(items, 1.0)
