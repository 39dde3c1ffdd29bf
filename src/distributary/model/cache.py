"""A bounded cache that lives as long as its process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """A bounded number of values; the least recently used is dropped first.

    Keep it in a module, not in the function that a task unpickles: so it survives from task to task
    in a reused worker.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = Lock()
        self._owner: object = None
        self._entries: OrderedDict[Hashable, tuple[object, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable) -> V | None:
        """Return the value of a key; None when there is none."""
        with self._lock:
            return self._lookup(key)

    def keep(self, key: Hashable, value: V | None) -> None:
        """Store a value under a key, in place of the old one; None only removes the old one."""
        with self._lock:
            self._entries.pop(key, None)
            if value is not None:
                self._add(key, value, None)

    def take(self, key: Hashable) -> V | None:
        """Remove and return the value of a key: no other thread gets it until it is kept again."""
        with self._lock:
            entry = self._entries.pop(key, None)
            return None if entry is None else entry[1]

    def get(
        self,
        key: Hashable,
        make: Callable[[], V],
        *,
        owner: object = None,
        beside: object = None,
    ) -> V:
        """Return the value of a key, made if missing; another owner starts with an empty cache."""
        with self._lock:
            if owner is not self._owner:
                self._entries.clear()
                self._owner = owner
            cached = self._lookup(key)
        if cached is not None:
            return cached
        # `make` runs outside the lock: two threads may make the same value, and the first one is
        # kept
        value = make()
        with self._lock:
            return self._add(key, value, beside) if owner is self._owner else value

    def of(self, objects: tuple[object, ...], make: Callable[[], V], *, owner: object = None) -> V:
        """Return the value derived from these very objects, compared by identity.

        Comparing schemas or columns would cost more than deriving most values. The objects are
        stored beside the value, so that no other object can get their ids.
        """
        return self.get(tuple(map(id, objects)), make, owner=owner, beside=objects)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._entries.clear()

    def _lookup(self, key: Hashable) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def _add(self, key: Hashable, value: V, beside: object) -> V:
        kept = self._entries.setdefault(key, (beside, value))[1]
        while len(self._entries) > self.most:
            self._entries.popitem(last=False)
        return kept
