"""Where alerts go. Addresses of webhooks are secrets: whoever knows one can write to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section
from distributary.config.quantity import PositiveDuration
from distributary.config.text import HttpUrl, Listed, Text, one_line

_LONGEST_URL = 2048
# less than the standard allows, and nothing that could be more than one address in a header
_MAILBOX = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,9}")


def _address(value: SecretStr) -> SecretStr:
    text = one_line(value.get_secret_value())
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or len(text) > _LONGEST_URL or not text.isascii():
        raise PydanticCustomError("url", "must be an address such as https://host/path")
    return SecretStr(text)


def _sendable(value: SecretStr) -> SecretStr:
    # a secret that is read from a file often ends with a line break
    text = value.get_secret_value().strip()
    if not text or not text.isascii() or not text.isprintable():
        raise PydanticCustomError("secret", "must be one line of ASCII text")
    return SecretStr(text)


def _mailbox(value: str) -> str:
    if not _MAILBOX.fullmatch(value):
        raise PydanticCustomError("mailbox", "must be an address such as someone@example.com")
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_address)]
SecretText = Annotated[SecretStr, AfterValidator(_sendable)]
Mailbox = Annotated[Text, AfterValidator(_mailbox)]


class _Target(Section):
    """What all targets have."""

    name: Text | None = Field(default=None, examples=["on-call"])
    """What messages about this target call it; its type and number when left out."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """How long one attempt to deliver may take."""
    give_up_after: PositiveDuration = Field(default=timedelta(days=1), examples=["1d"])
    """How long a message is tried again, with growing pauses, while the target is out of reach."""
    ca_location: Text | None = None
    """PEM file of the authorities to trust; the system's own when left out."""


class WebhookTarget(_Target):
    """One JSON document by POST for each alert."""

    type: Literal["webhook"]
    """Kind of target."""
    url: SecretUrl
    """Address to post to."""
    secret: SecretText | None = None
    """Key of the HMAC-SHA256 signature in the header X-Distributary-Signature; no signature when
    left out."""
    token: SecretText | None = None
    """Bearer token in the header Authorization; none when left out."""


class SlackTarget(_Target):
    """A channel of Slack, by an incoming webhook."""

    type: Literal["slack"]
    """Kind of target."""
    url: SecretUrl
    """Address of the incoming webhook."""


class PagerDutyTarget(_Target):
    """A service of PagerDuty, by its Events API v2."""

    type: Literal["pagerduty"]
    """Kind of target."""
    routing_key: SecretText
    """Integration key of the service."""
    url: HttpUrl = Field(
        default="https://events.pagerduty.com", examples=["https://events.eu.pagerduty.com"]
    )
    """Where the API is; accounts in the EU have an address of their own."""


class EmailTarget(_Target):
    """Mail by SMTP; what is said about one alert is one thread."""

    type: Literal["email"]
    """Kind of target."""
    host: Text = Field(examples=["smtp.example.com"])
    """The mail server."""
    port: int = Field(default=587, ge=1, le=65535)
    """Its port: 587 for starttls and 465 for tls, as a rule."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """How the connection is encrypted: starttls after a greeting, tls from the beginning, or not
    at all."""
    username: Text | None = None
    """User to sign in as; nobody when left out."""
    password: SecretText | None = None
    """The user's password."""
    from_: Annotated[Mailbox, Field(alias="from", examples=["distributary@example.com"])]
    """Sender."""
    to: Annotated[tuple[Mailbox, ...], Listed] = Field(examples=[["team@example.com"]])
    """Recipients."""

    def conflicts(self) -> Iterator[Conflict]:
        """Somebody gets it; a user has a password, and it does not travel in clear."""
        if not self.to:
            yield ("to",), "must name somebody"
        if (self.username is None) != (self.password is None):
            given, other = ("username", "password") if self.username else ("password", "username")
            yield (given,), f"goes together with {other}"
        if self.tls == "none" and self.password is not None:
            yield ("tls",), "must be starttls or tls: a password would travel in clear"


Target = Annotated[
    WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget, Field(discriminator="type")
]
