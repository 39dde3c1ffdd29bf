"""Suite `web-requests`: the JSON that kafka-delta-ingest shows its work with, into one table.

Its README sends web requests with metadata, an object in an object, which both sides keep as JSON
text here, and its table is partitioned by a date that is cut out of a time in it. The program
itself is not run: it was not on the index of Rust packages that was looked at.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks.baseline import expect_rows, with_our_columns
from benchmarks.clock import timed
from benchmarks.engine import bare_session, ingested, kafka_pipeline
from benchmarks.order import Order, Pair, Row, Suite, summarised
from benchmarks.topic import batch_frame, fill, serving

_ROWS = 10_000
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_STATUSES = (200, 201, 204, 301, 302, 400, 404, 500)
_SITES = 50
_COLUMNS = "meta string, method string, session_id string, status bigint, url string, uuid string"
_SHAPE = """\
payload: {format: json}
shape:
  - set: {date: "substr(meta->>'$.producer.timestamp', 1, 10)"}
"""


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A topic with all batches."""
    with serving(order) as served:
        fill(served, _requests(served.records * served.all_batches))
        yield served


def _requests(records: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for start in range(0, records, _ROWS):
        size = min(_ROWS, records - start)
        method, status, site = (
            random.integers(len(choices), size=size).tolist()
            for choices in (_METHODS, _STATUSES, range(_SITES))
        )
        values = [
            json.dumps(
                {
                    "meta": {"producer": {"timestamp": _time(start + number)}},
                    "method": _METHODS[method[number]],
                    "session_id": str(uuid.UUID(bytes=random.bytes(16))),
                    "status": _STATUSES[status[number]],
                    "url": f"http://www.site{site[number]}.example",
                    "uuid": str(uuid.UUID(bytes=random.bytes(16))),
                },
                separators=(",", ":"),
            ).encode()
            for number in range(size)
        ]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


def _time(number: int) -> str:
    return f"2026-03-24T15:{number // 60_000 % 60:02d}:{number // 1_000 % 60:02d}.000000+00:00"


def direct_case(order: Order) -> Row:
    """Our engine, which finds the columns itself, and adds the date."""
    path = kafka_pipeline(
        order,
        name="direct",
        message=_SHAPE,
        tables='{each: "{topic}", partition_by: [date]}',
        schemas=False,
    )
    batches = ingested(path, trigger="continuous", batches=order.all_batches)
    return summarised(batches, warm=order.warm)


def from_json_case(order: Order) -> Row:
    """Spark's decoder and Delta's Spark writer: same columns, same partitions, a schema given."""
    spark = bare_session(order, name="from-json")
    lake = order.root / "from-json"
    time = F.get_json_object("meta", "$.producer.timestamp")
    results = []
    for batch in range(order.all_batches):
        record = F.from_json(F.col("value").cast("string"), _COLUMNS)
        raw = batch_frame(spark, order, batch)
        rows = with_our_columns(raw, record, schema_id=1, batch=batch)
        with timed(order.records) as figures:
            (
                rows.withColumn("date", F.substring(time, 1, 10))
                .write.format("delta")
                .mode("append")
                .partitionBy("date")
                .option("txnAppId", "baseline")
                .option("txnVersion", batch)
                .save(str(lake / order.topic))
            )
        results.append(figures)
    expect_rows(lake, order.records * order.all_batches)
    return summarised(results, warm=order.warm)


SUITE = Suite(
    name="web-requests",
    tables=(1,),
    prepared=prepared,
    cases={"direct": direct_case, "from-json": from_json_case},
    pairs=(Pair("web_requests_vs_from_json", "direct", "from-json"),),
)
