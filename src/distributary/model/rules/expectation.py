"""A rule about the rows of a table, and the number of rows that broke it."""

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
    """What to do with a row that breaks a rule."""

    WARN = "warn"
    """The row is written and counted."""
    DEAD_LETTER = "dead_letter"
    """The whole record becomes a dead letter."""
    FAIL = "fail"
    """The batch is refused."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One expectation, as tasks use it."""

    name: str
    check: str
    """A boolean expression in SQL, validated when the file was loaded."""
    action: Action
    tables: tuple[str, ...] = ()
    """Patterns of table names; empty for every table per type."""
    types: tuple[str, ...] = ()
    """Patterns of type names; empty for every type."""
    columns: tuple[tuple[str, ...], ...] = ()
    """The columns that the rule names, each with the path to a nested field."""

    def is_for(self, tables: Iterable[str], types: Iterable[str]) -> bool:
        """Return true when the rule applies to a table and a type with these names."""
        return any_fits(self.tables, tables) and any_fits(self.types, types)


def type_spellings(type_name: str) -> tuple[str, ...]:
    """Return the names of a type for patterns: for change data also `database.schema.table`."""
    if not type_name.startswith("["):
        return (type_name,)
    try:
        return type_name, ".".join(str(name) for name in json.loads(type_name) if name)
    except ValueError:
        return (type_name,)


def any_fits(patterns: tuple[str, ...], names: Iterable[str]) -> bool:
    """Return true when any name matches any pattern, or when there are no patterns."""
    return not patterns or any(_pattern(p).fullmatch(name) for name in names for p in patterns)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern in which `*` is any text and `?` one character."""
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in text)
    return re.compile("".join(parts), re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The result of one rule for the rows of one table."""

    rule: str
    action: Action
    checked: int = 0
    """Number of rows for which the rule was evaluated."""
    violated: int = 0
    """Number of rows that broke the rule."""
    unfit: str = ""
    """The reason why the rule cannot be evaluated for this table; empty when it can."""
    first: Coordinates | None = None
    """Coordinates of the first record that broke the rule."""

    def __add__(self, other: RuleCount) -> RuleCount:
        places = [place for place in (self.first, other.first) if place is not None]
        return replace(
            self,
            checked=self.checked + other.checked,
            violated=self.violated + other.violated,
            unfit=self.unfit or other.unfit,
            first=min(places, default=None),
        )

    @property
    def example(self) -> str:
        """Return the first record in the form that `trace` takes: `wrapper/0/18231`."""
        return "/".join(map(str, self.first)) if self.first else ""

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        first = list(self.first) if self.first else None
        return asdict(self) | {"action": str(self.action), "first": first}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RuleCount:
        """Build a count from a dict of `as_dict`."""
        first = data["first"]
        place = (str(first[0]), int(first[1]), int(first[2])) if first else None
        return cls(**{**data, "action": Action(data["action"]), "first": place})


def sum_counts(counts: Iterable[RuleCount]) -> tuple[RuleCount, ...]:
    """Return one count for each rule, in the order of first appearance."""
    by_rule: dict[str, RuleCount] = {}
    for count in counts:
        total = by_rule.get(count.rule)
        by_rule[count.rule] = count if total is None else total + count
    return tuple(by_rule.values())
