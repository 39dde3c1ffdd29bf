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
from starlette.types import Receive, Scope, Send

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.answers import refuse

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_TICK_SECONDS = 0.25
_BEAT_SECONDS = 15.0
_MOST_LISTENERS = 100
_RETRY_SECONDS = "60"

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
            answer = refuse(full, status=429)
            answer.headers["retry-after"] = _RETRY_SECONDS
            return answer
        self._listeners += 1
        return _Stream(self._events(), on_end=self._ended)

    def _ended(self) -> None:
        self._listeners -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        before: dict[str, str] = {}
        quiet = 0.0
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

    def _look(self) -> dict[str, str]:
        try:
            return {name: _digest(stamp) for name, stamp in self._stamp().items()}
        except DistributaryError as error:
            return {"lake": str(error.code)}
        except Exception as error:
            _log.error("the lake could not be looked at", exc_info=error)
            return {"lake": "unreadable"}


class _Stream(StreamingResponse):
    """Events; it is counted from when it is let in until it is over, even if it never begins."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One page that listens."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _event(name: str, changed: list[str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(changed)}\n\n".encode()


def _digest(stamp: str) -> str:
    return hashlib.sha256(stamp.encode()).hexdigest()
