"""Where schemas come from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.quantity import Duration, PositiveDuration
from distributary.config.text import HttpUrl, Text, Urls


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
            for name in ("username", "password", "token", "ca_location", "certificate_location"):
                if getattr(self, name) is not None:
                    yield (name,), "means nothing for a folder of schemas"
        if (self.username is None) != (self.password is None):
            yield (
                ("username" if self.username else "password",),
                ("goes together with password" if self.username else "goes together with username"),
            )
        if self.token is not None and self.username is not None:
            yield ("token",), "cannot stand beside username and password"
        if self.key_location and not self.certificate_location:
            yield ("key_location",), "goes together with certificate_location"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to try in order; none for a folder."""
        return (self.url,) if self.url else self.urls
