"""Which dead letters are meant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic_core import PydanticCustomError

from distributary.cli.failure import usage_error
from distributary.config.moment import parse_moment
from distributary.config.quantity import parse_duration
from distributary.observe.deadletters import DeadLetters

_COMMAND = "distributary dlq replay"


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that is given must hold."""

    reason: str | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    topic: str | None = None
    partition: int | None = None
    offsets: int | tuple[int, int] | None = None
    id: str | None = None
    pipeline: str | None = None

    @classmethod
    def of(
        cls,
        *,
        reason: str | None,
        type: str | None,
        since: str | None,
        until: str | None,
        offset: str | None,
        id: str | None,
        pipeline: str | None,
    ) -> Selection:
        """From what was typed."""
        topic, partition, offsets = _stretch(offset) if offset else (None, None, None)
        return cls(
            reason=reason,
            type=type,
            since=_moment(since),
            until=_moment(until),
            topic=topic,
            partition=partition,
            offsets=offsets,
            id=id,
            pipeline=pipeline,
        )

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows it down."""
        named = (self.reason, self.type, self.since, self.until, self.topic, self.id)
        return all(value is None for value in named)

    def of_pipeline(self, name: str) -> dict[str, Any]:
        """The arguments of `DeadLetters.select` for one pipeline."""
        return {
            "reason": self.reason,
            "type": self.type,
            "since": self.since,
            "until": self.until,
            "topic": self.topic,
            "partition": self.partition,
            "offsets": self.offsets,
            "pipeline": name,
        }

    def letters(
        self, source: DeadLetters, *, pipeline: str, columns: tuple[str, ...] | None = None
    ) -> pa.Table:
        """The open dead letters that are meant."""
        wanted = self.of_pipeline(pipeline)
        if self.id is not None:
            # what was typed may be the beginning of an id
            wanted["id"] = source.get(self.id)["id"]
        return source.select(**wanted, columns=columns)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.now(UTC) - parse_duration(text.removesuffix("ago").strip())
    except PydanticCustomError:
        pass
    try:
        return parse_moment(text)
    except PydanticCustomError:
        raise usage_error(
            f"{text!r} is neither a time such as 2026-01-31T12:00Z nor an age such as 2h.",
            command=_COMMAND,
        ) from None


def _stretch(text: str) -> tuple[str, int, int | tuple[int, int]]:
    parts = text.rsplit("/", 2)
    first, dash, last = parts[-1].partition("-")
    numbers = [*parts[1:2], first, *([last] if dash else [])]
    if len(parts) != 3 or not parts[0] or not all(number.isdecimal() for number in numbers):
        raise usage_error(
            f"{text!r} is not TOPIC/PARTITION/OFFSET, nor a stretch such as topic/0/10-20.",
            command=_COMMAND,
        )
    return parts[0], int(parts[1]), (int(first), int(last)) if dash else int(first)
