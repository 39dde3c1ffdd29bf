"""Suite `upkeep`: what it costs to put a small file of a wide table together with others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.order import Order, Row, Suite
from distributary.delta.compact import Sizes, compact
from distributary.delta.log import load
from distributary.delta.parquet import write_file
from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.publish.direct import DirectPublisher
from distributary.store.base import at

_FILES = (100, 1_000)
_COLUMNS = 660
_TYPES = 60
"""Of records in the table: each file has values in the columns of one of them."""
_ROWS = 3
_SIZES = Sizes(target=128 * 2**20, min_files=2)


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """Each case writes a table of its own."""
    yield order


def _case(files: int) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """Compact a unified table of so many files, each the file of one small batch."""
        folder = order.root / f"unified-{files}"
        _grow(folder, files)
        state = load(at(folder))
        if state is None:
            raise AssertionError(f"there is no table in {folder}")
        spent, began = time.process_time(), time.monotonic()
        _, done = compact(state, _SIZES)
        spent, took = time.process_time() - spent, time.monotonic() - began
        if done is None or done.files_after != 1 or done.rows != files * _ROWS:
            raise AssertionError(f"compaction left {done}")
        return {
            "files": files,
            "cpu_seconds": round(spent, 2),
            "seconds_per_batch": round(took, 2),
            "rows_per_second": round(done.rows / took),
            "cpu_seconds_per_file": round(spent / files, 5),
            "batches": 1,
        }

    return case


def _grow(folder: Path, files: int) -> None:
    columns = (
        *(Column(f"c{i}", pa.string() if i % 3 else pa.int64()) for i in range(_COLUMNS - 1)),
        Column("_batch", pa.int64()),
    )
    schema = pa.schema([(column.name, column.type) for column in columns])
    publisher = DirectPublisher()
    for batch in range(files):
        rows = pa.table(
            [
                pa.array([batch] * _ROWS).cast(field.type)
                if field.name == "_batch" or index % _TYPES == batch % _TYPES
                else pa.nulls(_ROWS, field.type)
                for index, field in enumerate(schema)
            ],
            schema=schema,
        )
        plan = TablePlan(
            name=folder.name,
            role=Role.UNIFIED,
            type=folder.name,
            path=str(folder),
            columns=columns,
            exists=batch > 0,
        )
        file = write_file(rows, str(folder), f"part-{batch:06d}.parquet")
        publisher.publish(TableEntry(plan, (file,), _ROWS), Mark("upkeep", batch, ""))


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    cost = {row["files"]: row["cpu_seconds_per_file"] for row in rows}
    few, many = _FILES
    if few not in cost or many not in cost:
        return {}
    return {f"compaction_per_file_{many}_vs_{few}": round(cost[many] / cost[few], 2)}


SUITE = Suite(
    name="upkeep",
    tables=(1,),
    prepared=prepared,
    cases={f"files-{files}": _case(files) for files in _FILES},
    derived=_derived,
)
