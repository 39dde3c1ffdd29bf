"""The settings of the schema registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from distributary.config.base import (
    Conflict,
    ContextName,
    Duration,
    HttpUrl,
    PositiveDuration,
    Sealed,
    Section,
    Text,
    Urls,
    unpaired_login,
)

_PUBLIC = frozenset(
    {"audience", "resource", "organization", "client_assertion_type", "requested_token_type"}
)
_OAUTH_OWNED = ("grant_type", "client_id", "client_secret", "scope")


class OAuth(Section):
    """An identity provider that issues a token for a client id and a client secret."""

    token_url: HttpUrl = Field(examples=["https://login.example.com/oauth2/token"])
    """Address of the provider's token endpoint."""
    client_id: Text
    """Id of the client that requests the token."""
    client_secret: SecretStr
    """Secret of the client."""
    scope: Text | None = Field(default=None, examples=["schema:read"])
    """Scopes of the token, separated by spaces."""
    credentials: Literal["header", "body"] = "header"
    """Where id and secret are sent: in the header, as the standard recommends, or in the body."""
    parameters: Annotated[Mapping[str, SecretStr], Sealed(_PUBLIC)] = Field(
        default_factory=dict, examples=[{"audience": "schema-registry"}]
    )
    """Further parameters of the token request. All values are hidden like secrets, except for those
    of the standard's public parameters, such as audience and resource."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield an empty secret, and parameters that have a setting or are not printable."""
        if not self.client_secret.get_secret_value().strip():
            yield ("client_secret",), "must not be empty"
        for name in self.parameters:
            if name in _OAUTH_OWNED:
                yield ("parameters", name), "cannot be set here: it has its own setting"
            elif not name.strip() or not name.isprintable():
                yield ("parameters", name), "must be one line of printable text"


# The schema registry.

_ONLY_FOR_SERVERS = (
    *("username", "password", "token", "oauth", "logical_cluster", "identity_pool"),
    *("context", "ca_location", "certificate_location"),
)


class RegistryConfig(Section):
    """A server with the API of the Confluent schema registry, or a folder of schemas."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8081/apis/ccompat/v7"])
    """Address of the registry; set one of `url`, `urls` and `path`."""
    urls: Urls = ()
    """Several addresses of one registry. The next address is tried when one does not answer."""
    path: Text | None = Field(default=None, examples=["./schemas"])
    """Folder of schemas, instead of a server."""
    username: Text | None = None
    """User name or API key."""
    password: SecretStr | None = None
    """Password or API secret."""
    token: SecretStr | None = None
    """Bearer token, instead of username and password."""
    oauth: OAuth | None = None
    """Identity provider that issues tokens which expire, instead of a fixed `token`."""
    logical_cluster: Text | None = Field(default=None, examples=["lsrc-a1b2c3"])
    """Confluent Cloud: id of the registry, sent as the header `target-sr-cluster`."""
    identity_pool: Text | None = Field(default=None, examples=["pool-a1b2"])
    """Confluent Cloud: id of the identity pool, sent as the header `Confluent-Identity-Pool-Id`."""
    context: ContextName | None = Field(default=None, examples=[".team"])
    """Context of the registry in which subjects and ids are looked up. The default context is used
    when left out."""
    ca_location: Text | None = None
    """PEM file of the certificate authorities to trust. The system's authorities are trusted when
    left out."""
    certificate_location: Text | None = None
    """PEM file of the client's certificate."""
    key_location: Text | None = None
    """PEM file of the client's private key."""
    key_password: SecretStr | None = None
    """Password of the private key."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """How long to wait for one response."""
    cache_ttl: Duration = timedelta(minutes=1)
    """How long the latest version of a subject is cached. Schemas by id never change and are cached
    without a limit."""
    unknown_id_grace: Duration = timedelta(seconds=5)
    """How long an id that the registry does not know is looked up again before its records are
    dead-lettered as UNKNOWN_SCHEMA_ID."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that contradict each other: several places, logins, or half a pair."""
        places = [self.url is not None, bool(self.urls), self.path is not None]
        if sum(places) != 1:
            yield (), "needs exactly one of url, urls and path"
        if self.path is not None:
            for name in _ONLY_FOR_SERVERS:
                if getattr(self, name) is not None:
                    yield (name,), "has no effect for a folder of schemas: remove it"
        yield from unpaired_login(self.username, self.password)
        if self.key_location and not self.certificate_location:
            yield ("key_location",), "needs certificate_location"
        if self.token is not None and self.username is not None:
            yield ("token",), "cannot be combined with username and password"
        if self.oauth is not None and (self.token is not None or self.username is not None):
            yield ("oauth",), "cannot be combined with token, or username and password"
        for name in ("logical_cluster", "identity_pool"):
            given: str | None = getattr(self, name)
            if given is not None and not given.isascii():
                yield (name,), "must be ASCII: it is sent as a header"
            if given is not None and self.path is None and not (self.token or self.oauth):
                yield (name,), "needs token or oauth"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to try in order; none for a folder."""
        return (self.url,) if self.url else self.urls

    @property
    def places(self) -> tuple[str, ...]:
        """Return the addresses with the context: each context has its own numbering of ids."""
        if self.context is None:
            return self.addresses
        return tuple(f"{address.rstrip('/')}/contexts/{self.context}" for address in self.addresses)
