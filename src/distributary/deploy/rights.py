"""Who may do what with which table: wanted, recorded, and the statements between the two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from distributary.config.grants import Grant
from distributary.config.pipeline import PipelineConfig
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.rows import TableSummary
from distributary.route.naming import quote_sql


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One privilege of one principal on one table."""

    name: tuple[str, ...]
    """The table's full name in its parts: catalog if there is one, database, table."""
    principal: str
    privilege: str


class Standing(StrEnum):
    """How a recorded right came to be."""

    GRANTED = "granted"
    PENDING = "pending"
    """We were about to grant it, and do not know whether it was done."""
    FOUND = "found"
    """Somebody else had granted it before: it is never revoked by us."""


Record = Mapping[Right, Standing]


class Verb(StrEnum):
    """The two kinds of statements."""

    GRANT = "grant"
    REVOKE = "revoke"


@dataclass(frozen=True, slots=True, order=True)
class Statement:
    """A grant or a revoke."""

    verb: Verb
    right: Right

    @property
    def sql(self) -> str:
        """The statement with every name quoted."""
        table = ".".join(map(quote_sql, self.right.name))
        direction = "TO" if self.verb is Verb.GRANT else "FROM"
        return (
            f"{self.verb.upper()} {self.right.privilege} ON TABLE {table} "
            f"{direction} {quote_sql(self.right.principal)}"
        )

    def as_dict(self) -> dict[str, object]:
        """The statement for `--json`."""
        return {
            "verb": str(self.verb),
            "table": list(self.right.name),
            "principal": self.right.principal,
            "privilege": self.right.privilege,
            "sql": self.sql,
        }


def wanted_rights(config: PipelineConfig, tables: Iterable[TableSummary]) -> frozenset[Right]:
    """What the file asks for, of the tables that are there."""
    if not config.grants:
        return frozenset()
    place = _place(config)
    hidden_logs = config.cdc is not None and not config.cdc.log
    return frozenset(
        Right((*place, table.table), principal, privilege)
        for table in tables
        if not (hidden_logs and table.role == "log")
        for grant in config.grants
        if _fits(grant, table)
        for principal in grant.principals
        for privilege in grant.privileges
    )


def statements(wanted: Iterable[Right], record: Record) -> tuple[Statement, ...]:
    """What is missing is granted, then what we granted and nobody asks for any more is revoked."""
    asked = set(wanted)
    done = {right for right, standing in record.items() if standing is not Standing.PENDING}
    ours = {right for right, standing in record.items() if standing is not Standing.FOUND}
    return (
        *(Statement(Verb.GRANT, right) for right in sorted(asked - done)),
        *(Statement(Verb.REVOKE, right) for right in sorted(ours - asked)),
    )


def _place(config: PipelineConfig) -> tuple[str, ...]:
    if config.lake.database is None:
        raise ConfigError(
            "grants need tables that are registered in a database",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where="lake.database",
            next_step="set lake.database, run the pipeline once, then try again",
        )
    databricks = config.deploy.databricks if config.deploy is not None else None
    catalog = databricks.catalog if databricks is not None else None
    return (*([catalog] if catalog else []), config.lake.database)


def _fits(grant: Grant, table: TableSummary) -> bool:
    by_name = any(fnmatchcase(table.table, pattern) for pattern in grant.tables)
    names = {table.type, _dotted(table.type)} - {""}
    by_type = any(fnmatchcase(name, pattern) for name in names for pattern in grant.types)
    return (by_name or not grant.tables) and (by_type or not grant.types)


def _dotted(type: str) -> str:
    """`shop.orders` for `["shop","","orders"]`, the type of a table of change data."""
    try:
        names = json.loads(type) if type.startswith("[") else None
    except ValueError:
        return type
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return type
    return ".".join(filter(None, names))
