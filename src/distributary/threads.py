"""Work in a thread of its own, which may hang: nobody has to wait for it, and no exit does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

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
