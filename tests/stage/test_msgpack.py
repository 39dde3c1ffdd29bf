"""Records in MessagePack, from raw bytes to rows: as JSON's, and nothing is lost on the way."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.load import load_text
from distributary.engine.planning.planner import Planner
from distributary.errors import ConfigError
from distributary.model.record import RAW
from distributary.registry.record_schemas import InferredSchemas
from tests.decode.msgpack.test_msgpack_text import VALUES, WORDS, expected, packable
from tests.decode.packer import Ext, pack
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench
from tests.stage.test_inferred import Stream

PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
{settings}
lake: {{path: {lake}}}
"""


def staged_rows(stream: Stream, values: list[bytes]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    staged = stream.stage(*values)
    named = stream.table in staged.files
    rows = stream.rows(staged) if named else []
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows], dict(
        staged.dead
    )


OBJECTS = st.lists(st.dictionaries(WORDS.filter(bool), VALUES, max_size=6), min_size=1, max_size=6)


@given(OBJECTS, st.randoms(use_true_random=False))
def test_packed_values_are_the_rows_that_json_gives(
    values: list[dict[str, Any]], dice: random.Random
) -> None:
    with TemporaryDirectory() as folder:
        packed = Stream(Path(folder, "packed"), format="msgpack")
        texts = Stream(Path(folder, "texts"))
        rows = staged_rows(packed, [pack(packable(value), dice) for value in values])
        written = [json.dumps(expected(value)).encode() for value in values]
        assert rows == staged_rows(texts, written)


def test_each_kind_has_its_column(tmp_path: Path) -> None:
    stream = Stream(tmp_path, format="msgpack")
    value = {
        "id": 7,
        "big": 2**64 - 1,
        "low": -(2**63),
        "share": 0.5,
        "name": "é",
        "data": b"\xff\x00",
        "at": Ext(-1, b"\0\0\0\1"),
        "ok": True,
        "none": None,
        "tags": ["a", "b"],
        "in": {"x": 1},
    }
    rows, dead = staged_rows(stream, [pack(value)])
    assert not dead
    (row,) = rows
    assert row["big"] == Decimal(2**64 - 1) and row["low"] == -(2**63)
    assert row["at"] == "1970-01-01T00:00:01Z" and row["data"] == "/wA="
    assert (row["id"], row["share"], row["name"], row["ok"]) == (7, 0.5, "é", True)
    assert row["tags"] == ["a", "b"] and row["in"] == {"x": 1}


def test_new_fields_are_new_columns_and_bad_records_cost_only_themselves(tmp_path: Path) -> None:
    stream = Stream(tmp_path, format="msgpack")
    assert staged_rows(stream, [pack({"id": 1})]) == ([{"id": 1}], {})
    rows, dead = staged_rows(
        stream,
        [
            pack({"id": 2, "colour": "red"}),
            pack({"id": 3}) + b"\x00",
            pack({"id": Ext(9, b"x")}),
            b"\x81\xa2id",
            pack({"id": 4}),
        ],
    )
    assert [row["id"] for row in rows] == [2, 4] and rows[0]["colour"] == "red"
    assert dead == {"TRAILING_BYTES": 1, "UNKNOWN_EXTENSION": 1, "PAYLOAD_TRUNCATED": 1}


def bench(lake: Path, settings: str) -> Bench:
    config = load_text(
        PIPELINE.format(lake=lake, settings=settings), file="shop.yaml", environ={}
    ).config
    made = Bench(lake, ScratchRegistry(), config)
    inferred = InferredSchemas(lake / "inferred")
    made.planner = Planner(config, registry=None, publisher=made.publisher, inferred=inferred)
    return made


def landed(made: Bench, values: list[bytes]) -> dict[str, list[dict[str, Any]]]:
    rows = [
        {"key": b"k", "value": value, "topic": "orders", "partition": 0}
        | {"offset": n, "timestamp": 1_000_000}
        for n, value in enumerate(values)
    ]
    raw = pa.Table.from_pylist(rows, RAW).combine_chunks().to_batches()
    made.planner.begin_batch()
    seen = made.sorted(raw)
    made.planner.learn(seen.shapes, seen.carried)
    staged = made.stage(raw)
    return {
        name: [
            row for file in files for row in pq.read_table(made.lake / name / file.path).to_pylist()
        ]
        for name, files in staged.files.items()
    }


def test_a_field_names_the_type_and_bronze_keeps_the_bytes(tmp_path: Path) -> None:
    settings = "payload: {format: msgpack}\ntables: {each: '{field:meta.event}', bronze: bronze}"
    made = bench(tmp_path, settings)
    values = [pack({"meta": {"event": name}, "n": n}) for n, name in enumerate(["a", "b", "a"])]
    tables = landed(made, [*values, pack({"n": 1}), pack([1])])
    assert [row["n"] for row in tables["a"]] == [0, 2] and [row["n"] for row in tables["b"]] == [1]
    kept = {row["payload"] for row in tables["bronze"]}
    assert kept == {*values, pack({"n": 1}), pack([1])}
    letters = {row["error_code"] for row in tables["dead_letters"]}
    assert letters == {"MISSING_TYPE", "NOT_AN_ENVELOPE"}


@pytest.mark.parametrize("inner", [{"id": 5}, pack({"id": 5})])
def test_a_payload_inside_of_an_envelope(tmp_path: Path, inner: Any) -> None:
    settings = (
        "envelope: {format: msgpack, type: kind, payload: body}\npayload: {format: msgpack}\n"
        "tables: {each: '{type}'}"
    )
    tables = landed(bench(tmp_path, settings), [pack({"kind": "buy", "body": inner})])
    assert [row["id"] for row in tables["buy"]] == [5]


def test_json_in_an_envelope_of_messagepack(tmp_path: Path) -> None:
    settings = (
        "envelope: {format: msgpack, type: kind, payload: body}\n"
        "payload: {format: json, framing: none}\ntables: {each: '{type}'}"
    )
    values = [
        pack({"kind": "buy", "body": b'{"id": 5}'}),
        pack({"kind": "buy", "body": '{"id":6}'}),
    ]
    tables = landed(bench(tmp_path, settings), values)
    assert [row["id"] for row in tables["buy"]] == [5, 6]


@pytest.mark.parametrize(
    "settings",
    [
        "envelope: {format: msgpack, type: t}\npayload: {format: json}\ntables: {each: '{type}'}",
        "cdc: {format: debezium}\npayload: {format: msgpack}\ntables: {each: '{schema}_{table}'}",
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: str) -> None:
    with pytest.raises(ConfigError, match="msgpack"):
        load_text(PIPELINE.format(lake=tmp_path, settings=settings), file="shop.yaml", environ={})
