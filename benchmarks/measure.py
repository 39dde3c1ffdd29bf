"""Runs the cases of a suite, each in a process of its own, on records that are made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.order import Order, Pair, Row, Suite

_ROOT = Path(__file__).resolve().parent.parent
_EVIDENCE = 3000


def measured(
    suite: Suite,
    order: Order,
    *,
    cases: Sequence[str] = (),
    most_spark_tables: int,
    say: Callable[[str], None],
) -> list[Row]:
    """Every case with one number of tables."""
    chosen = [
        case
        for case in suite.cases
        if (not cases or case in cases)
        and (case not in suite.per_table_cases or order.tables <= most_spark_tables)
    ]
    if not chosen:
        return []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        say(f"{suite.name}, {order.tables} tables: making the records")
        with suite.prepared(order.at(folder)) as ready:
            rows = []
            for case in chosen:
                say(f"{suite.name}, {order.tables} tables: {case}")
                rows.append(_run(suite.name, case, ready))
            return rows


def ratios(rows: Sequence[Row], pairs: Sequence[Pair]) -> dict[str, float]:
    """Only within one run: machines differ from hour to hour."""
    speed = {(row["case"], row["tables"]): row["rows_per_second"] for row in rows}
    found = {
        f"{pair.name}_{tables}": round(speed[pair.case, tables] / speed[pair.base, tables], 2)
        for tables in sorted({row["tables"] for row in rows})
        for pair in pairs
        if (pair.case, tables) in speed and (pair.base, tables) in speed
    }
    return {**found, **_growth(rows)}


def _growth(rows: Sequence[Row]) -> dict[str, float]:
    """How much longer a batch of ours takes with the most tables than with the fewest."""
    took = {row["tables"]: row["seconds_per_batch"] for row in rows if row["case"] == "direct"}
    if len(took) < 2:
        return {}
    few, many = min(took), max(took)
    return {f"seconds_{many}_vs_{few}": round(took[many] / took[few], 2)}


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
    return {"suite": suite, "case": case, "tables": order.tables, **figures}
