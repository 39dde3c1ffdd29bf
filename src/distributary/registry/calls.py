"""What a registry was asked, counted: how often, how it ended, how long it took."""

from __future__ import annotations

import threading

OK, REFUSED, BUSY, SILENT = "ok", "refused", "busy", "silent"
"""How a question can end: answered, said no to, put off, not answered."""

OUTCOMES = (OK, REFUSED, BUSY, SILENT)
_ENDPOINTS = frozenset(
    ("schemas/ids", "schemas/guids", "schemas/types", "subjects", "config", "compatibility")
)
OTHER = "other"


class RegistryCalls:
    """Counts that several threads add to, until somebody takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, path: str, *, status: int | None, seconds: float) -> None:
        """One question to a path; without a status nobody answered."""
        kind = (endpoint(path), _outcome(status))
        with self._lock:
            count, spent = self._sums.get(kind, (0, 0.0))
            self._sums[kind] = (count + 1, spent + seconds)

    def take(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Number and seconds by endpoint and outcome, since the last time; begins anew."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return taken


def endpoint(path: str) -> str:
    """The kind of question: names and ids in a path are left out, there is no end to them."""
    first, second, *_ = (*path.strip("/").split("/"), "")
    for kind in (f"{first}/{second}", first):
        if kind in _ENDPOINTS:
            return kind
    return OTHER


def _outcome(status: int | None) -> str:
    if status is None:
        return SILENT
    if 200 <= status < 300:
        return OK
    return BUSY if status in (408, 429) or status >= 500 else REFUSED
