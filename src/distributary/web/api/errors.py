"""`/api/errors`, `/api/errors/{CODE}`: what a code means, and where it is seen now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from distributary.errors import ErrorCode
from distributary.web.answers import not_found, reading
from distributary.web.error_pages import meanings
from distributary.web.reading import Reading


def routes(lake: Reading) -> list[Route]:
    """The addresses of this module."""

    def errors(request: Request) -> dict[str, Any]:
        return {"errors": [_one(str(code)) for code in ErrorCode]}

    def error(request: Request) -> dict[str, Any]:
        code = request.path_params["code"]
        if code not in set(ErrorCode):
            raise not_found("there is no such error code", code, next_step="see all: /errors")
        now = lake.status()
        return {
            "now": datetime.now(UTC),
            **_one(code),
            "letters": [
                {"pipeline": each.name, "count": reason.count, "last_seen": reason.last_seen}
                for each in now.pipelines
                for reason in each.dead_letters.reasons
                if reason.code == code
            ],
            "failures": [
                {"pipeline": each.name, **each.failure}
                for each in now.pipelines
                if each.failure is not None and each.failure.get("code") == code
            ],
        }

    return [
        Route("/api/errors", reading(errors)),
        Route("/api/errors/{code}", reading(error)),
    ]


def _one(code: str) -> dict[str, str]:
    meaning, next_step = meanings().get(code, ("", ""))
    return {"code": code, "meaning": meaning, "next_step": next_step}
