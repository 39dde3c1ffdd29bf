"""A table that cannot be written now: it is tried again, then its batch waits in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import stamina

from distributary.errors import DistributaryError
from distributary.model.manifest import TableEntry
from distributary.observe.events import TableParked
from distributary.publish.base import Mark, Outcome, Published
from distributary.publish.parking import park
from distributary.run.context import RunContext

BEHIND_OTHERS = "waits behind earlier batches"

T = TypeVar("T")
R = TypeVar("R")


class _SomeFailedError(Exception):
    """Another round may help."""


def in_rounds(
    work: Callable[[Sequence[T]], Sequence[R]],
    items: Sequence[T],
    *,
    again: Callable[[R], bool],
    attempts: int,
) -> list[R]:
    """The results of all items, in order; those that failed wait together and are done again."""
    results: dict[int, R] = {}
    left = list(range(len(items)))
    with suppress(_SomeFailedError):
        for attempt in stamina.retry_context(
            on=_SomeFailedError,
            attempts=attempts,
            timeout=None,
            wait_initial=0.2,
            wait_max=5.0,
            wait_jitter=0.2,
        ):
            with attempt:
                results.update(zip(left, work([items[n] for n in left]), strict=True))
                left = [n for n in left if again(results[n])]
                if left:
                    raise _SomeFailedError
    return [results[n] for n in range(len(items))]


def reason_of(error: DistributaryError) -> str:
    """Why a table is parked, in one line."""
    return f"{error.code}: {error.evidence or error.what}"


def park_failed(context: RunContext, entry: TableEntry, mark: Mark, reason: str) -> Published:
    """Park the batch of one table."""
    park(entry, mark, folder=context.parking, reason=reason)
    context.bus.publish(
        TableParked(
            pipeline=context.config.name,
            batch=mark.batch,
            table=entry.table.name,
            records=entry.records,
            error=reason,
        )
    )
    return Published(entry.table.name, Outcome.PARKED, error=reason)
