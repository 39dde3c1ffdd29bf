"""Changes into topics of a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from distributary.cli.command_line import main
from distributary.source.kafka.produced import cards
from distributary_lab.simulate.cdc.debezium import DebeziumStream
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcFormat, CdcPlan, SourceType
from tests.services.shared import unique

if TYPE_CHECKING:
    from distributary_lab.services.services import Services

pytestmark = pytest.mark.services


def kept(services: Services, topic: str) -> list[tuple[Any, ...]]:
    """What a consumer finds in a topic."""
    settings: dict[str, Any] = {"bootstrap.servers": services.kafka, "group.id": topic}
    consumer = Consumer({**settings, "log_level": 0, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            headers = tuple(message.headers() or ())
            found.append((message.key(), message.value(), headers, message.timestamp()[1]))
    finally:
        consumer.close()
    return found


def test_each_table_has_a_topic(
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    prefix = unique("shop")
    line = ["--to", "kafka", "--bootstrap-servers", services.kafka, "--topic-prefix", prefix]
    more = ["--tables", "6", "--events", "120", "--chaos", "--source-type", "postgresql"]
    assert main(["produce", "cdc", *line, *more, "--json"]) == 0
    sent = json.loads(capfd.readouterr().out)
    plan = CdcPlan(
        tables=6,
        events=120,
        features=CHAOS,
        format=CdcFormat.DEBEZIUM,
        topic_prefix=prefix,
        source_type=SourceType.POSTGRESQL,
    )
    expected: dict[str, list[Any]] = {}
    for round in DebeziumStream(plan).rounds():
        for topic, message, _, _ in round.messages:
            expected.setdefault(topic, []).append(message[:4])
    assert sent["to"]["topics"] == sorted(expected)
    assert sent["to"]["acknowledged"] == sent["events"] + sent["tombstones"]
    for topic, messages in expected.items():
        assert kept(services, topic) == messages
    assert {card.topic for card in cards()} == set(expected)
