"""Which schemas tables have records of, put together from the ledger and from rows."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from distributary.observe.ledger.ledger_rows import SchemaRow, uses_of, with_rows

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def use(table: str, schema_id: int, **more: Any) -> dict[str, Any]:
    return {
        "pipeline": "games",
        "table": table,
        "id": schema_id,
        "rows": 5,
        "first_batch": 1,
        "last_batch": 3,
        "first_seen": NOON,
        "last_seen": NOON,
        **more,
    }


def seen(schema_id: int, label: str) -> SchemaRow:
    words = {"kind": "schema_seen", "column": "", "before": "", "after": "", "action": ""}
    return SchemaRow("games", 1, NOON, "chess", "a", schema_id, label, text="", **words)


def test_a_schema_in_several_tables_is_told_once() -> None:
    later = NOON + timedelta(hours=1)
    found = pa.Table.from_pylist(
        [use("a", 7), use("b", 7, first_batch=0, last_seen=later), use("c", 7), use("a", 8)]
    )
    tables = [("games", "a"), ("games", "b")]
    seven, eight = uses_of(found, tables, [seen(7, "chess v2-value v3"), seen(8, "id 8")])
    assert (seven.subject, seven.subject_version) == ("chess v2-value", 3)
    assert (seven.rows, seven.first_batch, seven.last_batch) == (10, 0, 3)
    assert (seven.first_seen, seven.last_seen) == (NOON, later)
    assert (eight.subject, eight.subject_version) == (None, None)


def test_what_one_part_does_not_know_the_whole_does_not_know() -> None:
    found = pa.Table.from_pylist([use("a", 7), use("b", 7, rows=None, first_batch=None)])
    (one,) = uses_of(found, [("games", "a"), ("games", "b")], [])
    assert (one.rows, one.first_batch) == (None, None)


def test_counted_rows_win_and_bring_schemas_nobody_told() -> None:
    found = pa.Table.from_pylist([use("a", 7, rows=None)])
    uses = uses_of(found, [("games", "a")], [])
    assert with_rows(uses, None) == uses
    assert [(u.id, u.rows) for u in with_rows(uses, Counter({7: 3, 2: 1}))] == [(2, 1), (7, 3)]


def test_a_lake_without_a_ledger_has_no_schemas() -> None:
    assert uses_of(None, [("games", "a")], []) == ()
