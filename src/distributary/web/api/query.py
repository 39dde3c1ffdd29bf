"""`/api/query`: one SELECT, answered by our own command in a process of its own.

A process can be ended at any time and has its own memory: a statement that is too expensive affects
neither the dashboard nor its other pages.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distributary.errors import DistributaryError, ErrorCode
from distributary.web.answers import STATUS, answer, read_json, refuse, unexpected, wrong
from distributary.web.jobs import option, spawn

MOST_ROWS = 500
SECONDS = 20
_MEMORY = "512MiB"
_ADDRESSES = 4 << 30
"""The address space of the process, with libraries: an ordinary answer needs 2.8 GB."""
_START_SECONDS = 20
"""The time until the command has started, on a busy machine."""
_WIDEST = 300
_MOST_BYTES = 32 << 20
_AT_ONCE = 2
_LONGEST_SQL = 20_000
_LONGEST_CUT = 100
_PARTS = ("code", "what", "where", "evidence", "next_step", "retryable")


class Queries:
    """Runs a few statements at a time. Thread-safe."""

    def __init__(self, *, lake: str, file: str | None = None) -> None:
        self._words = [
            *("query", "--json", f"--limit={MOST_ROWS}", f"--timeout={SECONDS}s"),
            *(f"--memory={_MEMORY}", f"--width={_WIDEST}", f"--lake={lake}", *option("file", file)),
        ]
        self._free = threading.Semaphore(_AT_ONCE)
        self._running: set[subprocess.Popen[bytes]] = set()

    def routes(self) -> list[Route]:
        """Return the address of this module."""

        async def ask(request: Request) -> Response:
            try:
                asked = await read_json(request)
                sql, as_of = asked.get("sql"), asked.get("as_of", "")
                if not isinstance(as_of, str) or len(as_of) > _LONGEST_CUT:
                    raise wrong("as_of", "not the number of a batch or a time")
                if not isinstance(sql, str) or not 0 < len(sql) <= _LONGEST_SQL:
                    raise wrong("sql", f"not a text of at most {_LONGEST_SQL:,} characters")
                return await run_in_threadpool(self._ask, sql, as_of.strip())
            except DistributaryError as error:
                return refuse(error)
            except Exception as error:
                return unexpected(error)

        return [Route("/api/query", ask, methods=["POST"])]

    def close(self) -> None:
        """Kill running statements; they change nothing."""
        for process in list(self._running):
            _kill(process)

    def _ask(self, sql: str, as_of: str) -> Response:
        if not self._free.acquire(blocking=False):
            raise DistributaryError(
                "too many statements are running",
                code=ErrorCode.ACTION_RUNNING,
                evidence=f"{_AT_ONCE} at a time",
                next_step="wait a moment and send the statement again",
            )
        try:
            return _answered(self._run(sql, as_of))
        finally:
            self._free.release()

    def _run(self, sql: str, as_of: str) -> Mapping[str, Any]:
        words = [*self._words, *([f"--as-of={as_of}"] if as_of else [])]
        with spawn(words, stdin=subprocess.PIPE) as process:
            self._running.add(process)
            try:
                if hasattr(resource, "prlimit"):
                    with suppress(OSError):
                        resource.prlimit(process.pid, resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
                output, _ = process.communicate(
                    sql.encode("utf-8", "replace"), timeout=SECONDS + _START_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise _stopped(f"{SECONDS} seconds") from None
            finally:
                _kill(process)
                self._running.discard(process)
        if len(output) > _MOST_BYTES:
            raise _stopped(f"an answer of {len(output):,} bytes")
        with suppress(ValueError):
            document = json.loads(output)
            if isinstance(document, dict):
                return document
        # the process was killed, or the engine gave up
        raise _stopped(f"the process ended with {process.returncode}")


def _answered(document: Mapping[str, Any]) -> Response:
    error = document.get("error")
    if not isinstance(error, dict):
        return answer(document)
    # not sent: the path of a log, and addresses of pages
    parts = {name: error.get(name) for name in _PARTS}
    with suppress(ValueError):
        return answer({"error": parts}, status=STATUS.get(ErrorCode(str(parts["code"])), 500))
    return answer({"error": parts}, status=500)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        # the process leads a process group of its own
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stopped(evidence: str) -> DistributaryError:
    return DistributaryError(
        "the result exceeds its limits",
        code=ErrorCode.QUERY_STOPPED,
        where="SQL",
        evidence=evidence,
        next_step="select less, or use `distributary query` in a terminal",
    )
