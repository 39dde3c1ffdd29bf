"""Slack, by an incoming webhook. Nothing in a notice can mention, link or format."""

from __future__ import annotations

from typing import Any

from distributary.config.alert_targets import SlackTarget
from distributary.observe.alerts.notice import Notice, Severity, State
from distributary.observe.alerts.targets.base import Outcome
from distributary.observe.alerts.targets.post import Poster, as_json

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
