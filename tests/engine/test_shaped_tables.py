"""Shapes from file to tables, letters, ledger, status and verify, through the whole engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary import Pipeline
from distributary.engine.progress.removal import dead_letters_of
from distributary.errors import ErrorCode
from distributary.model.manifest import Counts
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations.plan.trial_registry import preview
from distributary.operations.replay import LANE, replay


class Orders:
    """A Delta table of JSON records, and the pipeline that reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = root / "lake"

    def pipeline(self, *shapes: dict[str, Any], tables: str = "", extra: str = "") -> Pipeline:
        file = self.root / "orders.yaml"
        file.write_text(
            f"""
name: orders
source: {{type: delta, path: {self.root}/events, topic: orders}}
payload: {{format: json}}
tables: {{bronze: bronze, each: "silver_{{topic}}"{tables}}}
lake: {{path: {self.lake}}}
shape: {json.dumps(list(shapes))}
{extra}
"""
        )
        return Pipeline.load(file)

    def send(self, *records: Any) -> None:
        values = [json.dumps(record).encode() for record in records]
        table = pa.table({"value": pa.array(values, pa.binary())})
        write_deltalake(str(self.root / "events"), table, mode="append")

    def rows(self, table: str = "silver_orders") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            DeltaTable(str(self.lake / table)).to_pyarrow_table().to_pylist()
        )
        return sorted(rows, key=lambda row: row.get("_offset", row.get("offset")))

    def values(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in self.rows()]


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": number * 1.5, "rate": "2", "email": f"A{number}@X.org"} | more


def test_rows_are_filtered_computed_and_counted(tmp_path: Path, tasks: SparkSession) -> None:
    orders = Orders(tmp_path)
    orders.send(*(order(n) for n in range(8)), order(8, rate="much"), order(1, rate="none"))
    shape = {
        "tables": "silver_*",
        "where": "id > 1",
        "set": {
            "amount_eur": "amount * CAST(rate AS DOUBLE)",
            "email": "lower(email)",
            "day": "CAST(_timestamp AS DATE)",
            "kind": "'web'",
        },
        "drop": ["rate"],
        "rename": {"id": "order_id"},
    }
    pipeline = orders.pipeline(shape, tables=", unified: gold")
    foreseen = {table.name: table for table in preview(pipeline).tables}
    assert "amount_eur double" in foreseen["silver_orders"].changes[0].after
    counts = pipeline.run(spark=tasks).counts
    # a record that is filtered is no letter, although its rate is no number
    assert counts == Counts(read=10, written=6, dead_lettered=1, filtered=3)
    assert counts.equation().endswith("+ filtered 3")
    names = DeltaTable(str(orders.lake / "silver_orders")).to_pyarrow_table().column_names
    data = [name for name in names if not name.startswith("_")]
    assert sorted(data) == ["amount", "amount_eur", "day", "email", "kind", "order_id"]
    first = orders.values("order_id", "amount_eur", "email", "kind")[0]
    assert first == (2, 6.0, "a2@x.org", "web")
    assert [row["_offset"] for row in orders.rows("gold")] == [2, 3, 4, 5, 6, 7]
    assert len(orders.rows("bronze")) == 10
    (letter,) = orders.rows("dead_letters")
    assert letter["error_code"] == ErrorCode.SHAPE_FAILED
    assert letter["error_message"].startswith("set.amount_eur cannot be evaluated: amount * CAST(")
    assert "rate = much" in letter["error_message"]
    assert pipeline.ledger().totals("orders") == counts

    # once the file is corrected, the letter lands
    shape["set"] = {"amount_eur": "amount * coalesce(TRY_CAST(rate AS DOUBLE), 1)"}
    corrected = orders.pipeline(shape, tables=", unified: gold")
    letters = dead_letters_of(corrected)
    with corrected.open(tasks, lane=LANE) as context:
        done = replay(context, letters, letters.select(reason=ErrorCode.SHAPE_FAILED))
    assert (done.replayed, done.failed_again) == (1, {})
    assert orders.values("order_id", "amount_eur")[-1] == (8, 12.0)
    totals = corrected.ledger().totals("orders")
    assert totals == Counts(read=10, written=7, filtered=3)


def test_a_wrong_condition_loses_nothing_and_a_deep_look_explains_filtered_records(
    tmp_path: Path, tasks: SparkSession
) -> None:
    orders = Orders(tmp_path)
    orders.send(*(order(n) for n in range(4)))
    wrong = orders.pipeline({"where": "idd > 1", "set": {"email": "lower(emial)"}})
    assert preview(wrong).dead_letters == {ErrorCode.SHAPE_FAILED: 4}
    assert wrong.run(spark=tasks).counts == Counts(read=4, dead_lettered=4)
    (why,) = {row["error_message"] for row in orders.rows("dead_letters")}
    assert why.startswith("where: no column idd")

    # a column that only some types have: the expression waits for it
    right = orders.pipeline({"where": "id > 1", "set": {"email": "lower(emial)"}})
    letters = dead_letters_of(right)
    with right.open(tasks, lane=LANE) as context:
        done = replay(context, letters, letters.select(reason=ErrorCode.SHAPE_FAILED))
    assert (done.replayed, done.failed_again) == (4, {})
    orders.send(*(order(n) for n in range(6)))
    (limited,) = preview(right).limited_shapes
    assert (limited.setting, limited.why) == (
        "set.email",
        "not applied, no column emial, did you mean email?",
    )
    assert preview(right).filtered == 2
    assert right.run(spark=tasks).counts == Counts(read=6, written=4, filtered=2)
    assert right.ledger().totals("orders") == Counts(read=10, written=6, filtered=4)
    assert [row["id"] for row in orders.rows()] == [2, 3, 2, 3, 4, 5]
    (history,) = {r.text for r in right.ledger().schema_history() if r.kind == "shape_limited"}
    assert history.startswith("! shape set.email: not applied, no column emial")

    ledger = right.ledger()
    known = written_tables(str(orders.lake), ledger.last_commits(), parked={}, files={})
    with coordinates(ledger, known) as place:
        checks = {t.table: place.check(t, check_table(t)) for t in known}
    assert all(check.agrees for check in checks.values())
    notes = checks["silver_orders"].notes
    assert any("those that `shape` or an erasure has filtered (4)" in note for note in notes)


def test_a_column_that_a_schema_lacks_reads_as_null(tmp_path: Path, tasks: SparkSession) -> None:
    orders = Orders(tmp_path)
    shape = {"where": "coalesce(id, 0) < 9", "set": {"amount": "coalesce(amount, -1)"}}
    orders.send(order(1))
    orders.pipeline(shape).run(spark=tasks)
    orders.send({"other": "x"})
    orders.pipeline(shape).run(spark=tasks)
    assert orders.values("id", "amount", "other") == [(1, 1.5, None), (None, -1.0, "x")]
