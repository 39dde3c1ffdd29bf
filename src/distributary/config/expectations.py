"""Rules that the rows of a table are expected to keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.expression import ExpressionError, columns_of
from distributary.config.tables import Tables
from distributary.config.text import Listed, Text
from distributary.model.expectation import Action, Rule

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_LONGEST_CHECK = 10_000


def _rule_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise PydanticCustomError(
            "rule_name",
            "must start with a letter, then letters, digits, dots, dashes and _ (100 at most)",
        )
    return value


def _check(value: str) -> str:
    text = value.strip()
    if not text:
        raise PydanticCustomError("blank", "must not be empty")
    if len(text) > _LONGEST_CHECK or not all(c.isprintable() or c in "\n\t" for c in text):
        raise PydanticCustomError("unprintable", "must be printable text, not too long")
    try:
        columns_of(text)
    except ExpressionError as error:
        context = {"why": str(error)}
        if error.suggestion:
            context["suggestion"] = error.suggestion
        raise PydanticCustomError("expression", "{why}", context) from None
    return text


Patterns = Annotated[tuple[Text, ...], Listed]


class Expectation(Section):
    """A rule about rows, in SQL, and what becomes of rows that break it."""

    name: Annotated[Text, AfterValidator(_rule_name)] = Field(examples=["sane_score"])
    """Name of the rule, in counts and messages."""
    check: Annotated[str, AfterValidator(_check)] = Field(
        examples=["score >= 0 and score < 1e6"],
    )
    """What every row is expected to be: one boolean expression over the columns of the table.
    Unknown (null) passes, as with a CHECK constraint."""
    action: Literal["warn", "dead_letter", "fail"] = "warn"
    """warn: the row is written and counted; dead_letter: its record goes to the dead letters,
    whole; fail: the batch is refused."""
    tables: Patterns = Field(default=(), examples=[["silver_*"]])
    """Tables it holds for, with * and ?; all tables of types when left out."""
    types: Patterns = Field(default=(), examples=[["chess"]])
    """Types it holds for, with * and ?; all types when left out."""

    def rule(self) -> Rule:
        """The same for tasks."""
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
    """What rules cannot ask for in this pipeline, each with its place in the list."""
    if expectations and not tables.each:
        yield ("expectations",), "needs tables.each: rules are about the tables of types"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    names: set[str] = set()
    for number, one in enumerate(expectations):
        place = ("expectations", number)
        if one.name in names:
            yield (*place, "name"), "is the name of another rule too"
        names.add(one.name)
        if changes and one.action == "dead_letter":
            why = "cannot be dead_letter for change data, whose rows would keep an older state"
            yield (*place, "action"), f"{why}: use warn or fail"
        for table in others.intersection(one.tables):
            yield (*place, "tables"), f"names {table}, but rules are about the tables of types"
