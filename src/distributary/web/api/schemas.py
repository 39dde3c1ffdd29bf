"""`/api/schemas`, `/api/schemas/{table}`: how tables got their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from distributary.model.table import ChangeKind
from distributary.observe.rows import SchemaRow
from distributary.web.answers import reading, whole
from distributary.web.reading import Reading

_SIGNS = {
    ChangeKind.TABLE_CREATED: "+",
    ChangeKind.COLUMN_ADDED: "+",
    ChangeKind.SIDE_COLUMN_ADDED: "+",
    ChangeKind.COLUMN_WIDENED: "~",
    ChangeKind.COLUMN_RENAMED: "~",
    ChangeKind.COLUMN_MISSING: "-",
    ChangeKind.REFUSED: "!",
}


def routes(lake: Reading) -> list[Route]:
    """The addresses of this module."""

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
        return {
            "now": datetime.now(UTC),
            "table": table.table,
            "type": table.type,
            "pipeline": table.pipeline,
            "schema_ids": table.schema_ids,
            "versions": found,
        }

    return [
        Route("/api/schemas", reading(schemas)),
        Route("/api/schemas/{table:path}", reading(schema)),
    ]


def _of(lake: Reading, table: str, pipeline: str) -> list[SchemaRow]:
    rows = lake.ledger.schema_history(table, pipeline=pipeline)
    # a type may have the name of another type's table
    return [row for row in rows if row.table == table]


def _versions(rows: Sequence[SchemaRow]) -> list[dict[str, Any]]:
    """Lines that one schema brought in one batch belong together; the newest first."""

    def key(row: SchemaRow) -> tuple[Any, ...]:
        return (row.at, row.pipeline, row.batch, row.table, row.schema_id, row.schema)

    ordered = sorted(rows, key=key)
    found = [_version(list(lines)) for _, lines in groupby(ordered, key)]
    return found[::-1]


def _version(lines: list[SchemaRow]) -> dict[str, Any]:
    first = lines[0]
    return {
        "at": first.at,
        "pipeline": first.pipeline,
        "batch": first.batch,
        "table": first.table,
        "type": first.type,
        "schema_id": first.schema_id,
        "schema": first.schema,
        "lines": list(_lines(lines)),
    }


def _lines(rows: Iterable[SchemaRow]) -> Iterable[dict[str, Any]]:
    for row in rows:
        sign = _SIGNS.get(ChangeKind(row.kind), " ") if row.kind in set(ChangeKind) else " "
        if row.kind == ChangeKind.TABLE_CREATED:
            yield {"sign": "+", "text": "table", "action": row.action}
            # its columns one by one: one line of all of them is no diff
            for column in _split(row.after):
                yield {"sign": "+", "text": column, "action": ""}
            continue
        yield {"sign": sign, "text": row.text.lstrip("+~-! "), "action": row.action}


def _split(columns: str) -> list[str]:
    """`a int, b struct<x: int, y: int>` at its outer commas."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(columns):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(columns[start:at].strip())
            start = at + 1
    return [part for part in (*parts, columns[start:].strip()) if part]
