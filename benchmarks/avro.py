"""Suite `avro`: framed orders of one topic into a table per type, against Spark's `from_avro`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from benchmarks.avro_orders import OrderType, encoded, order_types
from benchmarks.baseline import append, append_each, expect_rows, with_our_columns
from benchmarks.clock import timed
from benchmarks.engine import bare_session, ingested, kafka_pipeline
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.topic import batch_frame, fill, registry_of, serving
from distributary.model.record import Format

_HEADER_BYTES = 5


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A topic with all batches, those that warm up first."""
    with serving(order) as served:
        wanted = served.records * served.all_batches
        types = order_types(served.tables)
        fill(served, encoded(types, _ids(served, types), records=wanted))
        yield served


def direct_case(order: Order) -> Row:
    """Our engine, as it runs where it runs without an end."""
    path = kafka_pipeline(
        order,
        name="direct",
        message="payload: {format: avro, framing: confluent}",
        tables='{each: "{record}"}',
    )
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def from_avro_case(order: Order) -> Row:
    """Spark's decoder and Delta's Spark writer, with the columns that our tables have.

    With one type, the batch goes straight from the broker into the table. With several, it is read
    once and kept, and each type filters, decodes and appends its own, in a thread pool. Either way
    the schemas are given to it: it never asks a registry.
    """
    spark = bare_session(order, name="from-avro")
    types = order_types(order.tables)
    known = dict(zip((one.record for one in types), _ids(order, types), strict=True))
    named = {one.record: one for one in types}
    lake = order.root / "from-avro"
    results = []
    for batch in range(order.all_batches):
        raw = batch_frame(spark, order, batch)

        def write(kept: DataFrame, record: str, batch: int = batch) -> None:
            schema_id = known[record]
            if len(known) > 1:
                kept = kept.filter(
                    F.substring("value", 2, 4) == F.lit(schema_id.to_bytes(4, "big"))
                )
            rows = _decoded(kept, named[record], schema_id=schema_id, batch=batch)
            append(rows, _table(lake, record), batch=batch)

        with timed(order.records) as figures:
            if len(known) > 1:
                append_each(raw, lambda _: list(known), write)
            else:
                write(raw, next(iter(known)))
        results.append(figures)
    expect_rows(lake, order.records * order.all_batches)
    return summarised(results, warm=order.warm)


def _decoded(raw: DataFrame, type_: OrderType, *, schema_id: int, batch: int) -> DataFrame:
    payload = F.expr(f"substring(value, {_HEADER_BYTES + 1})")
    record = from_avro(payload, type_.text)
    return with_our_columns(raw, record, schema_id=schema_id, batch=batch)


def _ids(order: Order, types: list[OrderType]) -> list[int]:
    """The registry's ids: the same text again is the same id."""
    registry = registry_of(order)
    return [registry.register(one.record, one.text, format=Format.AVRO) for one in types]


def _table(lake: Path, record: str) -> Path:
    return lake / record.rpartition(".")[2].lower()


SUITE = Suite(
    name="avro",
    tables=(1, 20),
    prepared=prepared,
    cases={"direct": direct_case, "from-avro": from_avro_case},
    pairs=(Pair("avro_vs_from_avro", "direct", "from-avro"),),
)
