"""`/api/dead-letters`, `/api/dead-letters/{id}`: dead letters and their reasons."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from starlette.requests import Request

from distributary.errors import DistributaryError
from distributary.model.deadletter import DeadLetterStatus
from distributary.observe.deadletters import find_letter, hexdump, short_bytes
from distributary.web.answers import Reads, parts_of, some, text, whole, wrong
from distributary.web.reading import LakeReader

_COLUMNS = (
    *("id", "pipeline", "topic", "partition", "offset", "type", "schema_id", "stage"),
    *("error_code", "error_message", "batch", "first_seen", "last_seen", "attempts"),
    *("status", "note"),
)
_MOST = 200
_HEX_LINES = 64
_SHORT = 200
_ALL = "all"


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""

    def letters(request: Request) -> dict[str, Any]:
        _warm_up()
        status = text(request, "status") or str(DeadLetterStatus.OPEN)
        if status != _ALL and status not in set(DeadLetterStatus):
            raise wrong("status", repr(status[:40]))
        wanted = None if status == _ALL else status
        chosen = {name: text(request, name) for name in ("pipeline", "reason", "type")}
        limit = whole(request, "limit", 50, low=1, high=_MOST)
        key = (status, *chosen.values(), limit)
        return lake.for_letters(
            key,
            lambda: {
                "status": status,
                "counts": _counts(lake, chosen["pipeline"]),
                "reasons": _reasons(lake, wanted, chosen["pipeline"]),
                "letters": _letters(lake, wanted, limit=limit, **chosen),
            },
        ) | {"now": datetime.now(UTC), "writable": lake.writable}

    def letter(request: Request) -> dict[str, Any]:
        found = find_letter(lake.letters(), request.path_params["id"], lake=lake.lake)
        about = {"now": datetime.now(UTC), "lake": lake.lake, "writable": lake.writable}
        return about | _whole(lake, found)

    return {"/api/dead-letters": letters, "/api/dead-letters/{id}": letter}


def _counts(lake: LakeReader, pipeline: str | None) -> dict[str, int]:
    sums = Counter({str(status): 0 for status in DeadLetterStatus})
    for name, letters in lake.letters(pipeline).items():
        sums.update(letters.count_by_status(pipeline=name))
    return sums


def _reasons(lake: LakeReader, status: str | None, pipeline: str | None) -> list[dict[str, Any]]:
    reasons = [
        {
            "pipeline": name,
            **some(reason, "code", "count", "first_seen", "last_seen", "example"),
            "types": dict(list(reason.types.items())[:20]),
            "all_types": len(reason.types),
        }
        for name, letters in lake.letters(pipeline).items()
        for reason in letters.reasons(status=status, pipeline=name)
    ]
    return sorted(reasons, key=lambda r: (-r["count"], r["code"]))


def _letters(
    lake: LakeReader, status: str | None, *, limit: int, pipeline: str | None, **wanted: Any
) -> list[dict[str, Any]]:
    wanted |= {"status": status, "limit": limit, "columns": _COLUMNS}
    rows = [
        row
        for name, letters in lake.letters(pipeline).items()
        for row in letters.select(pipeline=name, **wanted).to_pylist()
    ]
    return [r | {"error_message": (r["error_message"] or "")[:_SHORT]} for r in rows[:limit]]


def _whole(lake: LakeReader, letter: Mapping[str, Any]) -> dict[str, Any]:
    # these import Spark, without starting it
    from distributary.engine.pipeline import Pipeline
    from distributary.operations.insight import look_inside

    value, why = letter["value"], None
    try:
        seen = look_inside(Pipeline(lake.settings(letter["pipeline"])), letter)
    except DistributaryError as error:
        # the registry does not answer, or the file is not trusted: only the bytes are shown
        seen, why = look_inside(None, letter), parts_of(error)
    return {
        "letter": {name: letter[name] for name in (*_COLUMNS, "timestamp", "error_position")},
        "key": short_bytes(letter["key"]),
        "headers": [
            {"key": header["key"], "value": short_bytes(header["value"])}
            for header in (letter["headers"] or ())[:50]
        ],
        "bytes": None if value is None else len(value),
        "hex": list(hexdump(value or b"", mark=seen.mark, label=seen.label, head=_HEX_LINES)),
        "schema": seen.schema,
        "payload_start": seen.payload_start,
        "failing_byte": seen.mark,
        "decoded": seen.text,
        "with_schema": why is None,
        "without_schema": why,
    }


@cache
def _warm_up() -> None:
    """Import slow modules in the background: after the list, a record is usually opened."""

    def load() -> None:
        from distributary.operations import insight  # noqa: F401

    threading.Thread(target=load, name="warm-up", daemon=True).start()
