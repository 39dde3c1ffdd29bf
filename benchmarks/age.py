"""Suite `age`: whether a batch takes longer when its tables are old: 100, 1,000, 10,000 commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.delta import delta_pipeline
from benchmarks.delta import prepared as prepared_table
from benchmarks.engine import ingested
from benchmarks.order import Order, Row, Suite, summarised
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.publish.direct import DirectPublisher

_AGES = (100, 1_000, 10_000)
_THREADS = 8
_TIMES_AS_MANY = 4
"""Batches as in other suites: ages differ by less than batches do."""


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A source table for all batches."""
    with prepared_table(replace(order, batches=order.batches * _TIMES_AS_MANY)) as ready:
        yield ready


def _case(age: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Our engine on tables that somebody has committed to so many times before."""
        name = f"direct-{age}"
        path = delta_pipeline(order, name)
        # the first batch makes the tables
        ingested(path, trigger="continuous", batches=1)
        lake = order.root / name
        tables = sorted(log.parent for log in lake.glob("silver_*/_delta_log"))
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda table: _grow(table, age), tables))
        batches = ingested(path, trigger="continuous", batches=order.all_batches)
        oldest = min(DeltaTable(str(table)).version() for table in tables)
        if oldest < age:
            raise AssertionError(f"a table has {oldest} commits only")
        return summarised(batches, warm=order.warm)

    return case


def _grow(folder: Path, commits: int) -> None:
    """Commits of one small file each, by the publisher itself, under another application."""
    publisher = DirectPublisher()
    name = "part-age.parquet"
    shape = publisher.shape(str(folder))
    if shape is None:
        raise AssertionError(f"there is no table in {folder}")
    empty = pa.schema([pa.field(c.name, c.type) for c in shape.columns]).empty_table()
    pq.write_table(empty, folder / name)
    size = os.stat(folder / name).st_size
    plan = TablePlan(
        name=folder.name,
        role=Role.EACH,
        type=folder.name,
        path=str(folder),
        columns=shape.columns,
        exists=True,
    )
    for number in range(commits):
        # each commit names a file of its own, as a log that grew has it
        link = f"part-age-{number}.parquet"
        os.link(folder / name, folder / link)
        entry = TableEntry(plan, (StagedFile(link, size, 0, stats='{"numRecords":0}'),), 0)
        publisher.publish(entry, Mark("age", number, ""))


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    took = {int(row["case"]): row["seconds_per_batch"] for row in rows}
    youngest = _AGES[0]
    return {
        f"seconds_{age}_commits_vs_{youngest}": round(took[age] / took[youngest], 2)
        for age in _AGES[1:]
        if age in took and youngest in took
    }


SUITE = Suite(
    name="age",
    tables=(20,),
    prepared=prepared,
    cases={str(age): _case(age) for age in _AGES},
    derived=_derived,
)
