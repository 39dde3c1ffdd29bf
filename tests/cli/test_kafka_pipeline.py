"""What `doctor`, `status --partitions` and the schema commands say of real and missing services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from distributary.cli.doctor import _start_registry, registry_check
from distributary.config.registry import RegistryConfig
from distributary.model.record import Format
from distributary.registry.compatibility.levels import Level
from distributary.registry.http.http_registry import HttpRegistry
from distributary.source.kafka.entry import start_broker
from tests.cli.conftest import Cli
from tests.lakes.written import make_lake
from tests.registry.contexted import Contexted
from tests.registry.loopback import serving
from tests.services.shared import unique
from tests.topics import Topics

if TYPE_CHECKING:
    from distributary_lab.services.services import Services

ORDER: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "properties": {"id": {"type": "integer"}},
}
NOWHERE = "127.0.0.1:9"
FILE = """
name: games
source: {{type: kafka, bootstrap_servers: "{servers}", topics: [{topic}]}}
registry: {{url: "{registry}"}}
payload: {{format: json, framing: confluent}}
tables: {{each: "{{topic}}"}}
lake: {{path: {lake}}}
"""


def write_file(
    folder: Path, *, servers: str = NOWHERE, registry: str = f"http://{NOWHERE}", topic: str
) -> Path:
    file = folder / "games.yaml"
    file.write_text(
        FILE.format(servers=servers, registry=registry, topic=topic, lake=folder / "lake")
    )
    return file


def checks(cli: Cli, file: Path) -> dict[str, Any]:
    return {check["name"]: check for check in cli("doctor", file, "--json").json["checks"]}


def test_a_broker_that_is_down_is_said_once_and_before_spark_starts(
    own_folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.cli.run._begin_spark", Mock(side_effect=AssertionError))
    monkeypatch.setattr("distributary.cli.command.live.start_spark", Mock(side_effect=SystemError))
    file = write_file(own_folder, topic="wrapper")
    result = cli("run", file, "--available-now")
    assert result.code == 75
    assert result.err.count("SOURCE_UNAVAILABLE") == 2, (
        "the error, and the command that explains it"
    )
    assert result.err.count("the broker does not answer") == 1
    assert result.out == ""


def test_doctor_says_how_to_start_what_does_not_answer(own_folder: Path, cli: Cli) -> None:
    found = checks(cli, write_file(own_folder, topic="wrapper"))
    assert found["broker"]["state"] == found["registry"]["state"] == "fail"
    assert found["broker"]["fix"] == "distributary dev up --kafka-port 9"
    assert found["registry"]["fix"] == "distributary dev up --registry-port 9"
    assert "source" not in found


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("reader: auto", "native: "),
        ("reader: native, options: {kafka.fetch.min.bytes: 5}", "native: "),
        ("reader: spark", "spark: source.reader "),
        ("options: {kafka.my.secret: hush}", "spark: source.options.kafka.my.secret "),
        (
            "security: {protocol: SSL, truststore_location: /t.jks, truststore_password: hush}",
            "spark: source.security.truststore_location ",
        ),
    ],
)
def test_doctor_says_who_reads_and_why(
    own_folder: Path, cli: Cli, settings: str, found: str
) -> None:
    file = write_file(own_folder, topic="wrapper")
    file.write_text(file.read_text().replace("[wrapper]", f"[wrapper], {settings}"))
    reader = checks(cli, file)["reader"]
    assert reader["state"] == "pass"
    assert reader["found"].startswith(found)
    assert "hush" not in reader["found"]


@pytest.mark.parametrize(
    ("servers", "command"),
    [
        ("127.0.0.1:9092", "distributary dev up"),
        ("localhost:9092,[::1]:9093", "distributary dev up"),
        ("SSL://127.0.0.1:19092", "distributary dev up --kafka-port 19092"),
        ("kafka.example.com:9093,127.0.0.1:9092", "nc -vz kafka.example.com 9093"),
    ],
)
def test_only_services_of_this_machine_can_be_started(servers: str, command: str) -> None:
    assert start_broker(servers) == command


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("http://127.0.0.1:8081/apis/ccompat/v7", "distributary dev up"),
        ("http://localhost:18081", "distributary dev up --registry-port 18081"),
        ("https://sr.example.com/x/", "curl -sS https://sr.example.com/x/subjects"),
    ],
)
def test_a_registry_elsewhere_is_asked_by_hand(url: str, command: str) -> None:
    assert _start_registry(RegistryConfig(url=url)) == command


def test_a_context_that_is_not_there_is_told_with_those_that_are() -> None:
    known = Contexted()
    known.add(":.team:chess-value", 'syntax = "proto3"; message Chess {}')
    with serving(known, paged=True) as server:
        wrong = registry_check(RegistryConfig(url=server.url, context=".taem"))
        assert ".team" in wrong.fix and wrong.state == "warn"
        right = registry_check(RegistryConfig(url=server.url, context=".team"))
        assert right.state == "pass"


def test_partitions_are_told_from_the_ledger_when_nobody_answers(
    own_folder: Path, cli: Cli
) -> None:
    file = write_file(own_folder, topic="wrapper")
    make_lake(own_folder / "lake", file=file)
    result = cli("status", file, "--partitions", "--json")
    assert result.code == 0
    (pipeline,) = result.json["pipelines"]
    assert pipeline["partitions"]["asked"] == "ledger"
    assert pipeline["partitions"]["partitions"] == [
        {
            "topic": "wrapper",
            "partition": 0,
            "next_offset": 30,
            "oldest": None,
            "newest": None,
            "lag": None,
        }
    ]
    assert "as of the last batch" in cli("status", file, "--partitions").out


def test_partitions_of_a_source_without_a_broker(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake")
    (pipeline,) = cli("status", "--partitions", "--json").json["pipelines"]
    assert pipeline["partitions"]["asked"] == "ledger"
    assert pipeline["partitions"]["partitions"][0]["next_offset"] == 30
    assert "partitions" not in cli("status", "--json").json["pipelines"][0]


def test_a_pipeline_on_real_services(services: Services, own_folder: Path, cli: Cli) -> None:
    topic = unique("wrapper")
    file = write_file(own_folder, servers=services.kafka, registry=services.registry, topic=topic)
    missing = checks(cli, file)["broker"]
    assert missing["state"] == "fail"
    assert missing["fix"].endswith(f"--create --if-not-exists --topic {topic}")

    topics = Topics(services.kafka)
    topics.create(topic, 2)
    topics.send(topic, [b"x"] * 40, partition=0)
    topics.send(topic, [b"x"] * 7, partition=1)
    registry = HttpRegistry(RegistryConfig(url=services.registry))
    registry.register(f"{topic}-value", json.dumps(ORDER), format=Format.JSON)
    found = checks(cli, file)
    assert found["broker"]["state"] == found["registry"]["state"] == "pass"
    assert "2 partitions" in found["broker"]["found"]
    assert "47 offsets" in found["broker"]["found"]

    lake = make_lake(own_folder / "lake", file=file)
    (pipeline,) = cli("status", file, "--partitions", "--json").json["pipelines"]
    read = {p["partition"]: p for p in pipeline["partitions"]["partitions"] if p["topic"] == topic}
    assert pipeline["partitions"]["asked"] == "broker"
    assert (read[0]["newest"], read[0]["lag"], read[0]["next_offset"]) == (40, 40, None)
    assert (read[1]["newest"], read[1]["lag"]) == (7, 7)
    assert topic in cli("status", "--partitions", "--lake", lake).out


def test_schemas_of_a_real_registry(services: Services, own_folder: Path, cli: Cli) -> None:
    subject = unique("orders")
    registry = HttpRegistry(RegistryConfig(url=services.registry))
    registry.set_compatibility(subject, Level.BACKWARD)
    first = {**ORDER, "title": subject}
    second = {**first, "properties": {**first["properties"], "note": {"type": "string"}}}
    for text in (first, second):
        registry.register(subject, json.dumps(text), format=Format.JSON)
    where = ("--registry", services.registry, "--json")
    (listed,) = cli("schema", "subjects", "--matching", subject, *where).json["subjects"]
    assert (listed["versions"], listed["format"], listed["message"]) == ([1, 2], "json", subject)
    shown = cli("schema", "show", subject, 1, *where).json
    assert [(c["name"], c["type"]) for c in shown["columns"]] == [("id", "bigint")]
    difference = cli("schema", "diff", subject, *where).json
    assert [c["text"] for c in difference["columns"]] == ["+ note string"]
    new = own_folder / "new.json"
    new.write_text(json.dumps({**first, "properties": {"id": {"type": "string"}}}))
    refused = cli("schema", "diff", subject, "--file", new, *where)
    assert refused.code == 1
    assert refused.json["problems"]
