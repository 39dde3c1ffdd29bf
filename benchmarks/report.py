"""The results: one JSON document of one run, and a table to look at for each suite."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.order import Row
from benchmarks.plot import draw

RESULTS = Path(__file__).parent / "results"

_WANTED = {
    "direct_vs_foreachbatch_200": ">= 40",
    "direct_vs_arrow_floor_200": ">= 0.5",
    "seconds_1000_vs_10": "<= 2",
    "commit_seconds_1000": "<= 1.5",
    "freshness_p95_5000": "<= 5",
    "evolution_extra_stages_200": "<= 1",
    "seconds_10000_commits_vs_100": "<= 1.2",
    "avro_vs_from_avro_1": ">= 1",
    "merge_vs_spark_merge_1": ">= 1",
    "merge_vs_spark_merge_100": ">= 15",
    "upsert_vs_spark_merge_200": ">= 15",
    "shaped_cpu_vs_plain": "<= 1.15",
    "counted_cpu_vs_plain": "<= 1.15",
    "large_cpu_vs_small": "<= 1.2",
    "cpu_1000_vs_10_at_60s": "<= 1.3",
}
_COLUMNS = {
    "per second": ("rate", "{:,}"),
    "rows/s": ("rows_per_second", "{:,}"),
    "s/batch": ("seconds_per_batch", "{:.2f}"),
    "stage": ("stage_seconds", "{:.2f}"),
    "commit": ("publish_seconds", "{:.2f}"),
    "CPU s": ("cpu_seconds", "{:.1f}"),
    "stolen": ("stolen", "{:.0%}"),
    "files": ("files", "{:,.0f}"),
    "n": ("batches", "{}"),
    "p50 s": ("p50_seconds", "{:.2f}"),
    "p95 s": ("p95_seconds", "{:.2f}"),
    "p99 s": ("p99_seconds", "{:.2f}"),
    "events/s, core": ("events_per_core", "{:,}"),
    "+1 version": ("extra_seconds_one_version", "{:+.2f} s"),
    "+all": ("extra_seconds_every_version", "{:+.2f} s"),
    "CPU us": ("cpu_microseconds", "{:.1f}"),
    "files/min": ("files_per_minute", "{:,}"),
    "first commit": ("first_commit_seconds", "{:.1f} s"),
    "driver MB": ("driver_bytes", "{:,.0f}"),
    "workers MB": ("worker_bytes", "{:,.0f}"),
}
_MEGABYTE = 1e6
_WIDTH = 140


class Report:
    """One run. Its file is written again after each suite."""

    def __init__(self, *, records: int, output: str, resume: bool) -> None:
        self._path = RESULTS / output
        same = {
            "machine": f"{platform.machine()}, {_cores()} cores",
            "records_per_batch": records,
        }
        self._found: dict[str, Any] = {
            **same,
            "date": _now(),
            "commit": _commit(),
            "measured": {},
            "rows": [],
            "ratios": {},
        }
        if resume:
            self._found = _unfinished(self._path, same)

    @property
    def suites(self) -> frozenset[str]:
        """Those that are in it."""
        return frozenset(self._found["measured"])

    def add(self, suite: str, rows: Sequence[Row], ratios: Mapping[str, float]) -> None:
        """What a suite found."""
        self._found["measured"][suite] = _now()
        self._found["rows"] += rows
        self._found["ratios"].update(ratios)
        RESULTS.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(self._found, indent=2) + "\n")
        draw(self._found, self._path.with_suffix(".png"))


def show(name: str, rows: Sequence[Row], ratios: Mapping[str, float]) -> None:
    """A suite's rows, with the columns that they have."""
    columns = {title: how for title, how in _COLUMNS.items() if any(how[0] in row for row in rows)}
    table = Table(title=name, box=SIMPLE_HEAD)
    table.add_column("case")
    for title in ("tables", *columns):
        table.add_column(title, justify="right")
    for row in rows:
        cells = [_cell(row, *how) for how in columns.values()]
        table.add_row(row["case"], f"{row['tables']:,}", *cells)
    # a pipe has no width of its own
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    console.print(table)
    for ratio, value in ratios.items():
        wanted = f"   wanted {_WANTED[ratio]}" if ratio in _WANTED else ""
        console.print(f"{ratio:32} {value}{wanted}", highlight=False)


def _cell(row: Row, figure: str, form: str) -> str:
    if figure not in row:
        return ""
    value = row[figure]
    return form.format(value / _MEGABYTE if figure.endswith("_bytes") else value)


def _unfinished(path: Path, same: Mapping[str, Any]) -> dict[str, Any]:
    """A run that was stopped, unless what it measured is not what is measured now."""
    found = json.loads(path.read_text()) if path.exists() else {}
    if "measured" not in found:
        raise SystemExit(f"there is no run in {path.name} that could go on")
    other = {name: found.get(name) for name, value in same.items() if found.get(name) != value}
    if other:
        raise SystemExit(f"{path.name} cannot go on: it has {other}, this is {dict(same)}")
    if _git("diff", "--quiet", found["commit"], "--", ":/src").returncode:
        raise SystemExit(f"{path.name} cannot go on: src is not what it was at {found['commit']}")
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    return _git("rev-parse", "--short", "HEAD").stdout.strip()


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
