"""`/api/tables`, `/api/preview`, `/api/commits`, `/api/schemas`: every table and its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from starlette.requests import Request

from distributary.errors import DistributaryError
from distributary.model.table import ChangeKind, Role
from distributary.observe.ledger.ledger_rows import SchemaRow, TableSummary
from distributary.observe.status.health import Health, TableHealth, open_listed, with_measures
from distributary.web.answers import Reads, some, text, whole, wrong
from distributary.web.drawing import MOST_ROWS, events_of, of_table, preview
from distributary.web.reading import LakeReader

_MOST = 200
_COMMITS_LOOKED_AT = 2000
_COMMITS_SHOWN = 20
_EARLY = datetime(1, 1, 1, tzinfo=UTC)

_WORST = {health: n for n, health in enumerate(Health)}
_KEYS: dict[str, Callable[[TableHealth], Any]] = {
    "table": lambda t: t.table.table,
    "health": lambda t: (_WORST[t.health], -t.overdue, t.table.table),
    "rows": lambda t: t.table.rows or 0,
    "columns": lambda t: t.table.columns,
    "bytes": lambda t: t.table.bytes,
    "batches": lambda t: t.table.batches,
    "versions": lambda t: len(t.table.schema_ids),
    "last_commit": lambda t: t.table.last_commit or _EARLY,
    "type": lambda t: t.table.type,
}


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""

    def tables(request: Request) -> dict[str, Any]:
        sort = text(request, "sort") or "health"
        if sort not in _KEYS:
            raise wrong("sort", f"one of {', '.join(_KEYS)}")
        size = whole(request, "size", 50, low=1, high=_MOST)
        page = whole(request, "page", 1, low=1, high=1_000_000)
        every = lake.health()
        found = [t for t in every if _fits(t, request)]
        found.sort(key=lambda t: t.table.table)
        found.sort(key=_KEYS[sort], reverse=request.query_params.get("order") == "desc")
        shown = found[(page - 1) * size : page * size]
        return {
            "now": datetime.now(UTC),
            "total": len(every),
            "matching": len(found),
            "lake": lake.lake,
            "page": page,
            "pages": max(-(-len(found) // size), 1),
            "counts": {h: sum(t.health is h for t in every) for h in Health},
            "pipelines": sorted({t.table.pipeline for t in every}),
            "roles": sorted({t.table.role for t in every}),
            "tables": _measured(lake, shown),
        }

    def table(request: Request) -> dict[str, Any]:
        # one read of the ledger, because a batch may be settled between two
        health = lake.table_health(request.path_params["name"])
        found = health.table
        return {
            "now": datetime.now(UTC),
            "writable": lake.writable,
            **_measured(lake, [health])[0],
            "path": lake.path_of(found),
            "about": _about(lake, found),
            "refused": _refused(lake, found),
            "expectations": [
                rule
                for rule in lake.remember("rules", "tables", make=lake.ledger.rules)
                if (rule.pipeline, rule.table) == (found.pipeline, found.table)
            ],
        }

    def rows(request: Request) -> dict[str, Any]:
        found = lake.table(text(request, "table") or "")
        limit = whole(request, "limit", 50, low=1, high=MOST_ROWS)
        path = lake.path_of(found)
        return lake.for_table(
            path,
            ("preview", limit),
            lambda: preview(open_listed(found.table, path), limit=limit),
        )

    def commits(request: Request) -> dict[str, Any]:
        found = lake.table(text(request, "table") or "")
        return lake.remember(
            ("commits", found.pipeline, found.table), "tables", make=lambda: _commits(lake, found)
        )

    def schemas(request: Request) -> dict[str, Any]:
        last = whole(request, "last", 40, low=1, high=500)
        every = lake.remember(
            "history", "schemas", make=lambda: _versions(lake.ledger.schema_history())
        )
        return {"now": datetime.now(UTC), "total": len(every), "versions": every[:last]}

    def schema(request: Request) -> dict[str, Any]:
        table = lake.table(request.path_params["table"])
        found = lake.remember(
            ("history", table.pipeline, table.table),
            "schemas",
            make=lambda: _versions(_of(lake, table.table, table.pipeline)),
        )
        about = some(table, "table", "type", "pipeline", "schema_ids")
        return {"now": datetime.now(UTC), **about, "versions": found}

    return {
        "/api/tables": tables,
        "/api/tables/{name:path}": table,
        "/api/preview": rows,
        "/api/commits": commits,
        "/api/schemas": schemas,
        "/api/schemas/{table:path}": schema,
    }


def _fits(item: TableHealth, request: Request) -> bool:
    table, wanted = item.table, request.query_params
    query = (text(request, "q") or "").casefold()
    if query and query not in table.table.casefold() and query not in table.type.casefold():
        return False
    same = {"pipeline": table.pipeline, "role": table.role, "health": str(item.health)}
    return all(wanted.get(name) in (None, "", value) for name, value in same.items())


def _measured(lake: LakeReader, shown: list[TableHealth]) -> list[dict[str, Any]]:
    """Return rows for a page, with the number of rows of merged tables."""
    tables = [item.table for item in shown]
    summaries = with_measures(lake.lake, tables)
    return [
        {
            "table": replace(table, schema_ids=()),
            "versions": len(table.schema_ids),
            "health": item.health,
            "overdue": item.overdue,
        }
        for item, table in zip(shown, summaries, strict=True)
    ]


def _about(lake: LakeReader, table: TableSummary) -> dict[str, Any]:
    """Return columns and schemas; a table that cannot be opened still has a page."""
    path = lake.path_of(table)
    try:
        readable = open_listed(table.table, path)
    except DistributaryError as error:
        return {"columns": [], "schema_ids": table.schema_ids, "error": error.as_dict()}
    added = _added(lake, table)
    columns = [column | {"added": added.get(column["name"])} for column in readable.columns]
    return {"columns": columns, "schema_ids": table.schema_ids, "table_version": readable.version}


def _added(lake: LakeReader, table: TableSummary) -> dict[str, dict[str, Any]]:
    """Return the columns that were added later, with time and batch."""

    def make() -> dict[str, dict[str, Any]]:
        return {
            row.column: {"at": row.at, "batch": row.batch}
            for row in _of(lake, table.table, table.pipeline)
            if row.kind in (ChangeKind.COLUMN_ADDED, ChangeKind.SIDE_COLUMN_ADDED)
        }

    return lake.remember(("added", table.pipeline, table.table), "schemas", make=make)


def _refused(lake: LakeReader, table: TableSummary) -> list[dict[str, Any]]:
    """Return open dead letters of the table's type by reason."""
    if not table.type or table.role == Role.DEAD_LETTERS:
        return []

    def make() -> list[dict[str, Any]]:
        return [
            {"code": reason.code, "count": reason.types[table.type], "last_seen": reason.last_seen}
            for letters in lake.letters(table.pipeline).values()
            for reason in letters.reasons(pipeline=table.pipeline)
            if table.type in reason.types
        ]

    return lake.for_letters(("refused", table.pipeline, table.type), make)


def _commits(lake: LakeReader, table: TableSummary) -> dict[str, Any]:
    newest = max((b.batch for b in lake.ledger.batches(table.pipeline, last=1)), default=0)
    since = max(newest - _COMMITS_LOOKED_AT, 0)
    rows = lake.ledger.commits(table.table, pipeline=table.pipeline, since=since)
    last = rows.slice(max(len(rows) - _COMMITS_SHOWN, 0)).to_pylist()
    commits = [row | {"events": events_of(row)} for row in last[::-1]]
    return {"points": of_table(rows), "commits": commits, "looked_at": len(rows)}


# The history of tables' columns.

_SIGNS: dict[str, str] = {
    ChangeKind.TABLE_CREATED: "+",
    ChangeKind.COLUMN_ADDED: "+",
    ChangeKind.SIDE_COLUMN_ADDED: "+",
    ChangeKind.COLUMN_WIDENED: "~",
    ChangeKind.COLUMN_RENAMED: "~",
    ChangeKind.COLUMN_MISSING: "-",
    ChangeKind.REFUSED: "!",
    ChangeKind.SHAPE_LIMITED: "!",
}


def _of(lake: LakeReader, table: str, pipeline: str) -> list[SchemaRow]:
    rows = lake.ledger.schema_history(table, pipeline=pipeline)
    # a type can have the name of another type's table
    return [row for row in rows if row.table == table]


def _versions(rows: Sequence[SchemaRow]) -> list[dict[str, Any]]:
    """Group the lines that one schema brought in one batch, the newest first."""

    def key(row: SchemaRow) -> tuple[Any, ...]:
        return (row.at, row.pipeline, row.batch, row.table, row.schema_id, row.schema)

    ordered = sorted(rows, key=key)
    versions = [_version(list(lines)) for _, lines in groupby(ordered, key)]
    return versions[::-1]


def _version(lines: list[SchemaRow]) -> dict[str, Any]:
    names = ("at", "pipeline", "batch", "table", "type", "schema_id", "schema")
    return {**some(lines[0], *names), "lines": list(_lines(lines))}


def _lines(rows: Iterable[SchemaRow]) -> Iterable[dict[str, Any]]:
    for row in rows:
        if row.kind == ChangeKind.TABLE_CREATED:
            yield {"sign": "+", "text": "table", "action": row.action}
            # its columns one by one: a single line with all of them is no diff
            for column in _split(row.after):
                yield {"sign": "+", "text": column, "action": ""}
            continue
        sign = _SIGNS.get(row.kind, " ")
        yield {"sign": sign, "text": row.text.lstrip("+~-! "), "action": row.action}


def _split(columns: str) -> list[str]:
    """Split `a int, b struct<x: int, y: int>` at its outer commas."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(columns):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(columns[start:at].strip())
            start = at + 1
    return [part for part in (*parts, columns[start:].strip()) if part]
