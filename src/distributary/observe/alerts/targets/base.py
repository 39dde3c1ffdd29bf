"""What a target does, and how an attempt to deliver can end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

from distributary.observe.alerts.notice import Notice


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended. `why` holds nothing that came from the other side, and no address."""

    delivered: bool
    why: str = ""
    again: bool = False
    """Whether it may be different in a moment."""
    wait: float = 0.0
    """Seconds that the target asks us to wait before the next attempt."""


DELIVERED = Outcome(True)


class Target(Protocol):
    """Where notices go."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether it keeps alerts open itself, and so must hear of each of them."""
        ...

    def send(self, notice: Notice) -> Outcome:
        """One attempt, within the target's time; never raises."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def within(seconds: float, attempt: Callable[[], Outcome]) -> Outcome:
    """The outcome of an attempt, or that it took too long.

    In a thread of its own: looking a name up and a drip of single bytes know no deadline. One that
    is given up ends with its connection and holds up no exit.
    """
    future: Future[Outcome] = Future()

    def work() -> None:
        try:
            future.set_result(attempt())
        except Exception as error:
            # its text may quote an address or a header: only its kind is told
            future.set_result(Outcome(False, type(error).__name__))

    Thread(target=work, name="alert-attempt", daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        return Outcome(False, f"no answer within {seconds:g} s", again=True)
