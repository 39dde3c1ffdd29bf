"""Orders in Avro, framed for a registry: one type of record, or many on one topic."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

_ROWS = 10_000
_FIRST_MOMENT = 1_700_000_000_000
_COUNTRIES = ("AT", "BR", "CZ", "DE", "ES", "FI", "FR", "JP", "KE", "US")
_PRODUCTS = tuple(f"product {number}" for number in range(500))


@dataclass(frozen=True, slots=True)
class OrderType:
    """One type of order; each has a field of its own."""

    number: int

    @property
    def record(self) -> str:
        """The record's name, and the subject's: `shop.Order07`."""
        return f"shop.Order{self.number:02d}"

    @property
    def own_field(self) -> str:
        return f"reference_{self.number:02d}"

    @property
    def schema(self) -> dict[str, Any]:
        moment = {"type": "long", "logicalType": "timestamp-millis"}
        types: dict[str, Any] = {
            "order_id": "long",
            "customer_id": "long",
            "customer": "string",
            "country": "string",
            "product": "string",
            "quantity": "int",
            "price": "double",
            "paid": "boolean",
            "created_at": moment,
            "note": ["null", "string"],
            self.own_field: "string",
        }
        return {
            "type": "record",
            "name": self.record.rpartition(".")[2],
            "namespace": self.record.rpartition(".")[0],
            "fields": [{"name": name, "type": type_} for name, type_ in types.items()],
        }

    @property
    def text(self) -> str:
        return json.dumps(self.schema)


def order_types(count: int) -> list[OrderType]:
    return [OrderType(number) for number in range(count)]


def encoded(
    types: Sequence[OrderType], ids: Sequence[int], *, records: int
) -> Iterator[pa.RecordBatch]:
    """Framed records of all types, mixed, as batches with a column `value`."""
    random = np.random.default_rng(1)
    schemas = [fastavro.parse_schema(one.schema) for one in types]
    heads = [b"\x00" + schema_id.to_bytes(4, "big") for schema_id in ids]
    for start in range(0, records, _ROWS):
        size = min(_ROWS, records - start)
        chosen = random.integers(len(types), size=size).tolist()
        customers = random.integers(50_000, size=size).tolist()
        prices = (random.integers(100, 100_000, size=size) / 100).tolist()
        values = []
        for row, (kind, customer, price) in enumerate(zip(chosen, customers, prices, strict=True)):
            number = start + row
            out = io.BytesIO()
            out.write(heads[kind])
            datum = _order(number, customer, price) | {types[kind].own_field: f"ref-{number}"}
            fastavro.schemaless_writer(out, schemas[kind], datum)
            values.append(out.getvalue())
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


def _order(number: int, customer: int, price: float) -> dict[str, Any]:
    return {
        "order_id": number,
        "customer_id": customer,
        "customer": f"customer {customer}",
        "country": _COUNTRIES[customer % len(_COUNTRIES)],
        "product": _PRODUCTS[number * 7 % len(_PRODUCTS)],
        "quantity": number % 9 + 1,
        "price": price,
        "paid": number % 5 != 0,
        "created_at": _FIRST_MOMENT + number * 20,
        "note": f"note {number}" if number % 4 == 0 else None,
    }
