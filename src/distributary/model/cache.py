"""What a process remembers from batch to batch and from task to task, and never more than that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """A bounded number of values; the longest unused goes first.

    It belongs into a module, not into the function that a task unpickles, so that it survives from
    task to task in a worker that is used again.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = Lock()
        self._owner: object = None
        self._known: OrderedDict[Hashable, tuple[object, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Hashable) -> V | None:
        """The value of a key."""
        with self._lock:
            return self._found(key)

    def keep(self, key: Hashable, value: V | None) -> None:
        """Put a value in the place of the one before; None only takes that away."""
        with self._lock:
            self._known.pop(key, None)
            if value is not None:
                self._add(key, value, None)

    def take(self, key: Hashable) -> V | None:
        """The value of a key, which nobody else gets until it is kept again."""
        with self._lock:
            known = self._known.pop(key, None)
            return None if known is None else known[1]

    def get(
        self,
        key: Hashable,
        make: Callable[[], V],
        *,
        owner: object = None,
        beside: object = None,
    ) -> V:
        """The value of a key, made if there is none; another owner begins with nothing."""
        with self._lock:
            if owner is not self._owner:
                self._known.clear()
                self._owner = owner
            found = self._found(key)
        if found is not None:
            return found
        # made outside the lock: two threads may make the same one, and the first to finish stays
        made = make()
        with self._lock:
            return self._add(key, made, beside) if owner is self._owner else made

    def of(self, objects: tuple[object, ...], make: Callable[[], V], *, owner: object = None) -> V:
        """What was worked out of some objects, for as long as the very same ones come again.

        Comparing schemas or columns would cost more than most of what is made of them. The objects
        are kept beside the value: as long as they are, no other object can have their ids.
        """
        return self.get(tuple(map(id, objects)), make, owner=owner, beside=objects)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()

    def _found(self, key: Hashable) -> V | None:
        known = self._known.get(key)
        if known is None:
            return None
        self._known.move_to_end(key)
        return known[1]

    def _add(self, key: Hashable, value: V, beside: object) -> V:
        kept = self._known.setdefault(key, (beside, value))[1]
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        return kept
