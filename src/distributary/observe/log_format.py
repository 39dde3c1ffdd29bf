"""A line of the log: what it has, and its two spellings, text for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from distributary.observe.plain import plain

_LONGEST = 8_000
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class LogFormat(StrEnum):
    """How lines are spelled."""

    TEXT = "text"
    JSON = "json"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What every line says, as far as it is known."""

    message: str
    event: str
    """What kind of line it is: `batch_settled`, `log`, `note`."""
    level: str = "INFO"
    pipeline: str | None = None
    batch: int | None = None
    table: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """What this kind of line says besides."""
    at: datetime = field(default_factory=_now)

    def masked(self, mask: Callable[[str], str]) -> LogLine:
        """The same without secrets."""
        more = {key: mask(v) if isinstance(v, str) else v for key, v in self.more.items()}
        return replace(self, message=mask(self.message), more=more)


def spell(line: LogLine, form: LogFormat) -> str:
    """One line of text, without its end, whatever the message holds."""
    return _json(line) if form is LogFormat.JSON else _text(line)


def read_json(text: str) -> LogLine | None:
    """A line that was spelled as JSON; None for anything else."""
    try:
        found = json.loads(text)
        batch = found.pop("batch")
        return LogLine(
            message=str(found.pop("message")),
            event=str(found.pop("event")),
            level=str(found.pop("level")),
            at=datetime.fromisoformat(found.pop("time")),
            pipeline=_text_or_none(found.pop("pipeline")),
            batch=batch if isinstance(batch, int) else None,
            table=_text_or_none(found.pop("table")),
            more=found,
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(line: LogLine) -> str:
    document = {
        "time": _moment(line.at),
        "level": line.level,
        "pipeline": line.pipeline,
        "batch": line.batch,
        "table": line.table,
        "event": line.event,
        "message": _cut(line.message),
    }
    # what all lines have cannot be overwritten
    return json.dumps(document | plain(dict(line.more)) | document)


def _text(line: LogLine) -> str:
    about = [
        f"{name}={_printable(str(value))}"
        for name, value in (("batch", line.batch), ("table", line.table))
        if value is not None
    ]
    words = [_moment(line.at), f"{line.level:7}", _printable(line.pipeline or "-"), *about]
    return " ".join([*words, f"{line.event}: {_printable(_cut(line.message))}"])


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    return known or character.encode("unicode_escape", "surrogatepass").decode("ascii")
