"""Events of Maxwell: rows, keys, order, copies, what is no row, and hostile events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import CHANGE, OTHER, Sampled
from distributary.decode.change.change_formats import CHANGE_FORMATS, recognized
from tests.decode.change.events import codes, decoded, named, rows

ROW = {"id": 1, "name": "a", "price": 1.5}


def event(type_: str = "insert", data: Any = ROW, **more: Any) -> dict[str, Any]:
    whole = {"database": "shop", "table": "orders", "type": type_, "ts": 1_700_000_000}
    whole |= {"primary_key_columns": ["id"], "data": data}
    return whole | more


def test_each_type_of_event_is_a_row() -> None:
    old = {"name": "0"}
    types = ("insert", "update", "delete", "bootstrap-insert")
    result = decoded(
        "maxwell", [event(t, **({"old": old} if t == "update" else {})) for t in types]
    )
    ops = [("insert", False), ("update", False), ("delete", True), ("read", False)]
    assert rows(result, "_op", "_deleted") == ops
    assert set(rows(result, "id", "name", "price")) == {(1, "a", 1.5)}
    assert rows(result, "_backfill")[3] == (True,)
    row = result.ok.to_pylist()[1]
    assert row["_key"] == ["id"] and row["_source_ts"].timestamp() == 1_700_000_000
    assert json.loads(row["_envelope"])["old"] == old
    assert "data" not in json.loads(row["_envelope"])


def test_an_update_of_the_key_removes_the_old_row_first() -> None:
    update = event("update", {"id": 2, "name": "a"}, old={"id": 1}, position="log.1:7")
    result = decoded("maxwell", [update])
    assert rows(result, "_op", "id", "name") == [("delete", 1, "a"), ("update", 2, "a")]
    seqs = [row["_seq"] for row in result.ok.to_pylist()]
    assert [seq["half"] for seq in seqs] == [0, 1]
    assert json.loads(result.ok.column("_envelope")[1].as_py())["old_key"] == {"id": 1}


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ({"database": "shop", "table": "orders", "pk.id": 1, "pk.name": "a"}, ["id", "name"]),
        (["shop", "orders", [{"id": 1}, {"name": "a"}]], ["id", "name"]),
        ({"database": "shop", "table": "orders", "_uuid": "x"}, []),
        ("text", []),
        (None, []),
    ],
)
def test_the_key_of_the_record_names_columns(key: Any, columns: list[str]) -> None:
    bare = {name: value for name, value in event().items() if name != "primary_key_columns"}
    data = None if key is None else json.dumps(key).encode()
    assert rows(decoded("maxwell", [bare], keys=[data]), "_key") == [(columns,)]


def test_positions_order_changes_and_tell_copies() -> None:
    place = "binlog.000003:1234"
    events = [
        event(position=place, xid=5, xoffset=0),
        event(position=place, xid=5, commit=True),
        event(position="binlog.000010:4", xid=6, commit=True),
        event(position=place, xid=5, xoffset=0),
        event(position="binlog.000002:9"),
    ]
    result = decoded("maxwell", events)
    places = [(r["_seq"]["a"], r["_seq"]["b"], r["_seq"]["c"]) for r in result.ok.to_pylist()]
    assert places[4] < places[0] < places[1] < places[2]
    ids = rows(result, "_uuid", "_hash")
    assert ids[0] == ids[3] != ids[1]
    # several rows may share a position that has no number of the row
    assert ids[4][0] == ""


def test_the_same_change_in_the_log_of_another_server_has_the_same_content() -> None:
    events = [event(position=f"log.{n:06}:4", gtid="0-1-7", xoffset=0) for n in (7, 1)]
    first, second = rows(decoded("maxwell", events), "_uuid", "_hash")
    assert first[0] != second[0] and first[1] == second[1]


def test_without_positions_the_order_of_arrival_counts() -> None:
    kafka, files = (decoded("maxwell", [event()] * 2, from_files=flag) for flag in (False, True))
    for result in (kafka, files):
        ties = [row["_seq"]["tie"] for row in result.ok.to_pylist()]
        assert ties == sorted(ties) and len(set(ties)) == 2
    assert rows(kafka, "_uuid") == [("",), ("",)]
    # a file's number counts before a row's
    assert files.ok.to_pylist()[1]["_seq"]["tie"].startswith("0000000000.")


def test_an_update_without_some_columns_leaves_them_unchanged() -> None:
    result = decoded("maxwell", [event(), event("update", {"id": 1, "name": "b"}, old={})])
    assert rows(result, "_unchanged") == [(None,), (["price"],)]


def test_a_null_that_is_left_out_is_null_where_the_update_has_changed_the_column() -> None:
    update = event("update", {"id": 1, "price": 2.5}, old={"name": "a"})
    result = decoded("maxwell", [event(), update])
    assert rows(result, "name", "_unchanged") == [("a", None), (None, None)]


def test_events_that_are_no_rows_are_skipped() -> None:
    others = ("bootstrap-start", "bootstrap-complete", "table-alter", "database-create")
    seen = named("maxwell", [event(), *(event(each, data={}) for each in others)])
    assert seen.kinds.tolist() == [CHANGE] + [OTHER] * len(others)
    assert json.loads(seen.claims[0].as_py()) == ["shop", "", "orders"]


def test_events_that_name_no_table_have_no_claim() -> None:
    broken: list[Any] = [b"{", b"7", b"[]", {"table": 5}, {"database": "x"}, b"\xff"]
    assert named("maxwell", broken).claims.null_count == len(broken)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (event("upsert"), "NOT_AN_ENVELOPE"),
        (event(data=None), "NO_PAYLOAD"),
        (event(data={}), "NO_PAYLOAD"),
        (event(data=[ROW]), "NO_PAYLOAD"),
        (event(ts="soon"), "BAD_SOURCE_TIME"),
        (event(ts=-1), "BAD_SOURCE_TIME"),
        (event(ts=10**30), "BAD_SOURCE_TIME"),
        (event(position="somewhere"), "BAD_POSITION"),
        (event(position=7), "BAD_POSITION"),
        (event(position=f"log.{'9' * 30}:1"), "BAD_POSITION"),
        (event(data={"name": "a"}), "KEY_NOT_IN_PAYLOAD"),
        (event(primary_key_columns=["nowhere"]), "KEY_NOT_IN_PAYLOAD"),
        (b'{"type":"insert","type":"delete"}', "DUPLICATE_KEY"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "NESTING_TOO_DEEP"),
    ],
)
def test_hostile_events_fail_alone(bad: Any, code: str) -> None:
    result = decoded("maxwell", [event(), bad, event()], limits=DecodeLimits(max_depth=100))
    assert codes(result) == [code]
    assert result.ok.num_rows == 2


def test_a_sample_is_recognized() -> None:
    def sampled(one: Any) -> Sampled:
        return Sampled("maxwell", None, json.dumps(one).encode(), one)

    match = recognized([sampled(event()), sampled(event("update", old={}))], carrier="messages")
    assert match is not None and match.cdc == {"format": "maxwell"}
    assert match.tables == {"shop.orders"} and match.each == "{database}_{table}"
    assert recognized([sampled(event())], carrier="files") == match
    assert CHANGE_FORMATS["maxwell"].recognize([sampled({"id": 1})]) is None
