"""Suites `json`, `json-types` and `json-many`: orders as JSON without a schema.

The first two are compared with Spark's `from_json`; the third one compares 1,000 types with 10, and
with the same records of which a registry has the schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.baseline import append, append_each, expect_rows, with_our_columns
from benchmarks.clock import timed
from benchmarks.engine import bare_session, ingested, kafka_pipeline
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.topic import batch_frame, fill, registry_of, serving
from distributary.model.record import Format

_ROWS = 10_000
_COUNTRIES = ("AT", "BR", "CZ", "DE", "ES", "FI", "FR", "JP", "KE", "US")
_COLOURS = ("red", "green", "blue", "black", "white")
ORDER_COLUMNS = (
    "order_id bigint, customer string, created_at string, price double, quantity bigint, "
    "paid boolean, address struct<country:string,street:string>, tags array<string>"
)
"""What a user of `from_json` has to write down; a type has one text more, of its own name."""


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A topic with all batches, in which a field of each record names its type."""
    with serving(order) as served:
        fill(served, _encoded(order_types(order), records=served.records * served.all_batches))
        yield served


def order_types(order: Order) -> list[str]:
    return [f"orders_{number:02d}" for number in range(order.tables)]


def direct_case(order: Order) -> Row:
    """Our engine, which finds the columns itself."""
    path = kafka_pipeline(
        order,
        name="direct",
        message="payload: {format: json}",
        tables='{each: "{field:event}"}',
        schemas=False,
    )
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def first_case(order: Order) -> Row:
    """The same, but the first batch alone: in it all types are new."""
    path = kafka_pipeline(
        order,
        name="first",
        message="payload: {format: json}",
        tables='{each: "{field:event}"}',
        schemas=False,
    )
    return summarised(ingested(path, trigger="continuous", batches=1), warm=0)


def typed_case(order: Order) -> Row:
    """The same records, of which a registry has a schema for each type."""
    registry = registry_of(order)
    for name in order_types(order):
        registry.register(f"{name}-value", json.dumps(_schema(name)), format=Format.JSON)
    path = kafka_pipeline(
        order,
        name="typed",
        message="payload: {format: json}",
        tables='{each: "{field:event}"}',
    )
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def from_json_case(order: Order) -> Row:
    """Spark's decoder and Delta's Spark writer, with the columns that our tables have.

    With one type, the batch goes straight from the broker into the table. With several, it is read
    once and kept with its types, and each filters, decodes and appends its own, in a thread pool.
    """
    spark = bare_session(order, name="from-json")
    types = order_types(order)
    lake = order.root / "from-json"
    results = []
    for batch in range(order.all_batches):
        raw = batch_frame(spark, order, batch)

        def write(kept: DataFrame, name: str, batch: int = batch) -> None:
            some = kept if len(types) == 1 else kept.filter(F.col("event") == name)
            append(_decoded(some, name, batch=batch), lake / name, batch=batch)

        with timed(order.records) as figures:
            if len(types) > 1:
                text = F.col("value").cast("string")
                typed = raw.withColumn("event", F.get_json_object(text, "$.event"))
                append_each(typed, lambda _: types, write)
            else:
                write(raw, types[0])
        results.append(figures)
    expect_rows(lake, order.records * order.all_batches)
    return summarised(results, warm=order.warm)


def _decoded(raw: DataFrame, name: str, *, batch: int) -> DataFrame:
    schema = f"event string, {ORDER_COLUMNS}, {own_field(name)} string"
    record = F.from_json(F.col("value").cast("string"), schema)
    return with_our_columns(raw, record, schema_id=1, batch=batch)


def _schema(name: str) -> dict[str, Any]:
    """The schema that our engine finds by itself, as a producer would write it down."""
    texts = ("event", "customer", "created_at", own_field(name))
    return _closed(
        {text: {"type": "string"} for text in texts}
        | {"order_id": {"type": "integer"}, "quantity": {"type": "integer"}}
        | {"price": {"type": "number"}, "paid": {"type": "boolean"}}
        | {"address": _closed({text: {"type": "string"} for text in ("country", "street")})}
        | {"tags": {"type": "array", "items": {"type": "string"}}}
    )


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def own_field(name: str) -> str:
    return f"{name}_reference"


def _encoded(types: list[str], *, records: int) -> Iterator[pa.RecordBatch]:
    """Records of all types in turn, as batches with a column `value`."""
    random = np.random.default_rng(1)
    for start in range(0, records, _ROWS):
        size = min(_ROWS, records - start)
        customers = random.integers(50_000, size=size).tolist()
        prices = (random.integers(100, 100_000, size=size) / 100).tolist()
        values = [
            json.dumps(
                {"event": types[number % len(types)]}
                | _order(number, customer, price)
                | {own_field(types[number % len(types)]): f"ref-{number}"},
                separators=(",", ":"),
            ).encode()
            for number, customer, price in zip(
                range(start, start + size), customers, prices, strict=True
            )
        ]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


def _order(number: int, customer: int, price: float) -> dict[str, Any]:
    return {
        "order_id": number,
        "customer": f"customer {customer}",
        "created_at": f"2026-03-{number % 28 + 1:02d}T{number % 24:02d}:15:00Z",
        "price": price,
        "quantity": number % 9 + 1,
        "paid": number % 5 != 0,
        "address": {
            "country": _COUNTRIES[customer % len(_COUNTRIES)],
            "street": f"{customer % 300} Main Street",
        },
        "tags": list(_COLOURS[: number % 4]),
    }


def _suite(name: str, tables: int, ratio: str) -> Suite:
    return Suite(
        name=name,
        tables=(tables,),
        prepared=prepared,
        cases={"direct": direct_case, "from-json": from_json_case},
        pairs=(Pair(ratio, "direct", "from-json"),),
    )


SUITE = _suite("json", 1, "json_vs_from_json")
TYPES_SUITE = _suite("json-types", 20, "json_types_vs_from_json")


def _growth_of_first(rows: Sequence[Row]) -> dict[str, float]:
    """How much longer the first batch takes with the most types than with the fewest."""
    seconds = {row["tables"]: row["seconds_per_batch"] for row in rows if row["case"] == "first"}
    if len(seconds) < 2:
        return {}
    few, many = min(seconds), max(seconds)
    return {f"json_first_seconds_{many}_vs_{few}": round(seconds[many] / seconds[few], 2)}


MANY_SUITE = Suite(
    name="json-many",
    tables=(10, 1000),
    prepared=prepared,
    cases={"direct": direct_case, "typed": typed_case, "first": first_case},
    pairs=(Pair("json_inferred_vs_typed", "direct", "typed"),),
    growth="json_",
    derived=_growth_of_first,
)
"""What a type costs whose schema the pipeline has to find and to keep itself."""
