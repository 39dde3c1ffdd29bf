"""Orders in Avro: lists of them, or customers and products that share a topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from distributary.errors import ConfigError, ErrorCode
from distributary.lab.simulate.base import MESSAGES, Registry, Round, Sent, Sink, Tally, deliver
from distributary.lab.simulate.dice import roll, seed_for
from distributary.model.record import Format
from distributary.registry.compile.protobuf import compile_proto

# Orders, customers and products, each a function of a seed and a number.

# letters of one to four bytes each
_CUSTOMERS = (
    "Ada Lovelace",
    "Zoë Kästner",
    "Søren Ångström",
    "Łucja Żak",
    "Ιωάννα Παππά",
    "Ольга Ильина",
    "山田 太郎",
    "李 小龙",
    "नीला शर्मा",
    "Zé Conceição",
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
    """The orders of one message: one to three."""
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
        # in cents until here, so that sums are exact
        "price": sum(cents for _, cents in cart) / 100,
        "products": [
            {"name": name, "price": cents / 100} | ({"uuid": 1 + at} if version > 1 else {})
            for at, (name, cents) in enumerate(cart)
        ],
    }


def customer(seed: int, row: int) -> Record:
    """One customer."""
    bits = roll(seed_for(seed, "customers"), row)
    return {
        "customer_id": 1 + row,
        "customer_name": _CUSTOMERS[bits % len(_CUSTOMERS)],
        "customer_email": f"customer{row}@example.com",
        "customer_address": f"{_STREETS[(bits >> 8) % len(_STREETS)]} {1 + (bits >> 16) % 99}",
    }


def product(seed: int, row: int) -> Record:
    """One product."""
    bits = roll(seed_for(seed, "products"), row)
    name, cents = _PRODUCTS[bits % len(_PRODUCTS)]
    return {"product_id": 1 + row, "product_name": name, "product_price": cents / 100}


# The Avro schemas of the orders, of customers and of products.

NAMESPACE = "shop"
CUSTOMER = f"{NAMESPACE}.Customer"
PRODUCT = f"{NAMESPACE}.Product"
VERSIONS = (1, 2)

_DEFAULTS = {"uuid": 1123}

Schema = dict[str, Any]


def _record(
    name: str,
    fields: dict[str, Any],
    *,
    namespace: str | None = None,
    defaults: dict[str, Any] | None = None,
) -> Schema:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    for field in listed:
        if field["name"] in (defaults or {}):
            field["default"] = (defaults or {})[field["name"]]
    space = {"namespace": namespace} if namespace else {}
    return {"type": "record", "name": name, **space, "fields": listed}


def orders(version: int) -> str:
    """A list of orders; version 2 knows the products of an order by a number too."""
    product: dict[str, Any] = {"name": "string", "price": "double"}
    if version > 1:
        product["uuid"] = ["int", "null"]
    order = {
        "order_id": "long",
        "customer": "string",
        "description": "string",
        "price": "double",
        "products": {"type": "array", "items": _record("Product", product, defaults=_DEFAULTS)},
    }
    return json.dumps({"type": "array", "items": _record("Order", order)})


_TYPES = {
    CUSTOMER: _record(
        "Customer",
        {
            "customer_id": "int",
            "customer_name": "string",
            "customer_email": "string",
            "customer_address": "string",
        },
        namespace=NAMESPACE,
    ),
    PRODUCT: _record(
        "Product",
        {"product_id": "int", "product_name": "string", "product_price": "double"},
        namespace=NAMESPACE,
    ),
}


def types() -> dict[str, str]:
    """The schemas of the types that share a topic, by their full names."""
    return {name: json.dumps(schema) for name, schema in _TYPES.items()}


def either() -> str:
    """Any one of them, by name: only the registry knows what is meant."""
    return json.dumps(list(_TYPES))


def either_in_full() -> str:
    """The same with everything in it."""
    return json.dumps(list(_TYPES.values()))


def columns(name: str) -> tuple[str, ...]:
    """The fields of one of the types, or of an order."""
    schema = _TYPES.get(name) or json.loads(orders(1))["items"]
    return tuple(field["name"] for field in schema["fields"])


# The serializers of confluent-kafka, told the id of a schema that is registered already.
#
# Left alone they would ask the registry themselves. The one for protobuf then looks for a
# compiled form of the schema, which some registries do not find under the text that its author
# registered, or would register that form in place of the text, so that nobody could read or
# evolve it any more.

_FIRST_MESSAGE = [0]


def protobuf_serializer(text: str, schema_id: int) -> Callable[[bytes], bytes]:
    """Frames encoded messages, the first of their schema's file, as other producers do."""
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(compile_proto(text).body).file
    for file in files:
        pool.Add(file)
    package, name = files[-1].package, files[-1].message_type[0].name
    found = pool.FindMessageTypeByName(f"{package}.{name}" if package else name)
    message = GetMessageClass(found)
    serializer = ProtobufSerializer(
        message, _nobody(), {"schema.id.serializer": _framing("PROTOBUF", schema_id)}
    )
    # without a context it has no subject, and nothing to ask the registry about
    return lambda body: serializer(message.FromString(body), None) or b""


def avro_serializer(text: str, *, schema_id: int | None) -> Callable[[object], bytes]:
    """Encodes values; behind the registry's header, or bare when there is no id.

    Args:
        text: the schema with everything that it refers to.
        schema_id: its id.
    """
    settings = {
        "auto.register.schemas": False,
        "subject.name.strategy": _no_subject,
        "schema.id.serializer": _framing("AVRO", schema_id),
    }
    serializer = AvroSerializer(_nobody(), text, conf=settings)
    return lambda value: serializer(value, None) or b""


def _nobody() -> SchemaRegistryClient:
    """The client that it insists on, and never asks anything."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def _no_subject(context: Any, record: str) -> None:
    return None


def _framing(format: str, schema_id: int | None) -> Callable[[bytes, Any, Any], bytes]:
    def frame(payload: bytes, context: Any, found: Any) -> bytes:
        if schema_id is None:
            return payload
        indexes = _FIRST_MESSAGE if format == "PROTOBUF" else None
        known = SchemaId(format, schema_id, None, indexes)
        return bytes(prefix_schema_id_serializer(payload, context, known))

    return frame


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
        self._need(self.versions in VERSIONS, "versions", "1 or 2")
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
            OrderKind.CUSTOMER: CUSTOMER,
            OrderKind.PRODUCT: PRODUCT,
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
        text = orders(version)
        return registry.register(plan.subject, text, format=Format.AVRO)
    references = []
    for name, text in types().items():
        subject = f"{plan.topic}-{name}"
        registry.set_compatibility(subject, _LEVEL)
        schema_id = registry.register(subject, text, format=Format.AVRO)
        known = registry.by_id(schema_id).version_in(subject)
        references.append({"name": name, "subject": subject, "version": known})
    registry.set_compatibility(plan.subject, _LEVEL)
    text = either()
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
    tally, version = Tally(first_position=position), max(ids)
    return Round(
        _batches(plan, dated, schema_id=ids[version], version=version, tally=tally, most=most),
        number=version - 1,
        version=version,
        tally=tally,
        schema_ids={plan.type: dict(ids)},
        columns={plan.type: columns(plan.type)},
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
    text = orders(version) if lists else either_in_full()
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
