"""Suites `cluster`, `apart` and `apart-changes`: the same work on standalone clusters.

`cluster` has one worker and two, on one disk. In the other two, workers share nothing with the
driver or each other, and everything at rest is in a bucket, against one machine with a disk. It
takes root to hide the disk from workers, and versitygw.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.changes import changes_ingested, expect_rows
from benchmarks.changes import prepared as prepared_changes
from benchmarks.delta import delta_pipeline, prepared, source_of
from benchmarks.engine import ingested
from benchmarks.order import Order, Pair, Row, Suite, summarised
from distributary.store.base import at, introduce
from tests.services.spark_cluster import DRIVER_CONF, DRIVER_ENVIRONMENT, spark_cluster
from tests.services.stores import StoreServer, versitygw

_MEMORY = "3g"


def _conf(workers: int) -> dict[str, str]:
    """Of a driver with an executor on each worker."""
    return {
        **DRIVER_CONF,
        "spark.executor.memory": "2g",
        "spark.executor.cores": "1",
        "spark.cores.max": str(workers),
    }


def _case(workers: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Our engine; a worker has one core."""
        os.environ.update(DRIVER_ENVIRONMENT)
        with spark_cluster(order.root / "work", workers=workers, memory=_MEMORY) as master:
            path = delta_pipeline(order, f"on{workers}", master=master, conf=_conf(workers))
            batches = ingested(path, trigger="continuous", batches=order.all_batches + 1)
        return summarised(batches, warm=order.warm + 1)

    return case


@contextmanager
def _apart(order: Order) -> Iterator[tuple[str, StoreServer]]:
    """Two workers that see none of the suite's files, and a bucket."""
    os.environ.update(DRIVER_ENVIRONMENT)
    with (
        versitygw(order.root / "store") as bucket,
        spark_cluster(order.root / "work", memory=_MEMORY, hidden=order.source) as master,
    ):
        introduce(bucket.address, bucket.options)
        yield master, bucket


def _games_on_a_disk(order: Order) -> Row:
    path = delta_pipeline(order, "disk")
    batches = ingested(path, trigger="continuous", batches=order.all_batches + 1)
    return summarised(batches, warm=order.warm + 1)


def _games_apart(order: Order) -> Row:
    with _apart(order) as (master, bucket):
        path = delta_pipeline(order, "apart", master=master, conf=_conf(2))
        made, table = at(source_of(order)), at(f"{bucket.address}/wrapper")
        for file in made.files(recursive=True):
            made.copy(file.name, to=table)
        options = f"storage_options: {json.dumps(bucket.options)}"
        text = path.read_text().replace(f"path: {source_of(order)},", f"path: {table.address},")
        lake = f"lake: {{path: {bucket.address}/lake, {options}}}"
        path.write_text(text.replace(f"lake: {{path: {order.root}/apart}}", lake))
        batches = ingested(path, trigger="continuous", batches=order.all_batches + 1)
    return summarised(batches, warm=order.warm + 1)


def _changes_on_a_disk(order: Order) -> Row:
    batches = changes_ingested(order, _rounds(order), name="disk", form="avro")
    expect_rows(order, str(order.root / "disk"))
    return summarised(batches[1:], warm=order.warm)


def _changes_apart(order: Order) -> Row:
    with _apart(order) as (master, bucket):
        batches = changes_ingested(
            order,
            _rounds(order),
            name="lake",
            form="avro",
            master=master,
            conf=_conf(2),
            bucket=bucket,
        )
        expect_rows(order, f"{bucket.address}/lake")
    return summarised(batches[1:], warm=order.warm)


def _rounds(order: Order) -> list[str]:
    return ["backfill", *(f"changes-{batch}" for batch in range(order.all_batches))]


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
APART_SUITE = Suite(
    name="apart",
    tables=(200,),
    prepared=prepared,
    cases={"one-machine": _games_on_a_disk, "nothing-shared": _games_apart},
    pairs=(Pair("nothing_shared_vs_disk", "nothing-shared", "one-machine"),),
    only_when_asked=True,
)
APART_CHANGES_SUITE = Suite(
    name="apart-changes",
    tables=(20,),
    prepared=prepared_changes,
    cases={"one-machine": _changes_on_a_disk, "nothing-shared": _changes_apart},
    pairs=(Pair("nothing_shared_changes_vs_disk", "nothing-shared", "one-machine"),),
    only_when_asked=True,
)
