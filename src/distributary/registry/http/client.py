"""A question to whichever address of a registry answers, and what the answer means.

    an answer of the expected shape                           given back
    4xx with the registry's own error code                    given back as a Refusal
    401, 403, 407                                             RegistryError, REGISTRY_AUTH
    silence, 408, 429, 5xx; also a shape that is not expected the next address, then all of them
                                                              again, then RegistryUnavailableError
    3xx, or 4xx in any other form: this is no registry        ConfigError, unless it was one before

Only a Refusal can come to mean that a schema does not exist, and only that dead-letters a record.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_random_exponential

from distributary.config.kafka import Registry
from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    RegistryError,
    RegistryUnavailableError,
)
from distributary.model.names import printable
from distributary.model.record import Format
from distributary.registry.base import Reference, RegistryCalls, not_found
from distributary.registry.compatibility.levels import Level
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

# The shapes that answers must have; whatever has another is not believed.

MAX_ID = 2**31 - 1
"""Registries count in Java's `int`; a record can claim up to twice as much."""

Id = Annotated[int, Field(ge=0, le=MAX_ID, strict=True)]
Number = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]

_FORMATS = {str(format).upper(): format for format in Format}


class _Shape(BaseModel):
    # newer registries say more than is asked for here
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SchemaShape(_Shape):
    """A schema, asked for by id, by GUID, or as a version of a subject."""

    text: str = Field(alias="schema")
    type: str | None = Field(default=None, alias="schemaType")
    given: tuple[Reference, ...] | None = Field(default=None, alias="references")

    @property
    def format(self) -> Format | None:
        """Its format; AVRO where nothing is said, because there was nothing else once."""
        return _FORMATS.get((self.type or "AVRO").upper())

    @property
    def references(self) -> tuple[Reference, ...]:
        """What it imports."""
        return self.given or ()


class VersionShape(SchemaShape):
    """A schema as a version of a subject."""

    id: Id
    version: Number
    subject: str | None = None
    """Where it was found: some registries look into other contexts, too."""


class ListedShape(VersionShape):
    """A schema in a list of all."""

    subject: str


class PlaceShape(_Shape):
    """Where a schema is registered."""

    subject: str
    version: Number


class RegisteredShape(_Shape):
    """What a registration or a search for a text gives; only newer registries say all of it."""

    id: Id
    version: Number | None = None


class ContextShape(_Shape):
    """The id that a GUID has in one context of a registry."""

    id: Id
    context: str = ""


class LevelShape(_Shape):
    """A compatibility level, under either of its two names."""

    read: Level | None = Field(default=None, alias="compatibilityLevel")
    written: Level | None = Field(default=None, alias="compatibility")


class VerdictShape(_Shape):
    """Whether a schema would be accepted."""

    is_compatible: bool
    messages: list[str] | None = None


class ErrorShape(_Shape):
    """How a registry says no."""

    error_code: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The registry's own no; what it means depends on the question."""

    status: int
    code: int
    """Confluent's code; 0 where a registry does not know the question."""
    message: str

    @property
    def missing(self) -> bool:
        """Whether it says that there is no such subject, version or schema, or no longer."""
        return self.code in (40401, 40402, 40403, 40404, 40406)

    @property
    def unknown(self) -> bool:
        """Whether the registry does not know the question."""
        return self.code == 0

    def error(self, what: str, name: str) -> RegistryError:
        """The error for people: that there is no such thing, or that it will not do it."""
        if self.missing:
            return not_found(what, name, evidence=self.message)
        return RegistryError(
            f"the registry refuses a question about a {what}",
            code=ErrorCode.REGISTRY_REFUSED,
            where=printable(name),
            evidence=f"{self.code}: {self.message}",
            next_step="see what the registry says",
        )


def sent(text: str, format: Format, references: Iterable[Reference]) -> dict[str, Any]:
    """A schema as a registry wants to be told it."""
    return {
        "schema": text,
        "schemaType": format.upper(),
        "references": [asdict(reference) for reference in references],
    }


# Asking until somebody answers.

ATTEMPTS = 4
PATIENCE_SECONDS = 30.0
"""The longest `Retry-After` that is waited for here; whoever asks for more is left alone."""

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 5.0
_OWN_CODES = 1000
_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Unanswered(Exception):
    """Nobody answered: why, by address."""

    def __init__(self, silences: Mapping[str, Silence]) -> None:
        self.silences = silences
        self.retry_after = max(silence.retry_after for silence in silences.values())
        hope = any(silence.again for silence in silences.values())
        self.again = hope and self.retry_after <= PATIENCE_SECONDS

    def __str__(self) -> str:
        return "; ".join(
            f"{address}: {silence.what}" + (f" ({silence.evidence})" if silence.evidence else "")
            for address, silence in self.silences.items()
        )

    def error(self) -> DistributaryError:
        """The error for people: never a reason to dead-letter a record."""
        silences = tuple(self.silences.values())
        last, codes = silences[-1], {silence.code for silence in silences}
        alike = len({silence.what for silence in silences}) == 1
        what = last.what if alike else "no address of the registry gives an answer"
        where, step = ", ".join(self.silences), last.next_step
        evidence = str(self) if len(silences) > 1 else last.evidence
        if codes == {ErrorCode.CONFIG_INVALID}:
            where = f"registry: {where}"
            return ConfigError(what, where=where, evidence=evidence, next_step=step)
        spoke = codes <= {ErrorCode.CONFIG_INVALID, ErrorCode.REGISTRY_GARBAGE}
        code = ErrorCode.REGISTRY_GARBAGE if spoke else ErrorCode.REGISTRY_UNAVAILABLE
        return RegistryUnavailableError(
            what, code=code, where=where, evidence=evidence, next_step=step
        )


class RegistryClient:
    """Asks until somebody answers, within bounds; safe to use from several threads."""

    def __init__(
        self,
        config: Registry,
        *,
        attempts: int,
        most_bytes: int = MAX_ANSWER,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
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
        self.addresses = self._order = self._transport.addresses
        """The addresses, fit to be shown."""
        self.shown = secrets.shown
        self._proven: set[str] = set()
        self._attempts = attempts
        self._sleep = sleep
        self.calls: RegistryCalls | None = None
        """Where every question is counted, if anywhere."""

    def ask(
        self,
        method: str,
        *segments: str | int,
        shape: type[T],
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | Refusal:
        """The answer to a question, which may be asked twice without harm, or the registry's no.

        An `optional` question may be one that the registry does not know, or that is not let
        through because of a name in it: then the answer is a Refusal without a code.
        """
        path = "".join(f"/{_segment(str(segment))}" for segment in segments)
        content = None if body is None else json.dumps(body).encode()

        def asked(address: str) -> T | Refusal:
            answer = self._answer(address, method, path, query=query or {}, body=content)
            return self._meaning(answer, address, shape, optional=optional)

        retrying = Retrying(
            sleep=self._sleep,
            stop=stop_after_attempt(self._attempts),
            wait=_wait,
            retry=retry_if_exception(lambda error: isinstance(error, _Unanswered) and error.again),
            before_sleep=lambda state: _log.warning(
                "asking the registry again in %.1f s: %s", state.upcoming_sleep, _why(state)
            ),
            reraise=True,
        )
        try:
            return retrying(self._round, asked)
        except _Unanswered as error:
            unanswered = error
        raise unanswered.error()

    def close(self) -> None:
        """Let go of all connections."""
        self._transport.close()
        if self._tokens is not None:
            self._tokens.close()

    def _round(self, asked: Callable[[str], T | Refusal]) -> T | Refusal:
        silences: dict[str, Silence] = {}
        for address in self._order:
            try:
                found = asked(address)
            except Silence as silence:
                silences[silence.where or address] = silence
                if silence.where:
                    # without a token, every address would say the same
                    break
            else:
                # begin with this one next time: a silent address costs its whole timeout
                self._order = (address, *(a for a in self._order if a != address))
                return found
        raise _Unanswered(silences)

    def _answer(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None = None,
    ) -> Answer:
        def asked(headers: Mapping[str, str]) -> Answer:
            began, status = time.monotonic(), None
            try:
                answer = self._transport.ask(
                    address, method, path, query=query, body=body, headers=headers
                )
                status = answer.status
                return answer
            finally:
                if self.calls is not None:
                    self.calls.add(path, status=status, seconds=time.monotonic() - began)

        if self._tokens is None:
            return asked({})
        token = self._tokens.token()
        answer = asked({"Authorization": f"Bearer {token}"})
        if answer.status != 401:
            return answer
        # a token that is not accepted may have ended before its time
        return asked({"Authorization": f"Bearer {self._tokens.token(instead_of=token)}"})

    def _meaning(
        self, answer: Answer, address: str, shape: type[T], *, optional: bool
    ) -> T | Refusal:
        if 200 <= answer.status < 300:
            try:
                value: T = _adapter(cast(Hashable, shape)).validate_json(answer.body)
            except ValidationError as error:
                raise self._garbage(answer, error) from None
            self._proven.add(address)
            return value
        refusal = self._refusal(answer)
        said = f"status {answer.status}" + (f": {refusal.message}" if refusal is not None else "")
        if answer.is_busy and answer.status != 501:
            much = answer.status == 429
            what = "the registry is asked too much" if much else "the registry fails"
            raise Silence(what, said, retry_after=answer.retry_after)
        if answer.status in (401, 403, 407):
            # a firewall's opinion about a strange name is not the registry's about us
            about_name = optional and refusal is None and answer.status == 403
            if not about_name or address not in self._proven:
                raise _denied(address, answer.status, said)
        if refusal is not None:
            self._proven.add(address)
            return refusal
        if optional and self._is_registry(address):
            return Refusal(answer.status, 0, said)
        known = address in self._proven
        if answer.location:
            said += f", sent on to {answer.location.split('?')[0]}"
        raise Silence(
            "there is no schema registry at this address",
            self.shown(said),
            "check registry.url: it is the address to which /subjects can be appended",
            code=ErrorCode.REGISTRY_GARBAGE if known else ErrorCode.CONFIG_INVALID,
            again=known,
        )

    def _garbage(self, answer: Answer, error: ValidationError) -> Silence:
        # the content of such an answer is told by its size only
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at {place}" if place else ""
        return Silence(
            "the answer is not that of a schema registry",
            self.shown(f"status {answer.status}, {len(answer.body)} bytes: {first['type']}{where}"),
            "check registry.url, and what stands between here and the registry",
            code=ErrorCode.REGISTRY_GARBAGE,
        )

    def _refusal(self, answer: Answer) -> Refusal | None:
        try:
            said = ErrorShape.model_validate_json(answer.body)
        except ValidationError:
            return None
        # a registry has codes of its own; the bare status is what any server gives for any path
        if answer.status in (404, 405, 501) and said.error_code < _OWN_CODES:
            return None
        message = self.shown(said.message or "no reason given")
        return Refusal(answer.status, said.error_code or answer.status, message)

    def _is_registry(self, address: str) -> bool:
        """Whether there is a registry at this moment: it may just be restarting behind a proxy."""
        try:
            answer = self._answer(address, "GET", "/schemas/types", query={})
            _adapter(list[str]).validate_json(answer.body if answer.status == 200 else b"")
        except (Silence, ValidationError):
            return False
        self._proven.add(address)
        return True


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _denied(address: str, status: int, said: str) -> RegistryError:
    who = "proxy before the registry" if status == 407 else "registry"
    allowed = "does not let us do this" if status == 403 else "does not know us"
    return RegistryError(
        f"the {who} {allowed}",
        code=ErrorCode.REGISTRY_AUTH,
        where=address,
        evidence=said,
        next_step="check registry.username and password, token, oauth or certificate, and rights",
    )


def _segment(text: str) -> str:
    """Any text as one segment of a path."""
    quoted = quote(text, safe="", errors="surrogatepass")
    # the only two names that mean something to whoever tidies paths up on the way
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _why(state: RetryCallState) -> _Unanswered:
    return cast(_Unanswered, state.outcome and state.outcome.exception())


def _wait(state: RetryCallState) -> float:
    own = wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)(state)
    return max(own, _why(state).retry_after)


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
    """Every entry once, page by page, as far as somebody takes them."""
    seen: set[Hashable] = set()
    first: Hashable = None
    offset = stale = 0
    while page := ask(offset, size):
        fresh = {name: entry for entry in page if (name := key(entry)) not in seen}
        seen |= fresh.keys()
        if not offset:
            first = key(page[0])
        elif not fresh and key(page[0]) == first:
            # from the beginning again: fine if a page is everything, whatever is asked for
            if len(seen) > 1 and len(ask(0, 1)) == 1:
                raise _broken("the registry repeats the pages of a listing", "the same page again")
            return
        yield from fresh.values()
        if len(page) > size:
            return
        offset, stale = offset + len(page), 0 if fresh else stale + 1
        if len(seen) > most or stale > _MOST_STALE:
            raise _broken("a listing of the registry does not end", f"{len(seen)} entries")


def _broken(what: str, evidence: str) -> RegistryUnavailableError:
    return RegistryUnavailableError(
        what,
        code=ErrorCode.REGISTRY_GARBAGE,
        where="registry",
        evidence=evidence,
        next_step="check registry.url, and what stands between here and the registry",
    )
