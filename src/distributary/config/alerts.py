"""The settings of alerts, metrics and lineage."""

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
    PositiveSize,
    Section,
    Share,
    Text,
    checked_line,
    is_http_url,
    matching,
    unpaired_login,
)

# Targets of alerts. Addresses of webhooks are secrets: a person with the address can post to it.

_LONGEST_URL = 2048
# stricter than the standard: nothing that a mail header could read as two addresses
_MAILBOX = r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,9}"


def _address(value: SecretStr) -> SecretStr:
    text = checked_line(value.get_secret_value())
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
    """The settings that all targets share."""

    name: Text | None = Field(default=None, examples=["on-call"])
    """Name of this target in messages about it; its type and number when left out."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """Timeout of one attempt to deliver a message."""
    give_up_after: PositiveDuration = Field(default=timedelta(days=1), examples=["1d"])
    """How long delivery of a message is retried, with growing pauses, while the target is
    unreachable."""
    ca_location: Text | None = None
    """PEM file of the certificate authorities to trust. The system's authorities are trusted when
    left out."""


class WebhookTarget(_Target):
    """A web server that gets one JSON document by POST for each alert."""

    type: Literal["webhook"]
    """Kind of target."""
    url: SecretUrl
    """Address to which alerts are posted."""
    secret: SecretText | None = None
    """Key of the HMAC-SHA256 signature in the header X-Distributary-Signature. Messages are not
    signed when left out."""
    token: SecretText | None = None
    """Bearer token in the header Authorization. No token is sent when left out."""


class SlackTarget(_Target):
    """A Slack channel with an incoming webhook."""

    type: Literal["slack"]
    """Kind of target."""
    url: SecretUrl
    """Address of the incoming webhook."""


class PagerDutyTarget(_Target):
    """A PagerDuty service, reached by the Events API v2."""

    type: Literal["pagerduty"]
    """Kind of target."""
    routing_key: SecretText
    """Integration key of the service."""
    url: HttpUrl = Field(
        default="https://events.pagerduty.com", examples=["https://events.eu.pagerduty.com"]
    )
    """Address of the API; accounts in the EU have a separate address."""


class EmailTarget(_Target):
    """Mail by SMTP. All messages about one alert are one thread."""

    type: Literal["email"]
    """Kind of target."""
    host: Text = Field(examples=["smtp.example.com"])
    """Host name of the mail server."""
    port: int = Field(default=587, ge=1, le=65535)
    """Port of the mail server, usually 587 for starttls and 465 for tls."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """Encryption of the connection. starttls: after the greeting; tls: from the beginning; none: no
    encryption."""
    username: Text | None = None
    """User name of the login. No login when left out."""
    password: SecretText | None = None
    """Password of the user."""
    from_: Annotated[Mailbox, Field(alias="from", examples=["distributary@example.com"])]
    """Address of the sender."""
    to: Annotated[tuple[Mailbox, ...], Listed] = Field(examples=[["team@example.com"]])
    """Addresses of the recipients."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield missing recipients, half a login, and a password that is sent unencrypted."""
        if not self.to:
            yield ("to",), "must name at least one recipient"
        yield from unpaired_login(self.username, self.password)
        if self.tls == "none" and self.password is not None:
            yield ("tls",), "must be starttls or tls: the password would be sent unencrypted"


Target = Annotated[
    WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget, Field(discriminator="type")
]


# an idle pipeline reports every half minute: a shorter limit would raise false alarms
_SHORTEST_FRESHNESS = timedelta(minutes=1)
# connectors send heartbeats every few seconds, and batches take a while to read them
_SHORTEST_SILENCE = timedelta(minutes=1)


class DeadLetterRate(Section):
    """The rate of dead letters above which an alert is raised."""

    share: Share | None = 0.01
    """Largest share of dead letters among the records that were read, such as 1% or 0.01. The share
    is not checked when null."""
    count: int | None = Field(default=None, ge=0, examples=[100])
    """Largest number of dead letters. The number is not checked when left out."""
    within: PositiveDuration = Field(default=timedelta(minutes=5), examples=["5m"])
    """Period over which dead letters are counted."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a rate without any limit."""
        if self.share is None and self.count is None:
            yield (), "needs share or count"


def _rate(value: object) -> object:
    """Replace `true` by the default rate and `false` by none."""
    match str(value).lower():
        case "true":
            return {}
        case "false":
            return None
    return value


class AlertsOn(Section):
    """The events that raise alerts."""

    failure: bool = True
    """A batch failed and is retried, or the pipeline stopped after a failure."""
    parked: bool = True
    """A table could not be written, and its batches are parked."""
    dead_letters: Annotated[
        DeadLetterRate | None,
        BeforeValidator(_rate, json_schema_input_type=DeadLetterRate | bool | None),
    ] = Field(default_factory=DeadLetterRate)
    """Too many records became dead letters: more than the share or more than the count. true: the
    default rate; false: no alert."""
    freshness: Annotated[Duration, Ge(_SHORTEST_FRESHNESS)] | None = Field(
        default=None, examples=["15m"]
    )
    """Tables were not updated for this long. No alert when left out."""
    silent_source: Annotated[Duration, Ge(_SHORTEST_SILENCE)] | None = Field(
        default=None, examples=["15m"]
    )
    """A Debezium connector that has sent heartbeats sent none for this long. No alert when left
    out."""
    held_log: PositiveSize | None = Field(default=None, examples=["10GiB"])
    """A replication slot of the source holds back more log than this, or the database has removed
    log that the slot still needs. Needs `cdc.source_url`. No alert when left out."""
    held_transactions: Annotated[Duration, Ge(_SHORTEST_SILENCE)] | None = Field(
        default=None, examples=["15m"]
    )
    """Records waited for the end of a transaction of the source for this long. Needs `cdc`. No
    alert when left out."""
    invariant: bool = True
    """The record counts of a batch do not add up."""
    schema_: Annotated[bool, Field(alias="schema")] = False
    """A record with a new version of a schema was read."""
    table: bool = False
    """A table was created."""


class AtMost(Section):
    """The rate limit of messages for each target; further messages are combined into one."""

    messages: int = Field(default=20, ge=1)
    """The largest number of messages."""
    within: PositiveDuration = timedelta(minutes=10)
    """Period over which messages are counted."""


class Alerts(Section):
    """Messages to people when something needs attention, and when it is resolved."""

    on: AlertsOn = Field(default_factory=AlertsOn)
    """The events that raise alerts."""
    to: tuple[Target, ...] = ()
    """The targets of the messages. No messages are sent when left out."""
    at_most: AtMost = Field(default_factory=AtMost)
    """The rate limit of messages for each target."""
    dashboard_url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8500"])
    """Address of the dashboard, for links in messages. Messages have no links when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield targets of the same name."""
        if len(set(self.names)) != len(self.names):
            yield ("to",), "has two targets of the same name"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all targets, in their order."""
        return tuple(
            target.name or f"{target.type}-{number}" for number, target in enumerate(self.to, 1)
        )


# Metrics for a monitoring system.

LOOPBACK = "127.0.0.1"
_LISTEN = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):)?([0-9]{1,5})")


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listen(value: str) -> str:
    match = _LISTEN.fullmatch(value)
    if match is None or int(match[2]) > 65_535:
        raise PydanticCustomError("listen", "must be host:port, such as 127.0.0.1:9464")
    return f"{match[1] or LOOPBACK}:{int(match[2])}"


Listen = Annotated[
    Text,
    BeforeValidator(_as_text, json_schema_input_type=str | int),
    AfterValidator(_listen),
]
"""An address to listen on, `host:port`; a port alone is opened on this machine only."""


class MetricsConfig(Section):
    """Metrics of a run, in the format of Prometheus."""

    listen: Listen | None = Field(default=None, examples=["127.0.0.1:9464"])
    """Address at which `run` serves `/metrics`; a port alone means 127.0.0.1. Not served when left
    out. Metrics name tables and topics: for any other address set a token in the variable
    DISTRIBUTARY_TOKEN."""
    max_tables: int = Field(default=200, ge=0, le=100_000)
    """The largest number of tables with their own series. Further tables share one series named
    `other`."""


# OpenLineage.


class Lineage(Section):
    """OpenLineage events: inputs and outputs of a run, and which field became which column."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:5000"])
    """Address of an OpenLineage server, such as Marquez; set this, `file` or both."""
    endpoint: Text = "api/v1/lineage"
    """Path below `url` to which events are posted."""
    token: SecretStr | None = None
    """Bearer token for `url`."""
    file: Text | None = Field(default=None, examples=["./lineage.jsonl"])
    """File to which events are appended, one line each."""
    namespace: Text = "distributary"
    """Namespace of the job; the job has the name of the pipeline."""
    every: Duration = timedelta(minutes=1)
    """How often a continuous run sends its counts. New tables and columns are sent at once."""
    timeout: PositiveDuration = timedelta(seconds=5)
    """Timeout of one request to the server. No batch waits for it."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a missing destination, and a token without a server."""
        if self.url is None and self.file is None:
            yield (), "needs url or file"
        if self.token is not None and self.url is None:
            yield ("token",), "needs url"
