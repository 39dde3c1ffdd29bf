"""Tables with a key: whatever comes in whichever order, a row is the record that its key names."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.events.log_events import place_of
from distributary.delta.log import snapshot_of
from distributary.errors import ConfigError, ErrorCode
from distributary.model.record import RAW, Format
from distributary.model.rules.key_rule import KeyRule
from distributary.model.table import Column, Role, TablePlan
from distributary.stage.rows.keying import with_change_columns
from distributary.stage.rows.record_keys import read_keys
from tests.stage.keyed import KeyedStream, Sent

KEYS = st.integers(0, 4)
ORDERS = st.sampled_from([0, 1, 2, -3, 2**40])
TEXTS = st.sampled_from(["", "a", "ab", "a\x00", "a\x01", "a\x02b", "b", "é"])
FLOATS = st.sampled_from([0.0, -0.5, 1.5, -1e300, 1e300, 2.25])


@st.composite
def streams(draw: st.DrawFn) -> list[Sent]:
    """Records of two partitions, in the order of their offsets."""
    values = st.fixed_dictionaries(
        {"id": KEYS, "n": ORDERS, "x": FLOATS, "t": TEXTS, "op": st.sampled_from("UUUD")}
    )
    sent: list[Sent] = []
    for offset, value in enumerate(draw(st.lists(values, min_size=1, max_size=20))):
        partition = value["id"] % 2
        sent.append(Sent(partition, offset, {**value, "v": offset}, 1_000_000 + offset))
    return sent


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Sent], list[list[Sent]]]:
    """A stream, and the batches that bring it: cut anywhere, shuffled, with repeats."""
    sent = draw(streams())
    again = draw(st.lists(st.sampled_from(sent), max_size=6))
    arriving = draw(st.permutations([*sent, *again]))
    batches: list[list[Sent]] = [[]]
    for record in arriving:
        # a source has no record twice in one batch
        if record in batches[-1] or (batches[-1] and draw(st.booleans())):
            batches.append([])
        batches[-1].append(record)
    return sent, batches


def expected(
    sent: list[Sent], order: tuple[str, ...], *, first: bool = False, deletes: bool = False
) -> list[dict[str, Any]]:
    """Return the rows as a dict by key would have them."""

    def place(one: Sent) -> tuple[Any, ...]:
        return (*(one.value[name] for name in order), one.offset)

    rows: dict[int, Sent] = {}
    for one in sorted(sent, key=place):
        if first and one.value["id"] in rows:
            continue
        rows[one.value["id"]] = one
    gone = {"D"} if deletes else set()
    return sorted(
        (one.value for one in rows.values() if one.value["op"] not in gone),
        key=lambda row: row["id"],
    )


CASES = {
    "offset": ((), ""),
    "number": (("n",), "order: [n]"),
    "floating": (("x", "n"), "order: [x, n]"),
    "text": (("n", "t"), "order: [n, t]"),
}


@pytest.mark.parametrize("case", ["offset", "number", "floating", "text"])
@given(deliveries=deliveries())
@settings(max_examples=12, deadline=None)
def test_a_row_is_the_newest_record_however_records_come(
    case: str, deliveries: tuple[list[Sent], list[list[Sent]]]
) -> None:
    order, text = CASES[case]
    keys = f"""{{key: [id], delete_when: "op = 'D'", {text}}}"""
    with tempfile.TemporaryDirectory() as folder:
        stream = KeyedStream(Path(folder), keys)
        for batch in deliveries[1]:
            stream.bring(*batch)
        rows = sorted(stream.rows(), key=lambda row: row["id"])
        assert rows == expected(deliveries[0], order, deletes=True)
        assert len(stream.rows("silver_orders_log")) == len(deliveries[0])


@pytest.mark.parametrize("case", ["offset", "number", "floating"])
@given(deliveries=deliveries())
@settings(max_examples=10, deadline=None)
def test_the_first_record_stays_however_records_come(
    case: str, deliveries: tuple[list[Sent], list[list[Sent]]]
) -> None:
    order, text = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        stream = KeyedStream(Path(folder), f"{{key: [id], mode: dedup, {text}}}")
        for batch in deliveries[1]:
            stream.bring(*batch)
        rows = sorted(stream.rows(), key=lambda row: row["id"])
        assert rows == expected(deliveries[0], order, first=True)


def _spread(one: Sent) -> Sent:
    """Return a record whose time is not in the order of the offsets."""
    return one._replace(timestamp=one.offset % 7 * 900_000 - 1_000_000)


@pytest.mark.parametrize("by_time", [False, True])
@given(deliveries=deliveries())
@settings(max_examples=10, deadline=None)
def test_the_first_record_of_each_window_stays_however_records_come(
    by_time: bool, deliveries: tuple[list[Sent], list[list[Sent]]]
) -> None:
    sent, batches = deliveries
    firsts: dict[tuple[int, int], Sent] = {}
    for one in map(_spread, sent):
        window = one.timestamp // 2_000_000, one.value["id"]
        known = firsts.get(window)
        if known is None or (by_time and one.timestamp < known.timestamp):
            firsts[window] = one
    order = "order: [_timestamp]" if by_time else ""
    with tempfile.TemporaryDirectory() as folder:
        stream = KeyedStream(Path(folder), f"{{key: [id], mode: dedup, horizon: 2s, {order}}}")
        for batch in batches:
            stream.bring(*map(_spread, batch))
        rows = sorted(stream.rows(), key=lambda row: row["v"])
        assert rows == sorted((one.value for one in firsts.values()), key=lambda row: row["v"])


def test_files_of_other_windows_are_not_read(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], mode: dedup, horizon: 1s}")
    for second in range(3):
        stream.bring(Sent(0, second, {"id": 1, "v": second}, second * 1_000_000))
    state = snapshot_of(str(tmp_path / "silver_orders"))
    assert state is not None
    old, *_ = [*state.files]
    (tmp_path / "silver_orders" / old).write_bytes(b"")
    stream.bring(Sent(0, 3, {"id": 1, "v": 3}, 2_999_999), Sent(0, 4, {"id": 2, "v": 4}, 2_000_000))
    after = snapshot_of(str(tmp_path / "silver_orders"))
    assert after is not None and after.count == 4 and old in after.files


def test_another_horizon_is_another_key(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], mode: dedup, horizon: 1s}")
    stream.bring(Sent(0, 0, {"id": 1}))
    assert stream.table("silver_orders_log")["_key"].to_pylist() == [["_window", "id"]]
    for keys in ("{key: [id], mode: dedup}", "{key: [id], mode: dedup, horizon: 2s}"):
        with pytest.raises(ConfigError, match="another key or order"):
            KeyedStream(tmp_path, keys).bring(Sent(0, 1, {"id": 1}))


def test_versions_are_kept_and_deletes_are_marked(tmp_path: Path) -> None:
    keys = "{key: [id], order: [n], delete_when: \"op = 'D'\", history: true, deletes: soft}"
    stream = KeyedStream(tmp_path, keys)
    stream.bring(Sent(0, 0, {"id": 1, "n": 5, "op": "U"}), Sent(0, 1, {"id": 1, "n": 3, "op": "U"}))
    stream.bring(Sent(0, 2, {"id": 1, "n": 7, "op": "D"}), Sent(0, 3, {"id": 1, "n": 6, "op": "U"}))
    (row,) = stream.table("silver_orders").to_pylist()
    assert (row["n"], row["_deleted"]) == (7, True)
    versions = stream.table("silver_orders_history").sort_by([("_valid_to", "ascending")])
    assert Counter(versions["n"].to_pylist()) == Counter([5, 3, 7, 6])
    assert versions["_current"].to_pylist().count(True) == 0
    log = stream.table("silver_orders_log")
    assert Counter(log["_op"].to_pylist()) == {"update": 3, "delete": 1}
    assert log["_key"].to_pylist() == [["id"]] * 4


def test_records_without_a_key_or_an_order_are_dead_letters_and_in_no_table(tmp_path: Path) -> None:
    stream = KeyedStream(
        tmp_path,
        "{key: [id, Name], order: [n]}",
        tables=", unified: unified_gold, bronze: bronze_events",
    )
    staged = stream.bring(
        Sent(0, 0, {"id": 1, "name": "a", "n": 1}),
        Sent(0, 1, {"id": None, "name": "a", "n": 1}),
        Sent(0, 2, {"id": 1, "n": 2}),
        Sent(0, 3, {"id": 1, "name": "a"}),
        Sent(0, 4, b"{broken"),
        Sent(0, 5, {"id": 1, "name": "a", "n": 9}),
    )
    assert staged.dead == {ErrorCode.KEY_NOT_IN_PAYLOAD: 3, ErrorCode.NOT_JSON: 1}
    assert staged.records["silver_orders_log"] == staged.records["unified_gold"] == 2
    assert stream.rows() == [{"id": 1, "name": "a", "n": 9}]
    assert len(stream.rows("unified_gold")) == 2
    assert "_op" not in stream.table("unified_gold").column_names
    letters = stream.bench.rows(staged, "dead_letters").to_pylist()
    reasons = {letter["offset"]: letter["error_message"] for letter in letters}
    assert reasons[1] == "column id of its key has no value"
    assert reasons[2] == "column name of its key has no value"
    assert reasons[3] == "column n of its order has no value"


@pytest.mark.parametrize(
    ("keys", "value", "code", "reason"),
    [
        ("{key: [other]}", {"id": 1}, ErrorCode.KEY_NOT_IN_PAYLOAD, "column other of its key"),
        ("{key: [id], order: [at]}", {"id": 1}, ErrorCode.KEY_NOT_IN_PAYLOAD, "column at of its"),
        ("{key: [id], order: [at]}", {"id": 1, "at": [1]}, ErrorCode.UNUSABLE_SCHEMA, "no order"),
        (
            "{key: [id], order: [at], mode: dedup}",
            {"id": 1, "at": "x"},
            ErrorCode.UNUSABLE_SCHEMA,
            "no order",
        ),
        (
            "{key: [id], delete_when: id}",
            {"id": 1},
            ErrorCode.UNUSABLE_SCHEMA,
            "not true or false",
        ),
    ],
)
def test_what_cannot_have_a_key_is_refused_with_the_reason(
    tmp_path: Path, keys: str, value: dict[str, Any], code: ErrorCode, reason: str
) -> None:
    stream = KeyedStream(tmp_path, keys)
    staged = stream.bring(Sent(0, 0, value))
    assert staged.dead == {code: 1}
    (letter,) = stream.bench.rows(staged, "dead_letters").to_pylist()
    assert reason in letter["error_message"]
    assert stream.rows("silver_orders_log") == []


def test_a_condition_that_fails_for_a_record_makes_it_a_dead_letter(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], delete_when: 'CAST(gone AS BOOLEAN)'}")
    staged = stream.bring(
        Sent(0, 0, {"id": 1, "gone": "false"}),
        Sent(0, 1, {"id": 2, "gone": "perhaps"}),
        Sent(0, 2, {"id": 3}),
        Sent(0, 3, {"id": 1, "gone": "true"}),
    )
    assert staged.dead == {ErrorCode.KEY_NOT_IN_PAYLOAD: 1}
    assert stream.rows() == [{"id": 3, "gone": None}]


def test_a_field_that_only_deletes_have_deletes_from_its_first_record_on(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], delete_when: deleted}")
    assert not stream.bring(Sent(0, 0, {"id": 1}), Sent(0, 1, {"id": 2})).dead
    stream.bring(Sent(0, 2, {"id": 1, "deleted": True}))
    assert stream.rows() == [{"id": 2, "deleted": None}]


def test_only_tables_that_fit_have_a_key_and_rules_hold_for_all(tmp_path: Path) -> None:
    stream = KeyedStream(
        tmp_path,
        "{key: [id], tables: [silver_orders]}",
        extra="expectations: [{name: positive, check: id > 0, action: dead_letter}]",
    )
    staged = stream.bring(
        Sent(0, 0, {"id": 1}),
        Sent(0, 1, {"id": 1}),
        Sent(0, 2, {"id": 0}),
        Sent(0, 0, {"id": 5}, topic="visits"),
        Sent(0, 1, {"id": 5}, topic="visits"),
    )
    assert staged.dead == {ErrorCode.EXPECTATION_FAILED: 1}
    assert [row["id"] for row in stream.rows()] == [1]
    assert [row["id"] for row in stream.rows("silver_visits")] == [5, 5]
    assert not (tmp_path / "silver_visits_log").exists()


def test_the_timestamp_of_the_record_can_be_the_order(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], order: [_timestamp]}")
    # after a topic got more partitions, a key goes on where offsets are lower
    stream.bring(
        Sent(0, 900, {"id": 1, "v": "old"}, 1_000), Sent(5, 3, {"id": 1, "v": "new"}, 2_000)
    )
    assert stream.rows() == [{"id": 1, "v": "new"}]


def test_a_field_with_the_name_of_a_column_of_logs_has_another_one(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id]}")
    stream.bring(Sent(0, 0, {"id": 1, "_seq": 3, "_valid_to": 4}))
    assert stream.rows() == [{"id": 1, "field_seq": 3, "field_valid_to": 4}]


@pytest.mark.parametrize("first", [False, True])
def test_rows_of_one_record_are_in_their_order(first: bool) -> None:
    offsets = [7, 7, 7, 8, 9, 9]
    raw = pa.RecordBatch.from_pylist(
        [
            {"topic": "t", "partition": 0, "offset": offset, "timestamp": 0, "value": b"[]"}
            for offset in offsets
        ],
        schema=RAW,
    )
    body = pa.table({"id": [1] * len(offsets)})
    table = TablePlan("t_log", Role.LOG, "t", "", (Column("id", pa.int64()),))
    rule = KeyRule(("id",), keeps_first=first)
    none = np.zeros(len(offsets), np.bool_)
    events = with_change_columns(body, pa.table(raw), table, rule, none)
    places = [place_of(each) for each in events["_seq"].to_pylist()]
    assert places == sorted(places, reverse=first)
    assert len({*places}) == len({*events["_uuid"].to_pylist()}) == len(offsets)


@pytest.mark.parametrize("exchange", ["disk", "spark"])
def test_a_key_without_a_value_deletes_its_row(tmp_path: Path, exchange: str) -> None:
    stream = KeyedStream(
        tmp_path,
        "{key: [id], tombstones: delete, tables: ['*orders']}",
        tables=", unified: unified_gold",
        extra="expectations: [{name: named, check: v is not null, action: dead_letter}]",
        exchange=exchange,
    )
    stream.bring(*(Sent(0, n, {"id": n, "v": "a"}) for n in range(4)))
    staged = stream.bring(
        Sent(0, 4, None, key=b"1"),
        Sent(0, 5, None, key=b'{"ID": 2}'),
        Sent(0, 6, None, key=b"\x00\x00\x00\x00\x01\x02"),
        Sent(0, 7, None, key=None),
        Sent(0, 8, {"id": 9, "v": "b"}),
        Sent(0, 9, None, topic="visits", key=b"1"),
        Sent(0, 10, {"id": 1, "v": "z"}, topic="visits"),
    )
    assert sorted(row["id"] for row in stream.rows()) == [0, 3, 9]
    assert staged.dead == {ErrorCode.KEY_NOT_IN_PAYLOAD: 1, ErrorCode.NULL_VALUE: 2}
    assert len(stream.rows("unified_gold")) == 6
    # an older record that comes late does not bring the row back, and a newer one does
    stream.bring(Sent(0, 3, {"id": 1, "v": "late"}), Sent(0, 11, {"id": 2, "v": "new"}))
    assert sorted(row["id"] for row in stream.rows()) == [0, 2, 3, 9]


def test_tombstones_in_protobuf_avro_and_messagepack(tmp_path: Path) -> None:
    keys = "{key: [id], tombstones: delete}"
    proto = KeyedStream(tmp_path / "proto", keys, payload="protobuf")
    text = 'syntax = "proto3"; message Order { int64 id = 1; string v = 2; }'
    number = proto.bench.registry.register("orders-value", text)
    header = b"\0" + number.to_bytes(4, "big")
    proto.bring(Sent(0, 0, header + b"\0\x08\x05"), Sent(0, 1, header + b"\0\x08\x06"))
    proto.bring(Sent(0, 2, None, key=b"5"), Sent(0, 3, header + b"\0\x08\x07"))
    assert sorted(row["id"] for row in proto.rows()) == [6, 7]

    avro = KeyedStream(tmp_path / "avro", keys, payload="avro")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    number = avro.bench.registry.register("orders-value", json.dumps(schema), format=Format.AVRO)
    header = b"\0" + number.to_bytes(4, "big")
    avro.bring(Sent(0, 0, header + b"\x0a"), Sent(0, 1, header + b"\x0c"))
    avro.bring(Sent(0, 2, None, key=b"5"))
    assert avro.rows() == [{"id": 6}]

    packed = KeyedStream(tmp_path / "msgpack", keys, payload="msgpack, framing: none")
    packed.bring(Sent(0, 0, b"\x81\xa2id\x05"), Sent(0, 1, b"\x81\xa2id\x06"))
    assert not packed.bring(Sent(0, 2, None, key=b"5")).dead
    assert packed.rows() == [{"id": 6}]


def test_the_keys_of_records_are_read_as_the_columns_of_the_table() -> None:
    one = [Column("id", pa.int64())]
    keys = [b"7", b"-7", b'{"id":8}', b"{}", b"", None, b"x", b"1.5", b'"9"', b"[1]", b"\xff"]
    keys += [b"9" * 30, b'{"id":1.5}', b'{"id":true}', b"{broken"]
    rows, kept, failures = read_keys(pa.chunked_array([pa.array(keys, pa.binary())]), one)
    assert rows.column("id").to_pylist() == [7, -7, 8, 9]
    assert kept == [0, 1, 2, 8]
    assert [each.index for each in failures] == [3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14]
    two = [Column("id", pa.string()), Column("day", pa.date32())]
    keys = [b'{"id":"a","day":"2026-01-02","more":1}', b"a", b'{"id":"a"}', b'{"id":1,"day":"x"}']
    rows, kept, _ = read_keys(pa.chunked_array([pa.array(keys, pa.binary())]), two)
    assert rows.to_pylist() == [{"id": "a", "day": date(2026, 1, 2)}]
    assert kept == [0]


@pytest.mark.parametrize(
    ("key", "type_", "value"),
    [
        (rb'"\ud800"', pa.string(), None),
        (rb'{"id":"\ud800"}', pa.string(), None),
        (b'{"id":7}', pa.string(), None),
        (b'{"id":1,"ID":2}', pa.int64(), None),
        (b"1" * 38, pa.decimal128(38, 0), Decimal("1" * 38)),
        (b"1" * 39, pa.decimal128(38, 0), None),
        (b'{"id":12345678901234567.89}', pa.decimal128(20, 2), Decimal("12345678901234567.89")),
        (b'{"id":1.001}', pa.decimal128(20, 2), None),
        (b'{"id":1.5}', pa.float64(), 1.5),
        (b'{"id":NaN}', pa.float64(), None),
        (b'{"id":1e999}', pa.float64(), None),
        (b'{"id":2}', pa.bool_(), None),
        (b'{"id":true}', pa.bool_(), True),
        (b'{"id":2}', pa.date32(), None),
    ],
)
def test_a_key_names_exactly_one_value_or_none(key: bytes, type_: pa.DataType, value: Any) -> None:
    """Another value would delete the row of somebody else."""
    keys = pa.chunked_array([pa.array([key], pa.binary())])
    rows, _, failures = read_keys(keys, [Column("id", type_)])
    assert rows.column("id").to_pylist() == ([] if value is None else [value])
    assert len(failures) == (value is None)


def test_columns_come_and_widen(tmp_path: Path) -> None:
    stream = KeyedStream(tmp_path, "{key: [id], order: [n]}")
    stream.bring(Sent(0, 0, {"id": 1, "n": 1}))
    stream.restart()
    stream.bring(
        Sent(0, 1, {"id": 2, "n": 1, "name": "b"}), Sent(0, 2, {"id": 1, "n": 2, "x": 1.5})
    )
    rows = sorted(stream.rows(), key=lambda row: row["id"])
    assert rows == [
        {"id": 1, "n": 2, "name": None, "x": 1.5},
        {"id": 2, "n": 1, "name": "b", "x": None},
    ]


@pytest.mark.parametrize(
    "keys", ["{key: [id], order: [n]}", "{key: [n]}", "{key: [id], mode: dedup}"]
)
def test_rows_of_another_key_or_order_are_refused(tmp_path: Path, keys: str) -> None:
    KeyedStream(tmp_path, "{key: [id]}").bring(Sent(0, 0, {"id": 1, "n": 1}))
    with pytest.raises(ConfigError) as caught:
        KeyedStream(tmp_path, keys).bring(Sent(0, 1, {"id": 1, "n": 1}))
    assert "another key or order" in caught.value.what


def test_a_table_is_appended_to_or_merged_and_never_both(tmp_path: Path) -> None:
    KeyedStream(tmp_path, "").bring(Sent(0, 0, {"id": 1}))
    with pytest.raises(ConfigError) as caught:
        KeyedStream(tmp_path, "{key: [id]}").bring(Sent(0, 1, {"id": 1}))
    assert "were appended" in caught.value.what
    other = tmp_path / "other"
    KeyedStream(other, "{key: [id]}").bring(Sent(0, 0, {"id": 1}))
    with pytest.raises(ConfigError) as caught:
        KeyedStream(other, "").bring(Sent(0, 1, {"id": 1}))
    assert "were merged by key" in caught.value.what
