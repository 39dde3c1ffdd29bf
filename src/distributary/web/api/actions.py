"""`/api/jobs`: replay, discard and resume, tried first and then done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distributary.errors import DistributaryError
from distributary.web.answers import answer, not_found, reading, refuse, unexpected, wrong
from distributary.web.bodies import read_json
from distributary.web.jobs import Action, Jobs, Wish
from distributary.web.reading import Reading

_LONGEST = 500
_NAMES = tuple(f.name for f in fields(Wish) if f.name != "action")


def routes(lake: Reading, jobs: Jobs) -> list[Route]:
    """The addresses of this module."""

    def every(request: Request) -> dict[str, Any]:
        return {"jobs": [job.as_dict() for job in jobs.every()]}

    def one(request: Request) -> dict[str, Any]:
        job = jobs.get(request.path_params["id"])
        if job is None:
            raise not_found(
                "there is no such job", request.path_params["id"], next_step="/api/jobs"
            )
        return {"job": job.as_dict()}

    async def start(request: Request) -> Response:
        try:
            body = await read_json(request)
            job = await run_in_threadpool(_start, lake, jobs, body)
            return answer({"job": job}, status=202)
        except DistributaryError as error:
            return refuse(error)
        except Exception as error:
            return unexpected(error)

    return [
        Route("/api/jobs", reading(every), methods=["GET"]),
        Route("/api/jobs", start, methods=["POST"]),
        Route("/api/jobs/{id}", reading(one)),
    ]


def _start(lake: Reading, jobs: Jobs, body: Mapping[str, Any]) -> dict[str, Any]:
    wish = _wish(lake, body)
    dry_run, after = body.get("dry_run") is True, body.get("after", "")
    if not isinstance(after, str):
        raise wrong("after", "not a text")
    return jobs.start(wish, dry_run=dry_run, after=after).as_dict()


def _wish(lake: Reading, body: Mapping[str, Any]) -> Wish:
    given = {name: body.get(name) or "" for name in _NAMES}
    for name, value in given.items():
        if not isinstance(value, str) or len(value) > _LONGEST or "\0" in value:
            raise wrong(name, "not a text of at most 500 characters")
    if body.get("action") not in list(Action):
        raise wrong("action", f"one of {', '.join(Action)}")
    wish = Wish(action=Action(body["action"]), **given)
    if wish.action is Action.RESUME:
        # its pipeline is the one that parked it
        table = lake.table(wish.table)
        return Wish(action=wish.action, pipeline=table.pipeline, table=table.table)
    lake.pipeline(wish.pipeline)
    if wish.action is Action.DISCARD and not wish.note.strip():
        raise wrong("note", "it says why they are given up, and is empty")
    return wish
