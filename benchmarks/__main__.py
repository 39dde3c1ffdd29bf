"""`make bench`: suites of cases on the same records, a table of results, JSON beside it."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from rich.console import Console

from benchmarks.measure import measured, ratios
from benchmarks.order import Order
from benchmarks.report import keep, section, show
from benchmarks.suites import SUITES


def main() -> None:
    options = _options()
    # Ctrl-C tidies up by itself, the polite end of a process does not
    signal.signal(signal.SIGTERM, _end)
    console = Console(stderr=True)
    for name in options.suite:
        suite, rows = SUITES[name], []
        for tables in options.tables or suite.tables:
            order = Order(
                tables=tables,
                records=options.records,
                batches=options.batches,
                warm=options.warm,
                rate=options.rate,
                seconds=options.seconds,
            )
            rows += measured(
                suite,
                order,
                cases=options.cases,
                most_spark_tables=options.most_spark_tables,
                say=console.print,
            )
        found = section(order, rows, ratios(rows, suite.pairs))
        # at once: what is measured is not lost when a later suite fails
        keep(name, found, output=options.output)
        show(name, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--suite", nargs="+", choices=[*SUITES], default=[*SUITES], help="what to measure")
    add("--tables", type=int, nargs="+", help="numbers of tables; each suite has its own")
    cases = sorted({case for suite in SUITES.values() for case in suite.cases})
    add("--cases", nargs="+", choices=cases, default=[], help="only these cases of the suites")
    add("--records", type=int, default=250_000, help="records in a batch")
    add("--batches", type=int, default=3, help="measured batches")
    add("--warm", type=int, default=5, help="batches before them")
    add("--rate", type=int, default=5_000, help="freshness: records a second")
    add("--seconds", type=float, default=60, help="freshness: how long it is measured")
    add("--most-spark-tables", type=int, default=200, help="no Spark write per table beyond")
    add("--output", default="latest.json", help="file in benchmarks/results")
    return parser.parse_args()


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
