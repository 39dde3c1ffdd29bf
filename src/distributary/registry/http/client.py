"""A question to whichever address of a registry answers, and what the answer means.

    an answer of the expected shape                           given back
    4xx with the registry's own error code                    given back as a Refusal
    401, 403, 407                                             RegistryError, REGISTRY_AUTH
    silence, 408, 429, 5xx; also a shape that is not expected the next address, then all of them
                                                              again, then RegistryUnavailableError
    3xx, or 4xx in any other form: this is no registry        ConfigError, unless it was one before

Only a Refusal can come to mean that a schema does not exist, and only that dead-letters a record.
An address that was a registry a moment ago and is none now is being moved or restarted: the same
as silence. Redirects are not followed: nobody gets credentials whom the file does not name.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt
from tenacity.wait import wait_random_exponential

from distributary.config.kafka import Registry
from distributary.errors import ErrorCode, RegistryUnavailableError
from distributary.registry.base import (
    DEFAULT,
    Reference,
    RegistryCalls,
    named,
    prefix_of,
    qualified,
)
from distributary.registry.http.answers import (
    ERROR,
    NAMES,
    NUMBERS,
    Refusal,
    SchemaShape,
    busy,
    denied,
    garbage,
    line,
    refused,
    unanswered,
)
from distributary.registry.http.transport import (
    MAX_ANSWER,
    Answer,
    Secrets,
    Silence,
    Tokens,
    Transport,
    clients,
    trust,
)

ATTEMPTS = 4
PATIENCE_SECONDS = 30.0
"""The longest `Retry-After` that is waited for here; whoever asks for more is left alone."""

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 5.0
_OWN_CODES = 1000
_UNAUTHORIZED = 401
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Question(Generic[T]):
    method: str
    path: str
    shape: TypeAdapter[T]
    optional: bool
    query: Mapping[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Nobody answered: why, by address."""

    silences: Mapping[str, Silence] = field(default_factory=dict)

    @property
    def retry_after(self) -> float:
        return max(silence.retry_after for silence in self.silences.values())

    @property
    def again(self) -> bool:
        hope = any(silence.again for silence in self.silences.values())
        return hope and self.retry_after <= PATIENCE_SECONDS


class RegistryClient:
    """Asks until somebody answers, within bounds; safe to use from several threads."""

    def __init__(
        self,
        config: Registry,
        *,
        attempts: int = ATTEMPTS,
        most_bytes: int = MAX_ANSWER,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        secrets, context = Secrets(config), trust(config)
        self._transport = Transport(
            clients(config, context),
            seconds=config.timeout.total_seconds(),
            secrets=secrets,
            most_bytes=most_bytes,
        )
        self._tokens: Tokens | None = None
        if config.oauth is not None:
            self._tokens = Tokens(
                config, config.oauth, context=context, secrets=secrets, clock=clock
            )
        self._order = self._transport.addresses
        self._proven: set[str] = set()
        self._attempts = attempts
        self._sleep = sleep
        self.calls: RegistryCalls | None = None
        """Where every question is counted, if anywhere."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses, fit to be shown."""
        return self._transport.addresses

    def ask(
        self,
        method: str,
        *segments: str | int,
        shape: TypeAdapter[T],
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | Refusal:
        """The answer to a question, or the registry's own no.

        Args:
            method: The HTTP method; every question may be asked twice without harm.
            segments: The path; a segment may be any text.
            shape: What the answer must look like.
            query: The path's parameters.
            body: What is sent along.
            optional: The registry may not know this question, or may not let a name through; then
                the answer is a Refusal without a code.

        Raises:
            RegistryUnavailableError: Nobody answered, or not as a registry does.
            RegistryError: The credentials were not accepted.
            ConfigError: There is no registry at the address, and never was since the start.
        """
        path = "".join(f"/{_segment(str(segment))}" for segment in segments)
        content = None if body is None else json.dumps(body).encode()
        question = _Question(method, path, shape, optional, query or {}, content)
        retrying = Retrying(
            sleep=self._sleep,
            stop=stop_after_attempt(self._attempts),
            wait=_wait,
            retry=retry_if_result(lambda found: isinstance(found, _Failed) and found.again),
            before_sleep=_tell,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        found: T | Refusal | _Failed = retrying(self._round, question)
        if isinstance(found, _Failed):
            raise unanswered(found.silences)
        return found

    def shown(self, text: str) -> str:
        """Text of the registry on one line, without our secrets."""
        return self._transport.shown(text)

    def close(self) -> None:
        """Let go of all connections."""
        self._transport.close()
        if self._tokens is not None:
            self._tokens.close()

    def _round(self, question: _Question[T]) -> T | Refusal | _Failed:
        silences: dict[str, Silence] = {}
        for address in self._order:
            answer = self._answer(
                address, question.method, question.path, query=question.query, body=question.body
            )
            if not isinstance(answer, Silence):
                meaning = self._meaning(question, address, answer)
                if not isinstance(meaning, Silence):
                    # begin with this one next time: a silent address costs its whole timeout
                    rest = tuple(a for a in self._order if a != address)
                    self._order = (address, *rest)
                    return meaning
                answer = meaning
            silences[answer.where or address] = answer
            if answer.where:
                # without a token, every address would say the same
                break
        return _Failed(silences)

    def _answer(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer | Silence:
        """What an address says; a token that it does not accept may have ended before its time."""
        refused: str | None = None
        while True:
            token = self._tokens.token(instead_of=refused) if self._tokens is not None else None
            if isinstance(token, Silence):
                return token
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            began = time.monotonic()
            answer = self._transport.ask(
                address, method, path, query=query or {}, body=body, headers=headers
            )
            if self.calls is not None:
                status = answer.status if isinstance(answer, Answer) else None
                self.calls.add(path, status=status, seconds=time.monotonic() - began)
            ended = isinstance(answer, Answer) and answer.status == _UNAUTHORIZED
            if not ended or token is None or refused is not None:
                return answer
            refused = token

    def _meaning(
        self, question: _Question[T], address: str, answer: Answer
    ) -> T | Refusal | Silence:
        if 200 <= answer.status < 300:
            try:
                value = question.shape.validate_json(answer.body)
            except ValidationError as error:
                return garbage(answer, error, shown=self.shown)
            self._proven.add(address)
            return value
        if answer.status in (408, 429) or (answer.status >= 500 and answer.status != 501):
            return busy(answer, self._refusal(answer))
        refusal = self._refusal(answer)
        if answer.status in (401, 403, 407):
            # a firewall's opinion about a strange name is not the registry's about us
            about_name = question.optional and refusal is None and answer.status == 403
            if not about_name or address not in self._proven:
                raise denied(address, answer, refusal)
        if refusal is not None:
            self._proven.add(address)
            return refusal
        return self._stranger(question, address, answer)

    def _refusal(self, answer: Answer) -> Refusal | None:
        try:
            said = ERROR.validate_json(answer.body)
        except ValidationError:
            return None
        # a registry has codes of its own; the bare status is what any server gives for any path
        if answer.status in (404, 405, 501) and said.error_code < _OWN_CODES:
            return None
        message = self.shown(said.message or "no reason given")
        return Refusal(answer.status, said.error_code or answer.status, message)

    def _stranger(self, question: _Question[T], address: str, answer: Answer) -> Refusal | Silence:
        if question.optional and self._is_registry(address):
            return Refusal(answer.status, 0, f"status {answer.status}")
        known = address in self._proven
        evidence = f"status {answer.status}"
        if answer.location:
            evidence += f", sent on to {answer.location.split('?')[0]}"
        return Silence(
            "there is no schema registry at this address",
            self.shown(evidence),
            "check registry.url: it is the address to which /subjects can be appended",
            code=ErrorCode.REGISTRY_GARBAGE if known else ErrorCode.CONFIG_INVALID,
            again=known,
        )

    def _is_registry(self, address: str) -> bool:
        """Whether there is a registry at this moment: it may just be restarting behind a proxy."""
        answer = self._answer(address, "GET", "/schemas/types")
        if not isinstance(answer, Answer) or answer.status != 200:
            return False
        try:
            NAMES.validate_json(answer.body)
        except ValidationError:
            return False
        self._proven.add(address)
        return True


def _segment(text: str) -> str:
    """Any text as one segment of a path."""
    quoted = quote(text, safe="", errors="surrogatepass")
    # the only two names that mean something to whoever tidies paths up on the way
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _wait(state: RetryCallState) -> float:
    failed = state.outcome.result() if state.outcome else None
    asked = failed.retry_after if isinstance(failed, _Failed) else 0.0
    own = wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)(state)
    return max(own, asked)


def _tell(state: RetryCallState) -> None:
    failed = state.outcome.result() if state.outcome else None
    if isinstance(failed, _Failed):
        reasons = "; ".join(line(*entry) for entry in failed.silences.items())
        _log.warning("asking the registry again in %.1f s: %s", state.upcoming_sleep, reasons)


# Listings that come in pages, whatever a registry makes of `offset` and `limit`.
#
# A page may be shorter than asked for, because servers have limits of their own: only an empty
# one is the end. Old servers, and some new ones, do not know pages and give everything each time.
# Who knows how long a page is, but not where it begins, is not believed: the rest would be
# missing.

PAGE = 1000
"""Entries of a page; the most that Confluent's registry gives at once of its schemas."""
MOST = 2_000_000
"""Entries after which a listing is taken for one without end."""

_MOST_STALE = 10
"""Pages in a row that may bring nothing new: entries move while others are added."""

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


# Questions about the subjects and ids of one context of a registry.

_PLAIN = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,254}")
_LONGEST_NAME = 8000


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
