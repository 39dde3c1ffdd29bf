"""Work in a thread of its own, which may hang: nobody has to wait for it, and no exit does."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import NoReturn, TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], *, name: str) -> Future[T]:
    """Begin a piece of work; what it gives or raises, whoever asks has as long as they like."""
    future: Future[T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=do, name=name, daemon=True).start()
    return future


def end_process(code: int) -> NoReturn:
    """End this process with an exit code, without taking Python down.

    Arrow's own threads let go of files of a bucket after they were read. A thread of theirs that
    asks for Python while it is taken down kills the process: `terminate called without an active
    exception`, exit code 134. Threads that are not daemons, and functions of `atexit`, come first.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
