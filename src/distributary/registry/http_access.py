"""Who asks a registry, and by which way: credentials, certificates, proxies."""

from __future__ import annotations

import base64
import ipaddress
import logging
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2

from distributary.config.registry import Registry
from distributary.errors import ConfigError
from distributary.registry.hostile import printable

# on this level it writes down every header of an answer, and an answer may repeat our secrets
logging.getLogger("httpcore2").setLevel(logging.INFO)

JSON = "application/vnd.schemaregistry.v1+json"


def clients(config: Registry) -> dict[str, httpx2.Client]:
    """A client for each address, under the address as it may be shown.

    Raises:
        ConfigError: A certificate, a key, the token or a proxy cannot be used.
    """
    context, login = _tls(config), _login(config)
    return {
        str(url).rstrip("/"): _client(url, config, context=context, login=login)
        for url in map(_bare, config.addresses)
    }


def _client(
    url: httpx2.URL, config: Registry, *, context: ssl.SSLContext, login: Mapping[str, Any]
) -> httpx2.Client:
    headers = {
        "Accept": f"{JSON}, application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "distributary",
        **login.get("headers", {}),
    }
    try:
        return httpx2.Client(
            auth=login.get("auth"),
            headers=headers,
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


def _bare(address: str) -> httpx2.URL:
    """An address without anything that must not be shown or cannot have a path behind it."""
    try:
        return httpx2.URL(address).copy_with(userinfo=b"", query=None, fragment=None)
    except httpx2.InvalidURL:
        raise ConfigError(
            "the registry's address is not one",
            where="registry.url",
            next_step="write it like http://host:8081",
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def _tls(config: Registry) -> ssl.SSLContext:
    ca, certificate = config.ca_location, config.certificate_location
    if not (ca or certificate or any(_bare(a).scheme == "https" for a in config.addresses)):
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


def secrets(config: Registry) -> tuple[str, ...]:
    """Everything that must never be shown, longest first."""
    given = [config.password, config.token, config.key_password]
    plain = [secret.get_secret_value() for secret in given if secret is not None]
    plain += [secret.strip() for secret in plain]
    if config.username is not None and config.password is not None:
        pair = f"{config.username}:{config.password.get_secret_value()}"
        plain.append(base64.b64encode(pair.encode(errors="surrogatepass")).decode())
    return tuple(sorted({secret for secret in plain if secret}, key=len, reverse=True))
