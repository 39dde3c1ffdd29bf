"""Producing to a real broker with a real registry, and taking it away again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from distributary.config.registry import RegistryConfig
from distributary.model.record import Format
from distributary.registry.http.http_registry import HttpRegistry
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import PeoplePlan, stream_people, stream_rounds
from distributary_lab.simulate.kafka_sink import Topics
from tests.cli.conftest import Cli
from tests.services.shared import unique

if TYPE_CHECKING:
    from tests.services.secured import SecuredServices

pytestmark = pytest.mark.services

Kept = tuple[bytes | None, bytes | None, int]


@pytest.fixture
def where(services: SecuredServices) -> tuple[str, ...]:
    return ("--bootstrap-servers", services.kafka, "--registry-url", services.registry)


def impatience(patch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a broker that is not there."""
    patch.setattr("distributary_lab.simulate.kafka_sink._SECONDS", 1.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long in the whole test."""
    impatience(monkeypatch)


def kept(services: SecuredServices, topic: str, count: int, partition: int = 0) -> list[Kept]:
    """The first messages of a partition, as a consumer finds them."""
    settings: dict[str, Any] = {"bootstrap.servers": services.kafka, "group.id": topic}
    consumer = Consumer({**settings, "log_level": 0, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Kept] = []
    try:
        while (message := consumer.poll(30)) is not None and message.error() is None:
            assert not message.headers()
            found.append((message.key(), message.value(), message.timestamp()[1]))
    finally:
        consumer.close()
    assert len(found) == count
    return found


def test_games_on_a_topic_are_the_messages_of_the_plan(
    cli: Cli, services: SecuredServices, where: tuple[str, ...]
) -> None:
    topic = unique("wrapper")
    numbers = {"games": 3, "versions": 3, "records": 20, "bad": 32, "late": 7, "seed": 4711}
    flags = [part for name, n in numbers.items() for part in (f"--{name}", n)]
    line = ("produce", "games", "--to", "kafka", *where, "--topic", topic, *flags)
    result = cli(*line, "--type-change", "--json")
    assert result.code == 0, result.err
    document = result.json
    assert (document["messages"], document["good"], document["bad"]) == (212, 180, 32)
    assert document["to"]["acknowledged"] == 212
    assert document["to"]["offsets"] == {"0": {"first": 0, "last": 211}}
    assert document["to"]["created"] is True
    plan = GamesPlan(type_change=True, **numbers)
    with HttpRegistry(RegistryConfig(url=services.registry)) as registry:
        rounds = list(stream_rounds(plan, registry=registry))
        wanted = [m for each in rounds for m in each.messages()]
    assert kept(services, topic, 212) == [(m.key, m.value, m.timestamp) for m in wanted]


def test_people_are_spread_over_partitions(
    cli: Cli, services: SecuredServices, where: tuple[str, ...]
) -> None:
    topic = unique("people")
    line = ("produce", "people", "--to", "kafka", *where, "--topic", topic)
    document = cli(*line, "--records", 30, "--partitions", 2, "--json").json
    last = {int(p): each["last"] for p, each in document["to"]["offsets"].items()}
    found = [m for p, offset in last.items() for m in kept(services, topic, offset + 1, p)]
    plan = PeoplePlan(records=30, subject=f"{topic}-value")
    with HttpRegistry(RegistryConfig(url=services.registry)) as registry:
        rounds = stream_people(plan, registry=registry)
        wanted = [(m.key, m.value, m.timestamp) for each in rounds for m in each.messages()]
        assert registry.versions(f"{topic}-value") == (1, 2)
    assert sorted(found) == sorted(wanted)
    refused = cli(*line, "--partitions", 3)
    assert (refused.code, refused.err.split()[0]) == (2, "CONFIG_INVALID")


def test_what_is_typed_is_sent(
    cli: Cli, services: SecuredServices, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("orders")
    line = ("produce", "orders", "--to", "kafka", *where, "--topic", topic, "--interactive")
    typed = "7\nZoë\ngift\ntea\n3.5\n\n\nseven\n8\nBob\n\n\n\n\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    result = cli(*line, "--json")
    assert (result.code, result.json["messages"], result.json["rows"]) == (0, 2, 2), result.err
    first, second = (value or b"" for _, value, _ in kept(services, topic, 2))
    assert "Zoë".encode() in first and b"tea" in first
    assert b"Bob" in second
    monkeypatch.setattr("sys.stdin", io.StringIO("9\nthe pipe ends he"))
    assert cli(*line, "--json").json["messages"] == 0


@pytest.mark.parametrize("dead", ["--bootstrap-servers", "--registry-url"])
def test_nobody_there(
    cli: Cli,
    services: SecuredServices,
    where: tuple[str, ...],
    dead: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = unique("nobody")
    gone = {"--bootstrap-servers": "127.0.0.1:1", "--registry-url": "http://127.0.0.1:1"}
    line = ("produce", "people", "--to", "kafka", *where, "--topic", topic, dead, gone[dead])
    with monkeypatch.context() as patch:
        # only the broker that is not there is asked for a moment
        impatience(patch)
        result = cli(*line, "--json")
    assert result.code == 75
    codes = {"--bootstrap-servers": "SOURCE_UNAVAILABLE", "--registry-url": "REGISTRY_UNAVAILABLE"}
    assert result.json["error"]["code"] == codes[dead]
    assert Topics({"bootstrap.servers": services.kafka}).find(topic) is None


def pipeline(services: SecuredServices, topic: str, *, servers: str | None = None) -> Path:
    file = Path(f"{topic}.yaml")
    file.write_text(
        f"name: {topic}\n"
        f"source: {{type: kafka, bootstrap_servers: '{servers or services.kafka}', "
        f"topics: [{topic}]}}\n"
        f"registry: {{url: '{services.registry}'}}\n"
        "payload: {format: avro}\n"
        "tables: {each: '{topic}'}\n"
        "lake: {path: lake}\n"
    )
    return file


def removals(cli: Cli, file: Path) -> list[tuple[str, str, int | None]]:
    document = cli("clean", file, "--dry-run", "--json").json
    return [(each["kind"], each["table"], each["rows"]) for each in document["removals"]]


def test_clean_removes_what_was_made_and_nothing_that_was_there(
    cli: Cli, services: SecuredServices, where: tuple[str, ...]
) -> None:
    topics, registry = (
        Topics({"bootstrap.servers": services.kafka}),
        HttpRegistry(RegistryConfig(url=services.registry)),
    )
    ours, theirs = unique("ours"), unique("theirs")
    topics.ensure(theirs)
    schema = '{"type": "record", "name": "Customer", "namespace": "shop", "fields": []}'
    for topic in (ours, theirs):
        line = ("produce", "orders", "--to", "kafka", *where, "--topic", topic)
        assert cli(*line, "--type", "customer", "--records", 4).code == 0
    mine = [f"{ours}-value", f"{ours}-shop.Product", f"{ours}-shop.Customer"]
    listed = removals(cli, pipeline(services, ours))
    assert listed == [("topic", ours, 4), *(("subject", name, None) for name in mine)]
    # the topic was there; so is, from now on, somebody else's version
    with registry:
        registry.set_compatibility(f"{theirs}-shop.Customer", "NONE")
        registry.register(f"{theirs}-shop.Customer", schema, format=Format.AVRO)
        left = removals(cli, pipeline(services, theirs))
        assert [name for _, name, _ in left] == [f"{theirs}-value", f"{theirs}-shop.Product"]
        assert cli("clean", f"{ours}.yaml").code == 2
        assert topics.find(ours) is not None
        assert cli("clean", f"{ours}.yaml", "--yes", "--json").json["removed"] is True
        assert topics.find(ours) is None and topics.find(theirs) is not None
        assert not {*mine} & {*registry.subjects()}
        assert f"{theirs}-value" in registry.subjects()
    assert removals(cli, Path(f"{ours}.yaml")) == []
    topics.ensure(ours)
    assert removals(cli, Path(f"{ours}.yaml")) == []


def test_a_subject_that_another_topic_uses_is_inherited(
    cli: Cli, services: SecuredServices, where: tuple[str, ...]
) -> None:
    one, two = unique("one"), unique("two")
    for topic in (one, two):
        line = ("produce", "games", "--to", "kafka", *where, "--topic", topic, "--seed", 31)
        assert cli(*line, "--games", 1, "--versions", 1).code == 0
    first, second = (pipeline(services, topic) for topic in (one, two))
    assert removals(cli, first) == [("topic", one, 10)]
    assert cli("clean", first, "--yes").code == 0
    found = removals(cli, second)
    assert found[0] == ("topic", two, 10)
    assert any(name.endswith("_game-value") for _, name, _ in found[1:])


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_is_gone_does_not_keep_a_lake_dirty(
    cli: Cli, services: SecuredServices, where: tuple[str, ...]
) -> None:
    topic = unique("gone")
    assert cli("produce", "orders", "--to", "kafka", *where, "--topic", topic).code == 0
    result = cli("clean", pipeline(services, topic, servers="127.0.0.1:1"), "--yes")
    assert (result.code, result.out) == (0, "there is nothing to remove\n")
    assert "warning" in result.err


def test_a_pipeline_file_says_how_to_log_in(
    cli: Cli, services: SecuredServices, tmp_path: Path
) -> None:
    topic, security = unique("wrapper"), services.security
    file = tmp_path / "secured.yaml"
    file.write_text(
        f"""
name: secured
source:
  type: kafka
  bootstrap_servers: {security.sasl_plaintext}
  topics: [{topic}]
  security: {{protocol: SASL_PLAINTEXT, mechanism: SCRAM-SHA-512, username: {security.username},
    password: "{security.password}"}}
registry: {{url: "{services.registry}"}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {tmp_path}/lake}}
"""
    )
    line = ("produce", "people", "--to", "kafka", "--records", 5, "--versions", 1)
    result = cli(*line, "--pipeline", file, "--json")
    assert result.code == 0, result.err
    told = result.json
    assert told["to"]["acknowledged"] == 5
    assert told["to"]["topic"] == topic
    assert security.password not in str(told)
    kept(services, topic, 5)
