"""The targets of alerts: webhook, Slack, PagerDuty and mail, built from their settings."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import smtplib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime
from typing import Any

import httpx2

from distributary.config.alerts import (
    Alerts,
    EmailTarget,
    PagerDutyTarget,
    SlackTarget,
    WebhookTarget,
)
from distributary.config.base import is_loopback
from distributary.observe.alerts.notice import AlertState, Notice, Severity
from distributary.registry.http.transport import causes, seconds_to_wait
from distributary.threads import begun

# The protocol of targets, and the outcomes of a delivery.


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt; `why` contains nothing from the other side, and no address."""

    delivered: bool
    why: str = ""
    again: bool = False
    """Whether another attempt may succeed."""
    wait: float = 0.0
    """The seconds to wait before the next attempt, as requested by the target."""


DELIVERED = DeliveryOutcome(True)


AnyTarget = WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget
"""The settings of one target."""


class AlertTarget(ABC):
    """A target of notices."""

    one_by_one = False
    """Whether the target keeps alerts open itself, and needs a message for each."""

    def __init__(self, config: AnyTarget, name: str) -> None:
        self.name = name
        self._config = config
        self._seconds = config.timeout.total_seconds()

    def send(self, notice: Notice) -> DeliveryOutcome:
        """Try once to send, within the target's timeout; never raises.

        The attempt runs in a thread, because DNS lookups and slow answers know no deadline. A
        thread that was given up ends with its connection and does not delay the process's exit.
        """
        attempt = begun(lambda: self._attempt(notice), name="alert-attempt")
        try:
            return attempt.result(timeout=self._seconds)
        except TimeoutError:
            return DeliveryOutcome(False, f"no answer within {self._seconds:g} s", again=True)
        except Exception as error:
            # the error's text may quote an address or a header, so only its class is shown
            return DeliveryOutcome(False, type(error).__name__)

    def close(self) -> None:  # noqa: B027 (not every target keeps some)
        """Close all connections."""

    @abstractmethod
    def _attempt(self, notice: Notice) -> DeliveryOutcome: ...


# Delivery of one document by POST, and the meaning of the answer's status.

# these loggers print addresses and headers, which are secrets here
logging.getLogger("httpcore2").setLevel(logging.INFO)
logging.getLogger("httpx2").setLevel(logging.WARNING)

_BUSY = (408, 425, 429)
_LONGEST_WAIT = 3600.0


class HttpTarget(AlertTarget):
    """Posts JSON to an address, which is never shown."""

    def __init__(self, config: AnyTarget, name: str) -> None:
        super().__init__(config, name)
        self._clients: dict[tuple[bool, bool], httpx2.Client] = {}

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    @abstractmethod
    def _request(self, notice: Notice) -> tuple[str, bytes, Mapping[str, str]]:
        """Return address, body and headers of the request."""

    def _attempt(self, notice: Notice) -> DeliveryOutcome:
        try:
            url, body, headers = self._request(notice)
            sent = {"Content-Type": "application/json", "User-Agent": "distributary", **headers}
            # the body of the answer is not needed
            with self._client(url).stream("POST", url, content=body, headers=sent) as response:
                return _meaning(response.status_code, response.headers.get("retry-after", ""))
        except httpx2.TimeoutException:
            return DeliveryOutcome(False, "no answer in time", again=True)
        except (httpx2.LocalProtocolError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return DeliveryOutcome(False, type(error).__name__)
        except (httpx2.RequestError, UnicodeError) as error:
            return DeliveryOutcome(False, _kind(error), again=True)
        except OSError as error:
            return DeliveryOutcome(
                False, f"the authorities cannot be read ({type(error).__name__})"
            )

    def _client(self, url: str) -> httpx2.Client:
        address = httpx2.URL(url)
        loopback, secure = is_loopback(address.host), address.scheme == "https"
        if (loopback, secure) not in self._clients:
            self._clients[loopback, secure] = httpx2.Client(
                timeout=self._seconds,
                follow_redirects=False,
                # proxies come from the environment, and must not be used for this machine itself
                trust_env=not loopback,
                verify=self._trusted(secure or not loopback),
            )
        return self._clients[loopback, secure]

    def _trusted(self, asked: bool) -> ssl.SSLContext:
        if not asked:
            # an empty context that is never used, because loading the system's authorities takes
            # long
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._config.ca_location:
            return ssl.create_default_context(cafile=self._config.ca_location)
        return httpx2.create_ssl_context()


def _as_json(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON; invalid text is escaped instead of refused."""
    return json.dumps(document).encode("ascii")


def _meaning(status: int, retry_after: str) -> DeliveryOutcome:
    if 200 <= status < 300:
        return DELIVERED
    again = status in _BUSY or status >= 500
    wait = min(seconds_to_wait(retry_after), _LONGEST_WAIT) if again else 0.0
    return DeliveryOutcome(False, f"answered {status}", again, wait)


def _kind(error: Exception) -> str:
    if any(isinstance(cause, ssl.SSLError) for cause in causes(error)):
        return "no secure connection: check the certificate and ca_location"
    return f"no connection ({type(error).__name__})"


# Mail by SMTP. The beginning and the end of one alert are one thread of mails.

_LONGEST_SUBJECT = 200
_POSTPONED = range(400, 500)


class Email(AlertTarget):
    """Sends notices to a few mailboxes, each with a connection of its own."""

    _config: EmailTarget

    def _attempt(self, notice: Notice) -> DeliveryOutcome:
        config = self._config
        try:
            with self._connected() as server:
                if config.username is not None and config.password is not None:
                    server.login(config.username, config.password.get_secret_value())
                refused = server.send_message(_mail(notice, config.from_, config.to))
        except smtplib.SMTPResponseException as error:
            code = error.smtp_code
            return DeliveryOutcome(False, f"answered {code}", again=code in _POSTPONED or code < 0)
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            later = all(code in _POSTPONED for code in codes)
            why = f"no recipient is taken ({', '.join(map(str, codes))})"
            return DeliveryOutcome(False, why, again=later)
        except smtplib.SMTPNotSupportedError:
            return DeliveryOutcome(False, "the server does not support what tls and username need")
        except (OSError, smtplib.SMTPException) as error:
            return DeliveryOutcome(False, _kind(error), again=True)
        # some recipients have it already, and would get it twice
        note = f"{len(refused)} of {len(config.to)} recipients were refused"
        return DeliveryOutcome(True, note) if refused else DELIVERED

    def _connected(self) -> smtplib.SMTP:
        host, port, tls = self._config.host, self._config.port, self._config.tls
        if tls == "none":
            return smtplib.SMTP(host, port, timeout=self._seconds)
        trusted = ssl.create_default_context(cafile=self._config.ca_location)
        if tls == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=self._seconds, context=trusted)
        server = smtplib.SMTP(host, port, timeout=self._seconds)
        try:
            server.starttls(context=trusted)
        except BaseException:
            server.close()
            raise
        return server


def _mail(notice: Notice, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    mail = EmailMessage(policy=SMTP_POLICY)
    mail["Subject"] = _header(notice.headline)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = format_datetime(notice.at)
    # the end of an alert replies to its beginning; a repeated mail has the same id
    domain = sender.rpartition("@")[2]
    beginning = f"<{notice.thread}@{domain}>"
    if notice.state is AlertState.RESOLVED:
        mail["Message-ID"] = f"<{notice.occasion}@{domain}>"
        mail["In-Reply-To"] = mail["References"] = beginning
    else:
        mail["Message-ID"] = beginning
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Distributary-Key"] = _header(notice.key)
    mail.set_content(_body(notice))
    return mail


def _body(notice: Notice) -> str:
    over = notice.state is AlertState.RESOLVED
    parts = {
        "where": notice.where,
        "seen": notice.evidence,
        "next": "" if over else notice.next_step,
        "code": notice.code,
        "since": f"{notice.since:%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{notice.at:%Y-%m-%dT%H:%M:%SZ}" if over else "",
        "page": notice.link,
    }
    lines = [f"{name + ':':<7}{_sendable(text)}" for name, text in parts.items() if text]
    return "\n".join([_sendable(notice.headline), "", *lines]) + "\n"


def _header(text: str) -> str:
    short = text if len(text) <= _LONGEST_SUBJECT else f"{text[: _LONGEST_SUBJECT - 3]}..."
    one_line = "".join(c if c.isprintable() else " " for c in short)
    # the library would decode text that looks like an encoded word, with line breaks in it
    return _sendable(one_line).replace("=?", "= ?")


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# PagerDuty's Events API v2: an alert is an incident that is triggered and resolved. A single event,
# such as a new table, is a change event, which notifies no person.

_ACTIONS = {AlertState.RAISED: "trigger", AlertState.RESOLVED: "resolve"}
_LONGEST_KEY = 255
_LONGEST_SUMMARY = 1024


class PagerDuty(HttpTarget):
    """Sends events to a service."""

    _config: PagerDutyTarget
    one_by_one = True

    def _request(self, notice: Notice) -> tuple[str, bytes, Mapping[str, str]]:
        path = "/v2/change/enqueue" if notice.state is AlertState.INFO else "/v2/enqueue"
        event = {"routing_key": self._config.routing_key.get_secret_value()} | _event(notice)
        return f"{self._config.url.rstrip('/')}{path}", _as_json(event), {}


def _event(notice: Notice) -> dict[str, Any]:
    """Build the event, without its routing key."""
    links = [{"href": notice.link, "text": "Open the dashboard"}] if notice.link else []
    details = {"key": notice.key} | notice.as_dict()
    payload: dict[str, Any] = {
        "summary": notice.headline[:_LONGEST_SUMMARY],
        "source": f"distributary/{notice.pipeline}",
        "timestamp": notice.at.isoformat(),
        "custom_details": details,
    }
    if notice.state is AlertState.INFO:
        return {"payload": payload, "links": links}
    return {
        "event_action": _ACTIONS[notice.state],
        "dedup_key": dedup_key(notice.key),
        "client": "Distributary",
        "links": links,
        "payload": payload
        | {
            "severity": str(notice.severity),
            "component": notice.subject or notice.pipeline,
            "group": notice.pipeline,
            "class": str(notice.kind),
        },
    }


def dedup_key(key: str) -> str:
    """Return the key of an alert: unique, and short enough for PagerDuty."""
    if len(key) <= _LONGEST_KEY:
        return key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{key[: _LONGEST_KEY - len(digest) - 1]}~{digest}"


# Slack, by an incoming webhook. Nothing in a notice can mention, link or format.

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LONGEST_FIELD = 1900
"""Slack refuses a whole message whose field has more than 2,000 characters."""
_MARKS = {
    Severity.CRITICAL: ":red_circle:",
    Severity.ERROR: ":red_circle:",
    Severity.WARNING: ":large_yellow_circle:",
    Severity.INFO: ":large_blue_circle:",
}


class Slack(HttpTarget):
    """Posts notices to a channel."""

    _config: SlackTarget

    def _request(self, notice: Notice) -> tuple[str, bytes, Mapping[str, str]]:
        return self._config.url.get_secret_value(), _as_json(message(notice)), {}


def message(notice: Notice) -> dict[str, Any]:
    """Build the message: a text for notifications, and blocks for the channel."""
    over = notice.state is AlertState.RESOLVED
    mark = ":white_check_mark:" if over else _MARKS[notice.severity]
    parts = {
        "Where": notice.where,
        "Seen": notice.evidence,
        "Next": "" if over else notice.next_step,
        "Code": notice.code,
        "Since": f"{notice.since:%Y-%m-%d %H:%M:%S} UTC",
    }
    fields = [_plain(f"{title}: {text}") for title, text in parts.items() if text]
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": _plain(notice.headline)},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": mark}, *fields]},
    ]
    if notice.link:
        # our own address is percent-encoded: it contains neither | nor >
        opened = {"type": "mrkdwn", "text": f"<{_safe_link(notice.link)}|Open the dashboard>"}
        blocks.append({"type": "section", "text": opened})
    return {
        "text": _escaped(notice.headline),
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": blocks,
    }


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": _escaped(text), "emoji": False}


def _escaped(text: str) -> str:
    cut = text if len(text) <= _LONGEST_FIELD else f"{text[: _LONGEST_FIELD - 3]}..."
    return cut.translate(_ESCAPES)


def _safe_link(link: str) -> str:
    return link.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E").replace("&", "&amp;")


# The generic webhook: the whole notice as JSON, signed where a secret is given.

DOCUMENT_VERSION = 1
SIGNATURE = "X-Distributary-Signature"


class Webhook(HttpTarget):
    """Posts notices to an address."""

    _config: WebhookTarget

    def _request(self, notice: Notice) -> tuple[str, bytes, Mapping[str, str]]:
        config = self._config
        body = _as_json({"version": DOCUMENT_VERSION, "key": notice.key} | notice.as_dict())
        headers = {"Idempotency-Key": notice.occasion}
        if config.secret is not None:
            key = config.secret.get_secret_value().encode()
            headers[SIGNATURE] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
        if config.token is not None:
            headers["Authorization"] = f"Bearer {config.token.get_secret_value()}"
        return config.url.get_secret_value(), body, headers


_KINDS: dict[str, type[AlertTarget]] = {
    "webhook": Webhook,
    "slack": Slack,
    "pagerduty": PagerDuty,
    "email": Email,
}


def make_targets(alerts: Alerts) -> tuple[AlertTarget, ...]:
    """Build all targets, in the order of the file."""
    pairs = zip(alerts.to, alerts.names, strict=True)
    return tuple(_KINDS[config.type](config, name) for config, name in pairs)
