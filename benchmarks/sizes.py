"""Suite `sizes`: what the number of records in a batch does to speed, delay, files and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.engine import GAMES, ingested, kafka_pipeline
from benchmarks.kafka import prepared_with
from benchmarks.order import Order, Row, Suite, summarised

_SHARES = (0.1, 0.4, 1.0, 2.0)
"""Of the records in a batch of the other suites."""


def _case(share: float) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Our engine, from the beginning of the topic, in batches of this size."""
        records = round(order.records * share)
        path = kafka_pipeline(
            replace(order, records=records),
            name=f"direct-{records}",
            message=GAMES,
            tables='{each: "silver_{type}"}',
        )
        row = summarised(
            ingested(path, trigger="continuous", batches=order.all_batches), warm=order.warm
        )
        return {**row, "records": records}

    return case


SUITE = Suite(
    name="sizes",
    tables=(200,),
    prepared=prepared_with(max(_SHARES)),
    cases={f"x{share:g}": _case(share) for share in _SHARES},
)
