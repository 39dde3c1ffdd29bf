"""A line of the log: what it has, and its two spellings, text for people and JSON for programs."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from time import time as seconds
from typing import Any

import platformdirs

from distributary.model.names import one_line

# The user's folder of log files: private, because the files contain records and settings.

_DAYS = 7


def log_folder() -> Path:
    """Return the folder, created if possible; remove files of past weeks."""
    folder = platformdirs.user_log_path("distributary")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # an earlier version left the folder readable for all users
        folder.chmod(0o700)
        for old in folder.iterdir():
            if seconds() - old.stat().st_mtime > _DAYS * 86400:
                old.unlink(missing_ok=True)
    return folder


def private(path: str, flags: int) -> int:
    """Open a file that only this user can read; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


class RecordHandler(logging.Handler):
    """Gives every log record to a function, which may fail."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on."""
        try:
            self._take(record)
        except Exception:
            self.handleError(record)


# Facts as plain JSON values: ISO-8601 UTC times, hex for bytes, nothing that needs a codec.


def plain(value: Any) -> Any:
    """Convert a value to dict, list, str, int, float, bool and None only."""
    match value:
        case None | bool() | int():
            return value
        case str():
            # converts enums, which are subclasses of str, to plain text
            return str(value)
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case datetime():
            return _utc(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def moment(text: str) -> datetime:
    """Parse a time; without a zone it is UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _utc(value: datetime) -> str:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LONGEST = 8_000


class LogFormat(StrEnum):
    """How lines are spelled."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """The parts of a log line; some may be unknown."""

    message: str
    event: str
    """The kind of line: `batch_settled`, `log`, `note`."""
    level: str = "INFO"
    pipeline: str | None = None
    batch: int | None = None
    table: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further parts of this kind of line."""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def masked(self, mask: Callable[[str], str]) -> LogLine:
        """Return the text with its secrets masked."""
        more = {key: mask(v) if isinstance(v, str) else v for key, v in self.more.items()}
        return replace(self, message=mask(self.message), more=more)


def spell(line: LogLine, form: LogFormat) -> str:
    """Format a record as one line, without its end, whatever the message holds."""
    return _json(line) if form is LogFormat.JSON else _text(line)


def read_json(text: str) -> LogLine | None:
    """Parse a line of JSON; None for anything else."""
    try:
        found = json.loads(text)
        batch, pipeline, table = (found.pop(name) for name in ("batch", "pipeline", "table"))
        return LogLine(
            message=str(found.pop("message")),
            event=str(found.pop("event")),
            level=str(found.pop("level")),
            at=datetime.fromisoformat(found.pop("time")),
            pipeline=pipeline if isinstance(pipeline, str) else None,
            batch=batch if isinstance(batch, int) else None,
            table=table if isinstance(table, str) else None,
            more=found,
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _json(line: LogLine) -> str:
    document = {
        "time": _utc(line.at),
        "level": line.level,
        "pipeline": line.pipeline,
        "batch": line.batch,
        "table": line.table,
        "event": line.event,
        "message": cut(line.message, _LONGEST),
    }
    # the common fields come last, so that no further fact can replace them
    return json.dumps(document | plain(dict(line.more)) | document)


def _text(line: LogLine) -> str:
    about = [
        f"{name}={one_line(str(value))}"
        for name, value in (("batch", line.batch), ("table", line.table))
        if value is not None
    ]
    words = [_utc(line.at), f"{line.level:7}", one_line(line.pipeline or "-"), *about]
    return " ".join([*words, f"{line.event}: {one_line(cut(line.message, _LONGEST))}"])


def cut(text: str, length: int) -> str:
    """Shorten a text to a number of characters, with a sign that there were more."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 table`, `1,000 tables`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def size(value: int) -> str:
    """Format a number of bytes: `1.2 MiB`."""
    import humanize

    return humanize.naturalsize(value, binary=True)


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """Format a list: `a, b, c and 997 more`."""
    every = list(names)
    text = ", ".join(every[:most])
    return text if len(every) <= most else f"{text} and {len(every) - most:,} more"
