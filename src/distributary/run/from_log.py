"""A merged table and the log that it is made of, for whoever makes or checks it as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distributary.config.pipeline import PipelineConfig
from distributary.errors import ConfigError, ErrorCode
from distributary.merge.order import MergeOrder
from distributary.model.manifest import TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.rows import TableSummary
from distributary.publish.base import Mark, Publisher
from distributary.run.change_tables import LOG, derived_columns, log_of, source_columns
from distributary.run.merging import merge_of
from distributary.run.tables import table_folder
from distributary.stage.metadata import DATE, metadata_plan

_NO_BATCH = Mark("", -1, "")
"""What is made as a whole is no batch's work, and gets no mark."""


@dataclass(frozen=True, slots=True)
class FromLog:
    """A merged table, and how to make it."""

    table: str
    log: str
    """Name of its log."""
    log_path: str
    order: MergeOrder


def merged_table(config: PipelineConfig, known: TableSummary, publisher: Publisher) -> FromLog:
    """What it takes to make a table of the ledger anew. Raises ConfigError if it cannot be done."""
    if known.role != Role.MERGED or config.cdc is None:
        raise _not_merged(known)
    if not config.cdc.log:
        raise ConfigError(
            "no log is kept from which this table could be recomputed",
            where="cdc.log",
            evidence=f"table {known.table}",
            next_step="set cdc.log to true; only what is read from then on is in the log",
        )
    log, path = log_of(known.table), table_folder(config, known.table)
    log_path = table_folder(config, log)
    told = publisher.columns(log_path)
    if told is None:
        raise ConfigError(
            f"table {known.table} has no log",
            code=ErrorCode.NOT_FOUND,
            where=log_path,
            next_step="somebody removed it: `distributary reset FILE --with-tables` begins anew",
        )
    source = _columns(config, told, publisher.columns(path))
    plan = TablePlan(
        name=known.table,
        role=Role.MERGED,
        type=known.type,
        path=path,
        columns=derived_columns(source, Role.MERGED, config.cdc),
        comment=f"records of type {known.type}, pipeline {config.name}",
    )
    entry = TableEntry(table=plan, files=(), records=0)
    return FromLog(known.table, log, log_path, merge_of(config, entry, _NO_BATCH, ()).order)


def _columns(
    config: PipelineConfig, log: Sequence[Column], have: Sequence[Column] | None
) -> tuple[Column, ...]:
    """Those of the log; a table that does not follow the log's columns keeps its own."""
    cdc = config.cdc
    own = {column.name for column in (*metadata_plan(config.tables.metadata), DATE)}
    if have is None or cdc is None or cdc.evolution == "mergeSchema":
        return source_columns(log, own)
    return source_columns(have, own)


def _not_merged(known: TableSummary) -> ConfigError:
    if known.role in (Role.LOG, Role.HISTORY):
        name = log_of(known.table).removesuffix(LOG)
        hint = f"name the table of the current rows, {name}"
    else:
        hint = "only tables of change data are made of a log: `distributary tables` says which"
    return ConfigError(
        f"{known.table} is not a merged table",
        where=known.path,
        evidence=f"its role is {known.role}",
        next_step=hint,
    )
