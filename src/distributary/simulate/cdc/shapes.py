"""A table of the source as it is at one moment: its names, its key, its columns."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distributary.simulate.cdc.kinds import Carried, Kind
from distributary.simulate.cdc.plan import CdcFormat, SourceType

Row = dict[str, Any]
"""Carried values by the names of their columns."""

Key = tuple[Any, ...]
"""The values of the key's columns; null is equal to null."""

_DATABASE = {
    SourceType.POSTGRESQL: "shop",
    SourceType.ORACLE: "XE",
    SourceType.SQLSERVER: "shop",
}


class Claim(NamedTuple):
    """A table's names as the stream tells them; empty is what it does not tell."""

    database: str
    schema: str
    table: str

    @property
    def text(self) -> str:
        """`["shop","","orders"]`."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class CdcColumn:
    """One column."""

    name: str
    kind: Kind
    carried: Carried
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    nulls: float = 0.1
    """How many of its values are null, if they may be."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One table between two changes of its columns."""

    source_type: SourceType
    format: CdcFormat
    namespace: str
    """MySQL's database, or the schema in all others."""
    table: str
    key: tuple[str, ...]
    """The names of the key's columns as the rows have them; empty: no key."""
    stated_key: tuple[str, ...]
    """The same names as the events state them."""
    columns: tuple[CdcColumn, ...]

    @property
    def database(self) -> str:
        """The database's name."""
        return _DATABASE.get(self.source_type, self.namespace)

    @property
    def schema(self) -> str:
        """The schema's name; MySQL has none."""
        return "" if self.source_type is SourceType.MYSQL else self.namespace

    @property
    def claim(self) -> Claim:
        """The names that the stream tells: files from PostgreSQL do not name the database."""
        told = self.format is CdcFormat.DEBEZIUM or self.source_type is not SourceType.POSTGRESQL
        return Claim(self.database if told else "", self.schema, self.table)

    @property
    def object(self) -> str:
        """The name of its folder."""
        return f"{self.namespace}_{self.table}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> CdcColumn:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def key_of(self, row: Row) -> Key:
        """The key of a row."""
        return tuple(row[name] for name in self.key)

    def with_column(self, column: CdcColumn) -> Shape:
        """The table after it got a column."""
        return replace(self, columns=(*self.columns, column))

    def without_column(self, name: str) -> Shape:
        """The table after it lost a column."""
        return replace(self, columns=tuple(c for c in self.columns if c.name != name))


def avro_name(name: str) -> str:
    """A name as Avro allows it."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{safe}" if safe[:1].isdigit() else safe
