"""Facts as plain JSON values: ISO-8601 UTC times, hex for bytes, nothing that needs a codec."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any


def plain(value: Any) -> Any:
    """The same fact made of dict, list, str, int, float, bool and None only."""
    match value:
        case None | bool() | int():
            return value
        case str():
            # enums are strings here: a subclass would survive into the result
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


def _utc(value: datetime) -> str:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
