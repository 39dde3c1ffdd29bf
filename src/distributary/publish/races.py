"""Several writers, one table: whoever comes second looks at the table again and tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import stamina

ATTEMPTS = 15
"""How often a commit that was overtaken is made again."""

T = TypeVar("T")


class OvertakenError(Exception):
    """Another commit took the place of this one; nothing was written."""


def until_not_overtaken(attempt: Callable[[], T]) -> T:
    """The result of the first attempt that is not overtaken. Raises OvertakenError in the end."""
    try:
        # nearly always enough: the machinery below is not paid for a thousand times a batch
        return attempt()
    except OvertakenError:
        again = stamina.retry(
            on=OvertakenError,
            attempts=ATTEMPTS,
            wait_initial=0.005,
            wait_max=0.25,
            wait_jitter=0.05,
        )
        return again(attempt)()
