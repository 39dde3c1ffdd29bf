"""Moments that a person types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from distributary.cli.failure import usage_error

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(text: str | None, *, command: str) -> datetime | None:
    """ISO 8601, or a day; without an offset it is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise usage_error(
            f"{text!r} is no time such as 2026-11-15T12:00:00Z.", command=command
        ) from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def microseconds(moment: datetime | None) -> int | None:
    """Since 1970."""
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)
