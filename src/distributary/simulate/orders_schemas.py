"""The Avro schemas of the orders, of customers and of products."""

from __future__ import annotations

import json
from typing import Any

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
