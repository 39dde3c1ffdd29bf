"""What becomes of Datastream events: operations, keys, envelopes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import ROW_ID, claim, column_names, content_hashes
from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.errors import DecodeError, ErrorCode
from distributary.model.change import CHANGE_COLUMNS, CHANGE_NAMES
from distributary.model.deadletter import Decoded
from distributary.model.record import Format, WriterSchema
from tests.decode.datastream_samples import (
    COLUMNS,
    SOURCES,
    TS,
    avro_data,
    avro_decoder,
    avro_schema,
    codes,
    decoded_avro,
    decoded_json,
    event,
    json_data,
    json_decoder,
    raw,
    rows,
    settings,
)

KINDS = tuple(SOURCES)


def decoded(form: str, events: list[Any], kind: str = "mysql", **more: Any) -> Decoded:
    return decoded_json(events, **more) if form == "json" else decoded_avro(events, kind, **more)


forms = pytest.mark.parametrize("form", ["avro", "json"])


def test_a_claim_is_the_names_of_the_source_table() -> None:
    assert claim({"database": "shop", "table": "orders"}) == '["shop","","orders"]'
    assert claim({"schema": "HR", "table": "JOBS", "database": "XE"}) == '["XE","HR","JOBS"]'
    assert claim({"table": 'a"b', "schema": "Zoë"}) == '["","Zoë","a\\"b"]'
    assert claim({"database": "d", "collection": "c"}) == '["d","","c"]'
    assert claim({"table": "\ud800"}) == '["","","\\ud800"]'
    for nameless in ({}, {"table": None}, {"table": ""}, {"table": 5}):
        assert claim(nameless) is None


def test_columns_keep_their_names_unless_the_log_has_them() -> None:
    names = ["id", "ID", "_op", "_Offset", "_row_id", "a b", "_mine", "_op__source"]
    given = column_names(names)
    assert given["id"] == "id"
    assert given["ID"] != "ID"
    assert given["_op"] == "_op__source_"
    assert given["_Offset"] == "_Offset__source"
    assert given["_row_id"] == "_row_id__source"
    assert (given["a b"], given["_mine"]) == ("a_b", "_mine")
    assert len({name.casefold() for name in given.values()}) == len(names)


def test_hashes_tell_contents_apart_and_stay_the_same() -> None:
    first, second, again = content_hashes(pa.array([b"a", b"b", b"a"], pa.binary())).to_pylist()
    assert first == again != second
    assert first == 3_405_396_810_240_292_928


@forms
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_rows(form: str, kind: str) -> None:
    found = decoded(form, [event(n, kind) for n in range(3)], kind)
    assert found.failed == () and found.origin is None
    assert [c.name for c in CHANGE_COLUMNS] == found.ok.schema.names[: len(CHANGE_COLUMNS)]
    for number, row in enumerate(rows(found)):
        assert (row["id"], row["val"], row["_op"]) == (number, "v", "insert")
        assert row["_source_ts"].timestamp() * 1000 == TS
        assert (row["_deleted"], row["_backfill"], row["_unchanged"]) == (False, False, [])
        assert row["_uuid"] == row["_seq"]["tie"] == event(number)["uuid"]


@forms
def test_the_envelope_keeps_all_that_has_no_column(form: str) -> None:
    given = event(7, metadata={"log_file": 'odd"\\\n.1'}, schema_key="é")
    (row,) = rows(decoded(form, [given]))
    envelope = json.loads(row["_envelope"])
    del given["payload"], given["uuid"], given["source_timestamp"]
    assert envelope == given


def test_the_envelope_of_an_event_that_says_little_is_json() -> None:
    told = event(0)
    little = {
        part: told[part] for part in ("uuid", "source_timestamp", "source_metadata", "payload")
    }
    (row,) = rows(decoded_json([little]))
    assert json.loads(row["_envelope"]) == {"source_metadata": little["source_metadata"]}


@forms
def test_envelopes_of_many_different_events(form: str) -> None:
    events = [event(n, schema_key=f"k{n}", object=f"o{n % 3}") for n in range(300)]
    found = rows(decoded(form, events))
    for given, row in zip(events, found, strict=True):
        envelope = json.loads(row["_envelope"])
        assert envelope["schema_key"] == given["schema_key"]
        assert envelope["object"] == given["object"]
        assert envelope["sort_keys"] == given["sort_keys"]
        assert envelope["source_metadata"] == given["source_metadata"]


@forms
@pytest.mark.parametrize(
    ("change", "is_deleted", "method", "op", "deleted"),
    [
        ("INSERT", False, "mysql-cdc-binlog", "insert", False),
        ("UPDATE-INSERT", False, "mysql-cdc-binlog", "update", False),
        ("UPDATE", None, "mysql-cdc-binlog", "update", False),
        ("update", False, "mysql-cdc-binlog", "update", False),
        ("DELETE", False, "mysql-cdc-binlog", "delete", True),
        ("UPDATE-DELETE", None, "mysql-cdc-binlog", "delete", True),
        ("INSERT", True, "mysql-cdc-binlog", "delete", True),
        (None, None, "mysql-cdc-binlog", "insert", False),
        ("INSERT", False, "mysql-backfill-fulldump", "read", False),
        ("INSERT", False, "mysql-backfill-incremental", "read", False),
        (None, None, "backfill", "read", False),
        (None, None, "oracle_dump", "read", False),
    ],
)
def test_operations(
    form: str, change: str | None, is_deleted: bool | None, method: str, op: str, deleted: bool
) -> None:
    metadata = {"change_type": change, "is_deleted": is_deleted}
    (row,) = rows(decoded(form, [event(metadata=metadata, read_method=method)]))
    assert (row["_op"], row["_deleted"], row["_backfill"]) == (op, deleted, op == "read")


@forms
def test_keys_are_found_whatever_their_case(form: str) -> None:
    columns = {"ID": ["null", "int"], "Region": ["null", "string"]}
    payload = {"ID": 1, "Region": "eu"}
    lists: list[Any] = [["id", "REGION"], ["ID"], [], ["region", "id", "ID"]]
    events = [event(n, payload=payload, metadata={"primary_keys": k}) for n, k in enumerate(lists)]
    found = decoded_avro(events, columns=columns) if form == "avro" else decoded_json(events)
    assert [row["_key"] for row in rows(found)] == [["ID", "Region"], ["ID"], [], ["Region", "ID"]]


def test_of_two_columns_that_differ_by_case_the_very_one_is_the_key() -> None:
    columns = {"ID": ["null", "int"], "id": ["null", "int"]}
    events = [event(0, payload={"ID": 1, "id": 2}, metadata={"primary_keys": [k]}) for k in columns]
    schema = avro_schema("mysql", columns)
    decoder = avro_decoder(schema)
    upper, lower = rows(decoder.decode(avro_data(schema, events), raw(2)))
    by_key = [row[row["_key"][0]] for row in (upper, lower)]
    assert by_key == [1, 2]


@forms
def test_no_list_of_keys_is_no_key(form: str) -> None:
    (row,) = rows(
        decoded(form, [event(0, "postgresql", metadata={"primary_keys": None})], "postgresql")
    )
    assert row["_key"] == []
    (row,) = rows(decoded(form, [event(0, "other")], "other"))
    assert row["_key"] == []


@forms
def test_sql_server_names_an_index_instead(form: str) -> None:
    (row,) = rows(decoded(form, [event(0, "sqlserver")], "sqlserver"))
    assert row["_key"] == ["id"]


@forms
def test_oracle_without_a_key_has_the_id_of_the_row(form: str) -> None:
    lists: list[Any] = [None, [], ["id"]]
    events = [event(n, "oracle", metadata={"primary_keys": k}) for n, k in enumerate(lists)]
    events.append(event(3, "oracle", metadata={"primary_keys": [], "row_id": None}))
    found = rows(decoded(form, events, "oracle"))
    assert [row["_key"] for row in found] == [[ROW_ID], [ROW_ID], ["id"], []]
    assert [row[ROW_ID] for row in found] == ["AAAEAR0", "AAAEAR1", "AAAEAR2", None]


@forms
def test_a_key_that_the_row_does_not_have(form: str) -> None:
    lists: list[Any] = [["id"], ["gone"], ["id", "gone"], ["val"]]
    found = decoded(form, [event(n, metadata={"primary_keys": k}) for n, k in enumerate(lists)])
    assert codes(found) == dict.fromkeys((1, 2), ErrorCode.KEY_NOT_IN_PAYLOAD)
    assert [row["id"] for row in rows(found)] == [0, 3]
    assert found.origin is not None and found.origin.to_pylist() == [0, 3]


@forms
def test_a_key_without_values_is_refused_only_where_oracle_rolled_back(form: str) -> None:
    events = [
        event(0, "oracle", read_method="oracle-supplementation", payload={"id": None, "val": "x"}),
        event(1, "oracle", read_method="oracle-supplementation"),
        event(2, "oracle", payload={"id": None, "val": "x"}),
    ]
    found = decoded(form, events, "oracle")
    assert codes(found) == {0: ErrorCode.NULL_KEY}
    assert [row["id"] for row in rows(found)] == [1, None]


def test_columns_that_are_called_like_those_of_the_log() -> None:
    columns = {"id": ["null", "int"], "_op": ["null", "string"], "_TOPIC": ["null", "int"]}
    payload = {"id": 1, "_op": "mine", "_TOPIC": 5}
    events = [event(0, payload=payload, metadata={"primary_keys": ["_op"]})]
    (row,) = rows(decoded_avro(events, columns=columns))
    assert (row["_op"], row["_op__source"], row["_TOPIC__source"]) == ("insert", "mine", 5)
    assert row["_key"] == ["_op__source"]
    (row,) = rows(decoded_json(events))
    assert (row["_op"], row["_op__source"], row["_key"]) == ("insert", "mine", ["_op__source"])


def test_a_column_that_is_only_ever_null_does_not_exist_yet() -> None:
    (row,) = rows(decoded_avro([event()], columns={**COLUMNS, "void": "null"}))
    assert "void" not in row
    (row,) = rows(decoded_json([event(payload={"id": 1, "val": "v", "void": None})]))
    assert "void" not in row


@forms
def test_events_with_the_same_id_and_other_contents_have_other_hashes(form: str) -> None:
    events = [event(0), event(0), event(0, payload={"id": 0, "val": "w"})]
    first, again, other = (row["_hash"] for row in rows(decoded(form, events)))
    assert first == again != other


def _without(part: str) -> dict[str, Any]:
    schema = avro_schema()
    schema["fields"] = [f for f in schema["fields"] if f["name"] != part]
    return schema


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("source_metadata", ErrorCode.NO_SOURCE_METADATA),
        ("payload", ErrorCode.NO_PAYLOAD),
        ("source_timestamp", ErrorCode.BAD_SOURCE_TIME),
    ],
)
def test_a_file_whose_events_lack_a_part(part: str, code: ErrorCode) -> None:
    schema = _without(part)
    found = avro_decoder(schema).decode(avro_data(schema, [event(0), event(1)]), raw(2))
    assert codes(found) == {0: code, 1: code} and found.ok.num_rows == 0


def test_a_part_that_is_null_in_some_events() -> None:
    schema = avro_schema()
    for field in schema["fields"][-2:]:
        field["type"] = ["null", field["type"]]
    events = [event(0), event(1, payload={}), event(2), event(3)]
    events[1]["payload"] = None
    events[2]["source_metadata"] = None
    found = avro_decoder(schema).decode(avro_data(schema, events), raw(4))
    assert codes(found) == {1: ErrorCode.NO_PAYLOAD, 2: ErrorCode.NO_SOURCE_METADATA}
    assert [row["id"] for row in rows(found)] == [0, 3]


def test_bad_events_among_good_ones_in_json() -> None:
    events: list[Any] = [event(n) for n in range(9)]
    del events[1]["source_metadata"]
    del events[2]["payload"]
    events[3]["source_timestamp"] = "yesterday"
    events[4]["source_metadata"]["log_file"] = "no number"
    events[5]["payload"] = None
    events[6] = b'{"uuid":'
    events[7]["source_metadata"] = "mysql"
    found = decoded_json(events)
    assert codes(found) == {
        1: ErrorCode.NO_SOURCE_METADATA,
        2: ErrorCode.NO_PAYLOAD,
        3: ErrorCode.BAD_SOURCE_TIME,
        4: ErrorCode.BAD_POSITION,
        5: ErrorCode.NO_PAYLOAD,
        6: ErrorCode.PAYLOAD_TRUNCATED,
        7: ErrorCode.NO_SOURCE_METADATA,
    }
    assert [row["id"] for row in rows(found)] == [0, 8]


def test_no_events_at_all() -> None:
    empty = pa.array([], pa.binary())
    for decoder in (avro_decoder(avro_schema()), json_decoder(json_data([event()]))):
        found = decoder.decode(empty, raw(0))
        assert found.ok.num_rows == 0 and found.failed == ()
        assert found.ok.schema.names == [column.name for column in decoder.columns]


def test_columns_are_told_before_anything_is_decoded() -> None:
    decoder = avro_decoder(avro_schema("oracle"), settings())
    names = [column.name for column in decoder.columns]
    assert names == [*CHANGE_NAMES, "id", "val", ROW_ID]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'"string"',
        b'{"type":"record","name":"R"}',
        b'{"type":"record","name":"R","fields":5}',
        b'{"type":"record","name":"R","fields":[{"name":"payload","type":{"type":"record"}}]}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"nowhere"}]}',
        b"[" * 5_000,
    ],
)
@pytest.mark.parametrize("format_", [Format.AVRO, Format.JSON, Format.PROTOBUF])
def test_schemas_that_are_none(body: bytes, format_: Format) -> None:
    with pytest.raises(DecodeError) as raised:
        DatastreamDecoder(WriterSchema(1, format_, body, "R"), settings(), DecodeLimits())
    assert raised.value.code is ErrorCode.UNUSABLE_SCHEMA


def test_a_table_with_too_many_columns_is_refused_as_a_whole() -> None:
    columns = {f"c{n}": ["null", "int"] for n in range(2_000)}
    with pytest.raises(DecodeError):
        avro_decoder(avro_schema("mysql", columns))
