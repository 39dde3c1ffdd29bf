"""`make bench`: every case on the same records, one table of results, JSON beside it."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.data import make

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = _options()
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for tables in options.tables:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            console.print(
                f"{tables} tables: making {options.batches} x {options.records:,} records"
            )
            make(Path(folder), tables=tables, batches=options.batches, records=options.records)
            for kind in options.cases:
                if kind == "spark" and tables > options.most_spark_tables:
                    continue
                console.print(f"{tables} tables: {kind}")
                rows.append(_measure(kind, tables, Path(folder), options.records))
    document = {
        "machine": f"{platform.machine()}, {_cores()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "records_per_batch": options.records,
        "rows": rows,
        "ratios": _ratios(rows),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / options.output).write_text(json.dumps(document, indent=2) + "\n")
    _show(document)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 200, 1000])
    parser.add_argument("--cases", nargs="+", default=["floor", "direct", "spark"])
    parser.add_argument("--records", type=int, default=250_000, help="records in a batch")
    parser.add_argument("--batches", type=int, default=3, help="measured batches")
    parser.add_argument("--most-spark-tables", type=int, default=200)
    parser.add_argument("--output", default="latest.json")
    return parser.parse_args()


def _measure(kind: str, tables: int, folder: Path, records: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.case", kind, str(folder), str(records)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{kind} with {tables} tables failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    batches = result.pop("batches")
    # the first pays for what is made once: tables, compiled decoders, a warm JVM
    measured = batches[1:]
    seconds = statistics.median(b["seconds"] for b in measured)
    size = statistics.median(b["records"] for b in measured)
    steps = {
        name: round(statistics.median(b[name] for b in measured), 3)
        for name in ("stage_seconds", "publish_seconds", "settle_seconds")
        if name in measured[0]
    }
    return {
        "case": kind,
        "tables": tables,
        "rows_per_second": round(size / seconds),
        "seconds_per_batch": round(seconds, 3),
        **steps,
        **result,
    }


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Only within one run: these machines differ from hour to hour."""
    at = {(row["case"], row["tables"]): row for row in rows}
    ratios: dict[str, float] = {}
    for tables in sorted({row["tables"] for row in rows}):
        direct = at.get(("direct", tables))
        for other, name in (("spark", "direct_vs_spark"), ("floor", "direct_vs_floor")):
            base = at.get((other, tables))
            if direct and base:
                ratio = direct["rows_per_second"] / base["rows_per_second"]
                ratios[f"{name}_{tables}"] = round(ratio, 2)
    few, many = at.get(("direct", 10)), at.get(("direct", 1000))
    if few and many:
        ratio = many["seconds_per_batch"] / few["seconds_per_batch"]
        ratios["seconds_1000_vs_10"] = round(ratio, 2)
    return ratios


def _show(document: dict[str, Any]) -> None:
    table = Table(title=f"{document['records_per_batch']:,} records a batch, {document['machine']}")
    for name in (
        "case",
        "tables",
        "rows/s",
        "s/batch",
        "stage",
        "publish",
        "driver MB",
        "worker MB",
    ):
        table.add_column(name, justify="left" if name == "case" else "right")
    for row in document["rows"]:
        table.add_row(
            row["case"],
            f"{row['tables']:,}",
            f"{row['rows_per_second']:,}",
            f"{row['seconds_per_batch']:.2f}",
            str(row.get("stage_seconds", "")),
            str(row.get("publish_seconds", "")),
            f"{row['driver_bytes'] / 1e6:,.0f}",
            f"{row['worker_bytes'] / 1e6:,.0f}",
        )
    console = Console()
    console.print(table)
    for name, ratio in document["ratios"].items():
        console.print(f"{name:28} {ratio}")


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
