"""Where schemas come from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.oauth import OAuth
from distributary.config.quantity import Duration, PositiveDuration
from distributary.config.text import ContextName, HttpUrl, Text, Urls

_ONLY_FOR_SERVERS = (
    *("username", "password", "token", "oauth", "logical_cluster", "identity_pool"),
    *("context", "ca_location", "certificate_location"),
)


class Registry(Section):
    """A server that speaks the Confluent schema registry's API, or a folder of schemas."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8081/apis/ccompat/v7"])
    """Address of the registry; give one of `url`, `urls` and `path`."""
    urls: Urls = ()
    """Several addresses of one registry: the next is asked when one does not answer."""
    path: Text | None = Field(default=None, examples=["./schemas"])
    """Folder of schemas, in place of a server."""
    username: Text | None = None
    """User or API key."""
    password: SecretStr | None = None
    """Password or API secret."""
    token: SecretStr | None = None
    """Bearer token, in place of username and password."""
    oauth: OAuth | None = None
    """Where to get a token that ends by itself, in place of `token`."""
    logical_cluster: Text | None = Field(default=None, examples=["lsrc-a1b2c3"])
    """Confluent Cloud: the registry that a token is shown to (header `target-sr-cluster`)."""
    identity_pool: Text | None = Field(default=None, examples=["pool-a1b2"])
    """Confluent Cloud: the pool that a token is for (header `Confluent-Identity-Pool-Id`)."""
    context: ContextName | None = Field(default=None, examples=[".team"])
    """Context of the registry: subjects and ids are those of this one; the default one when left
    out."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key."""
    key_password: SecretStr | None = None
    """Password of the private key."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """How long to wait for one answer."""
    cache_ttl: Duration = timedelta(minutes=1)
    """How long the latest version of a subject is believed; schemas by id never change."""
    unknown_id_grace: Duration = timedelta(seconds=5)
    """How long an id that the registry does not know is asked for again before its records are
    dead-lettered as UNKNOWN_SCHEMA_ID."""

    def conflicts(self) -> Iterator[Conflict]:
        """One place to look, one way to sign in."""
        places = [self.url is not None, bool(self.urls), self.path is not None]
        if sum(places) != 1:
            yield (), "needs exactly one of url, urls and path"
        if self.path is not None:
            for name in _ONLY_FOR_SERVERS:
                if getattr(self, name) is not None:
                    yield (name,), "means nothing for a folder of schemas"
        if (self.username is None) != (self.password is None):
            yield (
                ("username" if self.username else "password",),
                ("goes together with password" if self.username else "goes together with username"),
            )
        yield from self._logins()
        if self.key_location and not self.certificate_location:
            yield ("key_location",), "goes together with certificate_location"

    def _logins(self) -> Iterator[Conflict]:
        if self.token is not None and self.username is not None:
            yield ("token",), "cannot stand beside username and password"
        if self.oauth is not None and (self.token is not None or self.username is not None):
            yield ("oauth",), "cannot stand beside token, or username and password"
        for name in ("logical_cluster", "identity_pool"):
            given: str | None = getattr(self, name)
            if given is not None and not given.isascii():
                yield (name,), "must be ASCII: it is sent as a header"
            if given is not None and self.path is None and not (self.token or self.oauth):
                yield (name,), "goes together with token or oauth"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to try in order; none for a folder."""
        return (self.url,) if self.url else self.urls

    @property
    def places(self) -> tuple[str, ...]:
        """The addresses with the context, because each context counts its ids for itself."""
        if self.context is None:
            return self.addresses
        return tuple(f"{address.rstrip('/')}/contexts/{self.context}" for address in self.addresses)
