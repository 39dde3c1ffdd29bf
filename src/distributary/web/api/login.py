"""`/api/session`, `/api/login`, `/api/logout`, `/api/links`: logging in and out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.access import (
    LINK_SECONDS,
    SESSION_SECONDS,
    SLOW_SECONDS,
    Access,
    client_of,
    too_often,
)
from distributary.web.answers import (
    answer,
    not_found,
    read_json,
    refuse,
    routes_of,
    unexpected,
    wrong,
)
from distributary.web.jobs import Job, JobAction, Jobs, Wish
from distributary.web.reading import LakeReader


def routes(access: Access, *, cookie: str, lakes: Mapping[str, str]) -> list[Route]:
    """Return the addresses of this module; `lakes` are the addresses of all lakes, by name."""

    def session(request: Request) -> Response:
        known = request.cookies.get(cookie)
        logged_in = not access.required or access.knows(known)
        listed = [{"name": name, "address": address} for name, address in lakes.items()]
        return answer(
            {
                "token_required": access.required,
                "logged_in": logged_in,
                "csrf": access.csrf(known),
                # names of lakes are nothing for strangers
                "lakes": listed if logged_in else [],
            }
        )

    async def login(request: Request) -> Response:
        try:
            body = await read_json(request)
        except DistributaryError as error:
            return refuse(error)
        client = client_of(request)
        guessing = access.blocked(client)
        if not _lets_in(access, body, client=client):
            if guessing:
                await asyncio.sleep(SLOW_SECONDS)
                return too_often()
            wrong_token = DistributaryError(
                "the token is wrong, or the link was used before",
                code=ErrorCode.ACCESS_DENIED,
                next_step="find the token in the file or variable of the process that serves the "
                "dashboard",
            )
            return refuse(wrong_token, status=401)
        made = access.new_session()
        answered = answer({"logged_in": True, "csrf": access.csrf(made)})
        answered.set_cookie(
            cookie,
            made,
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path="/",
        )
        return answered

    def logout(request: Request) -> Response:
        access.end(request.cookies.get(cookie))
        answered = answer({"logged_in": not access.required})
        answered.delete_cookie(cookie, path="/", httponly=True, samesite="strict")
        return answered

    def link(request: Request) -> Response:
        if not access.required:
            return answer({"path": "/", "seconds": None})
        # after the number sign: browsers do not send that part, so that no log contains it
        path = f"/login#once={access.new_link()}"
        return answer({"path": path, "seconds": int(LINK_SECONDS)}, status=201)

    return [
        Route("/api/session", session),
        Route("/api/login", login, methods=["POST"]),
        Route("/api/logout", logout, methods=["POST"]),
        Route("/api/links", link, methods=["POST"]),
    ]


def _lets_in(access: Access, body: dict[str, Any], *, client: str) -> bool:
    token, once = body.get("token"), body.get("once")
    if not access.required:
        return True
    if isinstance(once, str) and once:
        return access.redeem(once, client=client)
    return isinstance(token, str) and access.accepts(token, client=client)


# `/api/jobs`: replay, discard and resume, each with a dry run first.

_LONGEST = 500
_NAMES = tuple(f.name for f in fields(Wish) if f.name != "action")


def job_routes(lake: LakeReader, jobs: Jobs) -> list[Route]:
    """Return the addresses of the jobs."""

    def every(request: Request) -> dict[str, Any]:
        return {"jobs": jobs.every()}

    def one(request: Request) -> dict[str, Any]:
        id = request.path_params["id"]
        job = jobs.get(id)
        if job is None:
            raise not_found("there is no such job", id, next_step="/api/jobs")
        return {"job": job}

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
        *routes_of({"/api/jobs": every, "/api/jobs/{id}": one}),
        Route("/api/jobs", start, methods=["POST"]),
    ]


def _start(lake: LakeReader, jobs: Jobs, body: Mapping[str, Any]) -> Job:
    wish = _wish(lake, body)
    dry_run, after = body.get("dry_run") is True, body.get("after", "")
    if not isinstance(after, str):
        raise wrong("after", "not a text")
    return jobs.start(wish, dry_run=dry_run, after=after)


def _wish(lake: LakeReader, body: Mapping[str, Any]) -> Wish:
    given = {name: body.get(name) or "" for name in _NAMES}
    for name, value in given.items():
        if not isinstance(value, str) or len(value) > _LONGEST or "\0" in value:
            raise wrong(name, "not a text of at most 500 characters")
    if body.get("action") not in list(JobAction):
        raise wrong("action", f"one of {', '.join(JobAction)}")
    wish = Wish(action=JobAction(body["action"]), **given)
    if wish.action is JobAction.RESUME:
        # the pipeline is the one that parked the table
        table = lake.table(wish.table)
        if wish.source_was not in ("", "replaced", "repeated"):
            raise wrong("source_was", "replaced, repeated or nothing")
        return Wish(
            action=wish.action,
            pipeline=table.pipeline,
            table=table.table,
            source_was=wish.source_was,
        )
    lake.pipeline(wish.pipeline)
    if wish.action is JobAction.DISCARD and not wish.note.strip():
        raise wrong("note", "it is empty; a reason for discarding is required")
    return wish
