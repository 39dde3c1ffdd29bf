"""`/api/session`, `/api/login`, `/api/logout`, `/api/links`: who is looking."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.access import LINK_SECONDS, SESSION_SECONDS, Access
from distributary.web.answers import answer, refuse
from distributary.web.bodies import read_json
from distributary.web.guard import SLOW_SECONDS, client_of, too_often


def routes(access: Access, *, cookie: str) -> list[Route]:
    """The addresses of this module."""

    def session(request: Request) -> Response:
        known = request.cookies.get(cookie)
        return answer(
            {
                "token_required": access.required,
                "logged_in": not access.required or access.knows(known),
                "csrf": access.csrf(known),
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
            return refuse(
                DistributaryError(
                    "this is not the token, or the link was used before",
                    code=ErrorCode.ACCESS_DENIED,
                    next_step="look where the dashboard was started: the token's file or variable",
                ),
                status=401,
            )
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
        # after the sign: browsers do not send that part, so that it is in no log on the way
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
