"""Something that a command would take away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that would go."""

    kind: str
    """`progress`, `table`, `parked files`, `dead letters`, `ledger`, `card`, `topic`, `subject`."""
    path: str
    table: str = ""
    """The name of a table, a topic or a subject."""
    rows: int | None = None
