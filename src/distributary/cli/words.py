"""Numbers, times and foreign text for people; nothing that a terminal would obey gets through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import humanize

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MINUTE = 60.0
_HOUR, _DAY = 60 * _MINUTE, 24 * 60 * _MINUTE
_UNITS = (("s", 1.0, 2 * _MINUTE), ("min", _MINUTE, 2 * _HOUR), ("h", _HOUR, 2 * _DAY))
"""Units, their seconds, and up to where they are used."""
_SHORT = 10
_NAMES = 3
"""Of a source's table: database, schema and table."""


def printable(text: str) -> str:
    """Text from outside with control characters, line ends and direction marks as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    return known or character.encode("unicode_escape", "surrogatepass").decode("ascii")


def spelled(type: str) -> str:
    """A type's name for people: `shop.orders` for the table `["shop","","orders"]` of a source."""
    if not type.startswith("["):
        return type
    try:
        names = json.loads(type)
    except ValueError:
        return type
    parts = [name for name in names if isinstance(name, str) and name]
    return ".".join(parts) if len(names) == _NAMES else type


def cut(text: str, length: int) -> str:
    """At most so many characters, with a sign that there were more."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def number(value: float | None) -> str:
    """`10,003`; a dash for what is not known."""
    return "-" if value is None else f"{value:,.0f}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """`1 table`, `1,000 tables`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def size(value: int) -> str:
    """`1.2 MiB`."""
    return humanize.naturalsize(value, binary=True)


def duration(seconds: float | None) -> str:
    """`0.4 s`, `2 minutes and 5 seconds`; a dash for what is not known."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = timedelta(seconds=round(seconds))
    if seconds < _MINUTE * _MINUTE:
        return humanize.precisedelta(whole, minimum_unit="seconds", format="%d")
    return humanize.naturaldelta(whole)


def brief(seconds: float | None) -> str:
    """`0.4 s`, `95 s`, `12 min`, `3.5 h`, `2 d`, for narrow columns; a dash for what is unknown."""
    if seconds is None:
        return "-"
    size = abs(seconds)
    for unit, length, most in _UNITS:
        if size < most:
            value = seconds / length
            return f"{value:.1f} {unit}" if abs(value) < _SHORT else f"{value:,.0f} {unit}"
    return f"{seconds / _DAY:,.0f} d"


def ago(seconds: float | None) -> str:
    """`3 minutes ago`; a dash for never."""
    if seconds is None:
        return "-"
    return "now" if seconds < 1 else f"{humanize.naturaldelta(timedelta(seconds=seconds))} ago"


def since(moment: datetime | None, *, now: datetime | None = None) -> str:
    """How long ago a moment was."""
    if moment is None:
        return "-"
    return ago(max(((now or datetime.now(UTC)) - moment).total_seconds(), 0.0))


def clock(moment: datetime | None, *, now: datetime | None = None) -> str:
    """A moment in this machine's time zone; the day only where it is not today."""
    if moment is None:
        return "-"
    local = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """`a, b, c and 997 more`."""
    every = list(names)
    text = ", ".join(every[:most])
    return text if len(every) <= most else f"{text} and {len(every) - most:,} more"


def tally(counts: Mapping[str, int], *, most: int = 8) -> str:
    """`silver_chess 400, silver_go 12`, the largest first."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listed((f"{name} {count:,}" for name, count in order), most=most)
