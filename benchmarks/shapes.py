"""Suite `shape`: what a filter and three expressions on each of 200 tables add to a batch.

The same records go through two pipelines by turns, in one process and without Spark or a broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.order import Order, Row, Suite
from benchmarks.turns import cpu_by_turns
from distributary.testing import Record

_FILE = """\
name: {name}
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: json}}
tables: {{each: "silver_{{field:event}}", bronze: bronze}}
lake: {{path: {root}/{name}}}
evolution: {{max_new_tables_per_batch: 10000}}
"""
_SHAPE = """\
shape:
  - where: "quantity > 0"
    set: {amount: "price * quantity", email: "lower(email)", country: "upper(country)"}
"""
_FILES = {"plain": _FILE, "shaped": _FILE + _SHAPE.replace("{", "{{").replace("}", "}}")}


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """The case makes its records itself."""
    yield order


def by_turns(order: Order) -> Row:
    """CPU seconds of the same batches with and without a shape, in turns."""
    files = {name: text.format(name=name, root=order.root) for name, text in _FILES.items()}
    spent = cpu_by_turns(order, files, orders(order))
    return {
        "batches": order.batches,
        "plain_cpu_seconds": round(spent["plain"], 3),
        "shaped_cpu_seconds": round(spent["shaped"], 3),
    }


def orders(order: Order) -> list[Record]:
    """The records of all batches."""
    return [
        Record(_order(batch, number, order.tables))
        for batch in range(order.all_batches)
        for number in range(order.records)
    ]


def _order(batch: int, number: int, tables: int) -> dict[str, Any]:
    dice = random.Random(batch * 1_000_003 + number)
    return {
        "event": f"orders_{number % tables:03d}",
        "order_id": number,
        "email": f"User{dice.randrange(1000)}@Example.org",
        "price": dice.randrange(10_000) / 100,
        "quantity": dice.randrange(7),
        "country": dice.choice(("at", "br", "cz", "de")),
        "street": "Main street 5",
        "paid": dice.random() < 0.5,
        "created_at": "2026-01-01T00:00:00Z",
        "note": "x" * 40,
    }


def _derived(rows: Sequence[Row]) -> Mapping[str, float]:
    if not rows:
        return {}
    (row,) = rows
    return {"shaped_cpu_vs_plain": round(row["shaped_cpu_seconds"] / row["plain_cpu_seconds"], 3)}


SUITE = Suite(
    name="shape",
    tables=(200,),
    prepared=prepared,
    cases={"by-turns": by_turns},
    derived=_derived,
)
