"""Bad change files: what cannot be used is a dead letter, whole, and all else is kept."""

import bz2
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.engine.progress.removal import dead_letters_of
from distributary.model.manifest import Counts
from distributary.operations.replay import LANE, replay, try_replay
from distributary_lab.simulate.cdc.shapes import CdcFormat, CdcPlan
from tests.decode.datastream_samples import COLUMNS, avro_schema, event
from tests.lakes.changes import Feed, put
from tests.source.change_files import MINUTE, avro
from tests.source.files.test_files_avro import container

FOLDER = f"shop_orders/{MINUTE}"


def letters(feed: Feed) -> list[dict[str, Any]]:
    return feed.rows("dead_letters")


def codes(feed: Feed) -> Counter[str]:
    return Counter(row["error_code"] for row in letters(feed))


def ids(feed: Feed, table: str = "shop_orders") -> list[int]:
    return sorted(row["id"] for row in feed.rows(table))


def without(what: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in what.items() if name not in names}


def test_files_that_are_not_avro_or_end_too_early_keep_their_good_events(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    feed.put_events("good", [event(1)])
    put(feed.files / f"{FOLDER}/text.avro", b"this is not Avro")
    whole = avro([event(n) for n in range(10, 30)], written=avro_schema(), block=2_000)
    cut = whole[: len(whole) - 300]
    put(feed.files / f"{FOLDER}/cut.avro", cut)
    counts = feed.pipeline().run(spark=tasks).counts
    assert counts.dead_lettered == 2
    assert counts.balanced
    assert counts.read == counts.written + 2
    kept = ids(feed)
    assert kept[0] == 1
    assert kept[1:] == list(range(10, 10 + len(kept) - 1))
    assert 10 < len(kept) < 21
    found = {row["topic"].rpartition("/")[2]: row for row in letters(feed)}
    assert found["text.avro"]["value"] == b"this is not Avro"
    assert found["text.avro"]["error_code"] == "FILE_CORRUPT"
    assert found["cut.avro"]["error_code"] == "FILE_TRUNCATED"
    # what was not read, to the last byte
    assert cut.endswith(found["cut.avro"]["value"])
    assert feed.pipeline().run(spark=tasks).counts == Counts()


def test_a_file_that_unpacks_to_gigabytes_does_not_stop_the_others(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1)])
    schema = {"type": "record", "name": "E", "fields": [{"name": "a", "type": "int"}]}
    packed = bz2.compress(bytes(64 << 20))
    bomb = container(schema, (64 << 20, packed), codec="bzip2")
    put(feed.files / f"{FOLDER}/bomb.avro", bomb)
    feed.put_events("z", [event(2)])
    counts = feed.pipeline().run(spark=tasks).counts
    assert counts == Counts(read=3, written=2, dead_lettered=1)
    assert counts.balanced
    assert ids(feed) == [1, 2]
    (letter,) = letters(feed)
    assert letter["topic"] == f"{FOLDER}/bomb.avro"
    assert (letter["error_code"], letter["value"]) == ("FILE_TOO_LARGE", packed)


def text(what: dict[str, Any]) -> bytes:
    return json.dumps(what).encode()


BAD_EVENTS = {
    b'{"uuid": "x",': "NOT_JSON",
    b"[1, 2]": "NO_SOURCE_METADATA",
    text(without(event(1), "source_metadata")): "NO_SOURCE_METADATA",
    text(without(event(2), "payload")): "NO_PAYLOAD",
    text(event(3, payload={"val": "v"})): "KEY_NOT_IN_PAYLOAD",
    text(event(4, source_timestamp="soon")): "BAD_SOURCE_TIME",
    text(without(event(5), "source_timestamp")): "BAD_SOURCE_TIME",
    text(event(6, metadata={"log_position": "behind"})): "BAD_POSITION",
}


def test_bad_lines_of_json_are_letters_and_the_lines_around_them_are_kept(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path, CdcPlan(format=CdcFormat.JSON))
    lines = []
    for number, bad in enumerate(BAD_EVENTS, 10):
        lines += [text(event(number)), bad]
    lines.append(text(event(30)))
    put(feed.files / f"{FOLDER}/mixed.jsonl", b"\n".join(lines))
    counts = feed.pipeline().run(spark=tasks).counts
    count = len(BAD_EVENTS)
    assert counts == Counts(read=len(lines), written=count + 1, dead_lettered=count)
    assert ids(feed) == [*range(10, 10 + count), 30]
    assert {row["value"]: row["error_code"] for row in letters(feed)} == BAD_EVENTS
    # sent again, they fail again, each as before, and nothing is doubled
    letters_again = dead_letters_of(feed.pipeline())
    with feed.pipeline().open(tasks, lane=LANE) as context:
        done = replay(context, letters_again, letters_again.select())
    assert (done.selected, done.replayed) == (count, 0)
    assert Counter(done.failed_again) == Counter(BAD_EVENTS.values())
    assert {row["attempts"] for row in letters(feed)} == {2}
    assert ids(feed) == [*range(10, 10 + count), 30]


def test_bad_events_of_avro_are_letters_and_those_around_them_are_kept(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    payload_less = avro_schema()
    payload_less["fields"] = [f for f in payload_less["fields"] if f["name"] != "payload"]
    put(feed.files / f"{FOLDER}/n.avro", avro([without(event(1), "payload")], written=payload_less))
    nameless = avro_schema()
    nameless["fields"] = [f for f in nameless["fields"] if f["name"] != "source_metadata"]
    events = [without(event(2), "source_metadata")]
    put(feed.files / f"{FOLDER}/m.avro", avro(events, written=nameless))
    bad_key = event(3, metadata={"primary_keys": ["other"]})
    bad_place = event(4, metadata={"log_file": "no number"})
    feed.put_events("mixed", [event(5), bad_key, event(6), bad_place, event(7)])
    counts = feed.pipeline().run(spark=tasks).counts
    assert counts == Counts(read=7, written=3, dead_lettered=4)
    assert ids(feed) == [5, 6, 7]
    assert codes(feed) == {
        "NO_PAYLOAD": 1,
        "NO_SOURCE_METADATA": 1,
        "KEY_NOT_IN_PAYLOAD": 1,
        "BAD_POSITION": 1,
    }


@pytest.mark.parametrize("format", [CdcFormat.AVRO, CdcFormat.JSON])
def test_letters_are_replayed_when_their_cause_is_gone(
    tmp_path: Path, tasks: SparkSession, format: CdcFormat
) -> None:
    feed = Feed(tmp_path, CdcPlan(format=format, tables=2, events=40, rows=3, rounds=2))
    feed.send_round()
    refused = feed.pipeline(extra="evolution: {new_type: dead_letter}").run(spark=tasks).counts
    assert refused == Counts(read=refused.read, dead_lettered=refused.read)
    feed.send_all()
    accepted = feed.pipeline().run(spark=tasks).counts
    assert accepted == Counts(read=accepted.read, written=accepted.read)
    # older than what the tables have by now: they are put where they belong
    known = dead_letters_of(feed.pipeline())
    with feed.pipeline().open(tasks, lane=LANE) as context:
        trial = try_replay(context, known.select())
        assert trial.replayed == refused.read
        done = replay(context, known, known.select())
    assert (done.replayed, done.failed_again) == (refused.read, {})
    feed.assert_true()
    with feed.pipeline().open(tasks, lane=LANE) as context:
        assert replay(context, known, known.select()).selected == 0
    assert feed.pipeline().ledger().totals("changes").balanced


def test_a_payload_type_that_changes_is_refused_where_that_is_asked_for(
    tmp_path: Path, tasks: SparkSession
) -> None:
    feed = Feed(tmp_path)
    feed.put_events("a", [event(1)])
    changed = {**COLUMNS, "val": ["null", "long"]}
    feed.put_events("b", [event(2, payload={"id": 2, "val": 5})], columns=changed)
    extra = "evolution: {type_change: dead_letter}"
    assert feed.pipeline(extra=extra).run(spark=tasks).counts == Counts(
        read=2, written=1, dead_lettered=1
    )
    assert set(codes(feed)) == {"TYPE_CHANGE_REFUSED"}
