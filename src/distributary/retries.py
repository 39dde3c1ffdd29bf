"""Trying again after pauses that grow, and are never quite alike for two who wait."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_after_delay,
    stop_never,
    wait_exponential,
    wait_random,
)

_log = logging.getLogger(__name__)


def attempts_on(
    errors: type[Exception] | tuple[type[Exception], ...] | Callable[[BaseException], bool],
    *,
    most: int | None,
    seconds: float = math.inf,
    pause: float = 0.1,
    longest: float = 5.0,
    jitter: float = 1.0,
    stop: threading.Event | None = None,
) -> Retrying:
    """Attempts to be entered one by one, or a call that makes them; the last error is raised.

    Args:
        errors: Those after which another attempt is worth it.
        most: Attempts at most; None for any number.
        seconds: After which no other attempt is begun.
        pause: Seconds before the second attempt; each pause is twice the one before.
        longest: Seconds that pauses grow to.
        jitter: Seconds of which a random part is added to each pause.
        stop: Ends a pause at once when it is set.
    """
    if isinstance(errors, type | tuple):
        errors = retry_if_exception_type(errors).predicate
    few = stop_never if most is None else stop_after_attempt(most)
    return Retrying(
        retry=retry_if_exception(errors),
        stop=few | stop_after_delay(seconds),
        wait=wait_exponential(multiplier=pause, max=longest) + wait_random(0, jitter),
        before_sleep=_tell,
        sleep=time.sleep if stop is None else sleep_using_event(stop),
        reraise=True,
    )


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.warning("trying again in %.1f s: %r", state.upcoming_sleep, error)
