"""Records without an envelope: topics, their subjects, and the options of Spark's readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.config.load import load_text
from distributary.model.record import Format
from distributary.pipelines.flows import DeadLetterRows, TypeRows
from distributary.pipelines.known_types import known, settings, types
from distributary.registry.folder import FileRegistry
from distributary.source.delta import entry as delta
from distributary.source.kafka import entry as kafka
from tests.pipelines.games import as_it_is, raw
from tests.registry.frames import frame

AVRO = {"type": "record", "name": "Order", "namespace": "shop"}
TEXT = """
name: orders
source: {{type: kafka, bootstrap_servers: "127.0.0.1:1", {source}}}
registry: {{path: schemas}}
payload: {{format: avro}}
tables: {{each: "{{type}}"}}
lake: {{path: lake}}
"""


def schema(*fields: str) -> str:
    nullable = [{"name": n, "type": ["null", "long"], "default": None} for n in fields]
    return json.dumps({**AVRO, "fields": nullable})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    registry = FileRegistry(tmp_path / "schemas", durable=False)
    registry.register("wrapper-value", schema("a"), format=Format.AVRO)
    registry.register("elsewhere-value", schema("z"), format=Format.AVRO)
    path = tmp_path / "orders.yaml"
    path.write_text(TEXT.format(source="topics: [wrapper]"))
    return path


def test_the_types_of_a_topic_are_the_records_of_its_subject(file: Path) -> None:
    assert types(file) == (("shop.Order", "shop__order"),)
    assert known(settings(file)).shape()["shop.Order"][0].startswith("a ")


def test_topics_by_pattern_are_found_by_their_subjects(file: Path) -> None:
    file.write_text(TEXT.format(source="topic_pattern: 'else.*'"))
    names = [line.split()[0] for line in known(settings(file)).shape()["shop.Order"]]
    assert "z" in names and "a" not in names


def test_records_of_a_topic_become_rows(file: Path) -> None:
    config, at = settings(file), known(settings(file))
    good = frame(b"\x02\x0e", schema_id=1, indexes=None)
    bad = frame(b"\x02", schema_id=1, indexes=None)
    unknown = frame(b"\x02\x0e", schema_id=77, indexes=None)
    records = raw([good, bad, unknown, None])
    found = list(TypeRows(config, at, "shop.Order", as_it_is)(iter([records])))
    assert [batch["a"].to_pylist() for batch in found] == [[7]]
    assert found[0]["_offset"].to_pylist() == [0]
    dead = list(DeadLetterRows(config, at, as_it_is)(iter([records])))
    assert sum(batch.num_rows for batch in dead) == 3


@pytest.mark.parametrize(
    ("source", "key", "value"),
    [
        ("topics: [a, b]", "subscribe", "a,b"),
        ("topic_pattern: 'a.*'", "subscribePattern", "a.*"),
        ("topics: [a], starting_offsets: latest", "startingOffsets", "latest"),
        ("topics: [a], starting_offsets: {a: {0: 5}}", "startingOffsets", '{"a": {"0": 5}}'),
        ("topics: [a], starting_offsets: '1970-01-01T00:00:01Z'", "startingTimestamp", "1000"),
        ("topics: [a], max_records_per_batch: 9", "maxOffsetsPerTrigger", "9"),
    ],
)
def test_kafka_settings_in_the_words_of_spark(source: str, key: str, value: str) -> None:
    config = load_text(TEXT.format(source=source), environ={}).config
    assert kafka.stream_options(config.source)[key] == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ("", {}),
        (", starting_version: 7", {"startingVersion": "7"}),
        (
            ", starting_timestamp: '2026-01-31T12:00:00Z'",
            {"startingTimestamp": "2026-01-31T12:00:00+00:00"},
        ),
    ],
)
def test_delta_settings_in_the_words_of_spark(more: str, options: dict[str, str]) -> None:
    text = TEXT.format(source="topics: [a]").replace(
        'source: {type: kafka, bootstrap_servers: "127.0.0.1:1", topics: [a]}',
        f"source: {{type: delta, path: x{more}}}",
    )
    config = load_text(text, environ={}).config
    assert delta.stream_options(config.source) == options  # type: ignore[arg-type]
