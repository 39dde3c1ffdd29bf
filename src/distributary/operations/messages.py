"""Messages of a source for people: read by offset or time, and decoded as a run would do it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from distributary.engine.pipeline import Pipeline
from distributary.model.record import RAW
from distributary.model.routing import UNFRAMED, RouteKey
from distributary.observe.deadletters import hexdump, short_bytes
from distributary.operations.insight import Insight, look_inside
from distributary.source.source_entry import Browsing, Messages, entry_of
from distributary.stage.exchange import group
from distributary.stage.task_outputs import Letter
from distributary.stage.task_plan import TaskPlan
from distributary.stage.unwrap import unwrap

MOST_MESSAGES = 100
_MOST_PARTITIONS = 1000
_MOST_HEADERS = 50
_HEX_LINES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as far as it can be read."""

    offset: int
    timestamp: datetime | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None
    type: str
    """The type that the message names; empty if it cannot be unwrapped."""
    error: str
    """The reason why it cannot be unwrapped, with its code; empty if it can."""
    insight: Insight

    def as_dict(self) -> dict[str, Any]:
        """Return the message as plain values; bytes are shortened."""
        value, seen = self.value, self.insight
        return {
            "offset": self.offset,
            "timestamp": self.timestamp,
            "key": short_bytes(self.key),
            "headers": [
                {"key": name, "value": short_bytes(content)}
                for name, content in self.headers[:_MOST_HEADERS]
            ],
            "type": self.type,
            "schema": seen.schema,
            "error": self.error,
            "decoded": seen.text,
            "bytes": None if value is None else len(value),
            "hex": list(hexdump(value or b"", mark=seen.mark, label=seen.label, head=_HEX_LINES)),
        }


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages of one partition that follow each other, and the bounds of all partitions."""

    source: Messages
    messages: tuple[Message, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the page as plain values."""
        place = self.source.partition
        partitions = [
            {"topic": topic, "partition": partition, "oldest": oldest, "end": end}
            for (topic, partition), (oldest, end) in sorted(self.source.bounds.items())
        ]
        last = self.messages[-1].offset + 1 if self.messages else self.source.start
        return {
            "topic": None if place is None else place[0],
            "partition": None if place is None else place[1],
            "oldest": None if place is None else self.source.bounds[place][0],
            "end": None if place is None else self.source.bounds[place][1],
            "start": self.source.start,
            "next": last,
            "partitions": partitions[:_MOST_PARTITIONS],
            "all_partitions": len(partitions),
            "messages": [message.as_dict() for message in self.messages],
        }


def browse(pipeline: Pipeline, wanted: Browsing) -> MessagePage:
    """Read a few messages of the pipeline's source, and decode them with its settings.

    Nothing is committed at the source, and of the lake only the cache of schemas may grow.
    """
    settings = pipeline.config.source
    found = entry_of(settings).browse(settings, wanted)
    plan = pipeline.planner(trial=True).task_plan()
    return MessagePage(found, tuple(_messages(pipeline, found.rows, plan)))


def _messages(pipeline: Pipeline, rows: pa.Table, plan: TaskPlan) -> Iterator[Message]:
    registry = pipeline.registry()
    for row in rows.to_pylist():
        # each by itself, so that one that cannot be read says so of itself
        raw = pa.RecordBatch.from_pylist([row], schema=RAW)
        unwrapped = unwrap(raw, plan)
        key = group(unwrapped).keys[0] if len(unwrapped.rows) else None
        letter = unwrapped.letters[0] if unwrapped.letters else None
        known = None if key is None or key.schema_id == UNFRAMED else key.schema_id
        about = {
            "value": row["value"],
            "topic": row["topic"],
            "schema_id": known if letter is None else letter.schema_id,
            "error_position": None if letter is None else letter.position,
            "stage": "" if letter is None else letter.stage,
        }
        yield Message(
            offset=row["offset"],
            timestamp=row["timestamp"],
            key=row["key"],
            headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            value=row["value"],
            type=_type(key, letter),
            error="" if letter is None else f"{letter.code}: {letter.message}",
            insight=look_inside(pipeline, about, unwrapped=unwrapped, registry=registry),
        )


def _type(key: RouteKey | None, letter: Letter | None) -> str:
    """Return the type that a message names, also of one that cannot be read further."""
    if key is not None:
        return key.claim
    return "" if letter is None else letter.type or ""
