"""The results: a JSON file with a section per suite, and a table to look at."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.order import Order, Row

RESULTS = Path(__file__).parent / "results"

_WANTED = {
    "direct_vs_per_table_200": ">= 25",
    "direct_vs_kafka_floor_200": ">= 0.30",
    "avro_vs_from_avro_1": ">= 0.8",
    "avro_vs_from_avro_20": "> 1",
    "changes_vs_merge_1": ">= 1",
    "changes_vs_merge_100": ">= 8",
}
_COLUMNS = {
    "rows/s": ("rows_per_second", "{:,}"),
    "s/batch": ("seconds_per_batch", "{:.2f}"),
    "stage": ("stage_seconds", "{:.2f}"),
    "commit": ("publish_seconds", "{:.2f}"),
    "n": ("batches", "{}"),
    "p50 s": ("p50_seconds", "{:.2f}"),
    "p95 s": ("p95_seconds", "{:.2f}"),
    "JVM MB": ("driver_bytes", "{:,.0f}"),
    "py MB": ("worker_bytes", "{:,.0f}"),
}
_MEGABYTE = 1e6


def section(order: Order, rows: list[Row], ratios: Mapping[str, float]) -> dict[str, Any]:
    """What one run of a suite found, and where."""
    return {
        "machine": f"{platform.machine()}, {_cores()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "records_per_batch": order.records,
        "rows": rows,
        "ratios": dict(ratios),
    }


def keep(name: str, found: Mapping[str, Any], *, output: str) -> None:
    """Put a suite's section into the file; those of other suites stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / output
    before = json.loads(path.read_text()) if path.exists() else {}
    suites = {**before.get("suites", {}), name: found}
    path.write_text(json.dumps({"suites": suites}, indent=2) + "\n")


def show(name: str, found: Mapping[str, Any]) -> None:
    """A suite's section, with the columns that it has."""
    rows = found["rows"]
    columns = {title: how for title, how in _COLUMNS.items() if any(how[0] in row for row in rows)}
    table = Table(title=f"{name}: {found['machine']}", box=SIMPLE_HEAD)
    table.add_column("case")
    for title in ("tables", *columns):
        table.add_column(title, justify="right")
    for row in rows:
        cells = [_cell(row, *how) for how in columns.values()]
        table.add_row(row["case"], f"{row['tables']:,}", *cells)
    console = Console()
    console.print(table)
    for ratio, value in found["ratios"].items():
        wanted = f"   wanted {_WANTED[ratio]}" if ratio in _WANTED else ""
        console.print(f"{ratio:28} {value}{wanted}", highlight=False)


def _cell(row: Row, figure: str, form: str) -> str:
    if figure not in row:
        return ""
    value = row[figure]
    return form.format(value / _MEGABYTE if figure.endswith("_bytes") else value)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
