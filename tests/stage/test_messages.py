"""Payloads that do not say which message of their schema they are, through a whole stage."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from distributary.config.load import load_text
from distributary.errors import ConfigError, ErrorCode
from distributary.stage.job import Staged
from tests.registry.frames import frame
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench, raw_batch

WRAPPER = "message wrapper { optional string kind=1; optional int32 id=2; optional bytes body=3; }"
ITEM = "message Item { string sku = 1; int32 pieces = 2; }"
EVENT = "message event { string user = 1; string note = 2; repeated Item items = 3; }"
OTHER = "message Other { string name = 1; }"
ITEM_BYTES = b"\x0a\x01s\x10\x02"
EVENT_BYTES = b"\x0a\x02me\x12\x02hi\x1a\x05" + ITEM_BYTES


def make(root: Path, *, payload: str = "", envelope: str = "", wrapper: str = WRAPPER) -> Bench:
    text = f"""
name: games
source: {{type: delta, path: {root}/wrapper}}
registry: {{path: {root}/schemas}}
envelope:
  {{format: protobuf, subject: wrapper-value, type: kind, schema_id: id, payload: body{envelope}}}
payload: {{format: protobuf{payload}}}
tables: {{each: 'silver_{{type}}'}}
lake: {{path: {root}}}
"""
    config = load_text(text, file="p.yaml", environ={}).config
    registry = ScratchRegistry()
    registry.register("wrapper-value", wrapper)
    return Bench(root, registry, config)


def register(one: Bench, type_: str, *messages: str) -> int:
    # packages differ by type, as they do where each team has its own
    text = f'syntax = "proto3"; package {type_}; ' + " ".join(messages)
    return one.registry.register(f"{type_}-value", text)


def delimited(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def wrapped(type_: str, schema_id: int, payload: bytes) -> bytes:
    return delimited(1, type_.encode()) + b"\x10" + bytes([schema_id]) + delimited(3, payload)


def letters(one: Bench, staged: Staged) -> list[str]:
    files = [one.lake / "dead_letters" / f.path for f in staged.files["dead_letters"]]
    return [text for f in files for text in pq.read_table(f)["error_message"].to_pylist()]


def test_a_helper_message_before_the_event_is_not_taken_for_it(tmp_path: Path) -> None:
    one = make(tmp_path)
    ids = {type_: register(one, type_, ITEM, EVENT) for type_ in ("chess", "go")}
    staged = one.stage([raw_batch([wrapped(t, i, EVENT_BYTES) for t, i in ids.items()] * 5)])
    assert not staged.dead
    for type_ in ids:
        rows = one.rows(staged, f"silver_{type_}").to_pylist()
        assert [row["user"] for row in rows] == ["me"] * 5
        assert rows[0]["items"] == [{"sku": "s", "pieces": 2}]


def test_a_message_named_like_the_type_is_meant(tmp_path: Path) -> None:
    one = make(tmp_path)
    number = register(one, "order_placed", OTHER, "message OrderPlaced { string user = 1; }")
    staged = one.stage([raw_batch([wrapped("order_placed", number, b"\x0a\x02me")])])
    assert not staged.dead
    assert one.rows(staged, "silver_order_placed")["user"].to_pylist() == ["me"]


def test_a_file_of_several_unrelated_messages_is_dead_letters_until_one_is_named(
    tmp_path: Path,
) -> None:
    one = make(tmp_path)
    number = register(one, "chess", OTHER, ITEM, EVENT)
    records = [raw_batch([wrapped("chess", number, EVENT_BYTES)] * 3)]
    staged = one.stage(records)
    assert dict(staged.dead) == {"AMBIGUOUS_MESSAGE": 3}
    assert "silver_chess" not in staged.files
    assert "chess.Other, chess.event" in letters(one, staged)[0]
    named = make(tmp_path / "named", payload=", message: event")
    numbers = [register(named, type_, OTHER, ITEM, EVENT) for type_ in ("chess", "go")]
    values = [wrapped(t, n, EVENT_BYTES) for t, n in zip(("chess", "go"), numbers, strict=True)]
    staged = named.stage([raw_batch(values)])
    assert not staged.dead
    assert named.rows(staged, "silver_go")["user"].to_pylist() == ["me"]


def test_a_message_index_says_exactly_what_it_says(tmp_path: Path) -> None:
    one = make(tmp_path, payload=", framing: auto")
    number = register(one, "chess", ITEM, EVENT)
    values = [
        wrapped("chess", number, frame(ITEM_BYTES, schema_id=number)),
        wrapped("chess", number, frame(EVENT_BYTES, schema_id=number, indexes=(1,))),
        wrapped("chess", number, EVENT_BYTES),
    ]
    staged = one.stage([raw_batch(values)])
    assert not staged.dead
    rows = one.rows(staged, "silver_chess").sort_by("_offset")
    assert rows["sku"].to_pylist() == ["s", None, None]
    assert rows["user"].to_pylist() == [None, "me", "me"]


@pytest.mark.parametrize("indexes", [(7,), (0, 3), (2**31,), (2**40, 1), (2**66,)])
def test_a_message_index_that_leads_nowhere_is_a_dead_letter(
    tmp_path: Path, indexes: tuple[int, ...]
) -> None:
    one = make(tmp_path, payload=", framing: confluent")
    number = register(one, "chess", ITEM, EVENT)
    values = [
        wrapped("chess", number, frame(EVENT_BYTES, schema_id=number, indexes=indexes)),
        wrapped("chess", number, frame(EVENT_BYTES, schema_id=number, indexes=(1,))),
    ]
    staged = one.stage([raw_batch(values)])
    assert dict(staged.dead) == {"BAD_MESSAGE_INDEX": 1}
    assert one.rows(staged, "silver_chess")["user"].to_pylist() == ["me"]


def test_the_envelope_is_the_message_with_the_envelope_s_fields(tmp_path: Path) -> None:
    one = make(tmp_path, wrapper=f"message Trace {{ optional string id = 9; }} {WRAPPER}")
    number = register(one, "chess", EVENT, ITEM)
    staged = one.stage([raw_batch([wrapped("chess", number, EVENT_BYTES)])])
    assert not staged.dead
    assert one.rows(staged, "silver_chess")["user"].to_pylist() == ["me"]


def test_two_messages_that_could_be_the_envelope_are_an_error_before_any_record(
    tmp_path: Path,
) -> None:
    both = WRAPPER.replace("wrapper", "first") + WRAPPER.replace("wrapper", "second")
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, wrapper=both).planner.task_plan()
    assert caught.value.code is ErrorCode.AMBIGUOUS_MESSAGE
    named = make(tmp_path, wrapper=both, envelope=", message: second")
    number = register(named, "chess", EVENT, ITEM)
    assert not named.stage([raw_batch([wrapped("chess", number, EVENT_BYTES)])]).dead


def test_an_envelope_may_have_grown_and_may_not_have_changed(tmp_path: Path) -> None:
    one = make(tmp_path)
    number = register(one, "chess", EVENT, ITEM)
    good = wrapped("chess", number, EVENT_BYTES)
    # the newest envelope is known, not the one that this record was written with
    newer = good + delimited(4, b"trace")
    other = delimited(1, b"chess") + delimited(2, b"\x01") + delimited(3, EVENT_BYTES)
    staged = one.stage([raw_batch([good, newer, other])])
    assert dict(staged.dead) == {"NOT_AN_ENVELOPE": 1}
    assert one.rows(staged, "silver_chess").num_rows == 2


def test_a_wrong_schema_is_dead_letters_and_not_rows(tmp_path: Path) -> None:
    one = make(tmp_path)
    number = register(one, "chess", ITEM)
    longer = delimited(1, b"s") + delimited(7, b"more")
    values = [wrapped("chess", number, each) for each in (ITEM_BYTES, EVENT_BYTES, longer)]
    staged = one.stage([raw_batch(values)])
    assert dict(staged.dead) == {"PAYLOAD_MISMATCH": 2}
    assert one.rows(staged, "silver_chess")["_offset"].to_pylist() == [0]


def test_fields_that_are_dropped_are_counted(tmp_path: Path) -> None:
    one = make(tmp_path, payload=", unknown_fields: drop")
    number = register(one, "chess", ITEM)
    longer = delimited(1, b"s") + delimited(7, b"more")
    values = [wrapped("chess", number, each) for each in (ITEM_BYTES, longer, EVENT_BYTES, longer)]
    staged = one.stage([raw_batch(values, start=40)])
    # another wire type is no field that could be left out
    assert dict(staged.dead) == {"PAYLOAD_MISMATCH": 1}
    assert one.rows(staged, "silver_chess").num_rows == 3
    (count,) = staged.rules["silver_chess"]
    assert (count.checked, count.violated, count.example) == (3, 2, "wrapper/0/41")


def test_fields_of_a_newer_version_are_found_where_versions_are_decoded_together(
    tmp_path: Path,
) -> None:
    one = make(tmp_path)
    old = register(one, "chess", "message event { string user = 1; }")
    new = register(one, "chess", "message event { string user = 1; string note = 2; }")
    short, long = b"\x0a\x02me", b"\x0a\x02me\x12\x02hi"
    values = [wrapped("chess", i, p) for i, p in ((old, short), (new, long), (old, long))]
    staged = one.stage([raw_batch(values)])
    assert dict(staged.dead) == {"PAYLOAD_MISMATCH": 1}
    assert sorted(one.rows(staged, "silver_chess")["_offset"].to_pylist()) == [0, 1]
