"""Values that are found again by the very objects they were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class ByIdentity(Generic[V]):
    """What was worked out of some objects, for as long as the same objects come again.

    Comparing schemas or columns would cost more than most of what is made of them. The objects are
    kept beside the value: as long as they are, no other object can have their ids.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[int, ...], tuple[tuple[object, ...], V]] = {}

    def get(self, objects: tuple[object, ...], make: Callable[[], V]) -> V:
        """The value for these objects, made if they were not seen before."""
        key = tuple(map(id, objects))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[key] = (objects, make())
        return known[1]

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
