"""The stream as messages of Debezium: the same changes, in its envelope, for topics of Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from distributary.errors import ConfigError
from distributary.simulate.base import Message
from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.changes import Change, Op, Unit
from distributary.simulate.cdc.debezium_schema import key_schema, value_schema
from distributary.simulate.cdc.debezium_source import source_block
from distributary.simulate.cdc.debezium_types import UNAVAILABLE, connect_row
from distributary.simulate.cdc.kinds import Kind
from distributary.simulate.cdc.model import ChangeModel
from distributary.simulate.cdc.plan import CdcPlan, Feature, SourceType
from distributary.simulate.cdc.sent import CdcSent, CdcTally
from distributary.simulate.cdc.shapes import Row, Shape

_OPS = {
    Op.READ: "r",
    Op.INSERT: "c",
    Op.UPDATE: "u",
    Op.DELETE: "d",
    Op.KEY_DELETE: "d",
    Op.KEY_INSERT: "c",
}
_AFTER_MILLIS = 250
_REPLAYED = 10


class TopicMessage(NamedTuple):
    """A message and where it goes."""

    topic: str
    message: Message
    number: int
    """Of its event; a tombstone has that of its delete."""
    change: Change

    @property
    def is_tombstone(self) -> bool:
        """Whether it has no value."""
        return self.message.value is None


@dataclass(frozen=True, slots=True)
class MessageRound:
    """The messages of one round, in the order in which they are sent."""

    number: int
    messages: tuple[TopicMessage, ...]


class DebeziumStream:
    """Debezium's messages for a plan. `rounds` can be read once."""

    def __init__(self, plan: CdcPlan) -> None:
        if not plan.is_debezium:
            raise ConfigError(
                "these events are for files, not for topics",
                where="format",
                evidence=plan.format,
                next_step="use debezium",
            )
        self.plan = plan
        self.model = ChangeModel(plan)
        self._dice = Dice(plan.seed, "messages")
        self._tally = CdcTally(self.model)
        self._events = 0

    def rounds(self) -> Iterator[MessageRound]:
        """Round by round, made when it is asked for."""
        for round in self.model.rounds():
            messages = [m for unit in (*round.reads, *round.changes) for m in self._of(unit)]
            if self.plan.has(Feature.DUPLICATES) and messages:
                # a connector that starts again begins a little before where it ended
                tail = 1 + self._dice.below(max(1, len(messages) // _REPLAYED))
                messages += messages[-tail:]
            for message in messages:
                if not message.is_tombstone:
                    self._tally.add(message.number, message.change)
            self._tally.counts["tombstones"] += sum(m.is_tombstone for m in messages)
            yield MessageRound(round.number, tuple(messages))

    def sent(self) -> CdcSent:
        """What was sent by now."""
        return self._tally.sent()

    def _of(self, unit: Unit) -> Iterator[TopicMessage]:
        for change in unit:
            self._events += 1
            topic = topic_of(change.shape, self.plan.topic_prefix)
            key = self._key(change, topic)
            headers = self._headers(change, unit, topic)
            value = self._value(change, topic)
            at = change.ts + _AFTER_MILLIS
            name = change.shape.claim.text
            message = Message(key, value, headers, at, name)
            yield TopicMessage(topic, message, self._events, change)
            if change.deleted and key is not None:
                gone = Message(key, None, (), at, name)
                yield TopicMessage(topic, gone, self._events, change)

    def _key(self, change: Change, topic: str) -> bytes | None:
        shape = change.shape
        if not shape.key:
            return None
        row = connect_row(change.row, shape)
        key = {name: row[name] for name in shape.key}
        return self._json(key, key_schema(shape, topic) if self.plan.with_schema else None)

    def _headers(self, change: Change, unit: Unit, topic: str) -> tuple[tuple[str, bytes], ...]:
        match change.op:
            case Op.KEY_DELETE:
                return (("__debezium.newkey", self._key(unit[1], topic) or b""),)
            case Op.KEY_INSERT:
                return (("__debezium.oldkey", self._key(unit[0], topic) or b""),)
            case _:
                return ()

    def _value(self, change: Change, topic: str) -> bytes:
        at = change.ts + _AFTER_MILLIS
        value = {
            "before": _before(change),
            "after": None if change.deleted else self._after(change),
            "source": source_block(change, self.plan),
            "transaction": None,
            "op": _OPS[change.op],
            "ts_ms": at,
            "ts_us": at * 1_000,
            "ts_ns": at * 1_000_000,
        }
        return self._json(
            value, value_schema(change.shape, topic) if self.plan.with_schema else None
        )

    def _after(self, change: Change) -> Row:
        row, before = connect_row(change.row, change.shape), change.before
        left_out = self.plan.has(Feature.UNAVAILABLE_VALUES) and change.op is Op.UPDATE
        if left_out and before and change.shape.source_type is SourceType.POSTGRESQL:
            for column in change.shape.columns:
                same = before.get(column.name) == change.row[column.name] is not None
                if column.kind is Kind.LONG_TEXT and same:
                    row[column.name] = UNAVAILABLE
        return row

    def _json(self, payload: Row, schema: dict[str, Any] | None) -> bytes:
        whole = payload if schema is None else {"schema": schema, "payload": payload}
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def topic_of(shape: Shape, prefix: str) -> str:
    """`shop.shop.orders`; what a topic's name may not have becomes an underscore."""
    names = [prefix, shape.namespace, shape.table]
    if shape.source_type is SourceType.SQLSERVER:
        names.insert(1, shape.database)
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(names))


def _before(change: Change) -> Row | None:
    """How the row was, as far as the database remembers it."""
    shape, before = change.shape, change.before
    if before is None or change.op is Op.KEY_INSERT:
        return None
    if shape.source_type is not SourceType.POSTGRESQL or not shape.key:
        return connect_row(before, shape)
    if not change.deleted:
        return None
    return connect_row({name: before[name] for name in shape.key}, shape)
