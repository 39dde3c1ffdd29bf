"""A rule about the rows of a table, and how often it was broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

Coordinates = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Action(StrEnum):
    """What becomes of a row that breaks a rule."""

    WARN = "warn"
    """It is written, and counted."""
    DEAD_LETTER = "dead_letter"
    """Its record goes to the dead letters, whole."""
    FAIL = "fail"
    """Its batch is refused."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One expectation, as tasks are told of it."""

    name: str
    check: str
    """A boolean expression in SQL, parsed and found harmless when the file was loaded."""
    action: Action
    tables: tuple[str, ...] = ()
    """Patterns of table names; none: every table of a type."""
    types: tuple[str, ...] = ()
    """Patterns of type names; none: every type."""
    columns: tuple[tuple[str, ...], ...] = ()
    """The columns it names, each with the fields inside it that lead to the value."""

    def is_for(self, tables: Iterable[str], types: Iterable[str]) -> bool:
        """Whether it holds for a table that goes by these names, and a type that does."""
        return _any_fits(self.tables, tables) and _any_fits(self.types, types)


def type_spellings(type_name: str) -> tuple[str, ...]:
    """What patterns may call a type: a source's table is `database.schema.table` too."""
    if not type_name.startswith("["):
        return (type_name,)
    try:
        return type_name, ".".join(str(name) for name in json.loads(type_name) if name)
    except ValueError:
        return (type_name,)


def _any_fits(patterns: tuple[str, ...], names: Iterable[str]) -> bool:
    return not patterns or any(_pattern(p).fullmatch(name) for name in names for p in patterns)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    """`*` is any text and `?` one character; everything else is itself."""
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in text)
    return re.compile("".join(parts), re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuleCount:
    """What one rule has found among the rows of one table."""

    rule: str
    action: Action
    checked: int = 0
    """Rows for which it was evaluated."""
    violated: int = 0
    """Rows that broke it."""
    unfit: str = ""
    """Why it cannot be evaluated for this table; empty when it can."""
    first: Coordinates | None = None
    """Where the first record was read that broke it."""

    def __add__(self, other: RuleCount) -> RuleCount:
        known = [place for place in (self.first, other.first) if place is not None]
        return replace(
            self,
            checked=self.checked + other.checked,
            violated=self.violated + other.violated,
            unfit=self.unfit or other.unfit,
            first=min(known, default=None),
        )

    @property
    def example(self) -> str:
        """The first record as `trace` wants it: `wrapper/0/18231`."""
        return "/".join(map(str, self.first)) if self.first else ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        first = list(self.first) if self.first else None
        return asdict(self) | {"action": str(self.action), "first": first}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RuleCount:
        """The inverse of `as_dict`."""
        first = data["first"]
        place = (str(first[0]), int(first[1]), int(first[2])) if first else None
        return cls(**{**data, "action": Action(data["action"]), "first": place})


def sum_counts(counts: Iterable[RuleCount]) -> tuple[RuleCount, ...]:
    """One count for each rule, in the order in which rules were met."""
    by_rule: dict[str, RuleCount] = {}
    for count in counts:
        known = by_rule.get(count.rule)
        by_rule[count.rule] = count if known is None else known + count
    return tuple(by_rule.values())
