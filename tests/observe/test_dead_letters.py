"""Dead letters are grouped, found and marked; their records stay as they are."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.errors import DistributaryError, ErrorCode
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, dead_letter_id
from distributary.observe.deadletters import DeadLetters, ReplayFailure

HOSTILE = 'it\'s "<b>"; DROP TABLE x --\\ \u202e %s {0} `'


def ids(rows):
    return rows["offset"].to_pylist()


@pytest.fixture
def letters(lake, noon):
    """Nine dead letters in three batches, three files."""
    hour = timedelta(hours=1)
    for batch in range(3):
        rows = [
            {"offset": batch * 3, "batch": batch},
            {"offset": batch * 3 + 1, "batch": batch, "error_code": "BAD_MAGIC", "type": None},
            {"offset": batch * 3 + 2, "batch": batch, "type": "go"},
        ]
        when = noon + batch * hour
        path = lake.dead_letters([{**row, "first_seen": when, "last_seen": when} for row in rows])
    return DeadLetters(path)


def test_reasons_are_grouped_with_counts_and_an_example(letters, noon):
    first, second = letters.reasons()
    assert (first.code, first.count, dict(first.types)) == (
        "PAYLOAD_MISMATCH",
        6,
        {"chess": 3, "go": 3},
    )
    assert (first.first_seen, first.last_seen) == (noon, noon + timedelta(hours=2))
    assert (second.code, second.count, dict(second.types)) == ("BAD_MAGIC", 3, {"": 3})
    assert letters.get(second.example)["error_code"] == "BAD_MAGIC"
    assert letters.reasons(status="replayed") == ()
    assert letters.reasons(pipeline="other") == ()


def test_selection_joins_all_conditions(letters, noon):
    assert len(letters.select()) == 9
    assert ids(letters.select(reason="BAD_MAGIC")) == [1, 4, 7]
    assert ids(letters.select(type="go", since=noon + timedelta(hours=1))) == [5, 8]
    assert ids(letters.select(until=noon + timedelta(hours=1))) == [0, 1, 2]
    assert ids(letters.select(topic="wrapper", partition=0, offsets=4)) == [4]
    assert ids(letters.select(offsets=(2, 5), reason="PAYLOAD_MISMATCH")) == [2, 3, 5]
    assert ids(letters.select(id=dead_letter_id("games", "life", "wrapper", 0, 6))) == [6]
    assert len(letters.select(topic="other")) == 0
    assert len(letters.select(limit=4)) == 4
    assert letters.select(columns=["value"], offsets=0).to_pylist() == [{"value": b"\x00\x01\xff"}]
    assert letters.select().schema.names == DEAD_LETTER_SCHEMA.names


def test_one_letter_is_got_by_the_start_of_its_id(letters):
    whole = dead_letter_id("games", "life", "wrapper", 0, 6)
    assert letters.get(whole)["offset"] == 6
    assert letters.get(whole[:12].upper())["headers"] == [{"key": "h", "value": b"v"}]


@pytest.mark.parametrize("prefix", ["", "zz", "0' OR '1'='1", "ffffffffffffffff", HOSTILE])
def test_no_letter_is_an_error_with_a_code(letters, prefix):
    with pytest.raises(DistributaryError) as caught:
        letters.get(prefix)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_an_ambiguous_id_names_the_candidates(lake):
    path = lake.dead_letters([{"offset": 1, "id": "ab01"}, {"offset": 2, "id": "ab02"}])
    with pytest.raises(DistributaryError) as caught:
        DeadLetters(path).get("ab")
    assert "ab01, ab02" in caught.value.evidence


def test_replayed_letters_are_closed_once(letters, noon):
    chosen = letters.select(reason="BAD_MAGIC")["id"].to_pylist()
    assert letters.mark_replayed(chosen, replay=3) == 3
    assert letters.mark_replayed(chosen, replay=4) == 0
    row = letters.get(chosen[0])
    assert (row["status"], row["note"], row["attempts"]) == ("replayed", "replay 3", 2)
    assert row["last_seen"] > noon
    assert (row["value"], row["headers"]) == (b"\x00\x01\xff", [{"key": "h", "value": b"v"}])
    assert letters.count_by_status() == {"open": 6, "replayed": 3, "discarded": 0}
    assert len(letters.select(reason="BAD_MAGIC")) == 0


def test_letters_that_fail_again_stay_open_with_the_new_reason(letters, noon):
    one, two = letters.select(offsets=(0, 1))["id"].to_pylist()
    failures = {
        one: ReplayFailure("BAD_MAGIC", HOSTILE),
        two: ReplayFailure("INVALID_UTF8", "byte 3"),
    }
    at = noon + timedelta(days=1)
    assert letters.mark_failed_again(failures, at=at) == 2
    # the process died before it knew: the same replay tells it again
    assert letters.mark_failed_again(failures, at=at) == 0
    row = letters.get(one)
    assert (row["error_code"], row["error_message"]) == ("BAD_MAGIC", HOSTILE)
    assert (row["status"], row["attempts"], row["last_seen"]) == ("open", 2, at)
    assert letters.mark_failed_again(failures, at=at + timedelta(days=1)) == 2
    assert letters.get(two)["attempts"] == 3


def test_discarded_letters_keep_the_hostile_note(letters):
    chosen = letters.select(type="go")["id"].to_pylist()
    assert letters.discard(chosen, note=HOSTILE) == 3
    assert letters.discard(chosen, note="other") == 0
    assert letters.mark_replayed(chosen, replay=1) == 0
    row = letters.get(chosen[0])
    assert (row["status"], row["note"], row["attempts"]) == ("discarded", HOSTILE, 1)


def test_unknown_ids_and_no_ids_change_nothing(letters, noon):
    before = DeltaTable(letters.path).version()
    assert letters.discard([], note="x") == 0
    assert letters.discard(["0' OR 1=1 --", HOSTILE], note="x") == 0
    assert letters.mark_failed_again({}, at=noon) == 0
    assert DeltaTable(letters.path).version() == before


def test_hostile_conditions_match_only_themselves(lake):
    path = lake.dead_letters([{"offset": 1, "type": HOSTILE, "error_code": HOSTILE}, {"offset": 2}])
    letters = DeadLetters(path)
    assert ids(letters.select(type=HOSTILE)) == [1]
    assert ids(letters.select(reason=HOSTILE)) == [1]
    assert len(letters.select(type="' OR '1'='1")) == 0
    assert dict(letters.reasons()[0].types) in ({HOSTILE: 1}, {"chess": 1})


def test_a_record_that_is_a_letter_twice_is_selected_once(lake):
    lake.dead_letters([{"offset": 1}, {"offset": 2}])
    letters = DeadLetters(lake.dead_letters([{"offset": 1, "batch": 9}]))
    assert ids(letters.select()) == [1, 2]
    assert letters.get(dead_letter_id("games", "life", "wrapper", 0, 1))["offset"] == 1
    assert letters.discard([dead_letter_id("games", "life", "wrapper", 0, 1)], note="") == 2


def test_no_table_reads_as_no_letters(lake, noon):
    letters = DeadLetters(f"{lake.path}/none")
    assert letters.reasons() == () and len(letters.select()) == 0
    assert letters.count_by_status() == {"open": 0, "replayed": 0, "discarded": 0}
    assert letters.discard(["ab"], note="x") == 0
    assert letters.mark_failed_again({"ab": ReplayFailure("X", "y")}, at=noon) == 0


def test_many_letters_are_marked_in_one_commit(lake, noon):
    size = 20_000
    row = pa.Table.from_pylist([{**_row(noon)}], schema=DEAD_LETTER_SCHEMA)
    rows = row.take(pa.array([0] * size))
    names = pa.array([f"{n:016x}" for n in range(size)])
    write_deltalake(f"{lake.path}/dead", rows.set_column(0, "id", names))
    letters = DeadLetters(f"{lake.path}/dead")
    before = DeltaTable(letters.path).version()
    assert letters.mark_replayed(names.to_pylist()[: size // 2], replay=1) == size // 2
    assert DeltaTable(letters.path).version() == before + 1
    assert letters.count_by_status()["open"] == size // 2


def _row(noon):
    fixed = {"pipeline": "games", "topic": "wrapper", "partition": 0, "offset": 1, "batch": 1}
    return {**fixed, "status": "open", "attempts": 1, "first_seen": noon, "last_seen": noon}


def test_tables_with_deletion_vectors_are_read_by_the_engine(lake, noon):
    path = f"{lake.path}/dead"
    property_ = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(path, DEAD_LETTER_SCHEMA, configuration=property_)
    lake.dead_letters([{"offset": 1, "type": HOSTILE}, {"offset": 2}])
    letters = DeadLetters(path)
    assert ids(letters.select(type=HOSTILE)) == [1]
    assert letters.select(type=HOSTILE)["headers"].to_pylist() == [[{"key": "h", "value": b"v"}]]
    assert letters.count_by_status()["open"] == 2


def test_a_letter_is_found_by_its_coordinates(letters):
    assert letters.get("wrapper/0/6")["id"] == dead_letter_id("games", "life", "wrapper", 0, 6)
    with pytest.raises(DistributaryError):
        letters.get("wrapper/0/987654")


def test_letters_of_before_that_share_an_id_are_told_apart_by_their_records(lake):
    lake.dead_letters([{"offset": 1}, {"offset": 2}])
    letters = DeadLetters(lake.dead_letters([{"offset": 1, "batch": 9, "value": b"another"}]))
    assert ids(letters.select()) == [1, 1, 2]
    assert letters.select(columns=["offset"]).num_rows == 3
