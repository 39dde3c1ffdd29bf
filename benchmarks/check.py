"""`make bench-check`: a few ratios, measured in minutes, against the lowest that were seen.

`--record` measures several times and writes down, for each ratio, the lowest value and how far the
values lay apart: that is the noise of a machine, and a later run may fall below by as much again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile

from rich.console import Console

from benchmarks.order import Order
from benchmarks.report import RESULTS
from benchmarks.run import Wanted, run_suite
from benchmarks.suites import SUITES

_FLOORS = RESULTS / "floors.json"
_LEAST_NOISE = 0.1
_TIMES = 3

_PARTS = {
    "delta": Wanted(
        # batches of a second, and many of them: shorter ones differ by half from each other
        order=Order(tables=0, records=150_000, batches=7, warm=4, rate=0, seconds=0),
        tables=(10, 200),
        cases=("floor", "direct"),
        most_spark_tables=0,
    ),
    "avro": Wanted(
        order=Order(tables=0, records=50_000, batches=3, warm=4, rate=0, seconds=0),
        tables=(1,),
        most_spark_tables=0,
    ),
    "changes": Wanted(
        order=Order(tables=0, records=0, batches=2, warm=1, rate=0, seconds=0),
        tables=(20,),
        most_spark_tables=20,
    ),
}
"""Enough to see what a change did, little enough to wait for."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check")
    parser.add_argument("--record", action="store_true", help="write the floors anew")
    console = Console(stderr=True)
    if parser.parse_args().record:
        _record([_measure(console) for _ in range(_TIMES)])
        return 0
    if not _FLOORS.exists():
        console.print("there are no floors yet: python -m benchmarks.check --record")
        return 2
    floors = json.loads(_FLOORS.read_text())
    below = 0
    for name, value in _measure(console).items():
        floor = floors.get(name)
        if floor is None:
            continue
        least = floor["lowest"] * (1 - floor["noise"])
        below += value < least
        verdict = "fell below" if value < least else "holds"
        print(f"{name:34} {value:8.2f}   at least {least:.2f}   {verdict}")
    return 1 if below else 0


def _measure(console: Console) -> dict[str, float]:
    """All ratios, turned so that more is better."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, wanted in _PARTS.items():
            _, ratios = run_suite(SUITES[name], wanted.at(folder), say=console.print)
            for ratio, value in ratios.items():
                grows = "seconds" in ratio
                found[f"{ratio}_inverse" if grows else ratio] = 1 / value if grows else value
    return found


def _record(runs: list[dict[str, float]]) -> None:
    floors = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        spread = (max(values) - min(values)) / max(values)
        floors[name] = {
            "lowest": round(min(values), 3),
            "noise": round(max(spread, _LEAST_NOISE), 3),
        }
    _FLOORS.write_text(json.dumps(floors, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
