"""`/api/batches`, `/api/batches/{pipeline}/{n}`: what each batch did."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from distributary.observe.rows import BatchRow, TableRow
from distributary.web.answers import not_found, reading, text, whole
from distributary.web.reading import Reading

_MOST_TABLES = 200
_MOST_RANGES = 200
_MOST_DIGITS = 19
"""A number of so many may be larger than the ledger holds."""


def routes(lake: Reading) -> list[Route]:
    """The addresses of this module."""

    def batches(request: Request) -> dict[str, Any]:
        only = text(request, "pipeline")
        last = whole(request, "last", 50, low=1, high=500)
        found = lake.remember(
            ("last batches", only, last),
            "batches",
            make=lambda: lake.ledger.batches(only, last=last),
        )
        return {"now": datetime.now(UTC), "batches": [_short(b) for b in reversed(found)]}

    def batch(request: Request) -> dict[str, Any]:
        name, digits = request.path_params["pipeline"], request.path_params["number"]
        usable = digits.isascii() and digits.isdecimal() and len(digits) < _MOST_DIGITS
        number = int(digits) if usable else -1
        found = (
            lake.remember(
                ("batch", name, number),
                "batches",
                "tables",
                make=lambda: [_whole(lake, b) for b in lake.ledger.batch(name, number)],
            )
            if usable
            else []
        )
        if not found:
            raise not_found(
                "there is no such batch in the ledger",
                f"{name} {digits}",
                next_step="it is not settled yet, or so old that only its sums are kept",
            )
        return {"now": datetime.now(UTC), "batches": found[::-1]}

    return [
        Route("/api/batches", reading(batches)),
        Route("/api/batches/{pipeline:path}/{number}", reading(batch)),
    ]


def _short(batch: BatchRow) -> dict[str, Any]:
    return {
        "pipeline": batch.pipeline,
        "lane": batch.lane,
        "batch": batch.batch,
        "finished_at": batch.finished_at,
        "seconds": batch.seconds,
        "counts": batch.counts,
        "rows": batch.rows,
        "tables": batch.tables,
        "lag_records": batch.lag_records,
        "batches": batch.batches,
    }


def _whole(lake: Reading, batch: BatchRow) -> dict[str, Any]:
    tables = sorted(lake.ledger.batch_tables(batch), key=lambda t: (-t.records, t.table))
    return {
        **_short(batch),
        "life": batch.life,
        "started_at": batch.started_at,
        "steps": batch.steps,
        "stages": batch.stages,
        "equation": batch.counts.equation(),
        "balanced": batch.counts.balanced,
        "bytes": batch.bytes,
        "files": batch.files,
        "lag_seconds": batch.lag_seconds,
        "dead_letters": batch.dead_letters,
        "ranges": batch.ranges[:_MOST_RANGES],
        "all_ranges": len(batch.ranges),
        "touched": [_touched(t) for t in tables[:_MOST_TABLES]],
        "all_touched": len(tables),
    }


def _touched(row: TableRow) -> dict[str, Any]:
    names = ("table", "role", "records", "rows", "bytes", "outcome", "version", "error")
    return {name: getattr(row, name) for name in names} | {"files": len(row.files)}
