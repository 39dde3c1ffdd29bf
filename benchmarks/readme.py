"""`make bench BENCH_ARGS=--readme`: the figures of the README, in one run of half an hour.

Parts of suites, each as short as its figures allow. The run has a document of its own, and writes
the README's tables when it is over.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence

from benchmarks import markdown
from benchmarks.measure import ratios
from benchmarks.order import Order, Row
from benchmarks.report import Report, show
from benchmarks.run import Wanted, run_suite
from benchmarks.suites import SUITES

RECORDS = 250_000
_MOST_SPARK_TABLES = 200


def _part(
    suite: str,
    *,
    tables: Sequence[int] = (),
    cases: Sequence[str] = (),
    batches: int = 1,
    warm: int = 1,
) -> tuple[str, Wanted]:
    order = Order(tables=0, records=RECORDS, batches=batches, warm=warm, rate=0, seconds=0)
    most = _MOST_SPARK_TABLES
    return suite, Wanted(order=order, tables=tables, cases=cases, most_spark_tables=most)


_PARTS = (
    _part("kafka", tables=(10, 200, 1000), cases=("floor", "direct"), batches=4, warm=3),
    _part("kafka", tables=(10, 200), cases=("foreachbatch",)),
    _part("reader", cases=("native", "connector"), batches=3, warm=2),
    _part("declarative", warm=0),
    _part("json", batches=3, warm=2),
    _part("json-types"),
    _part("web-requests", batches=3, warm=2),
    _part("avro", tables=(20,)),
    _part("events", cases=("json",), batches=3, warm=3),
    _part("changes", tables=(20,), batches=2),
    _part("startup"),
    _part("trigger", tables=(1000,)),
    _part("trigger", tables=(10,), cases=("60s",)),
)


def measure(report: Report, *, say: Callable[[str], None]) -> None:
    """Measure all parts, and write the README's tables."""
    rows: dict[str, list[Row]] = defaultdict(list)
    # one folder until the end: files that were just deleted slow down those that are made next
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, wanted in _PARTS:
            new, _ = run_suite(SUITES[name], wanted.at(folder), say=say)
            rows[name] += new
            # cases of one suite may be measured in several parts
            found = ratios(rows[name], SUITES[name])
            report.add(name, new, found)
            show(name, new, found)
    markdown.write()
