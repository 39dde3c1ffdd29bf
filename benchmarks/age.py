"""Suites `age` and `ledger-age`: what an old lake costs.

`age`: whether a batch takes longer when its tables have 100, 1,000 or 10,000 commits. `ledger-age`:
whether `status`, `trace`, the page and the start of a run take longer when the ledger has 1,000,
10,000 or 100,000 batches of 60 tables.
"""

from __future__ import annotations

import os
import time
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
from benchmarks.ledgers import LIFE, PIPELINE, TOPIC, grow_ledger
from benchmarks.order import Order, Row, Suite, summarised
from distributary.model.manifest import Mark, StagedFile, TableEntry, app_id
from distributary.model.table import Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.status.status import settled_status
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
    table = publisher.current_columns(str(folder))
    if table is None:
        raise AssertionError(f"there is no table in {folder}")
    empty = pa.schema([pa.field(c.name, c.type) for c in table.columns]).empty_table()
    pq.write_table(empty, folder / name)
    size = os.stat(folder / name).st_size
    plan = TablePlan(
        name=folder.name,
        role=Role.EACH,
        type=folder.name,
        path=str(folder),
        columns=table.columns,
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


_LEDGER_AGES = (1_000, 10_000, 100_000)


@contextmanager
def _nothing(order: Order) -> Iterator[Order]:
    """Each case writes a ledger of its own."""
    yield order


def _ledger_case(batches: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """CPU seconds of what is asked of a ledger of so many batches, once it is warm."""
        lake = str(order.root / f"lake-{batches}")
        began, spent = time.monotonic(), time.process_time()
        grow_ledger(lake, batches=batches, tables=order.tables)
        grown, cpu = time.monotonic() - began, time.process_time() - spent
        asked = {
            "status": lambda: settled_status(lake),
            "trace": lambda: Ledger(lake).find_batch(TOPIC, 1, batches // 2 * 75),
            "start": lambda: _started(lake),
            "page": lambda: _shown(lake, batches),
        }
        took = {f"{name}_cpu_seconds": _cpu(question) for name, question in asked.items()}
        return {
            "ledger_batches": batches,
            "seconds_per_batch": round(grown / batches, 5),
            "rows_per_second": round(batches * order.tables / grown),
            "cpu_seconds": round(cpu, 1),
            "batches": batches,
            **took,
        }

    return case


def _started(lake: str) -> None:
    """What a run asks the ledger before its first batch."""
    ledger = Ledger(lake)
    ledger.last_commits(PIPELINE)
    ledger.tables(schema_ids=False)
    ledger.newest_settled(app_id(PIPELINE, LIFE, "stream"))
    ledger.parked(PIPELINE)


def _shown(lake: str, batches: int) -> None:
    """What the page asks for a pipeline, a batch and a table."""
    ledger = Ledger(lake)
    ledger.timeline(["finished_at", "read", "written"])
    ledger.batches(PIPELINE, last=50)
    ledger.batch_tables(ledger.batch(PIPELINE, batches // 2)[0])
    ledger.commits("t1", pipeline=PIPELINE, since=batches - 200)


def _cpu(question: Callable[[], object]) -> float:
    question()
    spent = time.process_time()
    question()
    return round(time.process_time() - spent, 3)


def _ledger_ratios(rows: Sequence[Row]) -> Mapping[str, float]:
    found = {row["ledger_batches"]: row for row in rows}
    young = _LEDGER_AGES[0]
    return {
        f"{name}_{age}_batches_vs_{young}": round(
            found[age][f"{name}_cpu_seconds"] / found[young][f"{name}_cpu_seconds"], 2
        )
        for name in ("status", "trace", "start", "page")
        for age in _LEDGER_AGES[1:]
        if age in found and young in found
    }


LEDGER_SUITE = Suite(
    name="ledger-age",
    tables=(60,),
    prepared=_nothing,
    cases={f"{age}-batches": _ledger_case(age) for age in _LEDGER_AGES},
    derived=_ledger_ratios,
)
