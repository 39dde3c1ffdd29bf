"""The tables of a source's table: its log, the rows as they are now, and their history."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from distributary.config.cdc import Cdc
from distributary.config.pipeline import PipelineConfig
from distributary.config.tables import Tables
from distributary.config.text import placeholders
from distributary.merge.history_events import HISTORY_COLUMNS
from distributary.merge.order import DELETED_COLUMN, SEQ_COLUMN, TIME_COLUMN
from distributary.merge.snapshot import in_table
from distributary.model.change import CHANGE_NAMES
from distributary.model.change_settings import ChangeSettings
from distributary.model.table import Column, Role, TablePlan
from distributary.publish.commit_file import commit_path
from distributary.route.naming import propose
from distributary.run.names import Wanted

LOG, HISTORY = "_log", "_history"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """What a source's table is to be called here."""

    wanted: Wanted
    """Its type is the claim, less the database where rows of several share a table."""
    shard: str
    """The database, where it is told apart by a column and not by the table's name."""


def change_settings(config: PipelineConfig) -> ChangeSettings | None:
    """What change decoders are told; None for records that are no changes."""
    cdc = config.cdc
    if cdc is None:
        return None
    return ChangeSettings(
        format=cdc.format,
        source_type=cdc.source_type or "",
        backfill=cdc.backfill,
        tombstones=cdc.tombstones,
    )


def source_table(tables: Tables, claim: str, *, reserved: frozenset[str]) -> SourceTable:
    """The names for a claim `["database","schema","table"]`.

    A schema that the template does not ask for becomes part of the database's name, so that tables
    of one name in two schemas stay two; a database that it does not ask for becomes a column.
    """
    database, schema, table = json.loads(claim)
    template = tables.each or "{database}_{table}"
    asked = placeholders(template)
    shard = "" if "database" in asked else database
    outer = ".".join(name for name in (database, "" if "schema" in asked else schema) if name)
    fields = {"database": outer or "none", "schema": schema or "none", "table": table}
    choices = [fields]
    if shard and schema and "schema" not in asked:
        # tables of one name in two schemas, of which the template asks for neither
        choices.append(fields | {"table": f"{schema}.{table}"})
    proposals = tuple(
        propose(template, prefix=tables.prefix, reserved=reserved, endings=(LOG, HISTORY), **choice)
        for choice in choices
    )
    names = ["" if shard else database, schema, table]
    type_ = json.dumps(names, ensure_ascii=False, separators=(",", ":")) if shard else claim
    owner = dict(zip(("database", "schema", "table"), names, strict=True))
    return SourceTable(Wanted(type_, owner, proposals, ("", LOG, HISTORY)), shard)


def spoken(claim: str) -> str:
    """A claim as people write it: `database.schema.table`."""
    return ".".join(name for name in json.loads(claim) if name)


def log_of(name: str) -> str:
    """The log that a table is made of; of a log, itself."""
    return name if name.endswith(LOG) else name.removesuffix(HISTORY) + LOG


def relatives(name: str) -> tuple[str, ...]:
    """A log and the tables that are made of it, by the name of any of them; the log comes first."""
    log = log_of(name)
    table = log.removesuffix(LOG)
    return log, table, table + HISTORY


def own_columns(table: TablePlan) -> tuple[Column, ...]:
    """The source's columns of a table that is made of a log."""
    system = {
        SEQ_COLUMN.name,
        TIME_COLUMN.name,
        DELETED_COLUMN.name,
        *(c.name for c in HISTORY_COLUMNS),
    }
    return tuple(column for column in table.columns if column.name not in system)


def log_files(path: str, batch: int | None = None) -> list[str]:
    """The files of a log, all or those that may hold rows of a batch."""
    table = DeltaTable(path)
    facts = pa.table(table.get_add_actions(flatten=True))
    names = [in_table(path, unquote(name)) for name in facts.column("path").to_pylist()]
    if batch is None:
        return [f"{path}/{name}" for name in names]
    lowest = _bounds(facts, "min._batch", len(names))
    highest = _bounds(facts, "max._batch", len(names))
    return [
        f"{path}/{name}"
        for name, low, high in zip(names, lowest, highest, strict=True)
        if (low is None or low <= batch) and (high is None or high >= batch)
    ]


def files_of_commit(path: str, version: int) -> list[str]:
    """The files that a version of a log has added; none where the version is no longer told."""
    try:
        with open(commit_path(path, version), encoding="utf-8") as file:
            actions = [json.loads(line) for line in file if line.startswith('{"add"')]
    except FileNotFoundError:
        return []
    return [f"{path}/{in_table(path, unquote(action['add']['path']))}" for action in actions]


def _bounds(facts: pa.Table, name: str, count: int) -> list[int | None]:
    return facts.column(name).to_pylist() if name in facts.column_names else [None] * count


def source_columns(columns: Sequence[Column], metadata: Collection[str]) -> tuple[Column, ...]:
    """The columns of the source's table among those of its log."""
    return tuple(c for c in columns if c.name not in CHANGE_NAMES and c.name not in metadata)


def derived_columns(source: Sequence[Column], role: Role, cdc: Cdc) -> tuple[Column, ...]:
    """The columns of a table that is made of the log."""
    if role is Role.HISTORY:
        return (*source, *HISTORY_COLUMNS)
    return (*source, SEQ_COLUMN, TIME_COLUMN, *((DELETED_COLUMN,) if cdc.deletes == "soft" else ()))
