"""A notice: the content of one message about a pipeline, the same for every target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from distributary.model.names import one_line
from distributary.observe.log_format import cut, moment

_NAMES = ("pipeline", "subject")
"""The fields that identify an alert."""
_LONGEST = dict.fromkeys((*_NAMES, "what", "where"), 300) | dict.fromkeys(
    ("evidence", "next_step", "code", "link"), 1500
)
"""The texts of a notice, with the most characters of each."""
NEXT_TRY = ", next try in "
"""The separator before the part of a text that only applies during retries."""


class AlertKind(StrEnum):
    """The kinds of alerts."""

    FAILURE = "failure"
    PARKED = "parked"
    DEAD_LETTERS = "dead_letters"
    FRESHNESS = "freshness"
    SILENT_SOURCE = "silent_source"
    HELD_LOG = "held_log"
    HELD_TRANSACTIONS = "held_transactions"
    INVARIANT = "invariant"
    SCHEMA = "schema"
    TABLE = "table"
    HELD_BACK = "held_back"
    """Notices beyond the limit, combined into one message."""
    TEST = "test"


class AlertState(StrEnum):
    """The states of a notice: an alert began, an alert ended, or a single event."""

    RAISED = "raised"
    RESOLVED = "resolved"
    INFO = "info"


class Severity(StrEnum):
    """The severity, in the words of PagerDuty."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice about one alert or event. Its texts are single lines of bounded length."""

    pipeline: str
    kind: AlertKind
    state: AlertState
    severity: Severity
    what: str
    at: datetime
    """The time of this state."""
    since: datetime
    """The beginning of the alert, also for a resolved one."""
    subject: str = ""
    """The subject that distinguishes alerts of a kind: a table, an error code."""
    where: str = ""
    evidence: str = ""
    next_step: str = ""
    """The next command to run."""
    code: str = ""
    """The error code, if there is one."""
    batch: int | None = None
    link: str = ""
    """The address of its page on the dashboard."""

    @property
    def key(self) -> str:
        """Return the key that identifies the alert."""
        parts = (self.pipeline, str(self.kind), self.subject)
        return "/".join(part for part in parts if part)

    @property
    def occasion(self) -> str:
        """Return the key of this message; an alert that returns later has another one."""
        return _digest(self.key, str(self.state), self.since)

    @property
    def thread(self) -> str:
        """Return the key that the begin and the end of one occurrence share."""
        return _digest(self.key, self.since)

    @property
    def headline(self) -> str:
        """Return the notice in one line."""
        word = AlertState.RESOLVED if self.state is AlertState.RESOLVED else self.severity
        return f"[{word}] {self.pipeline}: {self.what}"

    def resolved(self, at: datetime) -> Notice:
        """Return the notice of its end: nothing is retried any more."""
        what = self.what.partition(NEXT_TRY)[0]
        return replace(self, state=AlertState.RESOLVED, at=at, what=what)

    def cleaned(self, mask: Callable[[str], str]) -> Notice:
        """Return the notice without secrets, control characters and long texts."""
        texts: dict[str, Any] = {
            name: _shown(value if name in _NAMES else mask(value), most=_LONGEST[name])
            for name in _LONGEST
            if (value := getattr(self, name))
        }
        return replace(self, **texts)

    def as_dict(self) -> dict[str, Any]:
        """Return the notice as a document for a file or a message."""
        texts = {name: getattr(self, name) for name in _LONGEST}
        return {
            "kind": str(self.kind),
            "state": str(self.state),
            "severity": str(self.severity),
            "at": self.at.isoformat(),
            "since": self.since.isoformat(),
            "batch": self.batch,
            **texts,
        }


def notice_from(document: Mapping[str, Any]) -> Notice:
    """Build a notice from `as_dict`; missing fields are empty. Raises ValueError for others."""
    try:
        batch = document.get("batch")
        return Notice(
            kind=AlertKind(document["kind"]),
            state=AlertState(document["state"]),
            severity=Severity(document["severity"]),
            at=moment(document["at"]),
            since=moment(document["since"]),
            batch=batch if isinstance(batch, int) else None,
            **{name: str(document.get(name, "")) for name in _LONGEST},
        ).cleaned(str)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a notice") from error


def notices_in(documents: object) -> Iterator[Notice]:
    """Return the notices in a list that was read from a file; skip anything else."""
    for document in documents if isinstance(documents, list) else []:
        with suppress(ValueError):
            yield notice_from(document)


def _shown(text: str, *, most: int) -> str:
    return one_line(cut(text, most))


def _digest(*parts: str | datetime) -> str:
    text = "\n".join(p if isinstance(p, str) else p.isoformat() for p in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def page(dashboard: str | None, *parts: str) -> str:
    """Return the address of a page of the dashboard, with names escaped; empty without one."""
    base = (dashboard or "").rstrip("/")
    path = "/".join(quote(part, safe="", errors="replace") for part in parts)
    return f"{base}/{path}" if base else ""
