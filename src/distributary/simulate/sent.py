"""What a simulator says it has sent, so that a test can compare it with what arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sent:
    """Counted while the messages were made; positions count from 0 over the whole stream."""

    messages: int = 0
    good: int = 0
    bad: int = 0
    framed: int = 0
    """Good messages that carry the registry's header."""
    late: int = 0
    """Good messages of an old version that came at the end."""
    rows: int = 0
    """What the good messages hold: one row each, unless they are lists."""
    first_position: int = 0
    last_position: int = -1
    first_time: int | None = None
    """Time of the first message, milliseconds since 1970; None when nothing was sent."""
    last_time: int | None = None
    bad_by_code: dict[str, int] = field(default_factory=dict)
    """How many records must be dead-lettered with which code."""
    first_bad: dict[str, int] = field(default_factory=dict)
    """Position of the first bad record of each code."""
    per_type: dict[str, dict[int, int]] = field(default_factory=dict)
    """Good messages by type and version."""
    schema_ids: dict[str, dict[int, int]] = field(default_factory=dict)
    """Schema id by type and version."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of the newest schema of each type, in order."""
    type_changes: dict[str, str] = field(default_factory=dict)
    """The field that has changed its type, by type of record."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values; versions become text, as JSON keys are."""
        plain = asdict(self)
        for name in ("per_type", "schema_ids"):
            plain[name] = {
                kind: {str(version): n for version, n in versions.items()}
                for kind, versions in plain[name].items()
            }
        plain["columns"] = {kind: list(columns) for kind, columns in self.columns.items()}
        return plain

    @classmethod
    def total(cls, parts: Iterable[Sent]) -> Sent:
        """Several rounds, in the order in which they were sent, as one."""
        filled = [part for part in parts if part.messages]
        if not filled:
            return cls()
        first_bad: dict[str, int] = {}
        columns: dict[str, tuple[str, ...]] = {}
        changes: dict[str, str] = {}
        for part in filled:
            first_bad = part.first_bad | first_bad
            columns |= part.columns
            changes |= part.type_changes
        return cls(
            messages=sum(p.messages for p in filled),
            good=sum(p.good for p in filled),
            bad=sum(p.bad for p in filled),
            framed=sum(p.framed for p in filled),
            late=sum(p.late for p in filled),
            rows=sum(p.rows for p in filled),
            first_position=filled[0].first_position,
            last_position=filled[-1].last_position,
            first_time=filled[0].first_time,
            last_time=filled[-1].last_time,
            bad_by_code=dict(sum((Counter(p.bad_by_code) for p in filled), Counter())),
            first_bad=first_bad,
            per_type=_nested_total(p.per_type for p in filled),
            schema_ids=_nested_union(p.schema_ids for p in filled),
            columns=columns,
            type_changes=changes,
        )


def _nested_total(parts: Iterable[dict[str, dict[int, int]]]) -> dict[str, dict[int, int]]:
    total: dict[str, dict[int, int]] = {}
    for part in parts:
        for kind, versions in part.items():
            into = total.setdefault(kind, {})
            for version, n in versions.items():
                into[version] = into.get(version, 0) + n
    return total


def _nested_union(parts: Iterable[dict[str, dict[int, int]]]) -> dict[str, dict[int, int]]:
    union: dict[str, dict[int, int]] = {}
    for part in parts:
        for kind, versions in part.items():
            union.setdefault(kind, {}).update(versions)
    return union
