"""The interface between a table in the lake and its entry in a catalog.

An entry names the location of a table. Some catalogs also keep a copy of its columns and comments,
which has to follow the table's log. Such an entry carries a fingerprint of the copy, so that one
listing shows which entries are up to date.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from distributary.config.catalog import CatalogConfig
from distributary.delta.column_merge import Field, fields_in
from distributary.delta.tables import open_table, reaching_table
from distributary.errors import CatalogError, ErrorCode
from distributary.store.base import is_remote

FINGERPRINT = "distributary.columns"
"""The property of an entry that holds the fingerprint of its copied columns and comments."""
MADE = {"distributary.made": "true"}
"""The property of a schema that Distributary made, so that `drop_schema` may drop it."""
ABSENT = "it does not exist"
FOREIGN = "distributary did not make it, or an earlier version did"
NOT_EMPTY = "something else is in it"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class CatalogEntry:
    """A table as a catalog should have it."""

    name: str
    location: str
    """The address of the table's folder, with the scheme that the catalog's readers use."""
    format: str = "delta"
    """The format of the table, by its name in `TABLE_FORMATS`."""
    fields: tuple[Field, ...] = ()
    """The columns as the table's log spells them; empty for a catalog that keeps no copy."""
    partition_by: tuple[str, ...] = ()
    comment: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash that is equal for entries with equal columns and comments."""
        content = [self.fields, self.partition_by, self.comment]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that a catalog has."""

    location: str | None
    """The location; None if the catalog does not name it, or the entry is no external table."""
    fingerprint: str | None = None
    """The fingerprint as in `CatalogEntry`; None if there is no copy, or another program made the
    entry."""


class TableCatalog(Protocol):
    """The entries in one schema of one catalog. Names are compared without regard to case.

    All methods raise CatalogError, or CatalogUnavailableError if another attempt may succeed.
    """

    parallel: int
    """The largest number of entries that are written at the same time."""

    def prepare(self) -> None:
        """Create the schema, if it does not exist."""

    def entries(self) -> dict[str, Found]:
        """Return all entries by their names in lower case; empty if there is no schema."""

    def create(self, entry: CatalogEntry) -> None:
        """Add an entry; fail if the name was taken in the meantime."""

    def update(self, entry: CatalogEntry) -> None:
        """Update the copy of columns and comments."""

    def drop(self, name: str) -> None:
        """Remove an entry, but nothing of the table; a missing entry is no error."""

    def drop_schema(self) -> str:
        """Drop the schema if Distributary made it and nothing is in it.

        Return the reason why it was not dropped; empty if it was.
        """

    def close(self) -> None:
        """Close all connections."""


def was_made(properties: Mapping[str, str] | None) -> bool:
    """Return whether a schema with these properties was made by Distributary."""
    return MADE.items() <= (properties or {}).items()


def entry_of(name: str, path: str, config: CatalogConfig) -> CatalogEntry | None:
    """Read a Delta table's columns and comments from its log; None if there is no table."""
    table = open_table(path)
    if table is None:
        return None
    with reaching_table(path):
        about = table.metadata()
        return CatalogEntry(
            name,
            location_of(path, config.scheme),
            fields=tuple(fields_in(table.schema().to_json())),
            partition_by=tuple(about.partition_columns),
            comment=about.description or "",
        )


def location_of(path: str, scheme: str | None) -> str:
    """Return the address of a table's folder, with the scheme that the catalog's readers use."""
    return path if scheme is None or not is_remote(path) else _SCHEME.sub(f"{scheme}://", path)


def uri_of(location: str) -> str:
    """Return the location as a URI; a local path becomes a file URI."""
    return location if is_remote(location) else Path(location).as_uri()


def taken(name: str, entry: CatalogEntry, found: Found) -> CatalogError:
    """Return the error for a name that belongs to another table."""
    return CatalogError(
        f"the name {name} belongs to another table in the catalog",
        code=ErrorCode.CATALOG_CONFLICT,
        where=name,
        evidence=f"that table is at {found.location or 'an unknown location'}, "
        f"ours is at {entry.location}",
        next_step="remove the other entry, or give lake.catalog another schema; the table is "
        "registered then automatically",
    )


def text_type(spelled: object) -> str:
    """Return the SQL name of a type that a log spells as JSON: `struct<a:int>`."""
    if isinstance(spelled, str):
        return _SQL.get(spelled, spelled)
    if not isinstance(spelled, Mapping):
        return str(spelled)
    match spelled["type"]:
        case "array":
            return f"array<{text_type(spelled['elementType'])}>"
        case "map":
            return f"map<{text_type(spelled['keyType'])},{text_type(spelled['valueType'])}>"
        case _:
            inside = (f"{_plain(f['name'])}:{text_type(f['type'])}" for f in spelled["fields"])
            return f"struct<{','.join(inside)}>"


def _plain(name: str) -> str:
    # Quoted, so that no field name can imitate another type.
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


_SQL = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
