"""Debezium's messages, read back by somebody who knows Kafka Connect and nothing else."""

import base64
import itertools
import json
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from distributary.errors import ConfigError
from distributary_lab.simulate.cdc.datastream_files import CdcSent
from distributary_lab.simulate.cdc.debezium import DebeziumStream, TopicMessage
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan, Feature, SourceType
from tests.lab.simulate.cdc_replay import same_rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNAVAILABLE = "__debezium_unavailable_value"


def told(**more: Any) -> tuple[DebeziumStream, list[TopicMessage], CdcSent]:
    usual: dict[str, Any] = {"tables": 13, "events": 500, "rows": 6, "features": CHAOS}
    stream = DebeziumStream(CdcPlan(format=CdcFormat.DEBEZIUM, **(usual | more)))
    messages = [message for round in stream.rounds() for message in round.messages]
    return stream, messages, stream.sent()


def place(source: dict[str, Any]) -> tuple[int, ...]:
    match source["connector"]:
        case "mysql":
            number = int(source["file"].rpartition(".")[2] or 0)
            return number, source["pos"], source["row"]
        case "postgresql":
            return (source["lsn"],)
        case "oracle":
            return (int(source["scn"]),)
        case _:
            return tuple(int(part, 16) for part in source["change_lsn"].split(":"))


def replay(messages: list[TopicMessage]) -> dict[tuple[str, str, str], dict[str, Any]]:
    last: dict[tuple[str, bytes], tuple[Any, ...]] = {}
    rows: dict[tuple[str, bytes], Any] = {}
    names: dict[str, tuple[str, str, str]] = {}
    for topic, message, _, _ in messages:
        if message.value is None or message.key is None:
            continue
        event = json.loads(message.value)
        source = event["source"]
        names[topic] = (source["db"], source.get("schema", ""), source["table"])
        read = event["op"] == "r"
        # of two at one place, the one that comes later is later; so is what comes again
        order = (0, ()) if read else (1, place(source))
        if order < last.get((topic, message.key), order):
            continue
        known = rows.get((topic, message.key)) or {}
        last[topic, message.key] = order
        after = event["after"] or {}
        kept = {n: known.get(n) if v == UNAVAILABLE else v for n, v in after.items()}
        rows[topic, message.key] = None if event["op"] == "d" else kept
    tables: dict[tuple[str, str, str], dict[str, Any]] = {name: {} for name in names.values()}
    for (topic, key), row in rows.items():
        if row is not None:
            tables[names[topic]][key.decode()] = row
    return tables


def unscaled(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big", signed=True)


def connect(value: Any, carried: str, scale: int) -> Any:
    match carried, value:
        case _, None:
            return None
        case "decimal", _:
            return Decimal(unscaled(value)).scaleb(-scale)
        case "number", {"scale": own, "value": digits}:
            return Decimal(unscaled(digits)).scaleb(-own)
        case "bytes", _:
            return base64.b64decode(value)
        case "date", _:
            return date(1970, 1, 1) + timedelta(days=value)
        case "datetime", _:
            return EPOCH + timedelta(microseconds=value)
        case "time", _:
            return (datetime.min + timedelta(microseconds=value)).time()
        case "timestamp_tz", _:
            return datetime.fromisoformat(value)
        case _:
            return value


@pytest.mark.parametrize("source_type", SourceType)
def test_truth_is_what_a_naive_replay_finds(source_type: SourceType) -> None:
    stream, messages, _ = told(source_type=source_type)
    found, truth = replay(messages), stream.model.truth()
    assert set(found) == set(truth)
    for table in stream.model.seen:
        if not table.shape.key:
            continue
        columns = table.columns
        rows = [
            {name: connect(row.get(name), c.carried, c.scale) for name, c in columns.items()}
            for row in found[table.shape.claim].values()
        ]
        assert same_rows(rows, truth[table.shape.claim], dict.fromkeys(columns, ""))


def test_a_day_has_a_time() -> None:
    assert connect(3_600_000_001, "time", 0) == time(1, 0, 0, 1)


@pytest.mark.parametrize("source_type", SourceType)
def test_everything_is_counted(source_type: SourceType) -> None:
    _, messages, sent = told(source_type=source_type)
    values = [m for m in messages if not m.is_tombstone]
    assert len(values) == sent.events == sent.distinct + sent.duplicates
    assert sent.tombstones == len(messages) - len(values)
    assert sent.changes == 500
    assert sent.duplicates > 4
    assert len({m.number for m in values}) == sent.distinct
    ops = Counter(json.loads(m.message.value or b"")["op"] for m in values)
    assert set(ops) == {"r", "c", "u", "d"}
    assert [m.message for m in told(source_type=source_type)[1]] == [m.message for m in messages]


def test_a_delete_is_followed_by_a_tombstone() -> None:
    _, messages, _ = told(features=frozenset({Feature.KEY_CHANGES}))
    for before, after in itertools.pairwise(messages):
        value = before.message.value
        deleted = value is not None and json.loads(value)["op"] == "d"
        assert after.is_tombstone is (deleted and before.message.key is not None)
        if after.is_tombstone:
            assert after.message.key == before.message.key


def test_a_change_of_key_is_a_delete_and_a_create_that_know_of_each_other() -> None:
    _, messages, sent = told(features=frozenset({Feature.KEY_CHANGES}))
    moved = [m.message for m in messages if m.message.headers]
    assert len(moved) == 2 * sent.happened["key_changes"] > 0
    for old, new in zip(moved[::2], moved[1::2], strict=True):
        assert dict(old.headers) == {"__debezium.newkey": new.key}
        assert dict(new.headers) == {"__debezium.oldkey": old.key}
        assert json.loads(old.value or b"")["op"] == "d"
        assert json.loads(new.value or b"")["op"] == "c"


@pytest.mark.parametrize(
    ("source_type", "topic"),
    [
        (SourceType.MYSQL, "dev.ea-main.my_table"),
        (SourceType.POSTGRESQL, "dev.ea-main.my_table"),
        (SourceType.ORACLE, "dev.ea-main.my_table"),
        (SourceType.SQLSERVER, "dev.shop.ea-main.my_table"),
    ],
)
def test_topics_are_named_after_tables(source_type: SourceType, topic: str) -> None:
    _, messages, sent = told(source_type=source_type, topic_prefix="dev")
    topics = {m.topic for m in messages}
    assert topic in topics
    assert len(topics) == len(sent.per_table)


def test_rows_of_tables_without_a_key_have_no_key() -> None:
    _, messages, sent = told()
    for topic, message, _, change in messages:
        assert (message.key is None) is (change.shape.claim.text in sent.keyless), topic
    assert sent.keyless


def test_messages_carry_their_schema_on_request() -> None:
    _, bare, _ = told(source_type=SourceType.POSTGRESQL)
    _, full, _ = told(source_type=SourceType.POSTGRESQL, with_schema=True)
    fields: dict[str, set[str]] = defaultdict(set)
    for plain, message in zip(bare, full, strict=True):
        for side in ("key", "value"):
            short, long = getattr(plain.message, side), getattr(message.message, side)
            if short is None:
                assert long is None
                continue
            document = json.loads(long)
            assert document["payload"] == json.loads(short)
            named = {field["field"]: field for field in document["schema"]["fields"]}
            assert set(named) == set(document["payload"])
            fields[side] |= {field["type"] for field in named.values()}
            if side == "value" and document["payload"]["after"]:
                after = {field["field"] for field in named["after"]["fields"]}
                assert after == set(document["payload"]["after"])
    assert "struct" in fields["value"]


def test_postgresql_leaves_out_long_texts_that_did_not_change() -> None:
    _, messages, _ = told(source_type=SourceType.POSTGRESQL, events=1_500)
    left_out = [
        (json.loads(m.message.value), m.change)
        for m in messages
        if m.message.value is not None and UNAVAILABLE.encode() in m.message.value
    ]
    assert left_out
    for event, change in left_out:
        assert event["op"] == "u" and event["before"] is None
        assert event["after"]["body"] == UNAVAILABLE
        assert change.before is not None and change.before["body"] == change.row["body"]
    _, others, _ = told(events=1_500)
    assert not any(UNAVAILABLE.encode() in (m.message.value or b"") for m in others)


def test_files_are_not_messages() -> None:
    with pytest.raises(ConfigError):
        DebeziumStream(CdcPlan())
