import io
import json
from typing import Any

import fastavro
import pytest

from distributary.errors import ConfigError
from distributary.model.record import Format
from distributary.registry import frames
from distributary_lab.simulate.base import Sent, SinkMessage
from distributary_lab.simulate.orders import OrderKind, OrdersPlan, stream_orders, typed_orders
from tests.registry.scratch import ScratchRegistry


def sent_by(plan: OrdersPlan, registry: Any) -> tuple[list[SinkMessage], Sent]:
    messages: list[SinkMessage] = []
    parts = []
    for each in stream_orders(plan, registry=registry):
        messages += each.messages()
        parts.append(each.sent())
    return messages, Sent.total(parts)


def decoded(registry: ScratchRegistry, value: bytes) -> Any:
    framed = frames.parse(value, protobuf=False)
    assert isinstance(framed, frames.Framed) and framed.schema_id is not None
    schema = registry.by_id(framed.schema_id)
    assert schema.format is Format.AVRO
    body = io.BytesIO(value[framed.payload_start :])
    found = fastavro.schemaless_reader(body, json.loads(schema.body), return_record_name=True)
    assert not body.read()
    return found


def test_every_list_decodes_with_its_own_version(registry: ScratchRegistry) -> None:
    messages, sent = sent_by(OrdersPlan(versions=2, records=30, empty=4), registry)
    lists = [decoded(registry, m.value or b"") for m in messages]
    assert len(lists) == sent.messages == sent.good == sent.framed == 64
    assert sent.rows == sum(map(len, lists)) > 60
    assert sum(not orders for orders in lists) == 4
    ids = [order["order_id"] for orders in lists for order in orders]
    assert len(set(ids)) == len(ids)
    products = [p for orders in lists for order in orders for p in order["products"]]
    assert {frozenset(p) for p in products} == {
        frozenset({"name", "price"}),
        frozenset({"name", "price", "uuid"}),
    }
    for order in (order for orders in lists for order in orders):
        assert order["price"] == pytest.approx(sum(p["price"] for p in order["products"]))
    assert any(not order["customer"].isascii() for orders in lists for order in orders)
    assert sent.per_type == {"Order": {1: 32, 2: 32}}
    assert registry.versions("dev.orders-value") == (1, 2)


def test_the_level_goes_before_each_version() -> None:
    class Strict(ScratchRegistry):
        def register(self, subject: str, text: str, **more: Any) -> int:
            assert self._store.level(subject) is not None
            return super().register(subject, text, **more)

    sent_by(OrdersPlan(versions=2, records=1), Strict())
    sent_by(OrdersPlan(kind=OrderKind.CUSTOMER, records=1), Strict())


def test_two_types_share_a_topic(registry: ScratchRegistry) -> None:
    found = []
    for kind in (OrderKind.CUSTOMER, OrderKind.PRODUCT):
        messages, sent = sent_by(OrdersPlan(kind=kind, records=3, topic="t"), registry)
        assert sent.rows == 3
        found += [decoded(registry, m.value or b"") for m in messages]
    assert [name for name, _ in found] == ["shop.Customer"] * 3 + ["shop.Product"] * 3
    assert {record.get("customer_id") or record["product_id"] for _, record in found} == {1, 2, 3}
    assert registry.subjects() == ("t-shop.Customer", "t-shop.Product", "t-value")
    assert registry.versions("t-value") == (1,)


def test_bare_messages_are_the_same_without_the_header(registry: ScratchRegistry) -> None:
    framed, _ = sent_by(OrdersPlan(records=5, empty=1), registry)
    bare, sent = sent_by(OrdersPlan(records=5, empty=1, framed=False), registry)
    assert [(m.value or b"")[5:] for m in framed] == [m.value for m in bare]
    assert (sent.good, sent.bad, sent.rows) == (0, 6, 0)
    assert sent.bad_by_code == {"BAD_MAGIC": 5, "WIRE_HEADER_TRUNCATED": 1}
    assert {m.type for m in bare} == {None}


@pytest.mark.parametrize("kind", OrderKind)
def test_a_bare_message_is_refused_as_foretold(kind: OrderKind, registry: ScratchRegistry) -> None:
    messages, sent = sent_by(OrdersPlan(kind=kind, records=20, framed=False), registry)
    (code,) = sent.bad_by_code
    for message in messages:
        found = frames.parse(message.value or b"", protobuf=False)
        unknown = isinstance(found, frames.Framed) and (found.schema_id or 0) > 1_000_000
        assert (code == "UNKNOWN_SCHEMA_ID") == unknown
        assert unknown or (isinstance(found, frames.BadFrame) and found.code == code)


def test_bare_messages_at_the_end(registry: ScratchRegistry) -> None:
    messages, sent = sent_by(OrdersPlan(versions=2, records=2, empty=1, bare=2), registry)
    assert (sent.good, sent.bad, sent.messages) == (5, 2, 7)
    assert (sent.first_bad, sent.last_position) == ({"BAD_MAGIC": 5}, 6)
    assert [m.type for m in messages[-3:]] == ["Order", None, None]
    assert sorted(m.timestamp for m in messages) == [m.timestamp for m in messages]


def test_the_same_seed_gives_the_same_orders() -> None:
    plan, other = OrdersPlan(records=20), OrdersPlan(records=20, seed=1)
    first = sent_by(plan, ScratchRegistry())[0]
    assert first == sent_by(plan, ScratchRegistry())[0]
    assert first != sent_by(other, ScratchRegistry())[0]


def test_what_is_typed_is_sent_in_the_newest_version(registry: ScratchRegistry) -> None:
    order = {"order_id": 7, "customer": "Zoë", "description": "", "price": 1.5}
    order["products"] = [{"name": "tea", "price": 1.5, "uuid": None}]
    typed = typed_orders(OrdersPlan(versions=2), iter([[order], []]), registry=registry)
    values = [decoded(registry, m.value or b"") for m in typed.messages()]
    assert values == [[order], []]
    assert (typed.sent().messages, typed.sent().rows) == (2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"versions": 3},
        {"records": 0},
        {"empty": -1},
        {"bare": -1},
        {"kind": OrderKind.PRODUCT, "versions": 2},
        {"kind": OrderKind.CUSTOMER, "empty": 1},
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OrdersPlan(**wrong)
