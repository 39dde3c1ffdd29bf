"""Flat messages of Canal: rows of a statement, MySQL's types, keys, DDL, hostile messages."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import CHANGE, OTHER, Sampled
from distributary.decode.change.canal.format import word_of
from distributary.decode.change.change_formats import recognized
from tests.decode.change.events import codes, decoded, named, rows

TYPES = {"id": "bigint(20)", "name": "varchar(20)"}
ROW = {"id": "1", "name": "a"}


def message(type_: str = "INSERT", data: Any = (ROW,), **more: Any) -> dict[str, Any]:
    whole = {"database": "shop", "table": "orders", "type": type_, "isDdl": False, "id": 3}
    whole |= {"es": 1_700_000_000_123, "ts": 1_700_000_000_456, "mysqlType": TYPES}
    whole |= {"pkNames": ["id"], "data": list(data) if isinstance(data, tuple) else data}
    whole |= {"old": None, "sql": ""}
    return whole | more


def test_all_rows_of_a_statement_are_rows_of_the_log() -> None:
    data = ({"id": "1", "name": "a"}, {"id": "2", "name": None})
    result = decoded("canal", [message(data=data), message("DELETE")])
    assert rows(result, "_op", "id", "name") == [
        ("insert", 1, "a"),
        ("insert", 2, None),
        ("delete", 1, "a"),
    ]
    ties = [row["_seq"]["tie"] for row in result.ok.to_pylist()]
    assert len(set(ties)) == 3 and ties == sorted(ties)
    row = result.ok.to_pylist()[0]
    assert row["_key"] == ["id"] and row["_source_ts"].microsecond == 123_000
    assert json.loads(row["_envelope"]).keys().isdisjoint({"data", "old", "mysqlType"})


def test_an_update_of_the_key_removes_the_old_row() -> None:
    data = ({"id": "5", "name": "a"}, {"id": "6", "name": "c"})
    result = decoded("canal", [message("UPDATE", data, old=[{"id": "1"}, {"name": "b"}])])
    assert rows(result, "_op", "id", "name") == [
        ("delete", 1, "a"),
        ("update", 5, "a"),
        ("update", 6, "c"),
    ]
    # without positions the delete must come behind what the row was before
    assert {row["_seq"]["half"] for row in result.ok.to_pylist()} == {1}


@pytest.mark.parametrize(
    ("mysql", "text", "value"),
    [
        ("int(11)", "-7", -7),
        ("tinyint(1)", "1", 1),
        ("int(10) unsigned zerofill", "0000000007", 7),
        ("bigint(20) unsigned", "18446744073709551615", Decimal(2**64 - 1)),
        ("bigint unsigned", "18446744073709551615", Decimal(2**64 - 1)),
        ("decimal(10,2)", "-1.50", Decimal("-1.50")),
        ("decimal(65,30)", "1.5", "1.5"),
        ("double", "0.1", 0.1),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("datetime(6)", "2024-02-29 10:11:12.5", datetime(2024, 2, 29, 10, 11, 12, 500_000, UTC)),
        ("timestamp", "2024-02-29 10:11:12", datetime(2024, 2, 29, 10, 11, 12, 0, UTC)),
        ("time", "-838:59:59", "-838:59:59"),
        ("blob", "\u00ff\u0000", b"\xff\x00"),
        ("json", '{"a":1}', '{"a":1}'),
        ("enum('(a','b')", "(a", "(a"),
        ("year(4)", "2024", 2024),
        ("bit(3)", "5", "5"),
    ],
)
def test_types_of_mysql(mysql: str, text: str, value: Any) -> None:
    row = {"id": "1", "x": text}
    result = decoded("canal", [message(data=(row,), mysqlType=TYPES | {"x": mysql})])
    assert rows(result, "x") == [(value,)]


@pytest.mark.parametrize(
    ("mysql", "text"),
    [
        ("date", "0000-00-00"),
        ("datetime", "0000-00-00 00:00:00"),
        ("int", "many"),
        ("bigint", str(2**63)),
        ("decimal(4,2)", "123.45"),
        ("decimal(4,2)", "NaN"),
        ("blob", "\u20ac"),
    ],
)
def test_a_value_that_has_no_place_is_kept_beside_the_row(mysql: str, text: str) -> None:
    row = {"id": "1", "x": text}
    result = decoded("canal", [message(data=(row,), mysqlType=TYPES | {"x": mysql})])
    assert rows(result, "x") == [(None,)]
    assert json.loads(result.ok.to_pylist()[0]["_envelope"])["rescued"] == {"x": text}


def test_types_by_number_where_there_are_no_names() -> None:
    numbers = {"id": -5, "at": 93, "day": 91, "x": 8, "data": 2004, "odd": "text"}
    row = {"id": "1", "at": "2024-01-01 00:00:00", "day": "2024-01-01", "x": "1.5", "data": "a"}
    result = decoded("canal", [message(data=(row,), mysqlType=None, sqlType=numbers)])
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert rows(result, "at", "day", "x", "data") == [(moment, date(2024, 1, 1), 1.5, b"a")]


def test_words_of_odd_types() -> None:
    assert [word_of(each) for each in (None, 7, "", "(", "x" * 100_000)] == ["text"] * 5
    assert word_of("DECIMAL") == "decimal(10,0)" and word_of("decimal(x,y)") == "text"


def test_statements_are_skipped() -> None:
    ddl = message("ALTER", data=None, isDdl=True, sql="alter table orders add x int")
    seen = named("canal", [message(), ddl, message("QUERY", data=None)])
    assert seen.kinds.tolist() == [CHANGE, OTHER, OTHER]


def test_a_new_type_is_another_schema() -> None:
    wider = message(mysqlType=TYPES | {"x": "int"})
    seen = named("canal", [message(), wider, message()])
    assert seen.codes is not None and seen.codes.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message("UPSERT"), "NOT_AN_ENVELOPE"),
        (message(data=None), "NO_PAYLOAD"),
        (message(data={"id": "1"}), "NO_PAYLOAD"),
        (message(data=[{"id": "1"}, 7]), "NO_PAYLOAD"),
        (message(es="x"), "BAD_SOURCE_TIME"),
        (message("UPDATE", old=[{}, {}]), "PAYLOAD_MISMATCH"),
        (message(data=({"id": "1", "other": "1"},)), "PAYLOAD_MISMATCH"),
        (message(data=({"id": "one", "name": "a"},)), "PAYLOAD_MISMATCH"),
        (message(data=({"id": "1"}, {"name": "a"})), "KEY_NOT_IN_PAYLOAD"),
        (message(pkNames=["nowhere"]), "KEY_NOT_IN_PAYLOAD"),
    ],
)
def test_hostile_messages_fail_whole_and_alone(bad: Any, code: str) -> None:
    result = decoded("canal", [message(), bad, message()])
    assert codes(result) == [code]
    assert result.ok.num_rows == 2


def test_a_message_without_rows_is_nothing() -> None:
    result = decoded("canal", [message(data=()), message()])
    assert result.empty == 1 and result.ok.num_rows == 1


def test_a_message_of_too_many_rows_is_refused() -> None:
    many = message(data=tuple({"id": str(n)} for n in range(2_000)), note="x" * 1_000)
    result = decoded("canal", [many, message()], limits=DecodeLimits(max_decoded_bytes=1_000_000))
    assert codes(result) == ["PAYLOAD_EXPANDS"] and result.ok.num_rows == 1


def test_a_sample_is_recognized() -> None:
    value = message()
    sampled = [Sampled("canal", None, json.dumps(value).encode(), value)]
    match = recognized(sampled, carrier="messages")
    assert (
        match is not None and match.cdc == {"format": "canal"} and match.tables == {"shop.orders"}
    )
