"""Spans of time in the properties of Delta tables: `interval 1 days`."""

from __future__ import annotations

import re
from datetime import timedelta

_PART = re.compile(r"([0-9]{1,9}) (week|day|hour|minute|second|millisecond|microsecond)s?")


def parse_interval(text: str | None) -> timedelta | None:
    """The span that a property means; None where it is not set or says something else."""
    words = " ".join((text or "").lower().removeprefix("interval").split())
    total, rest = timedelta(0), words
    while rest:
        match = _PART.match(rest)
        if match is None:
            return None
        total += timedelta(**{f"{match[2]}s": int(match[1])})
        rest = rest[match.end() :].lstrip()
    return total if words else None
