"""What people are told while a pipeline runs, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    Conflict,
    Duration,
    HttpUrl,
    Listed,
    PositiveDuration,
    Section,
    Share,
    Text,
    is_http_url,
    matching,
    one_line,
    unpaired_login,
)

# Where alerts go. Addresses of webhooks are secrets: whoever knows one can write to it.

_LONGEST_URL = 2048
# less than the standard allows, and nothing that could be more than one address in a header
_MAILBOX = r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,9}"


def _address(value: SecretStr) -> SecretStr:
    text = one_line(value.get_secret_value())
    if not is_http_url(text) or len(text) > _LONGEST_URL or not text.isascii():
        raise PydanticCustomError("url", "must be an address such as https://host/path")
    return SecretStr(text)


def _sendable(value: SecretStr) -> SecretStr:
    # a secret that is read from a file often ends with a line break
    text = value.get_secret_value().strip()
    if not text or not text.isascii() or not text.isprintable():
        raise PydanticCustomError("secret", "must be one line of ASCII text")
    return SecretStr(text)


SecretUrl = Annotated[SecretStr, AfterValidator(_address)]
SecretText = Annotated[SecretStr, AfterValidator(_sendable)]
Mailbox = Annotated[
    Text, matching(_MAILBOX, "mailbox", "must be an address such as someone@example.com")
]


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
        yield from unpaired_login(self.username, self.password)
        if self.tls == "none" and self.password is not None:
            yield ("tls",), "must be starttls or tls: a password would travel in clear"


Target = Annotated[
    WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget, Field(discriminator="type")
]


# a pipeline without work gives a sign of life every half minute
_SHORTEST_FRESHNESS = timedelta(minutes=1)


class DeadLetterRate(Section):
    """How many dead letters are too many."""

    share: Share | None = 0.01
    """Most of the records that were read: 1% or 0.01; not looked at when null."""
    count: int | None = Field(default=None, ge=0, examples=[100])
    """Most dead letters; not looked at when left out."""
    within: PositiveDuration = Field(default=timedelta(minutes=5), examples=["5m"])
    """The time over which they are counted."""

    def conflicts(self) -> Iterator[Conflict]:
        """At least one limit."""
        if self.share is None and self.count is None:
            yield (), "needs share or count"


def _rate(value: object) -> object:
    """`true` is the usual rate, `false` none."""
    match str(value).lower():
        case "true":
            return {}
        case "false":
            return None
    return value


class AlertsOn(Section):
    """What messages are sent about."""

    failure: bool = True
    """A batch failed and is tried again, or the pipeline stopped because of it."""
    parked: bool = True
    """A table could not be written, and its batches wait."""
    dead_letters: Annotated[
        DeadLetterRate | None,
        BeforeValidator(_rate, json_schema_input_type=DeadLetterRate | bool | None),
    ] = Field(default_factory=DeadLetterRate)
    """Too many records became dead letters: more than the share or more than the count. true for
    the usual rate, false for never."""
    freshness: Annotated[Duration, Ge(_SHORTEST_FRESHNESS)] | None = Field(
        default=None, examples=["15m"]
    )
    """Tables were not brought up to date for so long; never when left out."""
    invariant: bool = True
    """A batch does not add up."""
    schema_: Annotated[bool, Field(alias="schema")] = False
    """A new version of a schema was met."""
    table: bool = False
    """A new table was made."""


class AtMost(Section):
    """How many messages a target gets; what is beyond waits and is told in one message."""

    messages: int = Field(default=20, ge=1)
    """Most messages."""
    within: PositiveDuration = timedelta(minutes=10)
    """The time over which they are counted."""


class Alerts(Section):
    """Messages to people when something needs them, and when it is over."""

    on: AlertsOn = Field(default_factory=AlertsOn)
    """What messages are sent about."""
    to: tuple[Target, ...] = ()
    """Where it is told; nowhere when left out."""
    at_most: AtMost = Field(default_factory=AtMost)
    """How many messages each target gets."""
    dashboard_url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8500"])
    """Address of the dashboard, for links in messages; none when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Targets that can be told apart."""
        if len(set(self.names)) != len(self.names):
            yield ("to",), "has two targets of the same name"

    @property
    def names(self) -> tuple[str, ...]:
        """What each target is called, in their order."""
        return tuple(
            target.name or f"{target.type}-{number}" for number, target in enumerate(self.to, 1)
        )


# Numbers for a monitoring system.

LOOPBACK = "127.0.0.1"
_LISTEN = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):)?([0-9]{1,5})")


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listen(value: str) -> str:
    found = _LISTEN.fullmatch(value)
    if found is None or int(found[2]) > 65_535:
        raise PydanticCustomError("listen", "must be host:port, such as 127.0.0.1:9464")
    return f"{found[1] or LOOPBACK}:{int(found[2])}"


Listen = Annotated[
    Text,
    BeforeValidator(_as_text, json_schema_input_type=str | int),
    AfterValidator(_listen),
]
"""An address to listen on, `host:port`; a port alone is one of this machine's own."""


class Metrics(Section):
    """What a run tells Prometheus, or whoever reads its format."""

    listen: Listen | None = Field(default=None, examples=["127.0.0.1:9464"])
    """Address at which `run` serves `/metrics`; a port alone means 127.0.0.1. None when left out.
    It names tables and topics: beyond this machine it needs a token, DISTRIBUTARY_TOKEN."""
    max_tables: int = Field(default=200, ge=0, le=100_000)
    """Most tables of this pipeline that have series of their own; what comes after is told as one,
    named `other`."""


# Where lineage goes.


class Lineage(Section):
    """OpenLineage events: what a run reads, what it writes, and which field became which column."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:5000"])
    """Address of a server that speaks OpenLineage, such as Marquez; give this, `file` or both."""
    endpoint: Text = "api/v1/lineage"
    """Path below `url` to which events are posted."""
    token: SecretStr | None = None
    """Bearer token for `url`."""
    file: Text | None = Field(default=None, examples=["./lineage.jsonl"])
    """File to which events are appended, one line each."""
    namespace: Text = "distributary"
    """Namespace of the job; its name is the pipeline's."""
    every: Duration = timedelta(minutes=1)
    """How often a run that goes on tells its counts; new tables and columns are told at once."""
    timeout: PositiveDuration = timedelta(seconds=5)
    """How long to wait for the server. No batch waits for it."""

    def conflicts(self) -> Iterator[Conflict]:
        """Somewhere to go, and a token for a server only."""
        if self.url is None and self.file is None:
            yield (), "needs url or file"
        if self.token is not None and self.url is None:
            yield ("token",), "goes together with url"
