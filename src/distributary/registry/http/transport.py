"""One HTTP request to one address, with a deadline and a limit for the answer.

The official `SchemaRegistryClient` limits neither the size nor the time of an answer, and quotes an
answer that is not the registry's JSON in full. This module uses the HTTP client below it instead.
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
from distributary.config.load import secret_values
from distributary.config.registry import OAuth, RegistryConfig
from distributary.errors import ConfigError, ErrorCode, RegistryError
from distributary.model.names import printable
from distributary.threads import begun

# Credentials, certificates and proxies of the requests.

# below INFO it logs every header of an answer, and an answer may repeat our secrets
logging.getLogger("httpcore2").setLevel(logging.INFO)

JSON = "application/vnd.schemaregistry.v1+json"
_TOKENS = 8
"""The number of last tokens that are hidden in messages."""
_ANY = "surrogatepass"


def clients(config: RegistryConfig, context: ssl.SSLContext) -> dict[str, httpx2.Client]:
    """Build a client for each address; the keys are the addresses without secrets."""
    auth, headers = None, {"Accept": f"{JSON}, application/json"}
    # these headers select the registry where one host serves many
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
                evidence="the token is empty, or not one line of ASCII text",
                next_step="check the variable or file that it comes from",
            )
        headers["Authorization"] = f"Bearer {token}"
    return {
        str(url).rstrip("/"): _client(url, config, context=context, headers=headers, auth=auth)
        for url in map(_bare, config.addresses)
    }


def _client(
    url: httpx2.URL,
    config: RegistryConfig,
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
            # proxies come from the environment, and must not be used for this machine itself
            trust_env=not is_loopback(url.host),
        )
    except (ImportError, ValueError, httpx2.InvalidURL):
        # without the proxy's address, which may contain a password
        raise ConfigError(
            "the proxy that the environment names cannot be used",
            where="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY",
            next_step="correct them, or name the registry's host in NO_PROXY",
        ) from None


def _bare(address: str, *, where: str = "registry.url") -> httpx2.URL:
    """Return an address without credentials, query and fragment."""
    try:
        return httpx2.URL(address).copy_with(userinfo=b"", query=None, fragment=None)
    except httpx2.InvalidURL:
        step = "write an address like http://host:8081"
        raise ConfigError("this is not an address", where=where, next_step=step) from None


def trust(config: RegistryConfig) -> ssl.SSLContext:
    """Return the TLS context: trusted authorities, and the client's own certificate."""
    ca, certificate = config.ca_location, config.certificate_location
    addresses = (*config.addresses, *((config.oauth.token_url,) if config.oauth else ()))
    if not (ca or certificate or any(_bare(address).scheme == "https" for address in addresses)):
        # an empty context that is never used, because loading the system's authorities takes long
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        tls = ssl.create_default_context(cafile=ca) if ca else httpx2.create_ssl_context()
    except OSError as error:
        raise _unusable("registry.ca_location", error) from None
    if certificate is not None:
        password = config.key_password.get_secret_value() if config.key_password else ""
        try:
            # always with a password, because without one OpenSSL prompts on the terminal
            tls.load_cert_chain(certificate, config.key_location, password=lambda: password)
        except (OSError, ValueError) as error:
            where = "registry.certificate_location, key_location and key_password"
            raise _unusable(where, error) from None
    return tls


def _unusable(where: str, error: Exception) -> ConfigError:
    # ssl.SSLError is an OSError, so a missing file and a file without a certificate look alike
    reason = getattr(error, "strerror", None) or type(error).__name__
    return ConfigError(
        "a certificate or key cannot be used",
        where=where,
        evidence=printable(f"{type(error).__name__}: {reason}"),
        next_step="check that the files exist, are PEM and belong together",
    )


class Secrets:
    """All texts that must never be shown; tokens are added while running."""

    def __init__(self, config: RegistryConfig) -> None:
        secrets = list(secret_values(config))
        if config.username is not None and config.password is not None:
            secrets.append(_basic(config.username, config.password.get_secret_value()))
        if config.oauth is not None:
            secrets.append(_basic(*_escaped(config.oauth)))
        plain = {form for secret in secrets for form in (secret, secret.strip())}
        # both as they are written and as they may have been sent
        self._given = {*plain, *(quote_plus(form, errors=_ANY) for form in plain)} - {""}
        self._tokens: deque[str] = deque(maxlen=_TOKENS)

    def learn(self, token: str) -> None:
        """Hide this token too, until many newer ones were issued."""
        self._tokens.append(token)

    def shown(self, text: str) -> str:
        """Return a text from outside on one line, with our secrets replaced by `***`."""
        # longest first, because one secret may contain another
        for secret in sorted((*self._given, *self._tokens), key=len, reverse=True):
            text = text.replace(secret, "***")
        return printable(text)


def _secret_of(oauth: OAuth) -> str:
    # a secret read from a file often ends with a line break
    return oauth.client_secret.get_secret_value().strip()


def _escaped(oauth: OAuth) -> tuple[str, str]:
    """Return the client's id and secret, escaped as the OAuth standard demands before joining."""
    return quote_plus(oauth.client_id), quote_plus(_secret_of(oauth), errors=_ANY)


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode(errors=_ANY)).decode()


MAX_ANSWER = 32 * 1024 * 1024
"""The largest number of bytes of an answer; a hundred thousand subjects take a fifth of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an address, whatever its status."""

    status: int
    body: bytes
    location: str = ""
    """The target of a redirect, which is never followed."""
    retry_after: float = 0.0
    """Seconds that the server asks to wait before the next attempt."""

    @property
    def is_busy(self) -> bool:
        """Return True if the same request may succeed in a moment."""
        return self.status in (408, 429) or self.status >= 500


@dataclass(eq=False)
class Silence(Exception):
    """The reason why an address gave no usable answer."""

    what: str
    evidence: str = ""
    next_step: str = "bring the registry back; nothing is lost meanwhile"
    code: ErrorCode = ErrorCode.REGISTRY_UNAVAILABLE
    again: bool = True
    """True if the same address may answer in a moment."""
    retry_after: float = 0.0
    where: str = ""
    """The address that did not answer, if it is not the requested one."""


class Transport:
    """A sender of HTTP requests, without knowledge of schemas, that never shows a secret."""

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
        """The addresses in their configured order, without secrets."""
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
        """Send one request and return its answer within the configured time, or raise Silence.

        The request runs in its own thread, because neither a name lookup nor a slow trickle of
        bytes respects a deadline. An abandoned thread ends with its connection and does not delay
        the exit.
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
        """Close all connections."""
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
            # the error's text quotes the illegal header
            raise Silence("the request cannot be sent", again=False) from None
        except (httpx2.RequestError, UnicodeError) as error:
            raise self._failure(error) from None

    @property
    def _back(self) -> str:
        return f"bring the {self._peer} back; nothing is lost meanwhile"

    def _late(self) -> Silence:
        what = f"the {self._peer} did not answer in time"
        return Silence(what, f"waited {self._seconds:g} s", self._back)

    def _failure(self, error: httpx2.RequestError | UnicodeError) -> Silence:
        peer, error_causes = self._peer, tuple(causes(error))
        what, step = f"the connection to the {peer} broke", self._back
        code = ErrorCode.REGISTRY_UNAVAILABLE
        if any(isinstance(cause, ssl.SSLError) for cause in error_causes):
            what = f"no secure connection to the {peer} is possible"
            step = (
                f"check the {peer}'s certificate, registry.ca_location and the client's certificate"
            )
        # a host name with a part of more than 63 letters fails before the resolver
        elif any(isinstance(cause, socket.gaierror | UnicodeError) for cause in error_causes):
            what = f"the {peer}'s host is unknown"
            step = f"check the host in {self._setting}, and name resolution"
        elif isinstance(error, httpx2.ProxyError):
            what, step = f"the proxy does not reach the {peer}", "check HTTPS_PROXY and NO_PROXY"
        elif isinstance(error, httpx2.ConnectError):
            what = f"the {peer} cannot be connected to"
        elif isinstance(error, httpx2.DecodingError):
            what, code = "the answer cannot be unpacked", ErrorCode.REGISTRY_GARBAGE
        return Silence(what, self.shown(f"{type(error).__name__}: {error}"), step, code=code)

    def _too_large(self) -> Silence:
        return Silence(
            "the answer does not end",
            f"more than {self._most_bytes} bytes",
            f"check {self._setting}, and any proxy before the {self._peer}",
            code=ErrorCode.REGISTRY_GARBAGE,
            again=False,
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def seconds_to_wait(header: str) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date; 0 for other values."""
    if header.strip().isdecimal():
        return float(header[:12])
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


# OAuth tokens with an expiry: requested in time, kept until shortly before, shared by threads.

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
    """A provider's refusal; empty if the answer has another form."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    error: str = ""
    error_description: str | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str = field(repr=False)
    renew_at: float
    """The time to request the next token."""
    ends_at: float


class Tokens:
    """The OAuth token of one client; safe to use from several threads."""

    def __init__(
        self,
        config: RegistryConfig,
        oauth: OAuth,
        *,
        context: ssl.SSLContext,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        setting = "registry.oauth.token_url"
        url = _bare(oauth.token_url, where=setting)
        # at some providers the query is part of the address
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
        """Return a valid token, other than `instead_of`, which the registry refused.

        One thread requests the token, the others wait for it. Raises RegistryError if the provider
        refuses the client or the token, and Silence if the provider does not answer.
        """
        with self._lock:
            now = self._clock()
            kept = self._kept if self._kept and self._kept.text != instead_of else None
            if kept is not None and now < kept.renew_at:
                return kept.text
            try:
                new_token = self._asked()
            except Silence as silence:
                # the old token is valid until it expires
                if kept is not None and now < kept.ends_at:
                    return kept.text
                silence.where = self._shown_address
                raise
            self._secrets.learn(new_token.access_token)
            # a token without an expiry is valid until the registry refuses it
            seconds = float("inf") if new_token.expires_in is None else new_token.expires_in
            margin = min(_LONGEST_MARGIN_SECONDS, seconds * _MARGIN)
            self._kept = _Kept(new_token.access_token, now + seconds - margin, now + seconds)
            return new_token.access_token

    def close(self) -> None:
        """Close all connections."""
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
                    "the answer does not come from a token endpoint",
                    f"status {answer.status}, {len(answer.body)} bytes",
                    "check registry.oauth.token_url, and any proxy before it",
                    code=ErrorCode.REGISTRY_GARBAGE,
                ) from None
        try:
            refused = _Refused.model_validate_json(answer.body)
        except ValidationError:
            refused = _Refused()
        evidence = f"status {answer.status}"
        if refused.error:
            error_parts = (refused.error, refused.error_description)
            evidence += f": {self._secrets.shown(', '.join(filter(None, error_parts)))}"
        if answer.is_busy or refused.error in _FOR_A_MOMENT:
            raise Silence(
                "the token endpoint fails"
                if answer.status != 429
                else "the token endpoint gets too many requests",
                evidence,
                "bring the token endpoint back; nothing is lost meanwhile",
                retry_after=answer.retry_after,
            )
        if refused.error or answer.status in (401, 403):
            step = "check registry.oauth.client_id and client_secret"
            raise RegistryError(
                "the token endpoint refuses to give a token",
                code=ErrorCode.REGISTRY_AUTH,
                where=self._shown_address,
                evidence=evidence,
                next_step=_NEXT_STEPS.get(refused.error, step),
            )
        answered_before = self._kept is not None
        raise Silence(
            "no token endpoint answers at this address",
            evidence,
            "check registry.oauth.token_url: it ends in /token at most providers",
            code=ErrorCode.REGISTRY_GARBAGE if answered_before else ErrorCode.CONFIG_INVALID,
            again=answered_before,
        )
