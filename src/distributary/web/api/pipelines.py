"""`/api/overview`, `/api/pipelines/{name}`, `/api/series`, `/api/healing`: how it stands."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from distributary import __version__
from distributary.errors import DistributaryError
from distributary.model.deadletter import MAY_HEAL
from distributary.observe.health import Health
from distributary.observe.rows import BatchRow, TableRow
from distributary.observe.status import PipelineStatus
from distributary.web.answers import not_found, parts_of, reading, text, whole, wrong
from distributary.web.drawing import COLUMNS, WINDOWS, of_pipelines
from distributary.web.reading import Reading

_BATCHES = 20
_HEALING_SECONDS = 20.0
_PATIENCE_SECONDS = 10.0


def routes(lake: Reading) -> list[Route]:
    """The addresses of this module."""
    healing = Healing(lake)

    def overview(request: Request) -> dict[str, Any]:
        now = lake.status()
        return {
            "lake": lake.lake,
            "writable": lake.writable,
            "release": __version__,
            "now": datetime.now(UTC),
            "pipelines": [_short(each) for each in now.pipelines],
        }

    def pipeline(request: Request) -> dict[str, Any]:
        found = lake.pipeline(request.path_params["name"])
        batches = lake.remember(
            ("batches", found.name),
            "batches",
            make=lambda: lake.ledger.batches(found.name, last=_BATCHES),
        )
        return {
            "now": datetime.now(UTC),
            "writable": lake.writable,
            "pipeline": found,
            "batches": [replace(b, ranges=()) for b in reversed(batches)],
        }

    def series(request: Request) -> dict[str, Any]:
        window = text(request, "window") or "all"
        if window not in WINDOWS:
            raise wrong("window", f"one of {', '.join(WINDOWS)}")
        only = text(request, "pipeline")
        return lake.remember(
            ("series", window, only),
            "batches",
            make=lambda: of_pipelines(lake.ledger.timeline(COLUMNS), window=window, only=only),
        )

    def healable(request: Request) -> dict[str, Any]:
        return healing.of(lake.pipeline(text(request, "pipeline") or ""))

    return [
        Route("/api/overview", reading(overview)),
        Route("/api/pipelines/{name:path}", reading(pipeline)),
        Route("/api/series", reading(series)),
        Route("/api/healing", reading(healable)),
    ]


class Healing:
    """Whether dead letters would decode now: asked in the background, of a registry far away."""

    def __init__(self, lake: Reading) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def of(self, status: PipelineStatus) -> dict[str, Any]:
        """`count` of those that would be rows now; null where nobody can say, and `why`."""
        codes = {reason.code for reason in status.dead_letters.reasons}
        if not codes & MAY_HEAL:
            return {"count": 0, "by_reason": {}, "why": None}
        with self._lock:
            at, answer = self._known.get(status.name, (0.0, {}))
            if at and time.monotonic() - at < _HEALING_SECONDS:
                return answer
        found: list[dict[str, Any]] = []
        asking = threading.Thread(
            target=lambda: found.append(_ask(self._lake, status)), name="healing", daemon=True
        )
        asking.start()
        asking.join(_PATIENCE_SECONDS)
        answer = found[0] if found else {"count": None, "by_reason": {}, "why": None}
        with self._lock:
            self._known[status.name] = (time.monotonic(), answer)
        return answer


def _ask(lake: Reading, status: PipelineStatus) -> dict[str, Any]:
    # these import Spark, without starting it
    from distributary.engine.pipeline import Pipeline
    from distributary.engine.replay import healable

    try:
        found = healable(Pipeline(lake.settings(status.name)))
    except DistributaryError as error:
        return {"count": None, "by_reason": {}, "why": parts_of(error)}
    return {"count": found.count, "by_reason": dict(found.by_reason), "why": None}


def _short(status: PipelineStatus) -> dict[str, Any]:
    """What the first page shows of a pipeline."""
    last = status.last_batch
    return {
        "name": status.name,
        "state": status.state,
        "as_of": status.as_of,
        "failure": status.failure,
        "totals": status.totals,
        "balanced": status.balanced,
        "equation": status.equation,
        "rows": status.rows,
        "records_per_second": status.records_per_second,
        "lag": status.lag,
        "lag_in_words": status.lag_in_words,
        "batch": None if last is None else last.batch,
        "tables": {
            "total": status.tables.total,
            "missing": status.tables.missing,
            "behind": status.tables.behind,
            "parked": status.tables.parked,
            "stale": status.tables.stale,
            "healthy": status.tables.healthy,
            "worst": [
                {"table": t.table.table, "health": t.health, "last_commit": t.table.last_commit}
                for t in status.tables.shown
                if t.health is not Health.HEALTHY
            ],
        },
        "dead_letters": status.dead_letters,
        "parked": status.parked,
    }


# `/api/batches`, `/api/batches/{pipeline}/{n}`: what each batch did.

_MOST_TABLES = 200
_MOST_RANGES = 200
_MOST_DIGITS = 19
"""A number of so many may be larger than the ledger holds."""


def batch_routes(lake: Reading) -> list[Route]:
    """The addresses of this module."""

    def batches(request: Request) -> dict[str, Any]:
        only = text(request, "pipeline")
        last = whole(request, "last", 50, low=1, high=500)
        found = lake.remember(
            ("last batches", only, last),
            "batches",
            make=lambda: lake.ledger.batches(only, last=last),
        )
        return {"now": datetime.now(UTC), "batches": [_batches_short(b) for b in reversed(found)]}

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


def _batches_short(batch: BatchRow) -> dict[str, Any]:
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
        **_batches_short(batch),
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
