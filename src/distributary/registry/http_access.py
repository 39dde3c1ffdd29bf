"""Who asks a registry, and by which way: credentials, certificates, proxies."""

from __future__ import annotations

import base64
import ipaddress
import logging
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote_plus

import httpx2

from distributary.config.load import secret_values
from distributary.config.oauth import OAuth
from distributary.config.registry import Registry
from distributary.errors import ConfigError
from distributary.registry.hostile import printable

# on this level it writes down every header of an answer, and an answer may repeat our secrets
logging.getLogger("httpcore2").setLevel(logging.INFO)

JSON = "application/vnd.schemaregistry.v1+json"

_PLAIN_JSON = "application/json"
_TOKENS = 8
"""How many of the last tokens are hidden."""


def clients(config: Registry, context: ssl.SSLContext) -> dict[str, httpx2.Client]:
    """A client for each address, under the address as it may be shown.

    Raises:
        ConfigError: The token or a proxy cannot be used.
    """
    login = _login(config)
    headers = {
        "Accept": f"{JSON}, application/json",
        **_cluster(config),
        **login.get("headers", {}),
    }
    return {
        str(url).rstrip("/"): _client(
            url, config, context=context, headers=headers, auth=login.get("auth")
        )
        for url in map(_bare, config.addresses)
    }


def token_client(
    config: Registry, oauth: OAuth, context: ssl.SSLContext
) -> dict[str, httpx2.Client]:
    """The same for the address that gives tokens; id and secret go with each question."""
    url, headers = _bare(oauth.token_url, where="registry.oauth.token_url"), {"Accept": _PLAIN_JSON}
    # a query is part of the address at some providers
    full = url.copy_with(query=httpx2.URL(oauth.token_url).query or None)
    return {str(full): _client(url, config, context=context, headers=headers)}


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
            trust_env=not _is_loopback(url.host),
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
        raise ConfigError(
            "this is not an address",
            where=where,
            next_step="write it like http://host:8081",
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _cluster(config: Registry) -> dict[str, str]:
    """To whom a token speaks, where one host stands for many registries."""
    named = {
        "target-sr-cluster": config.logical_cluster,
        "Confluent-Identity-Pool-Id": config.identity_pool,
    }
    return {name: value for name, value in named.items() if value is not None}


def _login(config: Registry) -> Mapping[str, Any]:
    if config.username is not None and config.password is not None:
        return {"auth": httpx2.BasicAuth(config.username, config.password.get_secret_value())}
    if config.token is None:
        return {}
    # a token read from a file often ends with a line break
    token = config.token.get_secret_value().strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(
            "the token cannot be sent",
            where="registry.token",
            evidence="it is empty, or not one line of ASCII text",
            next_step="check the variable or file that it comes from",
        )
    return {"headers": {"Authorization": f"Bearer {token}"}}


def trust(config: Registry) -> ssl.SSLContext:
    """Whom to trust, and how to prove who we are.

    Raises:
        ConfigError: A certificate or a key cannot be used.
    """
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
        self._given = tuple(_forms(_given(config)))
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


def _forms(secrets: Iterable[str]) -> set[str]:
    """A secret as it is written, and as it may have been sent."""
    plain = {form for secret in secrets for form in (secret, secret.strip())}
    return {*plain, *(quote_plus(form, errors="surrogatepass") for form in plain)} - {""}


def _given(config: Registry) -> list[str]:
    plain = list(secret_values(config))
    if config.username is not None and config.password is not None:
        plain.append(basic(config.username, config.password.get_secret_value()))
    if config.oauth is not None:
        plain.append(basic(*escaped(config.oauth)))
    return plain


def secret_of(oauth: OAuth) -> str:
    """The client's secret; one that is read from a file often ends with a line break."""
    return oauth.client_secret.get_secret_value().strip()


def escaped(oauth: OAuth) -> tuple[str, str]:
    """The client's id and secret, as the standard wants them before they are put together."""
    user, secret = oauth.client_id, secret_of(oauth)
    return quote_plus(user), quote_plus(secret, errors="surrogatepass")


def basic(user: str, password: str) -> str:
    """A user and a password as one word of a header."""
    return base64.b64encode(f"{user}:{password}".encode(errors="surrogatepass")).decode()
