"""PagerDuty's Events API v2: an alert is an incident that is triggered and resolved.

What just happened and cannot be over, such as a new table, is a change event: it stands beside
incidents and wakes nobody.
"""

from __future__ import annotations

import hashlib
from typing import Any

from distributary.config.alert_targets import PagerDutyTarget
from distributary.observe.alerts.notice import Notice, State
from distributary.observe.alerts.targets.base import Outcome
from distributary.observe.alerts.targets.post import Poster, as_json

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
