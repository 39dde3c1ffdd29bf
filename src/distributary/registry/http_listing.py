"""Listings that come in pages, whatever a registry makes of `offset` and `limit`.

A page may be shorter than asked for, because servers have limits of their own: only an empty one
is the end. Old servers, and some new ones, do not know pages and give everything each time. Who
knows how long a page is, but not where it begins, is not believed: the rest would be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from distributary.errors import ErrorCode, RegistryUnavailableError

PAGE = 1000
"""Entries of a page; the most that Confluent's registry gives at once of its schemas."""
MOST = 2_000_000
"""Entries after which a listing is taken for one without end."""

_MOST_STALE = 10
"""Pages in a row that may bring nothing new: entries move while others are added."""

T = TypeVar("T")
Ask = Callable[[int, int], Sequence[T]]
"""The page from an offset on, with at most so many entries."""


def listed(
    ask: Ask[T],
    *,
    key: Callable[[T], Hashable] = lambda entry: entry,
    size: int = PAGE,
    most: int = MOST,
) -> Iterator[T]:
    """Every entry once, page by page, as far as somebody takes them.

    Raises:
        RegistryUnavailableError: The pages repeat themselves, or have no end.
    """
    seen: set[Hashable] = set()
    first: Hashable = None
    offset = stale = 0
    while page := ask(offset, size):
        fresh = _fresh(page, seen, key)
        if not offset:
            first = key(page[0])
        elif not fresh and key(page[0]) == first:
            # from the beginning again: fine if a page is everything, whatever is asked for
            if len(seen) > 1 and len(ask(0, 1)) == 1:
                raise _broken("the registry repeats the pages of a listing", "the same page again")
            return
        yield from fresh
        if len(page) > size:
            return
        offset, stale = offset + len(page), 0 if fresh else stale + 1
        if len(seen) > most or stale > _MOST_STALE:
            raise _broken("a listing of the registry does not end", f"{len(seen)} entries")


def _fresh(page: Sequence[T], seen: set[Hashable], key: Callable[[T], Hashable]) -> list[T]:
    fresh = []
    for entry in page:
        name = key(entry)
        if name not in seen:
            seen.add(name)
            fresh.append(entry)
    return fresh


def _broken(what: str, evidence: str) -> RegistryUnavailableError:
    return RegistryUnavailableError(
        what,
        code=ErrorCode.REGISTRY_GARBAGE,
        where="registry",
        evidence=evidence,
        next_step="check registry.url, and what stands between here and the registry",
    )
