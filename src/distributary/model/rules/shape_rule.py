"""The entries of `shape` and their expressions, as the pipeline file has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from distributary.model.rules.expectation import any_fits

MaskMethod = Literal["hash", "token", "redact", "truncate"]
RawRecords = Literal["keep", "withhold", "encrypt"]
"""The parts of records with masked tables that bronze and the dead letters keep."""


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """An expression of one setting, validated when the file was loaded."""

    setting: str
    """The setting that has the expression, such as `where` or `set.email`."""
    text: str
    columns: tuple[tuple[str, ...], ...] = ()
    """The columns that it names, each with the path to a nested field."""


@dataclass(frozen=True, slots=True)
class ShapeFunction:
    """A function in Python that gets and returns a batch of Arrow columns."""

    reference: str
    """The module and the name of the function, such as `cleaning:clean`."""
    source: bytes = field(default=b"", repr=False)
    """The text of its module, if that is a file beside the pipeline file; else it is imported."""

    @property
    def setting(self) -> str:
        """Return how messages name it."""
        return f"function {self.reference}"


@dataclass(frozen=True, slots=True)
class ShapeRule:
    """One entry of `shape`, as the planner uses it."""

    tables: tuple[str, ...] = ()
    """Patterns of table names; empty for every table per type."""
    types: tuple[str, ...] = ()
    """Patterns of type names; empty for every type."""
    where: SqlExpression | None = None
    set: tuple[tuple[str, SqlExpression], ...] = ()
    """The computed columns with their expressions."""
    function: ShapeFunction | None = None
    mask: tuple[tuple[str, MaskMethod, int], ...] = ()
    """Patterns of columns, each with the method and the characters that it leaves."""
    explode: str = ""
    """The column of arrays whose items become rows; empty if none does."""
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()

    def is_for(self, tables: Iterable[str], types: Iterable[str]) -> bool:
        """Return true when the rule applies to a table and a type with these names."""
        return any_fits(self.tables, tables) and any_fits(self.types, types)
