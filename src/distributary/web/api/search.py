"""`/api/search`, `/api/errors`: names, the path of a record, and the meaning of error codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from distributary.errors import DistributaryError, ErrorCode, glossary, meanings
from distributary.observe.deadletters import find_letter
from distributary.observe.log_format import plain
from distributary.observe.trace import Coordinates, RowPlace, trace_offset
from distributary.web.answers import Reads, not_found, text
from distributary.web.reading import LakeReader

_MOST = 12
_SHORTEST_ID = 4
_MOST_VALUES = 40
_LONGEST_VALUE = 200
_HEX = frozenset("0123456789abcdef")

Hit = dict[str, str]


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""

    def search(request: Request) -> dict[str, Any]:
        query = (text(request, "q") or "").strip()
        where = Coordinates.parse(query)
        hits = [*_letters(lake, query), *_codes(query), *_named(lake, query)] if query else []
        trace = None if where is None else _story(lake, where)
        return {"q": query, "hits": hits[:_MOST], "trace": trace}

    def errors(request: Request) -> dict[str, Any]:
        words = [{"word": word, "meaning": text} for word, text in glossary().items()]
        return {"errors": [_one(str(code)) for code in ErrorCode], "words": words}

    def error(request: Request) -> dict[str, Any]:
        code = request.path_params["code"]
        if code not in set(ErrorCode):
            raise not_found("there is no such error code", code, next_step="see all: /errors")
        now = lake.status()
        return {
            "now": datetime.now(UTC),
            **_one(code),
            "letters": [
                {"pipeline": pipeline.name, "count": reason.count, "last_seen": reason.last_seen}
                for pipeline in now.pipelines
                for reason in pipeline.dead_letters.reasons
                if reason.code == code
            ],
            "failures": [
                {"pipeline": pipeline.name, **pipeline.failure}
                for pipeline in now.pipelines
                if pipeline.failure is not None and pipeline.failure.get("code") == code
            ],
        }

    return {"/api/search": search, "/api/errors": errors, "/api/errors/{code}": error}


def _story(lake: LakeReader, at: Coordinates) -> dict[str, Any]:
    lake.require()
    trace = trace_offset(lake.lake, at)
    batches = tuple(replace(batch, ranges=()) for batch in trace.batches)
    places = tuple(replace(place, values=_values(place)) for place in trace.places)
    return replace(trace, batches=batches, places=places).as_dict()


def _values(place: RowPlace) -> dict[str, str]:
    """Return the values of a row, cut: a payload may have megabytes."""
    known = [(name, plain(value)) for name, value in place.values.items() if value is not None]
    return {name: str(value)[:_LONGEST_VALUE] for name, value in known[:_MOST_VALUES]}


def _named(lake: LakeReader, query: str) -> Iterator[Hit]:
    wanted = query.casefold()
    for pipeline in lake.status().pipelines:
        if wanted in pipeline.name.casefold():
            yield _hit("pipeline", pipeline.name, pipeline.state, "/pipelines/")
    # names that begin with the query come before names that contain it
    fitting = [t for t in lake.tables() if wanted in f"{t.table}\0{t.type}".casefold()]
    fitting.sort(key=lambda t: (not t.table.casefold().startswith(wanted), t.table))
    for table in fitting[:_MOST]:
        yield _hit("table", table.table, f"{table.rows or 0:,} rows", "/tables/")


def _codes(query: str) -> Iterator[Hit]:
    wanted = query.upper().replace(" ", "_")
    for code in ErrorCode:
        if wanted in code and len(wanted) >= _SHORTEST_ID:
            yield _hit("error code", str(code), "its meaning", "/errors/")


def _letters(lake: LakeReader, query: str) -> Iterator[Hit]:
    prefix = query.lower()
    if len(prefix) < _SHORTEST_ID or not _HEX.issuperset(prefix):
        return
    with suppress(DistributaryError):
        letter = find_letter(lake.letters(), prefix, lake=lake.lake)
        detail = f"{letter['error_code']}, {letter['status']}"
        yield _hit("dead letter", letter["id"], detail, "/dead-letters/")


def _hit(kind: str, label: str, detail: str, page: str) -> Hit:
    return {"kind": kind, "label": label, "detail": detail, "href": page + quote(label, safe="")}


def _one(code: str) -> dict[str, str]:
    meaning, next_step = meanings().get(code, ("", ""))
    return {"code": code, "meaning": meaning, "next_step": next_step}
