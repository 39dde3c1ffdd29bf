"""A run: suites, one after the other, and one document with all that they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.measure import better, measured, ratios
from benchmarks.order import Order, Row, Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured; what is left empty, each suite decides for itself."""

    order: Order
    tables: Sequence[int] = ()
    rates: Sequence[int] = ()
    cases: Sequence[str] = ()
    most_spark_tables: int

    def at(self, folder: str) -> Wanted:
        """The same in a folder, in which everything stays until the run is over."""
        return replace(self, order=self.order.at(folder))


def run_suite(
    suite: Suite, wanted: Wanted, *, say: Callable[[str], None]
) -> tuple[list[Row], dict[str, float]]:
    """The rows of a suite and its ratios."""

    def rows_of(cases: Sequence[str]) -> Iterator[Row]:
        most = wanted.most_spark_tables
        for order in _orders(suite, wanted):
            yield from measured(suite, order, cases=cases, most_spark_tables=most, say=say)

    # one after the other, so that the times of few and of many tables can be compared
    early = [case for case in suite.twice if not wanted.cases or case in wanted.cases]
    first = {(row["case"], row["tables"]): row for row in rows_of(early)} if early else {}
    rows = []
    for row in rows_of(wanted.cases):
        before = first.get((row["case"], row["tables"]))
        rows.append(row if before is None else better(before, row))
    return rows, ratios(rows, suite)


def _orders(suite: Suite, wanted: Wanted) -> Iterator[Order]:
    records = round(wanted.order.records * suite.share)
    for tables in wanted.tables or suite.tables:
        for rate in (wanted.rates or suite.rates) if suite.rates else (0,):
            yield replace(wanted.order, tables=tables, rate=rate, records=records)
