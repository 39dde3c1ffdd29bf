"""One document by POST, and what the answer's status means."""

from __future__ import annotations

import ipaddress
import json
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from distributary.observe.alerts.targets.base import DELIVERED, Outcome, within

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
