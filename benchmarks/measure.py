"""Runs the cases of a suite, each in a process of its own, on the same records."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain, product
from pathlib import Path

from benchmarks.order import Order, Pair, Row, Suite

_ROOT = Path(__file__).resolve().parent.parent
_EVIDENCE = 3000
_FEW, _MANY = 10, 1000
"""Tables: one alone is a case of its own."""
_MOST_STOLEN = 0.05
"""The share of the machine that its host may give to neighbours while a short case runs."""
_SHORT_SECONDS = 150
_MOST_AGAIN = 2


def measured(
    suite: Suite,
    order: Order,
    *,
    cases: Sequence[str],
    rounds: int,
    most_spark_tables: int,
    say: Callable[[str], None],
) -> list[Row]:
    """Every case with one number of tables; with several rounds the best of each, taken by turns.

    The same work may take half as long again some minutes later, without a trace in what the host
    says that it stole: by turns everybody gets a share of the good minutes.
    """
    chosen = [
        case for case in cases if order.tables <= _most_tables(suite, case, most_spark_tables)
    ]
    if not chosen:
        return []
    # ext4 goes around files that were deleted in the last minutes, one by one, whenever it makes a
    # new one: what a case leaves must not go before the run is over
    folder = tempfile.mkdtemp(prefix=f"{suite.name}-{order.tables}-", dir=order.folder)
    say(f"{suite.name}, {order.tables} tables: making the records")
    with suite.prepared(order.at(folder)) as ready:
        rows: dict[str, Row] = {}
        for number, case in product(range(rounds), chosen):
            say(f"{suite.name}, {order.tables} tables: {case}")
            here = ready.aside(f"{case}-round-{number}") if number else ready
            row = _measured(suite.name, case, here, say)
            rows[case] = better(rows[case], row) if number else row
            say(_shortly(row))
        return [*rows.values()]


def _measured(suite: str, case: str, order: Order, say: Callable[[str], None]) -> Row:
    """A case; a short one again, a few times at most, as long as the host is busy."""
    began = time.monotonic()
    row = latest = _run(suite, case, order)
    if time.monotonic() - began > _SHORT_SECONDS:
        return row
    for number in range(_MOST_AGAIN):
        if latest.get("stolen", 0) <= _MOST_STOLEN:
            break
        say(f"the host gave {latest['stolen']:.0%} to others: {case} again")
        latest = _run(suite, case, order.aside(f"{case}-again-{number}"))
        row = better(row, latest)
    return row


def _shortly(row: Row) -> str:
    """What came out, for those who wait for the rest."""
    stolen = f", {row['stolen']:.0%} of the machine stolen" if row.get("stolen") else ""
    return f"    {row['seconds_per_batch']:.2f} s a batch{stolen}"


def better(first: Row, second: Row) -> Row:
    """The faster of two rounds, with the times of all, and the most memory that either took.

    Neighbours on the same hardware make everything take up to half as long again, for minutes. What
    takes minutes itself has its share of that; a short case is measured wholly within it, or wholly
    without.
    """
    rounds = [first, second]
    most = {
        name: max(row[name] for row in rounds)
        for name in ("driver_bytes", "worker_bytes")
        if all(name in row for row in rounds)
    }
    best = min(rounds, key=lambda row: row["seconds_per_batch"])
    seconds = [row.get("rounds", [row["seconds_per_batch"]]) for row in rounds]
    return {**best, **most, "rounds": list(chain.from_iterable(seconds))}


def _most_tables(suite: Suite, case: str, most_spark_tables: int) -> float:
    own = suite.per_table_cases.get(case)
    return math.inf if own is None else min(own, most_spark_tables)


def ratios(rows: Sequence[Row], suite: Suite) -> dict[str, float]:
    """Only within one run: machines differ from hour to hour."""
    own = dict(suite.derived(rows)) if suite.derived else {}
    return {**_compared(rows, suite.pairs), **_growth(rows, suite.growth), **own}


def _compared(rows: Sequence[Row], pairs: Sequence[Pair]) -> dict[str, float]:
    speed = {(row["case"], row["tables"]): row["rows_per_second"] for row in rows}
    return {
        f"{pair.name}_{tables}": round(speed[pair.case, tables] / speed[pair.base, tables], 2)
        for tables in sorted({row["tables"] for row in rows})
        for pair in pairs
        if (pair.case, tables) in speed and (pair.base, tables) in speed
    }


def _growth(rows: Sequence[Row], prefix: str | None) -> dict[str, float]:
    """How much longer a batch of ours takes with the most tables than with the fewest."""
    if prefix is None:
        return {}
    ours = {row["tables"]: row for row in rows if row["case"] == "direct"}
    commits = {
        f"{prefix}commit_seconds_{tables}": row["publish_seconds"]
        for tables, row in ours.items()
        if tables >= _MANY
    }
    few = [tables for tables in ours if tables >= _FEW]
    if len(few) < 2:
        return commits
    least, most = min(few), max(few)
    took = ours[most]["seconds_per_batch"] / ours[least]["seconds_per_batch"]
    return {f"{prefix}seconds_{most}_vs_{least}": round(took, 2), **commits}


def _run(suite: str, case: str, order: Order) -> Row:
    command = [sys.executable, "-m", "benchmarks.case", suite, case, order.to_json()]
    # what Spark drops where it stands, and what a killed one leaves, goes with the folder
    environment = {"PYTHONPATH": str(_ROOT), "SPARK_LOCAL_DIRS": str(order.root / "spark")}
    done = subprocess.run(
        command,
        cwd=order.folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = done.stderr[-_EVIDENCE:]
        raise SystemExit(f"{suite}: {case} with {order.tables} tables failed:\n{tail}")
    figures = json.loads(done.stdout.splitlines()[-1])
    row = {"suite": suite, "case": case, "tables": order.tables, **figures}
    return {**row, "rate": order.rate} if "p50_seconds" in figures else row
