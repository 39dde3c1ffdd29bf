"""A run: suites, one after the other, and one document with all that they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.measure import measured, ratios
from benchmarks.order import Order, Row, Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured; what is left empty, each suite decides for itself."""

    order: Order
    tables: Sequence[int] = ()
    rates: Sequence[int] = ()
    cases: Sequence[str] = ()
    rounds: int = 1
    most_spark_tables: int

    def at(self, folder: str) -> Wanted:
        """The same in a folder, in which everything stays until the run is over."""
        return replace(self, order=self.order.at(folder))


def run_suite(
    suite: Suite, wanted: Wanted, *, say: Callable[[str], None]
) -> tuple[list[Row], dict[str, float]]:
    """The rows of a suite and its ratios."""
    chosen = [case for case in suite.cases if not wanted.cases or case in wanted.cases]
    early = [case for case in chosen if case in suite.first]
    late = [case for case in chosen if case not in suite.first]
    rows = [
        row
        for cases in (early, late)
        for order in _orders(suite, wanted)
        for row in measured(
            suite,
            order,
            cases=cases,
            rounds=wanted.rounds,
            most_spark_tables=wanted.most_spark_tables,
            say=say,
        )
    ]
    # as one reads them; what is equal stays in its order
    rows.sort(key=lambda row: row["tables"])
    return rows, ratios(rows, suite)


def _orders(suite: Suite, wanted: Wanted) -> Iterator[Order]:
    records = round(wanted.order.records * suite.share)
    for tables in wanted.tables or suite.tables:
        for rate in (wanted.rates or suite.rates) if suite.rates else (0,):
            yield replace(wanted.order, tables=tables, rate=rate, records=records)
