"""Handling of tables that cannot be written: further attempts, then parking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from distributary.engine.context import RunContext
from distributary.errors import DistributaryError
from distributary.model.manifest import Mark, TableEntry
from distributary.observe.events import TableParked
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import park
from distributary.retries import attempts_on

BEHIND_OTHERS = "waits behind earlier batches"

T = TypeVar("T")
R = TypeVar("R")


class _SomeFailedError(Exception):
    """An internal error that starts another round of attempts."""


def in_rounds(
    work: Callable[[Sequence[T]], Sequence[R]],
    items: Sequence[T],
    *,
    again: Callable[[R], bool],
    attempts: int,
) -> list[R]:
    """Return the results in the order of items; retry failed items together after a pause."""
    results: dict[int, R] = {}
    left = list(range(len(items)))
    with suppress(_SomeFailedError):
        for attempt in attempts_on(_SomeFailedError, most=attempts, pause=0.2, jitter=0.2):
            with attempt:
                results.update(zip(left, work([items[n] for n in left]), strict=True))
                left = [n for n in left if again(results[n])]
                if left:
                    raise _SomeFailedError
    return [results[n] for n in range(len(items))]


def reason_of(error: DistributaryError) -> str:
    """Return the reason for parking a table, in one line."""
    return f"{error.code}: {error.evidence or error.what}"


def park_failed(context: RunContext, entry: TableEntry, mark: Mark, reason: str) -> Published:
    """Park the batch of one table."""
    park(entry, mark, folder=context.publishing.parking, reason=reason)
    context.reports.bus.publish(
        TableParked(
            pipeline=context.config.name,
            batch=mark.batch,
            table=entry.table.name,
            records=entry.records,
            error=reason,
        )
    )
    return Published(entry.table.name, Outcome.PARKED, error=reason)
