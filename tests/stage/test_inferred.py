"""Records without a schema, from raw records to rows: one of them never costs the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.config.load import load_text
from distributary.decode.json.infer import ANYTHING, MAX_PROPERTIES, join
from distributary.engine.planning.planner import Planner
from distributary.errors import RegistryError
from distributary.model.record import RAW
from distributary.registry.record_schemas import InferredSchemas
from distributary.stage.decoding import open_records
from distributary.stage.exchange import open_run
from distributary.stage.job import Staged
from tests.publish.memory import MemoryTable
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: {format}, framing: none}}
{cdc}
lake: {{path: {lake}}}
"""
TABLES = "tables: {each: 'silver_{topic}'}"
CHANGES = "cdc: {format: debezium}\ntables: {each: '{schema}_{table}'}"
EVENTS, LOG = "silver_orders", "s_t_log"
SCALAR = {"type": ["null", "string"]}


class Stream:
    """Batches of JSON records, staged one after the other."""

    def __init__(
        self, lake: Path, *, changes: bool = False, policy: str = "", format: str = "json"
    ) -> None:
        more = f"\nevolution: {{{policy}}}" if policy else ""
        text = PIPELINE.format(
            lake=lake, cdc=(CHANGES if changes else TABLES) + more, format=format
        )
        config = load_text(text, file="shop.yaml", environ={}).config
        self.bench = Bench(lake, ScratchRegistry(), config)
        self.inferred = InferredSchemas(lake / "inferred")
        self.begin()
        self.table = LOG if changes else EVENTS
        self.start = 0

    def begin(self) -> None:
        """A planner that knows nothing but what was written down."""
        bench = self.bench
        bench.planner = Planner(
            bench.config, registry=None, publisher=bench.publisher, inferred=self.inferred
        )

    def stage(self, *values: Any) -> Staged:
        planner = self.bench.planner
        planner.begin_batch()
        raw = self._raw([v if isinstance(v, bytes) else json.dumps(v).encode() for v in values])
        seen = self.bench.sorted(raw)
        planner.learn(seen.shapes, seen.carried)
        return self.bench.stage(raw)

    def rows(self, staged: Staged) -> list[dict[str, Any]]:
        files = [self.bench.lake / self.table / f.path for f in staged.files[self.table]]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=lambda row: row["_offset"])

    def _raw(self, values: list[bytes]) -> list[pa.RecordBatch]:
        rows = [
            {"key": b'{"id":1}', "value": value, "topic": "orders", "partition": 0}
            | {"offset": self.start + n, "timestamp": 1_000_000}
            for n, value in enumerate(values)
        ]
        self.start += len(values)
        return pa.Table.from_pylist(rows, RAW).combine_chunks().to_batches()


def event(number: int, **more: Any) -> dict[str, Any]:
    source = {"connector": "mysql", "db": "d", "schema": "s", "table": "t"}
    source |= {"file": "binlog.000001", "pos": number, "row": 0}
    row = {"id": number, "note": "x"}
    return {"before": None, "after": row, "source": source, "op": "c"} | more


def good(start: int, count: int = 50) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}"} for n in range(start, start + count)]


@pytest.mark.parametrize("odd", ["x", 5, True, [1], [{"id": 7}]])
def test_a_record_of_another_kind_is_a_letter_and_nothing_else(tmp_path: Path, odd: Any) -> None:
    stream = Stream(tmp_path)
    stream.stage(*good(0))
    assert stream.stage(odd, {"id": 50, "colour": "red"}).dead == {"PAYLOAD_MISMATCH": 1}
    after = stream.stage(*good(51))
    rows = stream.rows(after)
    assert not after.dead and [row["id"] for row in rows] == list(range(51, 101))
    assert "value" not in rows[0] and "colour" in rows[0]


def test_objects_win_where_nothing_is_known_yet(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    staged = stream.stage("x", [1], 5, *good(0, 3), None)
    assert staged.dead["PAYLOAD_MISMATCH"] >= 3
    assert [row["id"] for row in stream.rows(staged)][:3] == [0, 1, 2]


def test_nothing_but_what_is_no_json(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    assert stream.stage(b"{broken").dead == {"UNKNOWN_SCHEMA_ID": 1}
    assert stream.stage(b"{broken", {"id": 1}).dead == {"NOT_JSON": 1}


def test_the_kind_that_came_first_stays(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.stage("a", "b")
    staged = stream.stage("c", {"id": 1}, [1])
    assert staged.dead == {"PAYLOAD_MISMATCH": 2}
    assert [row["value"] for row in stream.rows(staged)] == ["c"]


def test_a_letter_names_the_kinds(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    staged = stream.stage({"id": 1}, "secret")
    (letter,) = [
        row["error_message"]
        for file in staged.files["dead_letters"]
        for row in pq.read_table(tmp_path / "dead_letters" / file.path).to_pylist()
    ]
    assert "object" in letter and "string" in letter and "secret" not in letter


def test_too_many_properties_of_one_record_cost_no_column(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    many = {f"p{n}": n for n in range(MAX_PROPERTIES + 1)}
    for batch in ([*good(0, 3), many, *good(3, 3)], [many, *good(6, 6)], [many]):
        staged = stream.stage(*batch)
        assert staged.dead == {"PAYLOAD_MISMATCH": 1}
        assert len(stream.rows(staged)) == len(batch) - 1


@pytest.mark.parametrize("odd", [{"id": {"a": 1}}, {"name": [1]}, {"part": "x"}, {"tags": [[1]]}])
def test_a_value_of_another_kind_costs_no_column(tmp_path: Path, odd: dict[str, Any]) -> None:
    stream = Stream(tmp_path)
    usual = {"id": 1, "name": "n", "part": {"a": 1}, "tags": ["t"]}
    stream.stage(usual)
    assert stream.stage(usual | odd, usual | {"colour": "red"}).dead == {"PAYLOAD_MISMATCH": 1}
    after = stream.stage(usual)
    (row,) = stream.rows(after)
    assert not after.dead and "colour" in row
    assert {name: row[name] for name in usual} == usual


def test_values_of_other_kinds_go_beside_and_change_no_column(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.stage({"price": 1, "zip": "a"}, {"price": 2, "zip": "b"}, {"price": 3, "zip": 7})
    staged = stream.stage({"price": 1.5, "zip": True})
    assert not staged.dead
    (row,) = stream.rows(staged)
    assert (row["price__double"], row["zip__boolean"]) == (1.5, True)
    rows = stream.rows(stream.stage({"price": 4, "zip": "c"}, {"price": "x", "zip": "d"}))
    assert [(r["price"], r["price__string"], r["zip"]) for r in rows] == [
        (4, None, "c"),
        (None, "x", "d"),
    ]


def test_a_planner_that_starts_again_keeps_the_kinds(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.stage(*good(0, 12))
    stream.stage({"id": "odd", "name": 5})
    stream.begin()
    staged = stream.stage(*good(13, 12))
    assert [(r["id"], r["name"]) for r in stream.rows(staged)] == [
        (n, f"n{n}") for n in range(13, 25)
    ]


def test_the_first_record_does_not_decide_alone(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    staged = stream.stage({"id": {"deep": 1}, "name": "n"}, *good(1))
    assert staged.dead == {"PAYLOAD_MISMATCH": 1}
    assert [row["id"] for row in stream.rows(staged)] == list(range(1, 51))


def test_one_new_field_that_is_not_wanted_costs_only_its_own_record(tmp_path: Path) -> None:
    stream = Stream(tmp_path, policy="new_field: dead_letter")
    stream.stage(*good(0, 2))
    assert stream.stage({"id": 2, "name": "x", "more": 1}, *good(3, 2)).dead.total() == 1
    assert not stream.stage(*good(5, 2)).dead


def test_a_second_run_knows_from_the_start_what_records_look_like(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.stage(*good(0, 3))
    stream.begin()
    with patch("distributary.stage.sort.profile_texts") as profile:
        rows = stream.rows(stream.stage(*good(3, 30)))
    profile.assert_not_called()
    assert [row["name"] for row in rows][:3] == ["n3", "n4", "n5"]
    stream.start = 6
    stream.begin()
    rows = stream.rows(stream.stage(*good(6, 2), {"id": 8, "colour": "red"}))
    assert [row["colour"] for row in rows] == [None, None, "red"]


@pytest.mark.parametrize("damage", [b"{", b"[]", None])
def test_a_second_run_needs_nothing_from_the_first(tmp_path: Path, damage: bytes | None) -> None:
    stream = Stream(tmp_path)
    stream.stage(*good(0, 3))
    if damage is None:
        stream.inferred.forget("orders")
    else:
        next((tmp_path / "inferred" / "ids").glob("*.json")).write_bytes(damage)
        stream.inferred = InferredSchemas(tmp_path / "inferred")
    stream.begin()
    assert stream.bench.planner.task_plan().routing.recalled == {}
    if damage is None:
        assert len(stream.rows(stream.stage(*good(3, 3)))) == 3
    else:
        with pytest.raises(RegistryError):
            stream.stage(*good(3, 3))


def test_a_schema_that_was_mixed_before_is_one_of_objects_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.stage(*good(0, 3))
    known = stream.inferred.document("orders")
    assert known is not None
    stream.inferred.add({"orders": join(known, SCALAR)})
    stream.begin()
    rows = stream.rows(stream.stage(*good(3, 3)))
    assert [row["name"] for row in rows] == ["n3", "n4", "n5"]


@pytest.mark.parametrize(
    "odd",
    [
        {"after": "x"},
        {"after": [1]},
        {"before": 5},
        {"after": {f"p{n}": n for n in range(MAX_PROPERTIES + 1)}},
        {"op": 5},
        {"op": {"a": 1}},
        {"after": {"id": {"a": 1}, "note": "x"}},
        {"after": {"id": "6", "note": "x"}},
        {"after": {"id": 6, "note": [1]}},
        {"source": event(9)["source"] | {"file": 5}},
    ],
    ids=lambda odd: "-".join(map(str, odd)) if len(str(odd)) < 90 else "long",
)
def test_one_bad_change_costs_no_other(tmp_path: Path, odd: dict[str, Any]) -> None:
    stream = Stream(tmp_path, changes=True)
    stream.stage(*(event(n) for n in range(5)))
    assert sum(stream.stage(event(5), event(6, **odd), event(7)).dead.values()) == 1
    after = stream.stage(event(8), event(9, after={"id": 9, "note": "y", "more": 1}))
    assert not after.dead
    assert [(row["id"], row["note"]) for row in stream.rows(after)] == [(8, "x"), (9, "y")]


@pytest.mark.parametrize(
    "odd",
    [
        {"ts_ms": "x"},
        {"transaction": "x"},
        {"source": event(9)["source"] | {"pos": "x"}},
        {"source": event(9)["source"] | {"ts_ms": {"a": 1}}},
    ],
    ids=["ts_ms", "transaction", "pos", "source_ts_ms"],
)
def test_odd_words_about_a_change_cost_no_other(tmp_path: Path, odd: dict[str, Any]) -> None:
    stream = Stream(tmp_path, changes=True)
    transaction = {"id": "7", "total_order": 1}
    source = event(1)["source"] | {"ts_ms": 5}
    stream.stage(event(1, ts_ms=5, transaction=transaction, source=source))
    assert sum(stream.stage(event(6, **odd)).dead.values()) <= 1
    after = stream.stage(event(8, ts_ms=7, transaction=transaction, source=source))
    assert not after.dead
    (row,) = stream.rows(after)
    assert row["_source_ts"] is not None and row["_seq"]["a"] == 1


def test_a_key_that_its_column_cannot_hold_is_no_row_without_a_key(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    stream.stage(event(1))
    staged = stream.stage(event(2, after={"id": 2.5, "note": "x"}))
    assert staged.dead == {"TYPE_CHANGE_REFUSED": 1}
    assert stream.stage(event(4)).dead == {"TYPE_CHANGE_REFUSED": 1}


def test_rows_that_are_named_by_their_topic_are_objects_too(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    assert stream.stage("x").dead.total() == 1
    staged = stream.stage("x", {"id": 1, "__deleted": "false"})
    assert staged.dead == {"PAYLOAD_MISMATCH": 1}
    assert staged.records.total() == 2


def test_a_schema_of_changes_that_was_mixed_before_is_usable_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    stream.stage(event(0))
    (claim,) = stream.inferred.claims()
    known = stream.inferred.document(claim)
    assert known is not None
    mixed = {**known, "properties": {**known["properties"]}}
    mixed["properties"]["after"] = join(known["properties"]["after"], SCALAR)
    stream.inferred.add({claim: join(mixed, SCALAR)})
    stream.begin()
    staged = stream.stage(event(1))
    assert [row["id"] for row in stream.rows(staged)] == [1] and not staged.dead


def test_one_bad_change_among_the_first(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    staged = stream.stage(event(0, after="x"), event(1), "x", 7)
    assert staged.dead["PAYLOAD_MISMATCH"] >= 1
    assert [row["id"] for row in stream.rows(staged)] == [1]


@pytest.mark.parametrize(
    "odd",
    [{"after": "x"}, {"after": [1]}, {"ts_ms": "x"}, {"source": event(0)["source"] | {"pos": "x"}}],
)
def test_one_bad_change_before_all_others(tmp_path: Path, odd: dict[str, Any]) -> None:
    stream = Stream(tmp_path, changes=True)
    stream.stage(event(0, **odd))
    staged = stream.stage(event(1, ts_ms=5))
    assert [row["id"] for row in stream.rows(staged)] == [1] and not staged.dead


def test_a_flattened_row_keeps_the_kinds_of_its_columns(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    told = {"__op": "c", "__db": "d", "__schema": "s", "__table": "t", "__deleted": "false"}
    stream.stage({"id": 1, "note": "x"} | told)
    assert stream.stage({"id": "2", "note": "x"} | told).dead == {"PAYLOAD_MISMATCH": 1}
    (row,) = stream.rows(stream.stage({"id": 3, "note": "y"} | told))
    assert (row["id"], row["note"]) == (3, "y")


def test_a_flattened_row_may_have_a_column_that_is_called_like_an_image(tmp_path: Path) -> None:
    stream = Stream(tmp_path, changes=True)
    told = {"__op": "c", "__db": "d", "__schema": "s", "__table": "t", "__deleted": "false"}
    for after in ("x", "y"):
        staged = stream.stage({"id": 1, "after": after, "source": after} | told)
        assert [row["after"] for row in stream.rows(staged)] == [after]


def test_a_schema_that_was_forgotten_is_told_anew_and_the_table_keeps_its_columns(
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path)
    stream.stage("x")
    tables = stream.bench.planner.task_plan().output.tables
    plan = tables[EVENTS]
    stream.bench.publisher.tables[plan.path] = MemoryTable(plan.columns)
    assert stream.stage({"id": 1}).dead == {"PAYLOAD_MISMATCH": 1}
    stream.inferred.forget("orders")
    stream.begin()
    staged = stream.stage({"id": 1}, {"id": 2})
    assert [row["id"] for row in stream.rows(staged)] == [1, 2] and not staged.dead
    columns = [
        column.name for column in stream.bench.planner.task_plan().output.tables[EVENTS].columns
    ]
    assert {"value", "id"} <= {*columns}


def test_anything_that_is_known_stays_text(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.inferred.add({"orders": ANYTHING})
    rows = stream.rows(stream.stage({"id": 1}, "x"))
    assert [row["value"] for row in rows] == ['{"id":1}', '"x"']


def test_values_that_are_payloads_are_kept_once(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    texts = [json.dumps(each).encode() for each in good(0)]
    runs = stream.bench.sorted(stream._raw(texts)).runs
    assert open_run(runs[0].path).column("payload").null_count == 50
    raw, payloads = open_records(runs[0].path)
    assert raw.column("value") == payloads and payloads.to_pylist() == texts
    # one of them is a dead letter: what is left are other bytes
    runs = stream.bench.sorted(stream._raw([b"", *texts])).runs
    assert open_run(runs[0].path).column("payload").to_pylist() == texts
    assert open_records(runs[0].path)[1].to_pylist() == texts


def test_records_like_those_before_them_tell_nothing(tmp_path: Path) -> None:
    """A known shape has its names in the order of the alphabet, and records in their own."""
    stream = Stream(tmp_path)
    rows = [{"zip": n, "at": "x", "inner": {"b": 1, "a": n}} for n in range(60)]
    assert stream.bench.sorted(stream._raw([json.dumps(each).encode() for each in rows])).shapes
    stream.stage(*rows)
    again = [json.dumps(each).encode() for each in rows]
    with patch("distributary.stage.sort.profile_texts", side_effect=AssertionError):
        assert not stream.bench.sorted(stream._raw(again)).shapes
    assert stream.bench.sorted(stream._raw([*again, b'{"zip":1,"new":2}'])).shapes
