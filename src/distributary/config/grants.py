"""Who may read which tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from distributary.config.base import Conflict, Section
from distributary.config.text import Listed, Text

Privilege = Literal["ALL PRIVILEGES", "APPLY TAG", "MODIFY", "SELECT"]
_Names = Annotated[tuple[Text, ...], Listed]


class Grant(Section):
    """What some principals may do with some tables."""

    principals: _Names = Field(min_length=1, examples=[["analysts", "ana@example.com"]])
    """Users, groups or service principals."""
    tables: _Names = Field(default=(), examples=[["silver_*"]])
    """Names of tables, with `*` and `?`."""
    types: _Names = Field(default=(), examples=[["chess"]])
    """Types of records, with `*` and `?`; `schema.table` for change data. Beside `tables`, a table
    must fit both."""
    privileges: Annotated[tuple[Privilege, ...], Listed] = ("SELECT",)
    """What is granted."""

    def conflicts(self) -> Iterator[Conflict]:
        """Something must be named."""
        if not self.tables and not self.types:
            yield (), "needs tables or types"
        if not self.privileges:
            yield ("privileges",), "must not be empty"
