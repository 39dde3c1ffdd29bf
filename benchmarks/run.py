"""A run: suites, one after the other, and one document with all that they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.measure import better, measured, ratios
from benchmarks.order import Order, Row, Suite

_MOST_STOLEN = 0.05
"""The share of the machine that its host may give to neighbours while a case of seconds runs."""
_MOST_AGAIN = 2


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
        for order in _orders(suite, wanted):
            once = partial(
                measured, suite, order, most_spark_tables=wanted.most_spark_tables, say=say
            )
            rows = once(cases=cases)
            for _ in range(_MOST_AGAIN):
                disturbed = _disturbed(suite, rows)
                if not disturbed:
                    break
                say(f"the host was busy meanwhile: {' and '.join(disturbed)} again")
                again = {row["case"]: row for row in once(cases=disturbed)}
                rows = [better(row, again.get(row["case"])) for row in rows]
            yield from rows

    # one after the other, so that the times of few and of many tables can be compared
    early = [case for case in suite.twice if not wanted.cases or case in wanted.cases]
    first = {(row["case"], row["tables"]): row for row in rows_of(early)} if early else {}
    rows = [better(row, first.get((row["case"], row["tables"]))) for row in rows_of(wanted.cases)]
    return rows, ratios(rows, suite)


def _disturbed(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Cases of seconds that had less of the machine than they should."""
    return [
        row["case"]
        for row in rows
        if row["case"] in suite.twice and row.get("stolen", 0) > _MOST_STOLEN
    ]


def _orders(suite: Suite, wanted: Wanted) -> Iterator[Order]:
    records = round(wanted.order.records * suite.share)
    for tables in wanted.tables or suite.tables:
        for rate in (wanted.rates or suite.rates) if suite.rates else (0,):
            yield replace(wanted.order, tables=tables, rate=rate, records=records)
