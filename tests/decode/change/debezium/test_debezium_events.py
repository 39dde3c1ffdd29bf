"""What happened to which row, in events of a real connector."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from distributary.model.change import ChangeSettings
from tests.decode.debezium_samples import columns_of, decoders, log_of, messages, table_row

ENVELOPES = ("js", "jn", "av")
FLATTENED = ("fs", "fn", "fa")


@pytest.mark.parametrize("connector", [*ENVELOPES, *FLATTENED])
def test_the_story_of_a_table(connector: str) -> None:
    rows = log_of(f"{connector}.shop.items")
    said = [(row["_op"], row["a"], row["b"], row.get("v"), row.get("extra")) for row in rows]
    story = [
        ("read", 1, "x", "v1", None),
        ("update", 1, "x", "v2", None),
        ("delete", 1, "x", None, None),
        ("insert", 1, "y", "v2", None),
        ("delete", 1, "y", None, None),
        ("insert", 2, "q", "v", None),
        ("insert", 3, "q", "v", None),
        ("insert", 4, "q", "v", 6),
        ("update", 4, "q", None, 7),
        ("truncate", None, None, None, None),
    ]
    # what flattens events drops truncates
    assert said == (story if connector in ENVELOPES else story[:-1])
    assert [row["_deleted"] for row in rows] == [op in ("delete", "truncate") for op, *_ in said]
    assert [row["_key"] for row in rows] == [
        [] if op == "truncate" else ["a", "b"] for op, *_ in said
    ]
    assert [row["_backfill"] for row in rows] == [op == "read" for op, *_ in said]
    # a truncate has no key, and nothing else tells it from another one
    assert [row["_uuid"] == "" for row in rows] == [op == "truncate" for op, *_ in said]
    assert len({row["_uuid"] for row in rows}) == len(rows)
    assert len({row["_hash"] for row in rows}) == len(rows)


@pytest.mark.parametrize("connector", [*ENVELOPES, *FLATTENED])
def test_places_go_up_with_the_log_and_halves_of_a_change_of_key_are_told_apart(
    connector: str,
) -> None:
    rows = log_of(f"{connector}.shop.items")
    places = [tuple(row["_seq"].values()) for row in rows]
    assert places == sorted(places)
    assert [row["_seq"]["phase"] for row in rows] == [0] + [1] * (len(rows) - 1)
    assert {row["_seq"]["ts"] for row in rows} == {0}
    gone, new = rows[2], rows[3]
    assert gone["_seq"]["a"] == new["_seq"]["a"] > 0
    assert (gone["_seq"]["half"], new["_seq"]["half"]) == (0, 1)
    assert {row["_seq"]["half"] for row in (*rows[:2], *rows[3:])} == {1}
    assert json.loads(gone["_envelope"])["new_key"] == {"a": 1, "b": "y"}
    assert json.loads(new["_envelope"])["old_key"] == {"a": 1, "b": "x"}
    assert rows[4]["_seq"]["tie"] > rows[3]["_seq"]["tie"]


def test_without_phases_positions_alone_decide() -> None:
    settings = ChangeSettings(format="debezium", backfill="by_timestamp")
    rows = log_of("jn.shop.items", settings)
    assert {row["_seq"]["phase"] for row in rows} == {0}
    places = [tuple(row["_seq"].values()) for row in rows]
    assert places == sorted(places)


@pytest.mark.parametrize("connector", [*ENVELOPES, *FLATTENED])
def test_a_large_value_that_was_not_sent_is_named(connector: str) -> None:
    rows = log_of(f"{connector}.shop.items")
    assert rows[0]["big"] == "z" * 2100
    assert (rows[1]["big"], rows[1]["_unchanged"]) == (None, ["big"])
    # the new row of a change of key has it neither: it is under the old key
    assert (rows[3]["big"], rows[3]["_unchanged"]) == (None, ["big"])
    assert rows[5]["_unchanged"] is None


@pytest.mark.parametrize("connector", ENVELOPES)
def test_every_kind_of_placeholder(connector: str) -> None:
    (row,) = log_of(f"{connector}.shop.toast")
    assert (row["_op"], row["id"], row["v"]) == ("update", 1, 2)
    large = ["big", "bb", "tags", "nums", "longs", "ids", "blobs", "jb"]
    assert row["_unchanged"] == large
    assert [row[name] for name in large] == [None] * len(large)


@pytest.mark.parametrize("connector", ENVELOPES)
def test_a_delete_says_nothing_about_what_is_not_in_the_key(connector: str) -> None:
    read, deleted = log_of(f"{connector}.shop.strict")
    assert table_row(read) == {"id": 1, "n": 2, "t": "x"}
    # made up by the connector, because the columns cannot be null
    assert table_row(deleted) == {"id": 1, "n": 0, "t": ""}
    assert deleted["_unchanged"] == ["n", "t"]


@pytest.mark.parametrize("connector", ENVELOPES)
def test_whole_images_are_kept(connector: str) -> None:
    read, updated, deleted = log_of(f"{connector}.shop.whole")
    assert (read["v"], updated["v"], deleted["v"]) == ("a", "b", "b")
    assert json.loads(updated["_envelope"])["before"] == {"id": 1, "v": "a"}
    assert "before" not in json.loads(deleted["_envelope"])


@pytest.mark.parametrize("connector", ENVELOPES)
def test_a_table_without_a_key(connector: str) -> None:
    (row,) = log_of(f"{connector}.shop.nokey")
    assert (row["_key"], row["v"], row["_unchanged"]) == ([], 9, None)


@pytest.mark.parametrize("connector", ENVELOPES)
def test_what_came_with_a_row(connector: str) -> None:
    row = log_of(f"{connector}.shop.nokey")[0]
    envelope = json.loads(row["_envelope"])
    assert set(envelope) == {"source", "transaction", "ts_ms", "ts_us", "ts_ns"}
    source = envelope["source"]
    assert (source["db"], source["schema"], source["table"]) == ("postgres", "shop", "nokey")
    assert (source["lsn"], source["ts_us"] // 1000) == (row["_seq"]["a"], source["ts_ms"])
    moment = datetime.fromtimestamp(source["ts_us"] // 1_000_000, UTC)
    assert row["_source_ts"] == moment.replace(microsecond=source["ts_us"] % 1_000_000)
    assert envelope["transaction"]["total_order"] == 1


def test_what_came_with_a_flattened_row() -> None:
    row = log_of("fn.shop.items")[0]
    envelope = json.loads(row["_envelope"])
    told = ("op", "table", "lsn", "source_ts_ms", "source_db", "source_schema", "deleted")
    assert set(envelope) == {f"__{name}" for name in told}
    moment = datetime.fromtimestamp(envelope["__source_ts_ms"] // 1000, UTC)
    assert row["_source_ts"].replace(microsecond=0) == moment


def test_tombstones_are_the_only_deletes_where_events_tell_of_none() -> None:
    rows = log_of("ft.shop.items")
    said = [(row["_op"], row["a"], row["b"], row["_seq"]["half"]) for row in rows]
    assert said[:5] == [
        ("update", 1, "x", 1),
        ("update", 1, "x", 1),
        ("delete", 1, "x", 1),
        ("update", 1, "y", 1),
        ("delete", 1, "y", 1),
    ]
    assert json.loads(rows[3]["_envelope"])["old_key"] == {"a": 1, "b": "x"}
    # no half goes before the rest: their order is the topic's: nothing else is told of a tombstone
    assert {tuple(row["_seq"].values())[:5] for row in rows} == {(1, 0, 0, 0, 0)}
    ties = [row["_seq"]["tie"] for row in rows]
    assert ties == sorted(ties)
    assert rows[2]["_source_ts"] is not None


@pytest.mark.parametrize("nothing", [b"", b"null"])
def test_tombstones_behind_deletes_say_nothing(nothing: bytes) -> None:
    raw = messages("jn.shop.strict")
    assert raw.column("value").is_null().to_pylist() == [False, False, True]
    ((decoder, payloads, _),) = decoders(raw)
    told = pa.array([*payloads.to_pylist()[:2], nothing], pa.binary())
    decoded = decoder.decode(told, raw)
    assert (decoded.ok.num_rows, decoded.failed, decoded.empty) == (2, (), 1)


def test_a_message_in_the_log_of_the_database_is_no_row() -> None:
    ((decoder, payloads, _),) = decoders(messages("jn.shop.whole"))
    said = payloads.to_pylist()[0].replace(b'"op":"r"', b'"op":"m"')
    decoded = decoder.decode(pa.array([said], pa.binary()), messages("jn.shop.whole").slice(0, 1))
    assert (decoded.ok.num_rows, decoded.failed, decoded.empty) == (0, (), 1)


def test_columns_are_of_the_same_types_in_json_and_avro() -> None:
    assert columns_of("js.shop.kinds") == columns_of("av.shop.kinds") == columns_of("fa.shop.kinds")
