"""Suite `delta`: from wrapped messages in a Delta table to a table per game, against the number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.clock import timed
from benchmarks.engine import GAMES, MASTER, bare_session, ingested, write_pipeline
from benchmarks.games import Games
from benchmarks.order import Order, Pair, Row, Suite, summarised
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import DeltaSink

FILES_PER_BATCH = 4
_DISTINCT_BATCHES = 3


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A source table in the folder."""
    _fill(order)
    yield order


def _fill(order: Order) -> None:
    """The first commit is small (it creates the tables), then whole batches, the same ones again.

    Both workers of a run need a decoder for every schema: until they have met all of them, a batch
    shows what compiling costs.
    """
    registry = FileRegistry(order.root / "schemas", durable=False)
    size = order.records
    distinct = min(order.batches, _DISTINCT_BATCHES)
    games = Games(games=order.tables, records=size * distinct, registry=registry)
    sink = DeltaSink(str(source_of(order)), records_per_file=-(-size // FILES_PER_BATCH))
    sink.write_arrow(games.one_of_each().to_batches())
    for number in range(order.all_batches):
        first = number % distinct * size
        sink.write_arrow(games.shuffled(first, first + size).to_batches())


def direct_case(order: Order) -> Row:
    """Our engine: the batches after the one that created the tables."""
    return _engine(order, "direct", batches=order.all_batches + 1, warm=order.warm + 1)


def spark_case(order: Order) -> Row:
    """Our engine, with Spark's own Delta writer for each table."""
    # a batch of it takes minutes: one is enough to see that
    return _engine(order, "spark", batches=2, warm=1)


def floor_case(order: Order) -> Row:
    """Spark's scan of a batch's files into Arrow, rows counted: nothing can be faster there."""
    spark = bare_session(order, name="floor")
    table = DeltaTable(str(source_of(order)))
    commits = [
        [str(source_of(order) / path) for path in _files_of(order, version)]
        for version in range(1, table.version() + 1)
    ]

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows]})

    results = []
    for paths in commits:
        with timed(order.records) as figures:
            frame = spark.read.parquet(*paths).select("wrapper")
            counted = sum(row.n for row in frame.mapInArrow(count, "n long").collect())
        results.append(figures)
        if counted != order.records:
            raise AssertionError(f"scanned {counted} of {order.records} rows")
    return summarised(results, warm=order.warm)


def _engine(order: Order, publisher: str, *, batches: int, warm: int) -> Row:
    path = delta_pipeline(order, publisher, publisher=publisher)
    return summarised(ingested(path, trigger="continuous", batches=batches), warm=warm)


def delta_pipeline(
    order: Order,
    name: str,
    *,
    publisher: str = "direct",
    master: str = MASTER,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """The pipeline file of a case that reads the suite's table."""
    source = f"type: delta, path: {source_of(order)}, value: wrapper"
    return write_pipeline(
        order.root,
        name=name,
        source=f"{{{source}, max_records_per_batch: {order.records}}}",
        registry=f"{{path: {order.source}/schemas}}",
        message=GAMES,
        tables=f'{{each: "silver_{{type}}", publisher: {publisher}}}',
        master=master,
        conf=conf,
    )


def source_of(order: Order) -> Path:
    return order.source / "lake" / "wrapper"


def _files_of(order: Order, version: int) -> list[str]:
    """The files that one commit added."""
    log = source_of(order) / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


SUITE = Suite(
    name="delta",
    tables=(10, 200, 1000),
    prepared=prepared,
    cases={"floor": floor_case, "direct": direct_case, "spark": spark_case},
    pairs=(
        Pair("delta_direct_vs_spark", "direct", "spark"),
        Pair("delta_direct_vs_floor", "direct", "floor"),
    ),
    per_table_cases={"spark": 200},
    first=("floor", "direct"),
    growth="delta_",
    only_when_asked=True,
)
