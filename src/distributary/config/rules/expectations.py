"""Expectations: rules in SQL about the rows of a table, and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from distributary.config.base import Conflict, Section, Text, Texts, matching
from distributary.config.lake import Tables
from distributary.config.rules.expressions import columns_of, valid_expression
from distributary.model.rules.expectation import Action, Rule

_check = partial(valid_expression, repeatable=False, constant=False)

RuleName = Annotated[
    Text,
    matching(
        r"[A-Za-z][A-Za-z0-9_.-]{0,99}",
        "rule_name",
        "must start with a letter, then letters, digits, dots, dashes and _ (100 at most)",
    ),
]


class Expectation(Section):
    """A rule in SQL about rows, and what to do with rows that break it."""

    name: RuleName = Field(examples=["sane_score"])
    """Name of the rule in counts and messages."""
    check: Annotated[str, AfterValidator(_check)] = Field(
        examples=["score >= 0 and score < 1e6"],
    )
    """One boolean expression over the columns of the table that every row should fulfil. As in a
    CHECK constraint, unknown (null) passes."""
    action: Literal["warn", "dead_letter", "fail"] = "warn"
    """warn: the row is written and counted; dead_letter: the whole record becomes a dead letter;
    fail: the batch is refused."""
    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Tables that the rule applies to, with the wildcards * and ?; all tables per type when left
    out."""
    types: Texts = Field(default=(), examples=[["chess"]])
    """Types that the rule applies to, with the wildcards * and ?; all types when left out."""

    def rule(self) -> Rule:
        """Return the rule as tasks use it."""
        return Rule(
            name=self.name,
            check=self.check,
            action=Action(self.action),
            tables=self.tables,
            types=self.types,
            columns=columns_of(self.check),
        )


def expectation_conflicts(
    expectations: Sequence[Expectation], tables: Tables, *, changes: bool
) -> Iterator[Conflict]:
    """Yield what rules cannot require in this pipeline, each with its place in the list."""
    if expectations and not tables.each:
        yield ("expectations",), "needs tables.each: rules apply to the tables per type"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    names: set[str] = set()
    for number, one in enumerate(expectations):
        place = ("expectations", number)
        if one.name in names:
            yield (*place, "name"), "is also the name of another rule"
        names.add(one.name)
        if changes and one.action == "dead_letter":
            why = "cannot be dead_letter for change data: the row would keep its older state"
            yield (*place, "action"), f"{why}; use warn or fail"
        for table in others.intersection(one.tables):
            yield (*place, "tables"), f"names {table}, but rules apply to the tables per type only"
