"""Suite `events`: how many change events one core decodes and lands in a second, Avro and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.change_files import Size, write_changes
from benchmarks.changes import changes_ingested
from benchmarks.order import Order, Row, Suite, summarised

_FORMS = ("avro", "json")
_SIZE = Size(("events",), 200_000, 100_000)


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """The same events in both forms."""
    for form in _FORMS:
        for batch in range(order.all_batches):
            write_changes(order.root / f"{form}-{batch}", _SIZE, batch=batch, form=form)
    yield order


def _case(form: str) -> Callable[[Order], Row]:
    def case(order: Order) -> Row:
        """From files into the log and the merged table, by one core."""
        folders = [f"{form}-{batch}" for batch in range(order.all_batches)]
        batches = changes_ingested(order, folders, name=form, form=form, master="local[1]")
        row = summarised(batches, warm=order.warm)
        return {**row, "events_per_core": round(_SIZE.changes / row["stage_seconds"])}

    return case


SUITE = Suite(
    name="events",
    tables=(1,),
    prepared=prepared,
    cases={form: _case(form) for form in _FORMS},
    derived=lambda rows: {
        f"events_per_second_and_core_{row['case']}": row["events_per_core"] for row in rows
    },
)
