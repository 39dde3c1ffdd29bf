"""Questions about the subjects and ids of one context of a registry."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from distributary.config.registry import Registry
from distributary.registry.calls import RegistryCalls
from distributary.registry.contexts import DEFAULT, named, prefix_of, qualified
from distributary.registry.http_answers import NAMES, NUMBERS, Refusal, SchemaShape
from distributary.registry.http_client import ATTEMPTS, RegistryClient
from distributary.registry.http_errors import refused
from distributary.registry.http_listing import listed
from distributary.registry.http_transport import MAX_ANSWER
from distributary.registry.references import Reference

_PLAIN = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,254}")
_LONGEST_NAME = 8000

T = TypeVar("T")


class HttpQuestions:
    """What can be asked, and about whom.

    Names are from outside: each is one segment of a path. What a server, or a proxy before it, will
    not even be asked about cannot be a subject of its either.
    """

    def __init__(
        self,
        config: Registry,
        *,
        attempts: int = ATTEMPTS,
        most_bytes: int = MAX_ANSWER,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = RegistryClient(
            config, attempts=attempts, most_bytes=most_bytes, sleep=sleep, clock=clock
        )
        self._clock = clock
        self._context = config.context or DEFAULT
        self._reference_seconds = config.cache_ttl.total_seconds()
        self._referenced: dict[tuple[Reference, bool], tuple[float, SchemaShape]] = {}

    def __repr__(self) -> str:
        context = () if self._context == DEFAULT else (f"context {self._context}",)
        return f"{type(self).__name__}({', '.join((*self._client.addresses, *context))})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count_in(self, calls: RegistryCalls) -> None:
        """From now on, count every question there."""
        self._client.calls = calls

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    @property
    def context(self) -> str:
        """The context whose subjects and ids these are."""
        return self._context

    def within(self, context: str) -> Self:
        """The same registry, asked about another of its contexts."""
        other = copy.copy(self)
        vars(other)["_context"] = named(context)
        return other

    def contexts(self) -> tuple[str, ...]:
        """All contexts that the registry has; the default one alone where it knows none."""
        found = tuple(self._listing("contexts", shape=NAMES, optional=True))
        return tuple(sorted({DEFAULT, *map(named, found)}))

    def _listing(
        self,
        path: str,
        *,
        shape: TypeAdapter[list[T]],
        query: Mapping[str, str] | None = None,
        key: Callable[[T], Hashable] = lambda entry: entry,
        optional: bool = False,
    ) -> Iterator[T]:
        """What a registry lists, page by page; nothing if it need not know the question."""

        def page(offset: int, limit: int) -> list[T]:
            asked = {**(query or {}), **_paged(offset, limit)}
            found = self._client.ask("GET", path, shape=shape, query=asked, optional=optional)
            if not isinstance(found, Refusal):
                return found
            if found.unknown or found.missing:
                return []
            raise refused(found, what=f"list of {path}", name=repr(self))

        return listed(page, key=key)

    def _numbers(self, subject: str) -> Iterator[int]:
        """The versions of a subject, none if it is not there."""

        def page(offset: int, limit: int) -> list[int]:
            found = self._about(
                "GET", subject, "versions", shape=NUMBERS, query=_paged(offset, limit)
            )
            if not isinstance(found, Refusal):
                return found
            if found.missing:
                return []
            raise refused(found, what="subject", name=subject)

        return listed(page)

    def _about(
        self,
        method: str,
        subject: str,
        *behind: str | int,
        shape: TypeAdapter[T],
        before: tuple[str, ...] = ("subjects",),
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | Refusal:
        """A question about a subject; a name that cannot be asked about is one that is missing."""
        nobody = Refusal(404, 40401, "a subject cannot have this name here")
        if not subject:
            return nobody
        subject = qualified(subject, self._context)
        plain = _PLAIN.fullmatch(subject) is not None
        if not plain and len(quote(subject, errors="surrogatepass")) > _LONGEST_NAME:
            return nobody
        found = self._client.ask(
            method,
            *(*before, subject, *behind),
            shape=shape,
            query=query,
            body=body,
            optional=optional or not plain,
        )
        return nobody if not plain and isinstance(found, Refusal) and found.unknown else found

    def _scope(self, context: str) -> dict[str, str]:
        """What an id needs to be looked up in a context."""
        return {"subject": prefix_of(context)} if context != DEFAULT else {}


def _paged(offset: int, limit: int) -> dict[str, str]:
    return {"offset": str(offset), "limit": str(limit)}
