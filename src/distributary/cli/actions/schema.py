"""`schema show` and `schema history`: the columns of a table, and how it got them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa

from distributary.cli.actions.subjects import show_subject
from distributary.cli.lakes import find_lake
from distributary.cli.output import Paper, styled
from distributary.cli.registries import Whose, find_registry
from distributary.cli.verb import Invocation
from distributary.cli.words import clock, counted, number, spelled
from distributary.errors import ConfigError, DistributaryError, ErrorCode, RegistryError
from distributary.evolve.types import sql_name
from distributary.observe import layout
from distributary.observe.ledger import Ledger
from distributary.observe.readable import open_readable
from distributary.observe.rows import SchemaRow, TableSummary

_GUESS = "did you mean"


def show_schema(call: Invocation, name: str, version: str | None, whose: Whose) -> None:
    """A table, if there is one of this name or type and no version is said; else a subject."""
    no_table: ConfigError | None = None
    if version is None and whose.registry is None:
        try:
            show_columns(call, name, lake=whose.lake, file=whose.file)
            return
        except ConfigError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            no_table = error
    try:
        show_subject(call, find_registry(call, whose), name, version)
    except (ConfigError, RegistryError) as error:
        if no_table is None or _GUESS in error.next_step:
            raise
        # whoever meant a table wants to hear about tables
        raise no_table from error


def show_columns(
    call: Invocation, name: str, *, lake: str | None, file: Path | None = None
) -> None:
    """The columns of one table, named by itself or by the type of its records."""
    found = find_lake(call, lake, file)
    table = find_table(Ledger(found.path, storage_options=found.options).tables(), name)
    path = layout.place(found.path, table.path)
    readable = open_readable(path, found.options)
    if readable is None:
        raise DistributaryError(
            f"table {table.table} is in the ledger, but not in the lake",
            code=ErrorCode.NOT_FOUND,
            where=path,
            next_step="somebody removed it: distributary reset FILE --with-tables begins anew",
        )
    columns = [
        {"name": f.name, "type": sql_name(f.type), "nullable": f.nullable, "comment": _comment(f)}
        for f in readable.schema
    ]
    data = {
        "table": table.table,
        "type": table.type,
        "path": path,
        "table_version": readable.version,
        "schema_ids": table.schema_ids,
        "columns": columns,
    }
    call.out.show(data, lambda paper: _draw_columns(paper, table, columns))


def show_history(call: Invocation, name: str | None, *, lake: str | None, last: int) -> None:
    """The changes that schemas brought, oldest first."""
    found = find_lake(call, lake)
    ledger = Ledger(found.path, storage_options=found.options)
    history = ledger.schema_history(name)
    if not history and name is not None:
        find_table(ledger.tables(schema_ids=False), name)
    shown = history[-last:]
    data = {"lake": found.path, "total": len(history), "history": shown}
    call.out.show(data, lambda paper: _draw_history(paper, shown, total=len(history)))


def find_table(tables: Sequence[TableSummary], name: str) -> TableSummary:
    """The table with this name, or of this type."""
    for table in tables:
        if name in (table.table, table.type, spelled(table.type)) and name:
            return table
    known = sorted({t.table for t in tables} | {spelled(t.type) for t in tables if t.type})
    near = get_close_matches(name, known, n=3)
    raise ConfigError(
        "there is no such table or type",
        code=ErrorCode.NOT_FOUND,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary tables",
    )


def _comment(field: pa.Field) -> str:
    found: dict[bytes, bytes] = field.metadata or {}
    return found.get(b"comment", b"").decode("utf-8", "replace")


def _draw_columns(paper: Paper, table: TableSummary, columns: Sequence[dict[str, object]]) -> None:
    of = f", type {spelled(table.type)}" if table.type else ""
    paper.line(styled(table.table, "bold"), f": {counted(len(columns), 'column')}{of}")
    paper.table(
        ("COLUMN", "TYPE", "ABOUT"),
        ((str(c["name"]), str(c["type"]), styled(str(c["comment"]), "dim")) for c in columns),
    )


def _draw_history(paper: Paper, history: Sequence[SchemaRow], *, total: int) -> None:
    paper.table(
        ("WHEN", "BATCH", "TYPE", "SCHEMA", "ID", "CHANGE", "ACTION"),
        (
            (
                clock(row.at),
                number(row.batch),
                spelled(row.type),
                row.schema,
                str(row.schema_id),
                row.text,
                row.action,
            )
            for row in history
        ),
        right=("BATCH", "ID"),
        indent=0,
    )
    more = f", the newest of {total:,}" if total > len(history) else ""
    paper.line(f"{counted(len(history), 'change')}{more}")
