"""Requests to the first address of a registry that answers, and the meaning of the answers.

    an answer of the expected shape                           returned
    4xx with the registry's own error code                    returned as a Refusal
    401, 403, 407                                             RegistryError, REGISTRY_AUTH
    no answer, 408, 429, 5xx, or an unexpected shape          the next address, then all of them
                                                              again, then RegistryUnavailableError
    3xx, or 4xx in any other form: this is no registry        ConfigError, unless it was one before

Only a Refusal can mean that a schema does not exist, and only then a record is dead-lettered.
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

from distributary.config.registry import RegistryConfig
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

# The shapes of a registry's answers; an answer of another shape is rejected.

MAX_ID = 2**31 - 1
"""The largest id: registries count in Java's `int`, while a record can claim twice as much."""

Id = Annotated[int, Field(ge=0, le=MAX_ID, strict=True)]
Number = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]

_FORMATS = {str(format).upper(): format for format in Format}


class _Shape(BaseModel):
    # newer registries send more fields than are used here
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SchemaShape(_Shape):
    """A schema, requested by id, by GUID, or as a version of a subject."""

    text: str = Field(alias="schema")
    type: str | None = Field(default=None, alias="schemaType")
    given: tuple[Reference, ...] | None = Field(default=None, alias="references")

    @property
    def format(self) -> Format | None:
        """Return the schema's format; without a type it is Avro, once the only format."""
        return _FORMATS.get((self.type or "AVRO").upper())

    @property
    def references(self) -> tuple[Reference, ...]:
        """Return the schema's references."""
        return self.given or ()


class VersionShape(SchemaShape):
    """A schema as a version of a subject."""

    id: Id
    version: Number
    subject: str | None = None
    """The subject of the schema: some registries search other contexts, too."""


class ListedShape(VersionShape):
    """A schema in a listing of all schemas."""

    subject: str


class PlaceShape(_Shape):
    """A subject and version under which a schema is registered."""

    subject: str
    version: Number


class RegisteredShape(_Shape):
    """The result of a registration or of a search for a text; older registries omit the version."""

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
    """The result of a compatibility check."""

    is_compatible: bool
    messages: list[str] | None = None


class ErrorShape(_Shape):
    """A registry's error."""

    error_code: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """A refusal by the registry; its meaning depends on the request."""

    status: int
    code: int
    """Confluent's error code; 0 if the registry does not support the request."""
    message: str

    @property
    def missing(self) -> bool:
        """Return True if the subject, version or schema does not exist, or not any more."""
        return self.code in (40401, 40402, 40403, 40404, 40406)

    @property
    def unknown(self) -> bool:
        """Return True if the registry does not support the request."""
        return self.code == 0

    def error(self, what: str, name: str) -> RegistryError:
        """Build the error for people: the object does not exist, or the registry refuses."""
        if self.missing:
            return not_found(what, name, evidence=self.message)
        return RegistryError(
            f"the registry refuses a request about a {what}",
            code=ErrorCode.REGISTRY_REFUSED,
            where=printable(name),
            evidence=f"{self.code}: {self.message}",
            next_step="follow the registry's message",
        )


def sent(text: str, format: Format, references: Iterable[Reference]) -> dict[str, Any]:
    """Return a schema as the body of a request."""
    return {
        "schema": text,
        "schemaType": format.upper(),
        "references": [asdict(reference) for reference in references],
    }


# Requests with retries and fallback addresses.

ATTEMPTS = 4
PATIENCE_SECONDS = 30.0
"""The longest `Retry-After` that is waited for; with a longer one the request fails."""

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 5.0
_OWN_CODES = 1000
_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Unanswered(Exception):
    """The reasons why no address answered, by address."""

    def __init__(self, silences: Mapping[str, Silence]) -> None:
        self.silences = silences
        self.retry_after = max(silence.retry_after for silence in silences.values())
        may_answer = any(silence.again for silence in silences.values())
        self.again = may_answer and self.retry_after <= PATIENCE_SECONDS

    def __str__(self) -> str:
        return "; ".join(
            f"{address}: {silence.what}" + (f" ({silence.evidence})" if silence.evidence else "")
            for address, silence in self.silences.items()
        )

    def error(self) -> DistributaryError:
        """Build the error for people, which never dead-letters a record."""
        silences = tuple(self.silences.values())
        last, codes = silences[-1], {silence.code for silence in silences}
        alike = len({silence.what for silence in silences}) == 1
        what = last.what if alike else "no address of the registry answers"
        where, step = ", ".join(self.silences), last.next_step
        evidence = str(self) if len(silences) > 1 else last.evidence
        if codes == {ErrorCode.CONFIG_INVALID}:
            where = f"registry: {where}"
            return ConfigError(what, where=where, evidence=evidence, next_step=step)
        answered = codes <= {ErrorCode.CONFIG_INVALID, ErrorCode.REGISTRY_GARBAGE}
        code = ErrorCode.REGISTRY_GARBAGE if answered else ErrorCode.REGISTRY_UNAVAILABLE
        return RegistryUnavailableError(
            what, code=code, where=where, evidence=evidence, next_step=step
        )


class RegistryClient:
    """A client that retries within limits until an address answers; safe for several threads."""

    def __init__(
        self,
        config: RegistryConfig,
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
        """The addresses, without secrets."""
        self.shown = secrets.shown
        self._proven: set[str] = set()
        self._attempts = attempts
        self._sleep = sleep
        self.calls: RegistryCalls | None = None
        """The counter of all requests, if there is one."""

    def ask(
        self,
        method: str,
        *segments: str | int,
        shape: type[T],
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | HttpRefusal:
        """Send a request that may safely be repeated; return the answer or the registry's refusal.

        An `optional` request may be one that the registry does not support, or that a proxy blocks
        because of a name in it. Then the result is a Refusal without a code.
        """
        path = "".join(f"/{_segment(str(segment))}" for segment in segments)
        content = None if body is None else json.dumps(body).encode()

        def request(address: str) -> T | HttpRefusal:
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
            return retrying(self._round, request)
        except _Unanswered as error:
            unanswered = error
        raise unanswered.error()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()
        if self._tokens is not None:
            self._tokens.close()

    def _round(self, request: Callable[[str], T | HttpRefusal]) -> T | HttpRefusal:
        silences: dict[str, Silence] = {}
        for address in self._order:
            try:
                answer = request(address)
            except Silence as silence:
                silences[silence.where or address] = silence
                if silence.where:
                    # without a token every address would refuse
                    break
            else:
                # start with this address next time, because a silent one costs its whole timeout
                self._order = (address, *(other for other in self._order if other != address))
                return answer
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
        def send(headers: Mapping[str, str]) -> Answer:
            started, status = time.monotonic(), None
            try:
                answer = self._transport.ask(
                    address, method, path, query=query, body=body, headers=headers
                )
                status = answer.status
                return answer
            finally:
                if self.calls is not None:
                    self.calls.add(path, status=status, seconds=time.monotonic() - started)

        if self._tokens is None:
            return send({})
        token = self._tokens.token()
        answer = send({"Authorization": f"Bearer {token}"})
        if answer.status != 401:
            return answer
        # a refused token may have expired early
        return send({"Authorization": f"Bearer {self._tokens.token(instead_of=token)}"})

    def _meaning(
        self, answer: Answer, address: str, shape: type[T], *, optional: bool
    ) -> T | HttpRefusal:
        if 200 <= answer.status < 300:
            try:
                value: T = _adapter(cast(Hashable, shape)).validate_json(answer.body)
            except ValidationError as error:
                raise self._garbage(answer, error) from None
            self._proven.add(address)
            return value
        refusal = self._refusal(answer)
        evidence = f"status {answer.status}" + (
            f": {refusal.message}" if refusal is not None else ""
        )
        if answer.is_busy and answer.status != 501:
            too_many = answer.status == 429
            what = "the registry gets too many requests" if too_many else "the registry fails"
            raise Silence(what, evidence, retry_after=answer.retry_after)
        if answer.status in (401, 403, 407):
            # a proxy's 403 for an unusual name does not mean that the registry refuses us
            about_name = optional and refusal is None and answer.status == 403
            if not about_name or address not in self._proven:
                raise _denied(address, answer.status, evidence)
        if refusal is not None:
            self._proven.add(address)
            return refusal
        if optional and self._is_registry(address):
            return HttpRefusal(answer.status, 0, evidence)
        answered_before = address in self._proven
        if answer.location:
            evidence += f", redirected to {answer.location.split('?')[0]}"
        raise Silence(
            "there is no schema registry at this address",
            self.shown(evidence),
            "check registry.url: it is the address to which /subjects can be appended",
            code=ErrorCode.REGISTRY_GARBAGE if answered_before else ErrorCode.CONFIG_INVALID,
            again=answered_before,
        )

    def _garbage(self, answer: Answer, error: ValidationError) -> Silence:
        # the content of such an answer is not shown, only its size
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at {place}" if place else ""
        return Silence(
            "the answer does not come from a schema registry",
            self.shown(f"status {answer.status}, {len(answer.body)} bytes: {first['type']}{where}"),
            "check registry.url, and any proxy before the registry",
            code=ErrorCode.REGISTRY_GARBAGE,
        )

    def _refusal(self, answer: Answer) -> HttpRefusal | None:
        try:
            registry_error = ErrorShape.model_validate_json(answer.body)
        except ValidationError:
            return None
        # a registry has its own codes; a bare status is what any server sends for any path
        if answer.status in (404, 405, 501) and registry_error.error_code < _OWN_CODES:
            return None
        message = self.shown(registry_error.message or "no reason given")
        return HttpRefusal(answer.status, registry_error.error_code or answer.status, message)

    def _is_registry(self, address: str) -> bool:
        """Return True if a registry answers now: it may be restarting behind a proxy."""
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


def _denied(address: str, status: int, evidence: str) -> RegistryError:
    refuser = "proxy before the registry" if status == 407 else "registry"
    allowed = "does not allow this request" if status == 403 else "does not accept the credentials"
    return RegistryError(
        f"the {refuser} {allowed}",
        code=ErrorCode.REGISTRY_AUTH,
        where=address,
        evidence=evidence,
        next_step="check registry.username and password, token, oauth or certificate, and rights",
    )


def _segment(text: str) -> str:
    """Return any text as one segment of a path."""
    quoted = quote(text, safe="", errors="surrogatepass")
    # the only two names that have a meaning for software that normalizes paths
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _why(state: RetryCallState) -> _Unanswered:
    return cast(_Unanswered, state.outcome and state.outcome.exception())


def _wait(state: RetryCallState) -> float:
    back_off = wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)(state)
    return max(back_off, _why(state).retry_after)


# Listings in pages, whatever a registry makes of `offset` and `limit`.
#
# A page may be shorter than requested, because servers have limits of their own: only an empty page
# is the end. Old servers, and some new ones, ignore pages and return everything each time. A server
# that respects the limit but not the offset is rejected, because the rest of its listing would be
# missing.

PAGE = 1000
"""Entries in a page; the most that Confluent's registry returns at once."""
MOST = 2_000_000
"""The entries after which a listing counts as endless."""

_MOST_STALE = 10
"""Pages in a row without new entries: entries move while others are added."""

Ask = Callable[[int, int], Sequence[T]]
"""Returns the page from an offset on, with at most a number of entries."""


def listed(
    ask: Ask[T],
    *,
    key: Callable[[T], Hashable] = lambda entry: entry,
    size: int = PAGE,
    most: int = MOST,
) -> Iterator[T]:
    """Yield every entry once, requesting pages as they are consumed."""
    seen: set[Hashable] = set()
    first: Hashable = None
    offset = stale = 0
    while page := ask(offset, size):
        fresh = {name: entry for entry in page if (name := key(entry)) not in seen}
        seen |= fresh.keys()
        if not offset:
            first = key(page[0])
        elif not fresh and key(page[0]) == first:
            # The page is the first one again, which is right only if the server ignores the limit
            # as well.
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
        next_step="check registry.url, and any proxy before the registry",
    )
