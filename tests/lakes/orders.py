"""Orders in Avro on a topic: their schema, their bytes, and a pipeline that reads them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro

from tests.lakes.streams import Stream
from tests.services.secured import SecuredServices

ORDER = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "order_id", "type": "long"},
            {"name": "customer", "type": "string"},
            {
                "name": "products",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Product",
                        "fields": [
                            {"name": "name", "type": "string"},
                            {"name": "price", "type": "double"},
                        ],
                    },
                },
            },
        ],
    },
}


def avro(schema: Any, datum: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return out.getvalue()


def order(number: int, customer: str = "Zoë") -> dict[str, Any]:
    return {
        "order_id": number,
        "customer": customer,
        "products": [{"name": "čaj", "price": 1.5}],
    }


def avro_stream(services: SecuredServices, root: Path, **settings: str) -> Stream:
    payload = settings.pop("payload", "{format: avro, framing: confluent, validate: registry}")
    return Stream(services, root, payload=payload, **settings)  # type: ignore[arg-type]
