"""A token instead of a password: OAuth's client credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.secrets import Sealed
from distributary.config.text import HttpUrl, Text

_PUBLIC = frozenset(
    {"audience", "resource", "organization", "client_assertion_type", "requested_token_type"}
)
_OWNED = ("grant_type", "client_id", "client_secret", "scope")


class OAuth(Section):
    """An identity provider that gives a token for an id and a secret."""

    token_url: HttpUrl = Field(examples=["https://login.example.com/oauth2/token"])
    """Address at which the provider gives tokens."""
    client_id: Text
    """Who asks for the token."""
    client_secret: SecretStr
    """The secret that belongs to `client_id`."""
    scope: Text | None = Field(default=None, examples=["schema:read"])
    """What the token shall be good for; several scopes have spaces between them."""
    credentials: Literal["header", "body"] = "header"
    """Where id and secret are sent: in the header, as the standard has it, or in the body."""
    parameters: Annotated[Mapping[str, SecretStr], Sealed(_PUBLIC)] = Field(
        default_factory=dict, examples=[{"audience": "schema-registry"}]
    )
    """Further parameters that the provider asks for; all but the standard's public ones, such as
    audience and resource, are hidden like secrets."""

    def conflicts(self) -> Iterator[Conflict]:
        """Nothing is said twice, and nothing empty."""
        if not self.client_secret.get_secret_value().strip():
            yield ("client_secret",), "must not be empty"
        for name in self.parameters:
            if name in _OWNED:
                yield ("parameters", name), "cannot be set here: it has a setting of its own"
            elif not name.strip() or not name.isprintable():
                yield ("parameters", name), "must be one line of printable text"
