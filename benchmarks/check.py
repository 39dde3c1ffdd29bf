"""`make bench-check`: a few ratios, measured in minutes, against the lowest that were seen.

`--record` measures several rounds and writes them down; `--add` adds rounds, of another hour, to
those that are there. How far they lie apart is the noise of the machine: the gate lets a ratio fall
below the lowest by as much again. What falls deeper is measured a second time: neighbours on the
host go away, a slower engine stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial

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
        order=Order(tables=0, records=0, batches=4, warm=2, rate=0, seconds=0),
        tables=(20,),
        most_spark_tables=20,
    ),
}
"""Enough to see what a change did, little enough to wait for."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check")
    parser.add_argument("--record", action="store_true", help="write the floors again")
    parser.add_argument("--add", action="store_true", help="add rounds to the floors")
    console = Console(stderr=True)
    options = parser.parse_args()
    record = options.record or options.add
    if not record and not _FLOORS.exists():
        console.print("there are no floors yet: python -m benchmarks.check --record")
        return 2
    # one folder until the end: files that were just deleted slow down those that are made next
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        measure = partial(_measure, folder=folder, console=console)
        if record:
            rounds = range(_TIMES)
            found = [dict(p for part in _PARTS for p in measure(part).items()) for _ in rounds]
            _record(found, seen=_seen() if options.add else {})
            return 0
        least = {name: _least(values) for name, values in _seen().items()}
        below = [name for part in _PARTS for name in _below(part, least, measure, console)]
    return 1 if below else 0


def _below(
    part: str,
    least: dict[str, float],
    measure: Callable[[str], dict[str, float]],
    console: Console,
) -> set[str]:
    """The ratios of a part that are below their floors, in the better of two rounds."""
    found = measure(part)
    if _under(found, least):
        console.print(f"{part}: below its floor; again")
        again = measure(part)
        found = {name: max(value, again[name]) for name, value in found.items()}
    below = _under(found, least)
    for name in filter(least.__contains__, found):
        verdict = "fell below" if name in below else "holds"
        print(f"{name:34} {found[name]:8.2f}   at least {least[name]:.2f}   {verdict}", flush=True)
    return below


def _under(found: dict[str, float], least: dict[str, float]) -> set[str]:
    return {name for name, value in found.items() if name in least and value < least[name]}


def _measure(part: str, *, folder: str, console: Console) -> dict[str, float]:
    """All ratios of a part, turned so that more is better."""
    wanted = _PARTS[part].at(tempfile.mkdtemp(dir=folder))
    _, ratios = run_suite(SUITES[part], wanted, say=console.print)
    found: dict[str, float] = {}
    for ratio, value in ratios.items():
        grows = "seconds" in ratio
        found[f"{ratio}_inverse" if grows else ratio] = 1 / value if grows else value
    return found


def _least(seen: list[float]) -> float:
    spread = (max(seen) - min(seen)) / max(seen)
    return min(seen) * (1 - max(spread, _LEAST_NOISE))


def _seen() -> dict[str, list[float]]:
    floors: dict[str, list[float]] = json.loads(_FLOORS.read_text()) if _FLOORS.exists() else {}
    return floors


def _record(rounds: list[dict[str, float]], *, seen: dict[str, list[float]]) -> None:
    floors = {
        name: seen.get(name, []) + [round(found[name], 3) for found in rounds] for name in rounds[0]
    }
    _FLOORS.write_text(json.dumps(floors, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
