"""Suite `exchange`: records between the two hops of a stage, by files or by Spark's own shuffle."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.delta import delta_pipeline, prepared
from benchmarks.engine import ingested
from benchmarks.order import Order, Pair, Row, Suite, summarised


def case(way: str) -> Callable[[Order], Row]:
    """A way of `run.exchange`, with the first batch, which makes the tables, left out."""

    def measured(order: Order) -> Row:
        path = delta_pipeline(order, way)
        path.write_text(f"{path.read_text()}run: {{exchange: {way}}}\n")
        batches = ingested(path, trigger="continuous", batches=order.all_batches + 1)
        return summarised(batches, warm=order.warm + 1)

    return measured


SUITE = Suite(
    name="exchange",
    tables=(200, 1000),
    prepared=prepared,
    cases={"disk": case("disk"), "shuffle": case("spark")},
    pairs=(Pair("exchange_shuffle_vs_disk", "shuffle", "disk"),),
)
