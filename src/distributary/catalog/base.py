"""The seam between a table in the lake and its entry in a catalog: several implementations.

An entry says where a table is. Some catalogs keep a copy of its columns and comments beside that,
which has to follow the table's own log; with it they keep a fingerprint of what was copied, so
that one listing tells which entries are as they should be.
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

from distributary.config.catalog import Catalog
from distributary.delta.columns import Field, fields_in
from distributary.delta.tables import open_table, reaching
from distributary.errors import CatalogError, ErrorCode
from distributary.store.base import is_remote

FINGERPRINT = "distributary.columns"
"""The property of an entry that says which columns and comments were copied into it."""
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Entry:
    """A table as a catalog should have it."""

    name: str
    location: str
    """Address of its folder, in the words of those who read it."""
    format: str = "delta"
    """`delta`, or `parquet` for a plain folder, which becomes a view."""
    fields: tuple[Field, ...] = ()
    """Its columns as its log spells them; none for a catalog that keeps no copy."""
    partition_by: tuple[str, ...] = ()
    comment: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """Equal for entries with the same columns and comments."""
        told = [self.fields, self.partition_by, self.comment]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that a catalog has."""

    location: str | None
    """None where the catalog does not tell, or it is no external table."""
    fingerprint: str | None = None
    """As in `Entry`; None where the catalog keeps no copy, or somebody else made the entry."""


class TableCatalog(Protocol):
    """Entries in one schema of one catalog. Names are compared without regard to case.

    Everything raises CatalogError, or CatalogUnavailableError where another try may do better.
    """

    parallel: int
    """How many entries may be written at the same time."""

    def prepare(self) -> None:
        """Make the schema, unless it is there."""

    def entries(self) -> dict[str, Found]:
        """All entries by their names in lower case, with few requests; none without a schema."""

    def create(self, entry: Entry) -> None:
        """Add an entry; one of this name that came in between is an error."""

    def update(self, entry: Entry) -> None:
        """Bring the copy of columns and comments up to date."""

    def drop(self, name: str) -> None:
        """Take an entry away, and nothing of the table; one that is gone already is fine."""

    def close(self) -> None:
        """Nothing is asked any more."""


def entry_of(name: str, path: str, config: Catalog) -> Entry | None:
    """A Delta table with its columns and comments, read from its log; None where there is none."""
    table = open_table(path)
    if table is None:
        return None
    with reaching(path):
        about = table.metadata()
        return Entry(
            name,
            location_of(path, config.scheme),
            fields=tuple(fields_in(table.schema().to_json())),
            partition_by=tuple(about.partition_columns),
            comment=about.description or "",
        )


def location_of(path: str, scheme: str | None) -> str:
    """The address of a table's folder for those who read it: a path, or one with a scheme."""
    return path if scheme is None or not is_remote(path) else _SCHEME.sub(f"{scheme}://", path)


def uri_of(location: str) -> str:
    """The address with its scheme, also that of a path."""
    return location if is_remote(location) else Path(location).as_uri()


def taken(name: str, entry: Entry, found: Found) -> CatalogError:
    """The name is somebody else's."""
    return CatalogError(
        f"the catalog has another table of the name {name}",
        code=ErrorCode.CATALOG_CONFLICT,
        where=name,
        evidence=f"it is at {found.location or 'a place that it does not name'}, "
        f"ours at {entry.location}",
        next_step="take the other entry away or give lake.catalog another schema: it is tried "
        "again by itself",
    )


def text_type(spelled: object) -> str:
    """A column's type, as a log spells it, in the words of SQL: `struct<a:int>`."""
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
    # quoted, so that no field name can imitate another type
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


_SQL = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
