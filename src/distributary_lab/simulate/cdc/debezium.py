"""Change events as Debezium messages for Kafka topics."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

from confluent_kafka import Producer

from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.errors import ConfigError
from distributary.source.kafka.produced import ProducedTopic, new_card, write_card
from distributary_lab.simulate.base import SinkMessage
from distributary_lab.simulate.cdc.datastream import row_id
from distributary_lab.simulate.cdc.datastream_files import CdcSent, CdcTally
from distributary_lab.simulate.cdc.script import ChangeModel
from distributary_lab.simulate.cdc.shapes import (
    EPOCH,
    Carried,
    CdcColumn,
    CdcPlan,
    ColumnKind,
    Dice,
    Feature,
    Row,
    SourceShape,
    SourceType,
    days,
    micros,
    since_midnight,
)
from distributary_lab.simulate.cdc.simulated_database import Op, SourceChange, Unit
from distributary_lab.simulate.kafka_sink import (
    ExistingTopic,
    KafkaSink,
    KafkaTarget,
    Topics,
    validated,
)

# The field `source` of an event for each connector: name, type in Kafka Connect, optional, value.

_VERSION = "3.3.0.Final"

SourceField = tuple[str, str, bool, Callable[[SourceChange, CdcPlan], Any]]


def _position_field(name: str) -> Callable[[SourceChange, CdcPlan], Any]:
    return lambda change, _: change.position.event_fields.get(name)


def _unless_read(value: Any) -> Callable[[SourceChange, CdcPlan], Any]:
    return lambda change, _: None if change.op is Op.READ else value


def _nothing(change: SourceChange, plan: CdcPlan) -> None:
    return None


def _snapshot(change: SourceChange, plan: CdcPlan) -> str:
    if change.op is not Op.READ:
        return "false"
    return "true" if change.filed <= plan.start_millis else "incremental"


def _sequence(change: SourceChange, plan: CdcPlan) -> str | None:
    if change.shape.source_type is not SourceType.POSTGRESQL:
        return None
    return json.dumps([None, str(change.position.numbers[0])])


def _commit_scn(change: SourceChange, plan: CdcPlan) -> str | None:
    return None if change.op is Op.READ else str(change.position.event_fields["scn"])


_SCHEMA: SourceField = ("schema", "string", False, lambda change, _: change.shape.schema)
_TABLE: SourceField = ("table", "string", False, lambda change, _: change.shape.table)
_HEAD: tuple[SourceField, ...] = (
    ("version", "string", False, lambda *_: _VERSION),
    ("connector", "string", False, lambda change, _: str(change.shape.source_type)),
    ("name", "string", False, lambda _, plan: plan.topic_prefix),
    ("ts_ms", "int64", False, lambda change, _: change.ts),
    ("snapshot", "string", True, _snapshot),
    ("db", "string", False, lambda change, _: change.shape.database),
    ("sequence", "string", True, _sequence),
    ("ts_us", "int64", True, lambda change, _: change.ts * 1_000),
    ("ts_ns", "int64", True, lambda change, _: change.ts * 1_000_000),
)
_SOURCE: dict[SourceType, tuple[SourceField, ...]] = {
    SourceType.MYSQL: (
        *_HEAD,
        ("table", "string", True, lambda change, _: change.shape.table),
        ("server_id", "int64", False, lambda change, _: 0 if change.op is Op.READ else 223344),
        ("gtid", "string", True, _nothing),
        ("file", "string", False, lambda change, _: change.position.event_fields["log_file"] or ""),
        ("pos", "int64", False, lambda change, _: change.position.numbers[1]),
        ("row", "int32", False, lambda *_: 0),
        ("thread", "int64", True, _nothing),
        ("query", "string", True, _nothing),
    ),
    SourceType.POSTGRESQL: (
        *(*_HEAD, _SCHEMA, _TABLE),
        ("txId", "int64", True, _position_field("tx_id")),
        ("lsn", "int64", True, lambda change, _: change.position.numbers[0]),
        ("xmin", "int64", True, _nothing),
    ),
    SourceType.ORACLE: (
        *(*_HEAD, _SCHEMA, _TABLE),
        ("txId", "string", True, _position_field("tx_id")),
        ("scn", "string", True, lambda change, _: str(change.position.event_fields["scn"])),
        ("commit_scn", "string", True, _commit_scn),
        ("rs_id", "string", True, _position_field("rs_id")),
        ("ssn", "int64", True, _position_field("ssn")),
        ("redo_thread", "int32", True, _unless_read(1)),
        ("user_name", "string", True, _nothing),
        ("row_id", "string", True, lambda change, _: row_id(change.serial)),
    ),
    SourceType.SQLSERVER: (
        *(*_HEAD, _SCHEMA, _TABLE),
        ("change_lsn", "string", True, _position_field("lsn")),
        ("commit_lsn", "string", True, _position_field("lsn")),
        ("event_serial_no", "int64", True, _unless_read(1)),
    ),
}


# Values and schemas of columns in the JSON of Kafka Connect.

UNAVAILABLE = "__debezium_unavailable_value"
"""Placeholder for a long value that PostgreSQL did not log, because it did not change."""

_IN_UTC = (SourceType.MYSQL, SourceType.POSTGRESQL)
_TYPES: dict[Carried, dict[str, Any]] = {
    Carried.INTEGER: {"type": "int32"},
    Carried.LONG: {"type": "int64"},
    Carried.FLOAT: {"type": "float"},
    Carried.DOUBLE: {"type": "double"},
    Carried.STRING: {"type": "string"},
    Carried.BOOLEAN: {"type": "boolean"},
    Carried.BYTES: {"type": "bytes"},
    Carried.DATE: {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    Carried.DATETIME: {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
    Carried.TIMESTAMP: {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
    Carried.TIME: {"type": "int64", "name": "io.debezium.time.MicroTime", "version": 1},
    Carried.JSON: {"type": "string", "name": "io.debezium.data.Json", "version": 1},
    Carried.NUMBER: {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ],
        "name": "io.debezium.data.VariableScaleDecimal",
        "version": 1,
    },
}
_TYPES[Carried.TIMESTAMP_TZ] = _TYPES[Carried.TIMESTAMP]


def connect_row(row: Row, shape: SourceShape) -> Row:
    """Return the values of a row in the JSON of Kafka Connect."""
    return {
        column.name: _value(row.get(column.name), column, shape.source_type)
        for column in shape.columns
    }


def _field(column: CdcColumn) -> dict[str, Any]:
    optional = {"optional": column.nullable, "field": column.name}
    if column.carried is Carried.DECIMAL:
        digits = {"scale": str(column.scale), "connect.decimal.precision": str(column.precision)}
        name = "org.apache.kafka.connect.data.Decimal"
        return {"type": "bytes", "name": name, "version": 1, "parameters": digits, **optional}
    return {**_TYPES[column.carried], **optional}


def _value(value: Any, column: CdcColumn, source_type: SourceType) -> Any:
    if value is None:
        return None
    match column.carried:
        case Carried.DECIMAL:
            return _unscaled(value, column.scale)
        case Carried.NUMBER:
            scale = max(0, -int(value.as_tuple().exponent))
            return {"scale": scale, "value": _unscaled(value, scale)}
        case Carried.BYTES:
            return base64.b64encode(value).decode()
        case Carried.DATE:
            return days(value)
        case Carried.TIME:
            return since_midnight(value)
        case Carried.DATETIME:
            return micros(value - EPOCH)
        case Carried.TIMESTAMP | Carried.TIMESTAMP_TZ:
            moment = value.astimezone(UTC) if source_type in _IN_UTC else value
            return moment.isoformat().replace("+00:00", "Z")
        case _:
            return value


def _unscaled(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale))
    return base64.b64encode(
        number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    ).decode()


# Schemas that the JSON converter of Kafka Connect writes into each message.


def _struct(
    name: str, fields: list[dict[str, Any]], *, optional: bool = False, **rest: Any
) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name, **rest}


def _plain(*fields: tuple[str, str, bool]) -> list[dict[str, Any]]:
    return [{"type": type, "optional": optional, "field": name} for name, type, optional in fields]


@cache
def key_schema(shape: SourceShape, topic: str) -> dict[str, Any]:
    """Return the schema of a message's key."""
    return _struct(f"{topic}.Key", [_field(shape.column(name)) for name in shape.key])


@cache
def value_schema(shape: SourceShape, topic: str) -> dict[str, Any]:
    """Return the schema of a message's value."""
    row = _struct(f"{topic}.Value", [_field(column) for column in shape.columns], optional=True)
    source_fields = _plain(*(field[:3] for field in _SOURCE[shape.source_type]))
    source = f"io.debezium.connector.{shape.source_type}.Source"
    orders = (("total_order", "int64", False), ("data_collection_order", "int64", False))
    block = _plain(("id", "string", False), *orders)
    times = [(name, "int64", True) for name in ("ts_ms", "ts_us", "ts_ns")]
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        _struct(source, source_fields, version=1, field="source"),
        _struct("event.block", block, optional=True, version=1, field="transaction"),
        *_plain(("op", "string", False), *times),
    ]
    return _struct(f"{topic}.Envelope", fields, version=2)


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
    """A message and its topic."""

    topic: str
    message: SinkMessage
    number: int
    """Number of its event; a tombstone has the number of its delete."""
    change: SourceChange

    @property
    def is_tombstone(self) -> bool:
        """Return true when the message has no value."""
        return self.message.value is None


@dataclass(frozen=True, slots=True)
class MessageRound:
    """The messages of one round, in the order of sending."""

    number: int
    messages: tuple[TopicMessage, ...]


class DebeziumStream:
    """The Debezium messages of a plan. `rounds` can be read once."""

    def __init__(self, plan: CdcPlan) -> None:
        if not plan.is_debezium:
            raise ConfigError(
                "events of this format are written to files, not to topics",
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
        """Yield rounds; each is made when it is requested."""
        for round in self.model.rounds():
            messages = [m for unit in (*round.reads, *round.changes) for m in self._of(unit)]
            if self.plan.has(Feature.DUPLICATES) and messages:
                # a restarted connector repeats its last messages
                tail = 1 + self._dice.below(max(1, len(messages) // _REPLAYED))
                messages += messages[-tail:]
            for message in messages:
                if not message.is_tombstone:
                    self._tally.add(message.number, message.change)
            self._tally.counts["tombstones"] += sum(m.is_tombstone for m in messages)
            yield MessageRound(round.number, tuple(messages))

    def sent(self) -> CdcSent:
        """Return the counts of everything sent so far."""
        return self._tally.sent()

    def _of(self, unit: Unit) -> Iterator[TopicMessage]:
        """Yield the messages of a unit, each delete followed by its tombstone."""
        for change in unit:
            self._events += 1
            topic = topic_of(change.shape, self.plan.topic_prefix)
            key = self._key(change, topic)
            headers = self._headers(change, unit, topic)
            value = self._value(change, topic)
            at = change.ts + _AFTER_MILLIS
            name = change.shape.claim.text
            message = SinkMessage(key, value, headers, at, name)
            yield TopicMessage(topic, message, self._events, change)
            if change.deleted and key is not None:
                tombstone = SinkMessage(key, None, (), at, name)
                yield TopicMessage(topic, tombstone, self._events, change)

    def _key(self, change: SourceChange, topic: str) -> bytes | None:
        shape = change.shape
        if not shape.key:
            return None
        row = connect_row(change.row, shape)
        key = {name: row[name] for name in shape.key}
        return self._json(key, key_schema(shape, topic) if self.plan.with_schema else None)

    def _headers(
        self, change: SourceChange, unit: Unit, topic: str
    ) -> tuple[tuple[str, bytes], ...]:
        match change.op:
            case Op.KEY_DELETE:
                return (("__debezium.newkey", self._key(unit[1], topic) or b""),)
            case Op.KEY_INSERT:
                return (("__debezium.oldkey", self._key(unit[0], topic) or b""),)
            case _:
                return ()

    def _value(self, change: SourceChange, topic: str) -> bytes:
        at = change.ts + _AFTER_MILLIS
        value = {
            "before": _before(change),
            "after": None if change.deleted else self._after(change),
            "source": {
                name: value(change, self.plan)
                for name, _, _, value in _SOURCE[change.shape.source_type]
            },
            "transaction": None,
            "op": _OPS[change.op],
            "ts_ms": at,
            "ts_us": at * 1_000,
            "ts_ns": at * 1_000_000,
        }
        return self._json(
            value, value_schema(change.shape, topic) if self.plan.with_schema else None
        )

    def _after(self, change: SourceChange) -> Row:
        row, before = connect_row(change.row, change.shape), change.before
        left_out = self.plan.has(Feature.UNAVAILABLE_VALUES) and change.op is Op.UPDATE
        if left_out and before and change.shape.source_type is SourceType.POSTGRESQL:
            for column in change.shape.columns:
                same = before.get(column.name) == change.row[column.name] is not None
                if column.kind is ColumnKind.LONG_TEXT and same:
                    row[column.name] = UNAVAILABLE
        return row

    def _json(self, payload: Row, schema: dict[str, Any] | None) -> bytes:
        document = payload if schema is None else {"schema": schema, "payload": payload}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def topic_of(shape: SourceShape, prefix: str) -> str:
    """Return a topic such as `shop.shop.orders`; invalid characters become underscores."""
    names = [prefix, shape.namespace, shape.table]
    if shape.source_type is SourceType.SQLSERVER:
        names.insert(1, shape.database)
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(names))


def _before(change: SourceChange) -> Row | None:
    """Return the row before the change, as far as the database logs it."""
    shape, before = change.shape, change.before
    if before is None or change.op is Op.KEY_INSERT:
        return None
    if shape.source_type is not SourceType.POSTGRESQL or not shape.key:
        return connect_row(before, shape)
    if not change.deleted:
        return None
    return connect_row({name: before[name] for name in shape.key}, shape)


# A sink for many topics of one broker, each created when needed and noted on a card.


class TopicsOutlet:
    """A sink for all topics of one broker, with one client; missing topics are created."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        partitions: int | None = None,
        source: KafkaSourceConfig | None = None,
    ) -> None:
        """Connect; `source` are settings of a pipeline file, for the login to the brokers."""
        plain = KafkaTarget(topic="any", bootstrap_servers=bootstrap_servers)
        self._options = (source or validated(plain)[0]).client_options()
        self._partitions = partitions
        self._topics = Topics(self._options)
        self._cluster = self._topics.cluster()
        self._sinks: dict[str, KafkaSink] = {}
        self._producer: Producer | None = None
        self.made: dict[str, ExistingTopic] = {}
        """The topics that were sent to."""

    @property
    def acknowledged(self) -> int:
        """Return the number of messages that the broker has acknowledged."""
        return sum(sink.acknowledged for sink in self._sinks.values())

    def write(self, topic: str, messages: list[SinkMessage]) -> None:
        """Send messages to a topic and wait until each is acknowledged."""
        if topic not in self._sinks:
            self._open(topic)
        self._sinks[topic].write(messages)

    def _open(self, name: str) -> None:
        topic = self._topics.ensure(name, partitions=self._partitions)
        self.made[name] = topic
        if topic.created:
            write_card(
                ProducedTopic(
                    cluster=self._cluster,
                    topic=name,
                    topic_id=topic.id,
                    registry="",
                    subjects=(),
                    schema_ids={},
                    path=new_card(),
                )
            )
        self._sinks[name] = KafkaSink(name, options=self._options, producer=self._shared)

    def _shared(self, settings: dict[str, Any]) -> Producer:
        # one client per topic would need thousands of threads
        if self._producer is None:
            self._producer = Producer(settings)
        return self._producer


def send_messages(
    stream: DebeziumStream,
    outlet: TopicsOutlet,
    *,
    interval: float = 0.0,
    on_round: Callable[[MessageRound], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CdcSent:
    """Send all rounds and return the counts; each topic keeps the order of the stream."""
    for round in stream.rounds():
        if round.number and interval > 0:
            sleep(interval)
        by_topic: dict[str, list[SinkMessage]] = {}
        for entry in round.messages:
            by_topic.setdefault(entry.topic, []).append(entry.message)
        for topic, messages in by_topic.items():
            outlet.write(topic, messages)
        if on_round is not None:
            on_round(round)
    return stream.sent()
