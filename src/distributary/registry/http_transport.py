"""One question to one address, with a deadline and a limit to its answer.

The official `SchemaRegistryClient` is not used. It reads an answer of any size into memory, bounds
each read but not the answer, so that a slow drip never ends, ignores `Retry-After`, asks a silent
address several times before the next one is tried, and gives what is not the registry's JSON back
as a message that quotes all of it. The HTTP client below it is used directly instead.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Thread

import httpx2

from distributary.errors import ErrorCode
from distributary.registry.http_access import JSON, Secrets

MAX_ANSWER = 32 * 1024 * 1024
"""The most bytes of an answer: a hundred thousand subjects are a fifth of it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is asked, in the words of messages."""

    name: str
    setting: str
    """Where the file has its address."""


REGISTRY = Peer("registry", "registry.url")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an address said, whatever it is."""

    status: int
    body: bytes
    location: str = ""
    """Where it sends us instead; nobody goes there."""
    retry_after: float = 0.0
    """Seconds that it asks us to wait before the next try."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Why an address said nothing that could be used."""

    what: str
    evidence: str = ""
    next_step: str = "bring the registry back; nothing is lost meanwhile"
    code: ErrorCode = ErrorCode.REGISTRY_UNAVAILABLE
    again: bool = True
    """Whether the same address may have more to say in a moment."""
    retry_after: float = 0.0
    where: str = ""
    """Who said nothing, if that is somebody else than the address that was asked."""


class Transport:
    """Asks; knows nothing about schemas, and never shows a secret."""

    def __init__(
        self,
        clients: Mapping[str, httpx2.Client],
        *,
        seconds: float,
        secrets: Secrets,
        peer: Peer = REGISTRY,
        most_bytes: int = MAX_ANSWER,
    ) -> None:
        self._clients = dict(clients)
        self._seconds = seconds
        self._secrets = secrets
        self._peer = peer
        self._most_bytes = most_bytes

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in the order in which they were given, fit to be shown."""
        return tuple(self._clients)

    def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | Silence:
        """One question, answered within the configured time or not at all.

        Asked from a thread of its own: looking a name up and a drip of single bytes know no
        deadline. A thread that is given up ends with its connection and holds up no exit.
        """
        future: Future[Answer | Silence] = Future()
        url = httpx2.URL(f"{address}{path}", params=query) if query else f"{address}{path}"
        sent = {**({} if body is None else {"Content-Type": JSON}), **(headers or {})}

        def work() -> None:
            try:
                future.set_result(self._exchange(self._clients[address], method, url, body, sent))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=work, name=f"{self._peer.name}-question", daemon=True).start()
        try:
            return future.result(timeout=self._seconds)
        except TimeoutError:
            return self._late()

    def shown(self, text: str) -> str:
        """Text from outside on one line, without any secret of ours that it may repeat."""
        return self._secrets.shown(text)

    def close(self) -> None:
        """Let go of all connections."""
        for client in self._clients.values():
            client.close()

    def _exchange(
        self,
        client: httpx2.Client,
        method: str,
        url: httpx2.URL | str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer | Silence:
        deadline = time.monotonic() + self._seconds
        content = bytearray()
        try:
            with client.stream(method, url, content=body, headers=headers) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > self._most_bytes:
                        return self._too_large()
                    if time.monotonic() > deadline:
                        return self._late()
                return Answer(
                    response.status_code,
                    bytes(content),
                    response.headers.get("location", ""),
                    _seconds_to_wait(response.headers.get("retry-after", "")),
                )
        except httpx2.TimeoutException:
            return self._late()
        except httpx2.LocalProtocolError:
            # its text quotes the header that it finds illegal
            return Silence("the question cannot be sent", again=False)
        except (httpx2.RequestError, UnicodeError) as error:
            return self._failure(error)

    def _late(self) -> Silence:
        return self._silence("the {peer} did not answer in time", f"waited {self._seconds:g} s")

    def _failure(self, error: httpx2.RequestError | UnicodeError) -> Silence:
        evidence = self.shown(f"{type(error).__name__}: {error}")
        causes = tuple(_causes(error))
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            step = "check the {peer}'s certificate, registry.ca_location and the client's own"
            return self._silence("there is no secure connection to the {peer}", evidence, step)
        # a name with a part of more than 63 letters does not even get to the resolver
        if any(isinstance(cause, socket.gaierror | UnicodeError) for cause in causes):
            step = "check the host in {setting}, and name resolution"
            return self._silence("the {peer}'s host is not known", evidence, step)
        if isinstance(error, httpx2.ProxyError):
            step = "check HTTPS_PROXY and NO_PROXY"
            return self._silence("the proxy does not lead to the {peer}", evidence, step)
        if isinstance(error, httpx2.ConnectError):
            return self._silence("the {peer} cannot be connected to", evidence)
        if isinstance(error, httpx2.DecodingError):
            code = ErrorCode.REGISTRY_GARBAGE
            return self._silence("the answer cannot be unpacked", evidence, code=code)
        return self._silence("the connection to the {peer} broke", evidence)

    def _too_large(self) -> Silence:
        return self._silence(
            "the answer does not end",
            f"more than {self._most_bytes} bytes",
            "check {setting}, and what stands between here and the {peer}",
            code=ErrorCode.REGISTRY_GARBAGE,
            again=False,
        )

    def _silence(
        self,
        what: str,
        evidence: str,
        next_step: str = "bring the {peer} back; nothing is lost meanwhile",
        *,
        code: ErrorCode = ErrorCode.REGISTRY_UNAVAILABLE,
        again: bool = True,
    ) -> Silence:
        words = {"peer": self._peer.name, "setting": self._peer.setting}
        what, next_step = what.format_map(words), next_step.format_map(words)
        return Silence(what, evidence, next_step, code=code, again=again)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _seconds_to_wait(header: str) -> float:
    """`Retry-After` is a number of seconds or a date; anything else asks for nothing."""
    if header.strip().isdecimal():
        return float(header[:12])
    try:
        wanted = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    aware = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
