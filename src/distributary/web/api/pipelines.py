"""`/api/overview`, `/api/pipelines`, `/api/series`, `/api/healing`, `/api/batches`: progress."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from distributary import __version__
from distributary.config.file.show import as_json
from distributary.errors import DistributaryError
from distributary.model.deadletter import MAY_HEAL
from distributary.observe.ledger.ledger_rows import BatchRow
from distributary.observe.status.health import Health
from distributary.observe.status.pulse import Backlog
from distributary.observe.status.status import PipelineStatus
from distributary.threads import begun
from distributary.web.answers import Reads, not_found, parts_of, some, text, whole, wrong
from distributary.web.drawing import COLUMNS, WINDOWS, of_pipelines
from distributary.web.reading import LakeReader, Lately

_BATCHES = 20
_MOST_TABLES = 200
_MOST_RANGES = 200
_MOST_DIGITS = 19
"""A number with so many digits may exceed the ledger's integers."""
_HEALING_SECONDS = 20.0
_PATIENCE_SECONDS = 10.0


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""
    healing = HealingCache(lake)

    def overview(request: Request) -> dict[str, Any]:
        now = lake.status()
        return {
            "lake": lake.lake,
            "writable": lake.writable,
            "release": __version__,
            "now": datetime.now(UTC),
            "unavailable": now.unavailable,
            "pipelines": [_short(status) for status in now.pipelines],
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
            "pipeline": replace(found, backlog=_some_partitions(found.backlog)),
            "partitions": len(found.backlog.partitions) if found.backlog else 0,
            "lines": lake.lines(found.checkpoint),
            "batches": [replace(b, ranges=()) for b in reversed(batches)],
        }

    def settings(request: Request) -> dict[str, Any]:
        name = text(request, "pipeline") or ""
        try:
            found = as_json(lake.settings(name))
        except DistributaryError as error:
            return {"file": "", "settings": [], "why": parts_of(error)}
        return {"file": found["file"], "settings": found["settings"], "why": None}

    def series(request: Request) -> dict[str, Any]:
        window = text(request, "window") or "all"
        if window not in WINDOWS:
            raise wrong("window", f"one of {', '.join(WINDOWS)}")
        only = text(request, "pipeline")
        timeline = lake.remember("timeline", "batches", make=lambda: lake.ledger.timeline(COLUMNS))
        return of_pipelines(timeline, window=window, now=datetime.now(UTC), only=only)

    def batches(request: Request) -> dict[str, Any]:
        only = text(request, "pipeline")
        last = whole(request, "last", 50, low=1, high=500)
        found = lake.remember(
            ("last batches", only, last),
            "batches",
            make=lambda: lake.ledger.batches(only, last=last),
        )
        return {"now": datetime.now(UTC), "batches": [_short_batch(b) for b in reversed(found)]}

    def batch(request: Request) -> dict[str, Any]:
        name, digits = request.path_params["pipeline"], request.path_params["number"]
        usable = digits.isascii() and digits.isdecimal() and len(digits) < _MOST_DIGITS
        found: list[dict[str, Any]] = []
        if usable:
            number = int(digits)
            found = lake.remember(
                ("batch", name, number),
                "batches",
                "tables",
                make=lambda: [_whole(lake, b) for b in lake.ledger.batch(name, number)],
            )
        if not found:
            raise not_found(
                "the ledger has no such batch",
                f"{name} {digits}",
                next_step="the batch is not finished, or is so old that only totals are kept",
            )
        return {"now": datetime.now(UTC), "batches": found[::-1]}

    return {
        "/api/overview": overview,
        "/api/pipelines/{name:path}": pipeline,
        "/api/settings": settings,
        "/api/series": series,
        "/api/healing": lambda request: healing.of(lake.pipeline(text(request, "pipeline") or "")),
        "/api/batches": batches,
        "/api/batches/{pipeline:path}/{number}": batch,
    }


class HealingCache:
    """The number of dead letters that would decode now, determined in the background."""

    def __init__(self, lake: LakeReader) -> None:
        self._lake = lake
        self._known: Lately[dict[str, Any]] = Lately(_HEALING_SECONDS)

    def of(self, status: PipelineStatus) -> dict[str, Any]:
        """Return the `count` of dead letters that would become rows now.

        Null with `why` if unknown.
        """
        codes = {reason.code for reason in status.dead_letters.reasons}
        if not codes & MAY_HEAL:
            return {"count": 0, "by_reason": {}, "why": None}
        return self._known.get(status.name, lambda: self._ask(status))

    def _ask(self, status: PipelineStatus) -> dict[str, Any]:
        asking = begun(lambda: _healable(self._lake, status), name="healing")
        with suppress(TimeoutError):
            return asking.result(timeout=_PATIENCE_SECONDS)
        return {"count": None, "by_reason": {}, "why": None}


def _healable(lake: LakeReader, status: PipelineStatus) -> dict[str, Any]:
    # these import Spark, without starting it
    from distributary.engine.pipeline import Pipeline
    from distributary.operations.replay import healable

    try:
        result = healable(Pipeline(lake.settings(status.name)))
    except DistributaryError as error:
        return {"count": None, "by_reason": {}, "why": parts_of(error)}
    return {"count": result.count, "by_reason": dict(result.by_reason), "why": None}


def _short(status: PipelineStatus) -> dict[str, Any]:
    """Return the data of a pipeline for the first page."""
    names = ("name", "state", "file", "as_of", "failure", "totals", "balanced", "equation", "rows")
    more = ("under_way", "records_per_second", "lag", "lag_in_words", "dead_letters", "parked")
    counts = ("total", "missing", "behind", "parked", "stale", "absent", "healthy")
    worst = [
        {"table": t.table.table, "health": t.health, "last_commit": t.table.last_commit}
        for t in status.tables.shown
        if t.health is not Health.HEALTHY
    ]
    last = status.last_batch
    return {
        **some(status, *names, *more),
        "batch": None if last is None else last.batch,
        "tables": some(status.tables, *counts) | {"worst": worst},
    }


def _some_partitions(found: Backlog | None) -> Backlog | None:
    if found is None:
        return None
    worst = dict(list(found.partitions.items())[:_MOST_RANGES])
    # a pulse of an earlier version has no ends
    ends = {place: found.ends[place] for place in worst if place in found.ends}
    return replace(found, partitions=worst, ends=ends)


def _short_batch(batch: BatchRow) -> dict[str, Any]:
    names = ("pipeline", "lane", "batch", "finished_at", "seconds", "counts", "rows", "tables")
    return some(batch, *names, "lag_records", "batches")


def _whole(lake: LakeReader, batch: BatchRow) -> dict[str, Any]:
    tables = sorted(lake.ledger.batch_tables(batch), key=lambda t: (-t.records, t.table))
    names = ("life", "started_at", "steps", "stages", "bytes", "files")
    touched = ("table", "role", "records", "rows", "bytes", "outcome", "version", "error")
    return {
        **_short_batch(batch),
        **some(batch, *names, "lag_seconds", "event_seconds", "dead_letters"),
        "equation": batch.counts.equation(),
        "balanced": batch.counts.balanced,
        "ranges": batch.ranges[:_MOST_RANGES],
        "all_ranges": len(batch.ranges),
        "touched": [
            some(table, *touched) | {"files": len(table.files)} for table in tables[:_MOST_TABLES]
        ],
        "all_touched": len(tables),
    }
