"""What kinds of changes a batch has brought to a log, and how new the newest of them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPS = ("insert", "update", "delete", "read", "truncate")
"""What a change can be; the values of a log's `_op`."""


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Counted where the rows of a log are written."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Events by `_op`."""
    newest: int | None = None
    """When the source made its newest change: microseconds since 1970."""

    def __add__(self, other: ChangeFacts) -> ChangeFacts:
        known = [moment for moment in (self.newest, other.newest) if moment is not None]
        return ChangeFacts(Counter(self.counts) + Counter(other.counts), max(known, default=None))

    def __sub__(self, other: ChangeFacts) -> ChangeFacts:
        """Less what was counted twice."""
        return ChangeFacts(Counter(self.counts) - Counter(other.counts), self.newest)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"counts": dict(self.counts), "newest": self.newest}

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> ChangeFacts | None:
        """The inverse of `as_dict`; None where nothing was said."""
        return None if data is None else cls(dict(data["counts"]), data["newest"])
