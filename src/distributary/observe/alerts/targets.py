"""From the settings of targets to the targets."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import smtplib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, parsedate_to_datetime
from threading import Thread
from typing import Any, Protocol

import httpx2

from distributary.config.alerts import (
    Alerts,
    EmailTarget,
    PagerDutyTarget,
    SlackTarget,
    WebhookTarget,
)
from distributary.observe.alerts.notice import Notice, Severity, State

# What a target does, and how an attempt to deliver can end.


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended. `why` holds nothing that came from the other side, and no address."""

    delivered: bool
    why: str = ""
    again: bool = False
    """Whether it may be different in a moment."""
    wait: float = 0.0
    """Seconds that the target asks us to wait before the next attempt."""


DELIVERED = Outcome(True)


class Target(Protocol):
    """Where notices go."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether it keeps alerts open itself, and so must hear of each of them."""
        ...

    def send(self, notice: Notice) -> Outcome:
        """One attempt, within the target's time; never raises."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def within(seconds: float, attempt: Callable[[], Outcome]) -> Outcome:
    """The outcome of an attempt, or that it took too long.

    In a thread of its own: looking a name up and a drip of single bytes know no deadline. One that
    is given up ends with its connection and holds up no exit.
    """
    future: Future[Outcome] = Future()

    def work() -> None:
        try:
            future.set_result(attempt())
        except Exception as error:
            # its text may quote an address or a header: only its kind is told
            future.set_result(Outcome(False, type(error).__name__))

    Thread(target=work, name="alert-attempt", daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        return Outcome(False, f"no answer within {seconds:g} s", again=True)


# One document by POST, and what the answer's status means.

# these write down addresses and headers, which are secrets here
logging.getLogger("httpcore2").setLevel(logging.INFO)
logging.getLogger("httpx2").setLevel(logging.WARNING)

_BUSY = (408, 425, 429)
_LONGEST_WAIT = 3600.0


class Poster:
    """Posts JSON to an address that it never shows."""

    def __init__(self, *, seconds: float, ca_location: str | None) -> None:
        self._seconds = seconds
        self._ca = ca_location
        self._clients: dict[tuple[bool, bool], httpx2.Client] = {}

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        """One attempt; never raises."""
        return within(self._seconds, lambda: self._exchange(url, body, headers))

    def close(self) -> None:
        """Let go of connections."""
        for client in self._clients.values():
            client.close()

    def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        sent = {"Content-Type": "application/json", "User-Agent": "distributary", **headers}
        try:
            client = self._client(url)
            # the body of the answer is of no interest, however long it is
            with client.stream("POST", url, content=body, headers=sent) as response:
                return _meaning(response.status_code, response.headers.get("retry-after", ""))
        except httpx2.TimeoutException:
            return Outcome(False, "no answer in time", again=True)
        except (httpx2.LocalProtocolError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return Outcome(False, type(error).__name__)
        except (httpx2.RequestError, UnicodeError) as error:
            return Outcome(False, _kind(error), again=True)
        except OSError as error:
            return Outcome(False, f"the authorities cannot be read ({type(error).__name__})")

    def _client(self, url: str) -> httpx2.Client:
        address = httpx2.URL(url)
        loopback, secure = _is_loopback(address.host), address.scheme == "https"
        if (loopback, secure) not in self._clients:
            self._clients[loopback, secure] = httpx2.Client(
                timeout=self._seconds,
                follow_redirects=False,
                # proxies come from the environment, and have no business on the way to this machine
                trust_env=not loopback,
                verify=self._trusted(secure or not loopback),
            )
        return self._clients[loopback, secure]

    def _trusted(self, asked: bool) -> ssl.SSLContext:
        if not asked:
            # trusts nobody and is never asked: the system's authorities take long to load
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._ca:
            return ssl.create_default_context(cafile=self._ca)
        return httpx2.create_ssl_context()


def as_json(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document; a text that is no text is sent as escapes, not refused."""
    return json.dumps(document).encode("ascii")


def _meaning(status: int, retry_after: str) -> Outcome:
    if 200 <= status < 300:
        return DELIVERED
    again = status in _BUSY or status >= 500
    return Outcome(False, f"answered {status}", again, _seconds(retry_after) if again else 0.0)


def _seconds(retry_after: str) -> float:
    """`Retry-After` is a number of seconds or a date; anything else asks for nothing."""
    if retry_after.strip().isdecimal():
        return min(float(retry_after[:12]), _LONGEST_WAIT)
    with suppress(ValueError):
        wanted = parsedate_to_datetime(retry_after)
        aware = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
        return min(max(0.0, (aware - datetime.now(UTC)).total_seconds()), _LONGEST_WAIT)
    return 0.0


def _kind(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "no secure connection: check the certificate and ca_location"
        cause = cause.__cause__ or cause.__context__
    return f"no connection ({type(error).__name__})"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Mail by SMTP. What is said about one occasion of an alert is one thread.

_LONGEST_SUBJECT = 200
_POSTPONED = range(400, 500)


class Email:
    """Sends notices to a few mailboxes."""

    one_by_one = False

    def __init__(self, config: EmailTarget, *, name: str) -> None:
        self.name = name
        self._config = config

    def send(self, notice: Notice) -> Outcome:
        """One attempt, with a connection of its own."""
        seconds = self._config.timeout.total_seconds()
        mail = mail_of(notice, sender=self._config.from_, recipients=self._config.to)
        return within(seconds, lambda: self._exchange(mail, seconds))

    def close(self) -> None:
        """Nothing is kept open."""

    def _exchange(self, mail: EmailMessage, seconds: float) -> Outcome:
        try:
            with self._connected(seconds) as server:
                if self._config.username is not None and self._config.password is not None:
                    secret = self._config.password.get_secret_value()
                    server.login(self._config.username, secret)
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            code = error.smtp_code
            return Outcome(False, f"answered {code}", again=code in _POSTPONED or code < 0)
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            later = all(code in _POSTPONED for code in codes)
            return Outcome(False, f"no recipient is taken ({_words(codes)})", again=later)
        except smtplib.SMTPNotSupportedError:
            return Outcome(False, "the server does not offer what tls and username ask for")
        except ssl.SSLError:
            why = "no secure connection: check the certificate and ca_location"
            return Outcome(False, why, again=True)
        except (OSError, smtplib.SMTPException) as error:
            return Outcome(False, f"no connection ({type(error).__name__})", again=True)
        # some have it: sent again, they would have it twice
        note = f"{len(refused)} of {len(self._config.to)} recipients were refused"
        return Outcome(True, note) if refused else DELIVERED

    def _connected(self, seconds: float) -> smtplib.SMTP:
        host, port = self._config.host, self._config.port
        if self._config.tls == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=seconds, context=self._trusted())
        server = smtplib.SMTP(host, port, timeout=seconds)
        if self._config.tls == "starttls":
            try:
                server.starttls(context=self._trusted())
            except BaseException:
                server.close()
                raise
        return server

    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._config.ca_location)


def mail_of(notice: Notice, *, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """The mail: text only."""
    mail = EmailMessage(policy=SMTP_POLICY)
    mail["Subject"] = _header(notice.headline)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = format_datetime(notice.at)
    _put_into_thread(mail, notice, domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Distributary-Key"] = _header(notice.key)
    mail.set_content(body_of(notice))
    return mail


def _put_into_thread(mail: EmailMessage, notice: Notice, *, domain: str) -> None:
    """The end of an alert answers its beginning; the same mail sent again has the same id."""
    beginning = f"<{notice.thread}@{domain}>"
    if notice.state is not State.RESOLVED:
        mail["Message-ID"] = beginning
        return
    mail["Message-ID"] = f"<{notice.occasion}@{domain}>"
    mail["In-Reply-To"] = mail["References"] = beginning


def body_of(notice: Notice) -> str:
    """One line for each part."""
    over = notice.state is State.RESOLVED
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
    # the library decodes what looks like an encoded word, line breaks in it included
    return _sendable(one_line).replace("=?", "= ?")


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _words(codes: list[int]) -> str:
    return ", ".join(map(str, codes))


# PagerDuty's Events API v2: an alert is an incident that is triggered and resolved.
#
# What just happened and cannot be over, such as a new table, is a change event: it stands beside
# incidents and wakes nobody.

_ACTIONS = {State.RAISED: "trigger", State.RESOLVED: "resolve"}
_LONGEST_KEY = 255
_LONGEST_SUMMARY = 1024


class PagerDuty:
    """Sends events to a service."""

    one_by_one = True

    def __init__(self, config: PagerDutyTarget, *, name: str) -> None:
        self.name = name
        self._key = config.routing_key
        self._url = config.url.rstrip("/")
        seconds = config.timeout.total_seconds()
        self._poster = Poster(seconds=seconds, ca_location=config.ca_location)

    def send(self, notice: Notice) -> Outcome:
        """One attempt."""
        path = "/v2/change/enqueue" if notice.state is State.INFO else "/v2/enqueue"
        event = {"routing_key": self._key.get_secret_value()} | event_of(notice)
        return self._poster.post(f"{self._url}{path}", as_json(event), {})

    def close(self) -> None:
        """Let go of connections."""
        self._poster.close()


def event_of(notice: Notice) -> dict[str, Any]:
    """The event without its routing key."""
    links = [{"href": notice.link, "text": "Open the dashboard"}] if notice.link else []
    details = {"key": notice.key} | notice.as_dict()
    payload: dict[str, Any] = {
        "summary": notice.headline[:_LONGEST_SUMMARY],
        "source": f"distributary/{notice.pipeline}",
        "timestamp": notice.at.isoformat(),
        "custom_details": details,
    }
    if notice.state is State.INFO:
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
    """The key of an alert, short enough for PagerDuty, and never that of another one."""
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


class Slack:
    """Posts notices to a channel."""

    one_by_one = False

    def __init__(self, config: SlackTarget, *, name: str) -> None:
        self.name = name
        self._url = config.url
        seconds = config.timeout.total_seconds()
        self._poster = Poster(seconds=seconds, ca_location=config.ca_location)

    def send(self, notice: Notice) -> Outcome:
        """One attempt."""
        return self._poster.post(self._url.get_secret_value(), as_json(message(notice)), {})

    def close(self) -> None:
        """Let go of connections."""
        self._poster.close()


def message(notice: Notice) -> dict[str, Any]:
    """The message: a text for notifications, and blocks for the channel."""
    over = notice.state is State.RESOLVED
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
        # the address is ours, and percent-encoded: it holds neither | nor >
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


class Webhook:
    """Posts notices to an address."""

    one_by_one = False

    def __init__(self, config: WebhookTarget, *, name: str) -> None:
        self.name = name
        self._config = config
        seconds = config.timeout.total_seconds()
        self._poster = Poster(seconds=seconds, ca_location=config.ca_location)

    def send(self, notice: Notice) -> Outcome:
        """One attempt."""
        body = as_json({"version": DOCUMENT_VERSION, "key": notice.key} | notice.as_dict())
        headers = {"Idempotency-Key": notice.occasion}
        if self._config.secret is not None:
            key = self._config.secret.get_secret_value().encode()
            headers[SIGNATURE] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
        if self._config.token is not None:
            headers["Authorization"] = f"Bearer {self._config.token.get_secret_value()}"
        return self._poster.post(self._config.url.get_secret_value(), body, headers)

    def close(self) -> None:
        """Let go of connections."""
        self._poster.close()


def make_targets(alerts: Alerts) -> tuple[Target, ...]:
    """All targets, in the order of the file."""
    pairs = zip(alerts.to, alerts.names, strict=True)
    return tuple(_make(config, name) for config, name in pairs)


def _make(config: WebhookTarget | SlackTarget | PagerDutyTarget | EmailTarget, name: str) -> Target:
    match config:
        case WebhookTarget():
            return Webhook(config, name=name)
        case SlackTarget():
            return Slack(config, name=name)
        case PagerDutyTarget():
            return PagerDuty(config, name=name)
        case EmailTarget():
            return Email(config, name=name)
