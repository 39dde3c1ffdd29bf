"""One question to one address, with a deadline and a limit to its answer.

The official `SchemaRegistryClient` bounds neither the size nor the time of an answer, and quotes
what is not the registry's JSON in full. The HTTP client below it is used directly instead.
"""

from __future__ import annotations

import base64
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Annotated
from urllib.parse import quote_plus, urlencode

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distributary.config.base import is_loopback
from distributary.config.kafka import OAuth, Registry
from distributary.config.load import secret_values
from distributary.errors import ConfigError, ErrorCode, RegistryError
from distributary.model.names import printable
from distributary.threads import begun

# Who asks a registry, and by which way: credentials, certificates, proxies.

# on this level it writes down every header of an answer, and an answer may repeat our secrets
logging.getLogger("httpcore2").setLevel(logging.INFO)

JSON = "application/vnd.schemaregistry.v1+json"
_TOKENS = 8
"""How many of the last tokens are hidden."""
_ANY = "surrogatepass"


def clients(config: Registry, context: ssl.SSLContext) -> dict[str, httpx2.Client]:
    """A client for each address, under the address as it may be shown."""
    auth, headers = None, {"Accept": f"{JSON}, application/json"}
    # to whom a token speaks, where one host stands for many registries
    if config.logical_cluster is not None:
        headers["target-sr-cluster"] = config.logical_cluster
    if config.identity_pool is not None:
        headers["Confluent-Identity-Pool-Id"] = config.identity_pool
    if config.username is not None and config.password is not None:
        auth = httpx2.BasicAuth(config.username, config.password.get_secret_value())
    elif config.token is not None:
        # a token read from a file often ends with a line break
        token = config.token.get_secret_value().strip()
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(
                "the token cannot be sent",
                where="registry.token",
                evidence="it is empty, or not one line of ASCII text",
                next_step="check the variable or file that it comes from",
            )
        headers["Authorization"] = f"Bearer {token}"
    return {
        str(url).rstrip("/"): _client(url, config, context=context, headers=headers, auth=auth)
        for url in map(_bare, config.addresses)
    }


def _client(
    url: httpx2.URL,
    config: Registry,
    *,
    context: ssl.SSLContext,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None = None,
) -> httpx2.Client:
    try:
        return httpx2.Client(
            auth=auth,
            headers={"Accept-Encoding": "identity", "User-Agent": "distributary", **headers},
            timeout=config.timeout.total_seconds(),
            verify=context,
            follow_redirects=False,
            # proxies come from the environment, and have no business on the way to this machine
            trust_env=not is_loopback(url.host),
        )
    except (ImportError, ValueError, httpx2.InvalidURL):
        # said without the proxy's address, which may hold a password
        raise ConfigError(
            "the proxy that the environment names cannot be used",
            where="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY",
            next_step="correct them, or name the registry's host in NO_PROXY",
        ) from None


def _bare(address: str, *, where: str = "registry.url") -> httpx2.URL:
    """An address without anything that must not be shown or cannot have a path behind it."""
    try:
        return httpx2.URL(address).copy_with(userinfo=b"", query=None, fragment=None)
    except httpx2.InvalidURL:
        step = "write it like http://host:8081"
        raise ConfigError("this is not an address", where=where, next_step=step) from None


def trust(config: Registry) -> ssl.SSLContext:
    """Whom to trust, and how to prove who we are."""
    ca, certificate = config.ca_location, config.certificate_location
    asked = (*config.addresses, *((config.oauth.token_url,) if config.oauth else ()))
    if not (ca or certificate or any(_bare(a).scheme == "https" for a in asked)):
        # trusts nobody and is never asked: the system's authorities take long to load
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        trusted = ssl.create_default_context(cafile=ca) if ca else httpx2.create_ssl_context()
    except OSError as error:
        raise _unusable("registry.ca_location", error) from None
    if certificate is not None:
        password = config.key_password.get_secret_value() if config.key_password else ""
        try:
            # always with a password: without one, OpenSSL asks on the terminal
            trusted.load_cert_chain(certificate, config.key_location, password=lambda: password)
        except (OSError, ValueError) as error:
            where = "registry.certificate_location, key_location and key_password"
            raise _unusable(where, error) from None
    return trusted


def _unusable(where: str, error: Exception) -> ConfigError:
    # ssl.SSLError is an OSError: a missing file and a file that is no certificate look alike
    reason = getattr(error, "strerror", None) or type(error).__name__
    return ConfigError(
        "a certificate or key cannot be used",
        where=where,
        evidence=printable(f"{type(error).__name__}: {reason}"),
        next_step="check that the files exist, are PEM and belong together",
    )


class Secrets:
    """Everything that must never be shown; more may become known on the way."""

    def __init__(self, config: Registry) -> None:
        given = list(secret_values(config))
        if config.username is not None and config.password is not None:
            given.append(_basic(config.username, config.password.get_secret_value()))
        if config.oauth is not None:
            given.append(_basic(*_escaped(config.oauth)))
        plain = {form for secret in given for form in (secret, secret.strip())}
        # as they are written, and as they may have been sent
        self._given = {*plain, *(quote_plus(form, errors=_ANY) for form in plain)} - {""}
        self._tokens: deque[str] = deque(maxlen=_TOKENS)

    def learn(self, token: str) -> None:
        """Hide this one, too, until it is long out of use."""
        self._tokens.append(token)

    def shown(self, text: str) -> str:
        """Text from outside on one line, without any secret of ours that it may repeat."""
        # longest first, since one may contain another
        for secret in sorted((*self._given, *self._tokens), key=len, reverse=True):
            text = text.replace(secret, "***")
        return printable(text)


def _secret_of(oauth: OAuth) -> str:
    # one that is read from a file often ends with a line break
    return oauth.client_secret.get_secret_value().strip()


def _escaped(oauth: OAuth) -> tuple[str, str]:
    """The client's id and secret, as the standard wants them before they are put together."""
    return quote_plus(oauth.client_id), quote_plus(_secret_of(oauth), errors=_ANY)


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode(errors=_ANY)).decode()


MAX_ANSWER = 32 * 1024 * 1024
"""The most bytes of an answer: a hundred thousand subjects are a fifth of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an address said, whatever it is."""

    status: int
    body: bytes
    location: str = ""
    """Where it sends us instead; nobody goes there."""
    retry_after: float = 0.0
    """Seconds that it asks us to wait before the next try."""

    @property
    def is_busy(self) -> bool:
        """Whether it may have more to say in a moment."""
        return self.status in (408, 429) or self.status >= 500


@dataclass(eq=False)
class Silence(Exception):
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
        peer: str = "registry",
        setting: str = "registry.url",
        most_bytes: int = MAX_ANSWER,
    ) -> None:
        self._clients = dict(clients)
        self._seconds = seconds
        self._peer, self._setting = peer, setting
        self._most_bytes = most_bytes
        self.addresses = tuple(self._clients)
        """The addresses in the order in which they were given, fit to be shown."""
        self.shown = secrets.shown

    def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None = None,
        headers: Mapping[str, str],
    ) -> Answer:
        """One question, answered within the configured time, or Silence.

        Asked from a thread of its own: looking a name up and a drip of single bytes know no
        deadline. A thread that is given up ends with its connection and holds up no exit.
        """
        url = httpx2.URL(f"{address}{path}", params=query) if query else f"{address}{path}"
        sent = {**({} if body is None else {"Content-Type": JSON}), **headers}

        def exchange() -> Answer:
            return self._exchange(self._clients[address], method, url, body, sent)

        try:
            return begun(exchange, name=f"{self._peer}-question").result(timeout=self._seconds)
        except TimeoutError:
            raise self._late() from None

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
    ) -> Answer:
        deadline = time.monotonic() + self._seconds
        content = bytearray()
        try:
            with client.stream(method, url, content=body, headers=headers) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > self._most_bytes:
                        raise self._too_large()
                    if time.monotonic() > deadline:
                        raise self._late()
                return Answer(
                    response.status_code,
                    bytes(content),
                    response.headers.get("location", ""),
                    seconds_to_wait(response.headers.get("retry-after", "")),
                )
        except httpx2.TimeoutException:
            raise self._late() from None
        except httpx2.LocalProtocolError:
            # its text quotes the header that it finds illegal
            raise Silence("the question cannot be sent", again=False) from None
        except (httpx2.RequestError, UnicodeError) as error:
            raise self._failure(error) from None

    @property
    def _back(self) -> str:
        return f"bring the {self._peer} back; nothing is lost meanwhile"

    def _late(self) -> Silence:
        what = f"the {self._peer} did not answer in time"
        return Silence(what, f"waited {self._seconds:g} s", self._back)

    def _failure(self, error: httpx2.RequestError | UnicodeError) -> Silence:
        peer, found = self._peer, tuple(causes(error))
        what, step = f"the connection to the {peer} broke", self._back
        code = ErrorCode.REGISTRY_UNAVAILABLE
        if any(isinstance(cause, ssl.SSLError) for cause in found):
            what = f"there is no secure connection to the {peer}"
            step = f"check the {peer}'s certificate, registry.ca_location and the client's own"
        # a name with a part of more than 63 letters does not even get to the resolver
        elif any(isinstance(cause, socket.gaierror | UnicodeError) for cause in found):
            what = f"the {peer}'s host is not known"
            step = f"check the host in {self._setting}, and name resolution"
        elif isinstance(error, httpx2.ProxyError):
            what, step = f"the proxy does not lead to the {peer}", "check HTTPS_PROXY and NO_PROXY"
        elif isinstance(error, httpx2.ConnectError):
            what = f"the {peer} cannot be connected to"
        elif isinstance(error, httpx2.DecodingError):
            what, code = "the answer cannot be unpacked", ErrorCode.REGISTRY_GARBAGE
        return Silence(what, self.shown(f"{type(error).__name__}: {error}"), step, code=code)

    def _too_large(self) -> Silence:
        return Silence(
            "the answer does not end",
            f"more than {self._most_bytes} bytes",
            f"check {self._setting}, and what stands between here and the {self._peer}",
            code=ErrorCode.REGISTRY_GARBAGE,
            again=False,
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came of."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def seconds_to_wait(header: str) -> float:
    """`Retry-After` is a number of seconds or a date; anything else asks for nothing."""
    if header.strip().isdecimal():
        return float(header[:12])
    try:
        wanted = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    aware = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


# Tokens that end by themselves: asked for in time, kept until shortly before, shared by threads.

_MOST_BYTES = 1024 * 1024
_LONGEST_MARGIN_SECONDS = 60.0
_MARGIN = 0.2
_FOR_A_MOMENT = ("temporarily_unavailable", "server_error", "slow_down")
_NEXT_STEPS = {
    "invalid_scope": "check registry.oauth.scope",
    "invalid_target": "check registry.oauth.parameters",
    "invalid_request": "check registry.oauth.parameters and credentials",
    "unsupported_grant_type": "let the provider allow client credentials to this client",
    "unauthorized_client": "let the provider allow client credentials to this client",
}


class _Token(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    access_token: Annotated[str, Field(strict=True, min_length=1, pattern=r"^[!-~]+$")]
    kind: Annotated[str, Field(strict=True, pattern=r"^(?i:bearer)$", alias="token_type")] = (
        "Bearer"
    )
    # some providers write the number as a text
    expires_in: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Refused(BaseModel):
    """How a provider says no; empty for whoever says it in other words."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    error: str = ""
    error_description: str | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str = field(repr=False)
    renew_at: float
    """When to ask for the next one."""
    ends_at: float


class Tokens:
    """The token of one client; safe to use from several threads."""

    def __init__(
        self,
        config: Registry,
        oauth: OAuth,
        *,
        context: ssl.SSLContext,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        setting = "registry.oauth.token_url"
        url = _bare(oauth.token_url, where=setting)
        # a query is part of the address at some providers
        full = url.copy_with(query=httpx2.URL(oauth.token_url).query or None)
        client = _client(url, config, context=context, headers={"Accept": "application/json"})
        self._transport = Transport(
            {str(full): client},
            seconds=config.timeout.total_seconds(),
            secrets=secrets,
            peer="token endpoint",
            setting=setting,
            most_bytes=_MOST_BYTES,
        )
        self._address = str(full)
        self._oauth = oauth
        self._secrets = secrets
        self._clock = clock
        self._lock = Lock()
        self._kept: _Kept | None = None

    def token(self, *, instead_of: str | None = None) -> str:
        """A token that is good now, and another one than what somebody did not accept.

        One thread asks, the others wait for its answer. Raises RegistryError where the provider
        does not know us, or gives no such token, and Silence where it says nothing.
        """
        with self._lock:
            now = self._clock()
            kept = self._kept if self._kept and self._kept.text != instead_of else None
            if kept is not None and now < kept.renew_at:
                return kept.text
            try:
                found = self._asked()
            except Silence as silence:
                # before its end the old one is as good as a new one
                if kept is not None and now < kept.ends_at:
                    return kept.text
                silence.where = self._shown_address
                raise
            self._secrets.learn(found.access_token)
            # without an end it is good until the registry says otherwise
            seconds = float("inf") if found.expires_in is None else found.expires_in
            margin = min(_LONGEST_MARGIN_SECONDS, seconds * _MARGIN)
            self._kept = _Kept(found.access_token, now + seconds - margin, now + seconds)
            return found.access_token

    def close(self) -> None:
        """Let go of all connections."""
        self._transport.close()

    @property
    def _shown_address(self) -> str:
        return self._address.partition("?")[0]

    def _asked(self) -> _Token:
        oauth = self._oauth
        form = {"grant_type": "client_credentials"}
        form |= {"scope": oauth.scope} if oauth.scope is not None else {}
        form |= {name: value.get_secret_value() for name, value in oauth.parameters.items()}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if oauth.credentials == "body":
            form |= {"client_id": oauth.client_id, "client_secret": _secret_of(oauth)}
        else:
            headers["Authorization"] = f"Basic {_basic(*_escaped(oauth))}"
        body = urlencode(form, errors=_ANY).encode()
        return self._meaning(
            self._transport.ask(self._address, "POST", "", query={}, body=body, headers=headers)
        )

    def _meaning(self, answer: Answer) -> _Token:
        if 200 <= answer.status < 300:
            try:
                return _Token.model_validate_json(answer.body)
            except ValidationError:
                raise Silence(
                    "the answer is not that of a token endpoint",
                    f"status {answer.status}, {len(answer.body)} bytes",
                    "check registry.oauth.token_url, and what stands between here and it",
                    code=ErrorCode.REGISTRY_GARBAGE,
                ) from None
        try:
            refused = _Refused.model_validate_json(answer.body)
        except ValidationError:
            refused = _Refused()
        said = f"status {answer.status}"
        if refused.error:
            words = (refused.error, refused.error_description)
            said += f": {self._secrets.shown(', '.join(filter(None, words)))}"
        if answer.is_busy or refused.error in _FOR_A_MOMENT:
            raise Silence(
                "the token endpoint fails" if answer.status != 429 else "it is asked too often",
                said,
                "bring the token endpoint back; nothing is lost meanwhile",
                retry_after=answer.retry_after,
            )
        if refused.error or answer.status in (401, 403):
            step = "check registry.oauth.client_id and client_secret"
            raise RegistryError(
                "the token endpoint gives us no token",
                code=ErrorCode.REGISTRY_AUTH,
                where=self._shown_address,
                evidence=said,
                next_step=_NEXT_STEPS.get(refused.error, step),
            )
        known = self._kept is not None
        raise Silence(
            "nobody gives tokens at this address",
            said,
            "check registry.oauth.token_url: it ends in /token at most providers",
            code=ErrorCode.REGISTRY_GARBAGE if known else ErrorCode.CONFIG_INVALID,
            again=known,
        )
