"""Suite `cluster`: the same work on a standalone cluster with one worker and with two."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from benchmarks.delta import delta_pipeline, prepared
from benchmarks.engine import ingested
from benchmarks.order import Order, Row, Suite, summarised
from tests.services.spark_cluster import DRIVER_CONF, DRIVER_ENVIRONMENT, spark_cluster

_MEMORY = "3g"


def _case(workers: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Our engine; a worker has one core."""
        os.environ.update(DRIVER_ENVIRONMENT)
        with spark_cluster(order.root / "work", workers=workers, memory=_MEMORY) as master:
            conf = {
                **DRIVER_CONF,
                "spark.executor.memory": "2g",
                "spark.executor.cores": "1",
                "spark.cores.max": str(workers),
            }
            path = delta_pipeline(order, f"on{workers}", master=master, conf=conf)
            batches = ingested(path, trigger="continuous", batches=order.all_batches + 1)
        return summarised(batches, warm=order.warm + 1)

    return case


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    speed = {(row["case"], row["tables"]): row["rows_per_second"] for row in rows}
    return {
        f"two_workers_vs_one_{tables}": round(value / speed["one-worker", tables], 2)
        for (case, tables), value in speed.items()
        if case == "two-workers" and ("one-worker", tables) in speed
    }


SUITE = Suite(
    name="cluster",
    tables=(200,),
    prepared=prepared,
    cases={"one-worker": _case(1), "two-workers": _case(2)},
    derived=_derived,
)
