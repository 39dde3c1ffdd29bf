"""Suites `aggregates` and `aggregates-size`: what tables of counts and sums add to a batch.

The first has one beside each of 200 tables, the second one beside a small and a large table. They
run in one process, without Spark or a broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.order import Order, Row, Suite
from benchmarks.turns import Spent, median_of, prepared, spending, suite_of_section
from distributary.changes.aggregate_tables import (
    AggregateOrder,
    merge_aggregates,
    verify_aggregates,
)
from distributary.config.rules.aggregates import AggregateConfig
from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import Snapshot, snapshot_of
from distributary.model.table import Column, Role

_AGGREGATES = """\
aggregates:
  - tables: ["silver_*"]
    name: "gold_{type}_agg"
    group_by: [country]
    columns:
      orders: "count(*)"
      units: "sum(quantity)"
      most: "max(quantity)"
      mean: "avg(quantity)"
"""
_SMALL, _LARGE = 1_000_000, 50_000_000
_AT_ONCE = 1_000_000
_GROUPS = 10_000


SUITE = suite_of_section("aggregates", _AGGREGATES, called="counted")


# The same batch for the groups of a small and of a large table.

_COLUMNS = (
    Column("player", pa.int64()),
    Column("score", pa.int64()),
)
_RULE = AggregateConfig.model_validate(
    {
        "name": "gold_{table}",
        "group_by": ["player"],
        "columns": {"games": "count(*)", "points": "sum(score)", "best": "max(score)"},
    }
).rule()


def sizes(order: Order) -> Row:
    """CPU seconds of a batch for the groups of both tables, by turns."""
    orders = {rows: _counted(order.root, rows) for rows in (_SMALL, _LARGE)}
    spent: dict[int, list[Spent]] = {rows: [] for rows in orders}
    for batch in range(order.all_batches):
        for rows in sorted(orders, reverse=batch % 2 == 0):
            _append(orders[rows].source_path, order.records, seed=batch)
            with spending(spent[rows]):
                merge_aggregates(orders[rows])
    check = verify_aggregates(orders[_SMALL])
    if check is None or not check.agrees:
        raise AssertionError("the groups are wrong")
    small, large = (median_of(spent[rows][order.warm :]) for rows in (_SMALL, _LARGE))
    return {
        "batches": order.batches,
        "rows_per_second": round(order.records / large.seconds),
        "seconds_per_batch": round(large.seconds, 3),
        "small_cpu_seconds": round(small.cpu, 3),
        "large_cpu_seconds": round(large.cpu, 3),
    }


def _counted(root: Path, rows: int) -> AggregateOrder:
    """Make a table of so many rows, and its groups."""
    source = f"{root}/games_{rows}"
    for seed in range(rows // _AT_ONCE):
        _append(source, _AT_ONCE, seed=10_000 + seed)
    order = AggregateOrder(
        table=f"gold_{rows}",
        path=f"{root}/gold_{rows}",
        source=f"games_{rows}",
        source_path=source,
        role=Role.EACH,
        rule=_RULE,
    )
    merge_aggregates(order)
    return order


def _append(folder: str, rows: int, *, seed: int) -> Snapshot:
    dice = np.random.default_rng(seed)
    made = pa.table(
        {
            "player": pa.array(dice.integers(0, _GROUPS, rows)),
            "score": pa.array(dice.integers(0, 1_000, rows)),
        }
    )
    before = snapshot_of(folder)
    change = Change(
        "WRITE",
        "games",
        fields=fields_of(_COLUMNS) if before is None else None,
        added=(write_rows(made, folder),),
    )
    return rewrite_files(folder, before, change)


def _vs_small(rows: Sequence[Row]) -> Mapping[str, float]:
    if not rows:
        return {}
    (row,) = rows
    return {"large_cpu_vs_small": round(row["large_cpu_seconds"] / row["small_cpu_seconds"], 3)}


SIZE_SUITE = Suite(
    name="aggregates-size",
    tables=(1,),
    prepared=prepared,
    cases={"sizes": sizes},
    derived=_vs_small,
)
