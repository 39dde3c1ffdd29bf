"""Server-sent events: that something has changed. What it is now, the page asks itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.answers import refuse

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_TICK_SECONDS = 0.25
_BEAT_SECONDS = 15.0
_MOST_LISTENERS = 100

Stamp = Callable[[], dict[str, str]]


class Live:
    """Tells every open page when a stamp is no longer what it was."""

    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._listeners = 0
        self.closing = False
        """Set when the server ends: listeners would keep it alive."""

    def routes(self) -> list[Route]:
        """`/api/events`."""
        return [Route("/api/events", self._open)]

    async def _open(self, request: Request) -> Response:
        if self._listeners >= _MOST_LISTENERS:
            # the page then asks every few seconds instead
            full = DistributaryError(
                "too many pages are open",
                code=ErrorCode.ACCESS_DENIED,
                next_step="close some of them; this one goes on by asking now and then",
            )
            return refuse(full, status=503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=headers)

    async def _events(self) -> AsyncIterator[bytes]:
        self._listeners += 1
        before: dict[str, str] = {}
        quiet = 0.0
        try:
            yield b"retry: 2000\n\n"
            while not self.closing:
                now = await run_in_threadpool(self._look)
                if now != before:
                    changed = [name for name, stamp in now.items() if before.get(name) != stamp]
                    yield _event("changed" if before else "hello", changed)
                    before, quiet = now, 0.0
                elif quiet >= _BEAT_SECONDS:
                    yield b": still here\n\n"
                    quiet = 0.0
                for _ in range(int(_LOOK_SECONDS / _TICK_SECONDS)):
                    if not self.closing:
                        await asyncio.sleep(_TICK_SECONDS)
                quiet += _LOOK_SECONDS
        finally:
            self._listeners -= 1

    def _look(self) -> dict[str, str]:
        try:
            return {name: _digest(stamp) for name, stamp in self._stamp().items()}
        except DistributaryError as error:
            return {"lake": str(error.code)}
        except Exception as error:
            _log.error("the lake could not be looked at", exc_info=error)
            return {"lake": "unreadable"}


def _event(name: str, changed: list[str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(changed)}\n\n".encode()


def _digest(stamp: str) -> str:
    return hashlib.sha256(stamp.encode()).hexdigest()
