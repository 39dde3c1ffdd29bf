"""Orders in Avro: lists of them, or customers and products that share a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from distributary.errors import ConfigError, ErrorCode
from distributary.model.schema import Format
from distributary.simulate import orders_records, orders_schemas
from distributary.simulate.base import MESSAGES, Registry, Sink
from distributary.simulate.deliver import deliver
from distributary.simulate.rounds import Round, Tally
from distributary.simulate.sent import Sent
from distributary.simulate.serializers import avro_serializer

ORDER = "Order"
_LEVEL = "BACKWARD"
_STEP_MILLIS = 60_000
_ROWS_PER_BATCH = 1_000


class OrderKind(StrEnum):
    """What is sent: lists of orders, or one of the types that share a topic."""

    ORDERS = "orders"
    CUSTOMER = "customer"
    PRODUCT = "product"


@dataclass(frozen=True, kw_only=True)
class OrdersPlan:
    """Exactly `versions * records` messages, and `empty` lists without an order between them."""

    kind: OrderKind = OrderKind.ORDERS
    versions: int = 1
    """The newest version that is sent; version 2 of an order adds a field to its products."""
    records: int = 10
    """Messages per version, each with at least one order."""
    empty: int = 0
    """Messages that are empty lists, in addition: good ones that hold no row."""
    bare: int = 0
    """Messages without the registry's header, in addition, after all others."""
    framed: bool = True
    """Whether the registry's header stands before all others."""
    topic: str = "dev.orders"
    seed: int = 999
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    """Time of the first message; they come a minute apart."""

    def __post_init__(self) -> None:
        lists = self.kind is OrderKind.ORDERS
        self._need(self.versions in orders_schemas.VERSIONS, "versions", "1 or 2")
        self._need(lists or self.versions == 1, "versions", f"1: a {self.kind} has no other")
        self._need(self.records >= 1, "records", "at least 1")
        self._need(self.empty >= 0 and (lists or not self.empty), "empty", "0, or more for orders")
        self._need(self.bare >= 0, "bare", "0 or more")
        self._need(self.start.tzinfo is not None, "start", "a time with a zone")

    def _need(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                "these orders cannot be simulated",
                where=name,
                evidence=repr(getattr(self, name))[:80],
                next_step=f"use {wanted}",
            )

    @property
    def subject(self) -> str:
        """Where the versions are registered."""
        return f"{self.topic}-value"

    @property
    def type(self) -> str:
        """The full name of the record."""
        names = {
            OrderKind.CUSTOMER: orders_schemas.CUSTOMER,
            OrderKind.PRODUCT: orders_schemas.PRODUCT,
        }
        return names.get(self.kind, ORDER)


def produce_orders(
    plan: OrdersPlan,
    *,
    registry: Registry,
    sink: Sink,
    rate: float | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Sent:
    """Register every version when its turn comes, send everything, and say what was sent."""
    rounds = stream_orders(plan, registry=registry)
    return deliver(rounds, sink=sink, rate=rate, on_round=on_round)


def stream_orders(plan: OrdersPlan, *, registry: Registry) -> Iterator[Round]:
    """Version by version: each is registered when it is asked for, not before."""
    position = 0
    ids: dict[int, int] = {}
    for version in range(1, plan.versions + 1):
        ids[version] = _register(plan, registry, version)
        values = list(_values(plan, version))
        yield _round(plan, _dated(plan, values, position), ids=ids, position=position)
        position += len(values)
    if plan.bare:
        last = range(plan.versions * plan.records, plan.versions * plan.records + plan.bare)
        values = [_value(plan, row, plan.versions) for row in last]
        dated = _dated(plan, values, position)
        yield _round(replace(plan, framed=False), dated, ids=ids, position=position)


def typed_orders(plan: OrdersPlan, values: Iterable[Any], *, registry: Registry) -> Round:
    """The newest version of what somebody types: lists of orders, or records of the plan's kind."""
    ids = {version: _register(plan, registry, version) for version in range(1, plan.versions + 1)}
    now = ((int(time.time() * 1000), value) for value in values)
    return _round(plan, now, ids=ids, position=0, most=1)


def _register(plan: OrdersPlan, registry: Registry, version: int) -> int:
    if plan.kind is OrderKind.ORDERS:
        registry.set_compatibility(plan.subject, _LEVEL)
        text = orders_schemas.orders(version)
        return registry.register(plan.subject, text, format=Format.AVRO)
    references = []
    for name, text in orders_schemas.types().items():
        subject = f"{plan.topic}-{name}"
        registry.set_compatibility(subject, _LEVEL)
        schema_id = registry.register(subject, text, format=Format.AVRO)
        known = registry.by_id(schema_id).version_in(subject)
        references.append({"name": name, "subject": subject, "version": known})
    registry.set_compatibility(plan.subject, _LEVEL)
    text = orders_schemas.either()
    return registry.register(plan.subject, text, format=Format.AVRO, references=references)


def _values(plan: OrdersPlan, version: int) -> Iterator[Any]:
    start = (version - 1) * plan.records
    total = plan.versions * plan.records
    for row in range(start, start + plan.records):
        yield _value(plan, row, version)
        # spread evenly over all versions
        yield from [[]] * ((row + 1) * plan.empty // total - row * plan.empty // total)


def _value(plan: OrdersPlan, row: int, version: int) -> Any:
    match plan.kind:
        case OrderKind.CUSTOMER:
            return orders_records.customer(plan.seed, row)
        case OrderKind.PRODUCT:
            return orders_records.product(plan.seed, row)
        case _:
            return orders_records.order_list(plan.seed, row, version=version)


def _dated(plan: OrdersPlan, values: list[Any], position: int) -> list[tuple[int, Any]]:
    first = int(plan.start.timestamp() * 1000) + position * _STEP_MILLIS
    return [(first + n * _STEP_MILLIS, value) for n, value in enumerate(values)]


def _round(
    plan: OrdersPlan,
    dated: Iterable[tuple[int, Any]],
    *,
    ids: dict[int, int],
    position: int,
    most: int = _ROWS_PER_BATCH,
) -> Round:
    tally, version = Tally(first_position=position), max(ids)
    return Round(
        _batches(plan, dated, schema_id=ids[version], version=version, tally=tally, most=most),
        number=version - 1,
        version=version,
        tally=tally,
        schema_ids={plan.type: dict(ids)},
        columns={plan.type: orders_schemas.columns(plan.type)},
        type_changes={},
    )


def _batches(
    plan: OrdersPlan,
    dated: Iterable[tuple[int, Any]],
    *,
    schema_id: int,
    version: int,
    tally: Tally,
    most: int,
) -> Iterator[pa.RecordBatch]:
    lists = plan.kind is OrderKind.ORDERS
    text = orders_schemas.orders(version) if lists else orders_schemas.either_in_full()
    encode = avro_serializer(text, schema_id=schema_id if plan.framed else None)
    rows: list[tuple[str | None, bytes, int, bytes]] = []
    position = tally.first_position
    for moment, value in dated:
        encoded = encode(value if lists else (plan.type, value))
        _count(plan, tally, value, encoded, version=version, position=position)
        tally.add_times(moment, moment)
        kind = plan.type if plan.framed else None
        rows.append((kind, encoded, moment, b"%d" % position))
        position += 1
        if len(rows) == most:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _count(
    plan: OrdersPlan, tally: Tally, value: Any, encoded: bytes, *, version: int, position: int
) -> None:
    if not plan.framed:
        tally.add_bad(_reason(encoded), position=position)
        return
    tally.good[plan.type, version] += 1
    tally.framed += 1
    if plan.kind is OrderKind.ORDERS:
        tally.extra_rows += len(value) - 1


def _reason(bare: bytes) -> ErrorCode:
    """How a reader that expects the registry's header refuses a message without one."""
    if bare[:1] not in (b"\x00", b"\x01"):
        return ErrorCode.BAD_MAGIC
    # it looks like a header, if it is long enough, and then its id is no schema's
    return ErrorCode.WIRE_HEADER_TRUNCATED if len(bare) < 5 else ErrorCode.UNKNOWN_SCHEMA_ID


def _batch(rows: list[tuple[str | None, bytes, int, bytes]]) -> pa.RecordBatch:
    kinds, values, moments, keys = zip(*rows, strict=True)
    times = pa.array(moments, pa.timestamp("ms", "UTC"))
    columns = [
        pa.array(kinds, pa.string()),
        pa.array(values, pa.binary()),
        times.cast(MESSAGES.field("produced_at").type),
        pa.array(keys, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
