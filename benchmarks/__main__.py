"""`make bench`: suites of cases on the same records, a table of results, JSON and a plot beside."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from types import FrameType

from rich.console import Console

from benchmarks import readme
from benchmarks.order import Order
from benchmarks.report import Report, show
from benchmarks.run import Wanted, run_suite
from benchmarks.suites import SUITES

_EVERYTHING = [name for name, suite in SUITES.items() if not suite.only_when_asked]
_WHOLE, _PART = "latest.json", "part.json"
_README = "readme.json"


def main() -> None:
    options = _options()
    # Ctrl-C tidies up by itself, the polite end of a process does not
    signal.signal(signal.SIGTERM, _end)
    console = Console(stderr=True)
    if options.readme:
        report = Report(records=readme.RECORDS, output=options.output or _README, resume=False)
        readme.measure(report, say=console.print)
        return
    some = options.suite and not options.resume
    part = some or options.tables or options.cases or options.rates
    output = options.output or (_PART if part else _WHOLE)
    report = Report(records=options.records, output=output, resume=options.resume)
    wanted = Wanted(
        order=Order(
            tables=0,
            records=options.records,
            batches=options.batches,
            warm=options.warm,
            rate=0,
            seconds=options.seconds,
        ),
        tables=options.tables or (),
        rates=options.rates or (),
        cases=options.cases or (),
        rounds=options.rounds,
        most_spark_tables=options.most_spark_tables,
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        here = wanted.at(folder)
        for name in options.suite or _EVERYTHING:
            if name in report.suites:
                console.print(f"{name}: measured already")
                continue
            rows, ratios = run_suite(SUITES[name], here, say=console.print)
            # at once: what is measured is not lost when a later suite fails
            report.add(name, rows, ratios)
            show(name, rows, ratios)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--suite", nargs="+", choices=[*SUITES], help="what to measure; everything if left out")
    add("--readme", action="store_true", help="the README's figures in half an hour, written there")
    add("--tables", type=int, nargs="+", help="numbers of tables; each suite has its own")
    cases = sorted({case for suite in SUITES.values() for case in suite.cases})
    add("--cases", nargs="+", choices=cases, help="only these cases of the suites")
    add("--records", type=int, default=250_000, help="records in a batch")
    add("--batches", type=int, default=5, help="measured batches")
    add("--warm", type=int, default=5, help="batches before them")
    add("--rounds", type=int, default=1, help="runs of each case, by turns; the best counts")
    add("--rates", type=int, nargs="+", help="freshness: records a second")
    add("--seconds", type=float, default=300, help="freshness: how long it is measured")
    add("--most-spark-tables", type=int, default=1_000, help="no Spark write per table beyond")
    add("--resume", action="store_true", help="go on with a run that was stopped after a suite")
    add("--output", help=f"file in benchmarks/results; {_WHOLE} or, for a part, {_PART}")
    return parser.parse_args()


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
