"""Retries with growing back-off and jitter."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

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
    """Build a retrier, to iterate over attempts or to call a function; the last error is raised.

    Args:
        errors: The exceptions after which another attempt is made, or a function that decides.
        most: The most attempts; None for no limit.
        seconds: The time after which no further attempt is begun.
        pause: Seconds before the second attempt; each pause doubles the one before.
        longest: The longest pause in seconds.
        jitter: The most random seconds that are added to each pause.
        stop: An event that ends a pause at once when it is set.
    """
    # tenacity brings asyncio and ssl along: commands that only read never need it
    from tenacity import (
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

    if isinstance(errors, type | tuple):
        errors = retry_if_exception_type(errors).predicate
    limit = stop_never if most is None else stop_after_attempt(most)
    return Retrying(
        retry=retry_if_exception(errors),
        stop=limit | stop_after_delay(seconds),
        wait=wait_exponential(multiplier=pause, max=longest) + wait_random(0, jitter),
        before_sleep=_log_retry,
        sleep=time.sleep if stop is None else sleep_using_event(stop),
        reraise=True,
    )


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.warning("retrying in %.1f s: %r", state.upcoming_sleep, error)
