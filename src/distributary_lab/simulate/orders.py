"""The simulator of orders in Avro: lists of orders, or customers and products in one topic."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any

import fastavro
import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.record import Format
from distributary_lab.simulate.base import ReferencedRegistry, Round, SimulationPlan, message_batch
from distributary_lab.simulate.dice import roll, seed_for

# Orders, customers and products, each a function of a seed and a number.

# characters of one to four bytes each
_CUSTOMERS = (
    *("Ada Lovelace", "Zoë Kästner", "Søren Ångström", "Łucja Żak", "Ιωάννα Παππά"),
    *("Ольга Ильина", "山田 太郎", "李 小龙", "नीला शर्मा", "Zé Conceição"),
)
_STREETS = ("Rue de la Cité", "Lindenstraße", "Calle del Niño", "Nyhavn", "桜通り")
_PRODUCTS = (
    ("shoes", 4999),
    ("t-shirt", 1999),
    ("café crème", 350),
    ("Müsli", 429),
    ("茶", 899),
    ("jalapeño 🌶", 199),
)
_WISHES = ("as a gift 🎁", "please ring twice", "vor dem Wochenende", "déjà payé", "")
_MOST_ORDERS = 3

Record = dict[str, Any]


def order_list(seed: int, row: int, *, version: int) -> list[Record]:
    """Return the one to three orders of a message."""
    bits = roll(seed_for(seed, "orders"), row)
    return [
        _order(seed, row * _MOST_ORDERS + k, version=version)
        for k in range(1 + bits % _MOST_ORDERS)
    ]


def _order(seed: int, number: int, *, version: int) -> Record:
    bits = roll(seed_for(seed, "order"), number)
    cart = [
        _PRODUCTS[(bits >> 8 * k) % len(_PRODUCTS)] for k in range(1 + (bits >> 32) % _MOST_ORDERS)
    ]
    return {
        "order_id": 1 + number,
        "customer": _CUSTOMERS[(bits >> 40) % len(_CUSTOMERS)],
        "description": _WISHES[(bits >> 48) % len(_WISHES)],
        # sums in cents are exact
        "price": sum(cents for _, cents in cart) / 100,
        "products": [
            {"name": name, "price": cents / 100} | ({"uuid": 1 + at} if version > 1 else {})
            for at, (name, cents) in enumerate(cart)
        ],
    }


def customer(seed: int, row: int) -> Record:
    """Return one customer."""
    bits = roll(seed_for(seed, "customers"), row)
    return {
        "customer_id": 1 + row,
        "customer_name": _CUSTOMERS[bits % len(_CUSTOMERS)],
        "customer_email": f"customer{row}@example.com",
        "customer_address": f"{_STREETS[(bits >> 8) % len(_STREETS)]} {1 + (bits >> 16) % 99}",
    }


def product(seed: int, row: int) -> Record:
    """Return one product."""
    bits = roll(seed_for(seed, "products"), row)
    name, cents = _PRODUCTS[bits % len(_PRODUCTS)]
    return {"product_id": 1 + row, "product_name": name, "product_price": cents / 100}


# Avro schemas of orders, customers and products.

NAMESPACE = "shop"
CUSTOMER = f"{NAMESPACE}.Customer"
PRODUCT = f"{NAMESPACE}.Product"
VERSIONS = (1, 2)

Schema = dict[str, Any]


def _record(name: str, fields: Schema, **rest: str) -> Schema:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, **rest, "fields": listed}


def orders(version: int) -> str:
    """Return the schema of a list of orders; version 2 adds a number to the products."""
    product = _record("Product", {"name": "string", "price": "double"})
    if version > 1:
        product["fields"].append({"name": "uuid", "type": ["int", "null"], "default": 1123})
    texts = {"customer": "string", "description": "string"}
    products = {"type": "array", "items": product}
    order = {"order_id": "long", **texts, "price": "double", "products": products}
    return json.dumps({"type": "array", "items": _record("Order", order)})


_CUSTOMER = {"customer_id": "int"} | dict.fromkeys(
    ("customer_name", "customer_email", "customer_address"), "string"
)
_PRODUCT = {"product_id": "int", "product_name": "string", "product_price": "double"}
_TYPES = {
    CUSTOMER: _record("Customer", _CUSTOMER, namespace=NAMESPACE),
    PRODUCT: _record("Product", _PRODUCT, namespace=NAMESPACE),
}
"""Schemas of the types that share a topic, by full name."""


def columns(name: str) -> tuple[str, ...]:
    """Return the fields of one of the types, or of an order."""
    schema = _TYPES.get(name) or json.loads(orders(1))["items"]
    return tuple(field["name"] for field in schema["fields"])


def avro_encoder(text: str, schema_id: int | None) -> Callable[[object], bytes]:
    """Build an encoder for a schema, with the registry's header unless there is no id."""
    schema = fastavro.parse_schema(json.loads(text))
    header = b"" if schema_id is None else b"\x00" + schema_id.to_bytes(4, "big")

    def encode(value: object) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        return header + out.getvalue()

    return encode


ORDER = "Order"
_LEVEL = "BACKWARD"
_STEP_MILLIS = 60_000
_ROWS_PER_BATCH = 1_000


class OrderKind(StrEnum):
    """The records to send: lists of orders, or one of the types that share a topic."""

    ORDERS = "orders"
    CUSTOMER = "customer"
    PRODUCT = "product"


@dataclass(frozen=True, kw_only=True)
class OrdersPlan(SimulationPlan):
    """Exactly `versions * records` messages, with `empty` empty lists in between."""

    refusal = "these orders cannot be simulated"

    kind: OrderKind = OrderKind.ORDERS
    versions: int = 1
    """The newest version to send; version 2 of an order adds a field to its products."""
    records: int = 10
    """Number of messages per version, each with at least one order."""
    empty: int = 0
    """Number of additional messages that are empty lists: valid, without rows."""
    bare: int = 0
    """Number of additional messages without the registry's header, after all others."""
    framed: bool = True
    """Whether the other messages have the registry's header."""
    topic: str = "dev.orders"
    seed: int = 999
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    """Time of the first message; messages are a minute apart."""

    def __post_init__(self) -> None:
        lists = self.kind is OrderKind.ORDERS
        self._need(self.versions in VERSIONS, "versions", "1 or 2")
        self._need(lists or self.versions == 1, "versions", f"1: a {self.kind} has no other")
        self._need(self.records >= 1, "records", "at least 1")
        self._need(self.empty >= 0 and (lists or not self.empty), "empty", "0, or more for orders")
        self._need(self.bare >= 0, "bare", "0 or more")
        self._need(self.start.tzinfo is not None, "start", "a time with a zone")

    @property
    def subject(self) -> str:
        """Return the subject of the versions."""
        return f"{self.topic}-value"

    @property
    def type(self) -> str:
        """Return the full name of the record."""
        return {OrderKind.CUSTOMER: CUSTOMER, OrderKind.PRODUCT: PRODUCT}.get(self.kind, ORDER)


def stream_orders(plan: OrdersPlan, *, registry: ReferencedRegistry) -> Iterator[Round]:
    """Yield rounds; each version is registered when its round is requested."""
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


def typed_orders(plan: OrdersPlan, values: Iterable[Any], *, registry: ReferencedRegistry) -> Round:
    """Return a round of the newest version with values from the terminal."""
    ids = {version: _register(plan, registry, version) for version in range(1, plan.versions + 1)}
    now = ((int(time.time() * 1000), value) for value in values)
    return _round(plan, now, ids=ids, position=0, most=1)


def _register(plan: OrdersPlan, registry: ReferencedRegistry, version: int) -> int:
    if plan.kind is OrderKind.ORDERS:
        registry.set_compatibility(plan.subject, _LEVEL)
        return registry.register(plan.subject, orders(version), format=Format.AVRO)
    references = []
    for name, schema in _TYPES.items():
        subject = f"{plan.topic}-{name}"
        registry.set_compatibility(subject, _LEVEL)
        schema_id = registry.register(subject, json.dumps(schema), format=Format.AVRO)
        number = registry.by_id(schema_id).version_in(subject)
        references.append({"name": name, "subject": subject, "version": number})
    registry.set_compatibility(plan.subject, _LEVEL)
    # a union of the two names, which the registry resolves by the references
    text = json.dumps(list(_TYPES))
    return registry.register(plan.subject, text, format=Format.AVRO, references=references)


def _values(plan: OrdersPlan, version: int) -> Iterator[Any]:
    start = (version - 1) * plan.records
    total = plan.versions * plan.records
    for row in range(start, start + plan.records):
        yield _value(plan, row, version)
        # empty lists are distributed evenly over all versions
        yield from [[]] * ((row + 1) * plan.empty // total - row * plan.empty // total)


def _value(plan: OrdersPlan, row: int, version: int) -> Any:
    match plan.kind:
        case OrderKind.CUSTOMER:
            return customer(plan.seed, row)
        case OrderKind.PRODUCT:
            return product(plan.seed, row)
        case _:
            return order_list(plan.seed, row, version=version)


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
    version = max(ids)
    return Round(
        partial(_batches, plan, dated, ids[version] if plan.framed else None, most),
        number=version - 1,
        version=version,
        first_position=position,
        schema_ids={plan.type: ids},
        columns={plan.type: columns(plan.type)},
    )


def _batches(
    plan: OrdersPlan,
    dated: Iterable[tuple[int, Any]],
    schema_id: int | None,
    most: int,
    round: Round,
) -> Iterator[pa.RecordBatch]:
    lists, source = plan.kind is OrderKind.ORDERS, iter(enumerate(dated, round.first_position))
    version = round.version
    text = orders(version) if lists else json.dumps([*_TYPES.values()])
    encode = avro_encoder(text, schema_id)
    while rows := list(islice(source, most)):
        values = []
        for position, (moment, value) in rows:
            values.append(encode(value if lists else (plan.type, value)))
            round.add_times(moment, moment)
            if not plan.framed:
                round.add_bad(_reason(values[-1]), position=position)
                continue
            round.good[plan.type, version] += 1
            round.framed += 1
            round.extra_rows += len(value) - 1 if lists else 0
        yield message_batch(
            [plan.type if plan.framed else None] * len(rows),
            values,
            pa.array([moment for _, (moment, _) in rows]),
            [b"%d" % position for position, _ in rows],
        )


def _reason(bare: bytes) -> ErrorCode:
    """Return the error code of a reader that expects the registry's header."""
    if bare[:1] not in (b"\x00", b"\x01"):
        return ErrorCode.BAD_MAGIC
    # the bytes look like a header with an unknown schema id, if they are long enough
    return ErrorCode.WIRE_HEADER_TRUNCATED if len(bare) < 5 else ErrorCode.UNKNOWN_SCHEMA_ID
