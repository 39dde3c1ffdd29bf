"""Daemon threads for work that may hang, and the end of a process without waiting for them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import NoReturn, TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], *, name: str) -> Future[T]:
    """Run `work` in a daemon thread and return its future."""
    future: Future[T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=do, name=name, daemon=True).start()
    return future


def join_while_moving(thread: Thread, steps: Callable[[], int], *, patience: float) -> None:
    """Wait for a thread to end; give up when it has done no step for `patience` seconds."""
    seen, deadline = -1, time.monotonic() + patience
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(0.1)
        if (done := steps()) != seen:
            seen, deadline = done, time.monotonic() + patience


def end_process(code: int) -> NoReturn:
    """End this process with an exit code, without finalizing the interpreter.

    Arrow's threads release files of a bucket after they were read. A thread that needs Python while
    the interpreter is finalized kills the process: `terminate called without an active exception`,
    exit code 134. Non-daemon threads and `atexit` functions are run first.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
