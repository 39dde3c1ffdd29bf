"""Which fields the columns of tables hold, and what a stage tells about the records it read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.config.load import load_text
from distributary.engine.planning.planner import Planner
from distributary.model.record import RAW, Format
from distributary.model.table import Origin, Role
from distributary.registry.compatibility.levels import Level
from distributary.registry.record_schemas import CarriedSchemas, InferredSchemas
from distributary.stage.unwrap import unwrap
from tests.publish.memory import MemoryPublisher
from tests.registry.frames import frame
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

FIRST = """
syntax = "proto3";
package shop;
message Sale { int32 id = 1; string note = 2; double total = 3; string _hidden = 4; }
"""
SECOND = """
syntax = "proto3";
package shop;
message Sale { int32 id = 1; string remark = 2; string total = 3; int64 day = 5; }
"""
REFUND = """
syntax = "proto3";
package shop;
message Refund { int32 id = 1; string why = 2; }
"""


def make(
    root: Path,
    *,
    payload: str = "{format: protobuf}",
    tables: str = "{each: '{record}'}",
    extra: str = "",
    lineage: str = "lineage: {file: ./lineage.jsonl}",
) -> Bench:
    text = f"""
name: orders
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9092", topic_pattern: ".*"}}
registry: {{path: {root}/schemas}}
payload: {payload}
tables: {tables}
lake: {{path: {root}}}
{extra}
{lineage}
"""
    config = load_text(text, file="p.yaml", environ={}).config
    return Bench(root, ScratchRegistry(), config)


def raw(
    values: list[bytes | None], topic: str = "orders", times: list[int | None] | None = None
) -> pa.RecordBatch:
    count = len(values)
    arrays = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, RAW.field("headers").type),
        pa.array([topic] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array(times or [None] * count, RAW.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def fields(bench: Bench, table: str, role: Role = Role.EACH) -> dict[str, set[Origin]]:
    origins = bench.planner.book.origins
    assert origins is not None
    columns = {c.name for c in bench.planner.book.tables[table].columns}
    return {n: set(o) for n, o in origins.of(table, role).items() if n in columns}


def test_a_column_knows_its_field_and_topic(tmp_path: Path) -> None:
    one = make(tmp_path)
    number = one.registry.register("orders-value", FIRST)
    one.stage([raw([frame(b"\x08\x07", schema_id=number)])])
    found = fields(one, "sale")
    assert found["id"] == {Origin("shop.Sale.id", "orders")}
    # the column has another name than the field
    assert found["field_hidden"] == {Origin("shop.Sale._hidden", "orders")}
    assert found["_offset"] == {Origin("offset")}
    assert "_schema_id" not in found and "_batch" not in found


def test_renamed_and_side_columns_hold_what_is_stored_in_them(tmp_path: Path) -> None:
    one = make(tmp_path, extra="evolution: {renamed: keep_name}")
    one.registry.set_compatibility(None, Level.NONE)
    first = one.registry.register("orders-value", FIRST)
    second = one.registry.register("orders-value", SECOND)
    for number in (first, second):
        one.stage([raw([frame(b"\x08\x07", schema_id=number)])])
    found = fields(one, "sale")
    names = {name: {o.field for o in origins} for name, origins in found.items()}
    assert names["note"] == {"shop.Sale.note", "shop.Sale.remark"}
    assert names["total"] == {"shop.Sale.total"}
    assert names["total__string"] == {"shop.Sale.total"}
    assert names["day"] == {"shop.Sale.day"}


def test_two_topics_of_one_table_are_both_told(tmp_path: Path) -> None:
    one = make(tmp_path, tables="{each: '{record}'}")
    number = one.registry.register("orders-value", FIRST)
    one.registry.register("more-value", FIRST)
    message = frame(b"\x08\x07", schema_id=number)
    one.stage([raw([message]), raw([message], topic="more")])
    assert fields(one, "sale")["id"] == {
        Origin("shop.Sale.id", "orders"),
        Origin("shop.Sale.id", "more"),
    }


def test_the_unified_table_holds_fields_of_many_types(tmp_path: Path) -> None:
    one = make(tmp_path, tables="{each: '{record}', unified: all_of_it, bronze: raw}")
    orders = one.registry.register("orders-value", FIRST)
    refunds = one.registry.register("refunds-value", REFUND)
    one.stage(
        [
            raw([frame(b"\x08\x07", schema_id=orders)]),
            raw([frame(b"\x08\x07", schema_id=refunds)], topic="refunds"),
        ]
    )
    found = fields(one, "all_of_it", Role.UNIFIED)
    assert found["id"] == {Origin("shop.Sale.id", "orders"), Origin("shop.Refund.id", "refunds")}
    assert Origin("shop.Refund.why", "refunds") in found["_rest"]
    assert "_type" not in found
    bronze = fields(one, "raw", Role.BRONZE)
    assert bronze["payload"] == {Origin("value")} and bronze["_offset"] == {Origin("offset")}
    letters = fields(one, "dead_letters", Role.DEAD_LETTERS)
    assert letters["value"] == {Origin("value")} and "error_code" not in letters


def test_avro_and_json_fields_have_their_full_names(tmp_path: Path) -> None:
    avro = make(tmp_path / "a", payload="{format: avro}")
    schema = {
        "type": "record",
        "name": "Sale",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "int"}],
    }
    number = avro.registry.register("orders-value", json.dumps(schema), format=Format.AVRO)
    avro.stage([raw([frame(b"\x0e", schema_id=number, indexes=None)])])
    assert fields(avro, "sale")["id"] == {Origin("shop.Sale.id", "orders")}
    shape = {"title": "Order", "type": "object", "properties": {"a of b": {"type": "integer"}}}
    document = make(tmp_path / "j", payload="{format: json, framing: confluent}")
    number = document.registry.register("orders-value", json.dumps(shape), format=Format.JSON)
    document.stage([raw([frame(b'{"a of b": 1}', schema_id=number, indexes=None)])])
    (table,) = (t for t in document.planner.book.tables.values() if t.role is Role.EACH)
    found = fields(document, table.name)
    assert {Origin("Order.a of b", "orders")} in found.values()


def test_nothing_is_gathered_where_nobody_asks(tmp_path: Path) -> None:
    one = make(tmp_path, lineage="")
    number = one.registry.register("orders-value", FIRST)
    one.stage([raw([frame(b"\x08\x07", schema_id=number)])])
    assert one.planner.book.origins is None


def test_a_stage_tells_bytes_and_the_newest_time(tmp_path: Path) -> None:
    one = make(tmp_path)
    number = one.registry.register("orders-value", FIRST)
    message = frame(b"\x08\x07", schema_id=number)
    first = raw([message, None, b""], times=[5_000_000, None, 9_000_000])
    second = raw([message * 3], times=[7_000_000])
    staged = one.sorted([first, second])
    assert staged.bytes == 4 * len(message)
    assert staged.newest_us == 9_000_000


@pytest.mark.parametrize("times", [None, [-1000]], ids=["none", "before 1970"])
def test_records_without_a_time_tell_none(tmp_path: Path, times: list[int | None] | None) -> None:
    one = make(tmp_path)
    assert one.sorted([raw([b"x"], times=times)]).newest_us == 0
    assert one.sorted([]).bytes == 0


def test_bytes_are_those_of_the_slice(tmp_path: Path) -> None:
    one = make(tmp_path)
    batch = raw([b"a" * 100, b"bb", b"c" * 100]).slice(1, 1)
    assert one.sorted([batch]).bytes == 2


CHANGES = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9092", topic_pattern: "shop.*"}}
payload: {{format: json}}
cdc: {{format: debezium, history: true}}
tables: {{each: "{{schema}}_{{table}}"}}
lake: {{path: {lake}}}
lineage: {{file: ./lineage.jsonl}}
"""


def test_what_is_made_of_a_log_holds_the_same_fields(tmp_path: Path) -> None:
    event = {
        "before": None,
        "after": {"id": 1, "Name": "x"},
        "source": {"connector": "postgresql", "db": "shop", "schema": "public", "table": "sales"},
        "op": "c",
        "ts_ms": 1,
    }
    config = load_text(CHANGES.format(lake=tmp_path), file="p.yaml", environ={}).config
    planner = Planner(
        config,
        registry=None,
        publisher=MemoryPublisher(),
        inferred=InferredSchemas(tmp_path / "inferred", trial=True),
        carried=CarriedSchemas(tmp_path / "carried", trial=True),
    )
    records = raw([json.dumps(event).encode()], topic="shop.public.sales")
    planner.groups(records, unwrap(records, planner.task_plan()))
    origins = planner.book.origins
    assert origins is not None
    tables = {t.role: t for t in planner.book.tables.values()}
    for role in (Role.LOG, Role.MERGED, Role.HISTORY):
        columns = {c.name for c in tables[role].columns}
        assert "Name" in columns
        found = origins.of(tables[role].name, role)
        assert found["Name"] == (Origin("shop.public.sales.Name"),)
        assert "_op" not in found and "_seq" not in found
