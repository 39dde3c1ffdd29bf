"""Remembered answers: computed once for each state of the lake, however many people look."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_MOST = 200

_Value = TypeVar("_Value")


class Memo:
    """Values by key, each good for one version. Thread-safe; nobody computes one twice at once."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, version: Hashable, make: Callable[[], _Value]) -> _Value:
        """What was made for this version, or is made now."""
        found = self._find(key, version)
        if found is not None:
            return found[0]  # type: ignore[no-any-return]
        with self._lock:
            own = self._making.setdefault(key, threading.Lock())
        with own:
            found = self._find(key, version)
            if found is not None:
                return found[0]  # type: ignore[no-any-return]
            value = make()
            with self._lock:
                self._values[key] = (version, value)
                while len(self._values) > self._most:
                    self._making.pop(self._values.popitem(last=False)[0], None)
        return value

    def _find(self, key: Hashable, version: Hashable) -> tuple[Any] | None:
        with self._lock:
            kept = self._values.get(key)
            if kept is None or kept[0] != version:
                return None
            self._values.move_to_end(key)
            return (kept[1],)
