"""`init` on topics of other people's shapes: the file it writes is valid, runs, and gives rows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.cli.init import table_to_show
from distributary.config.load import load
from distributary.config.registry import RegistryConfig
from distributary.engine.pipeline import Pipeline
from distributary.model.record import Format
from distributary.model.table import Role
from distributary.operations.plan.trial_registry import Preview, TablePreview
from distributary.registry.http.http_registry import HttpRegistry
from tests.cli.conftest import Cli
from tests.operations.test_discovery import MOVE, ORDER, WRAPPER, debezium, texts, wrapped
from tests.registry.frames import frame
from tests.services.shared import unique
from tests.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.secured import SecuredServices

NOWHERE = "127.0.0.1:9"
Fill = Callable[[str, HttpRegistry], tuple[list[bytes | None], str]]
"""Registers what a topic needs; gives its values and the table that they become."""


def plain_json(topic: str, registry: HttpRegistry) -> tuple[list[bytes | None], str]:
    return [*texts(*({"id": n, "who": "ana"} for n in range(20)))], topic


def avro(topic: str, registry: HttpRegistry) -> tuple[list[bytes | None], str]:
    known = registry.register(f"{topic}-value", json.dumps(ORDER), format=Format.AVRO)
    values = []
    for n in range(20):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"id": n, "customer": "c"})
        values.append(frame(out.getvalue(), schema_id=known, indexes=None))
    return [*values], topic


def wrapped_protobuf(topic: str, registry: HttpRegistry) -> tuple[list[bytes | None], str]:
    registry.register(f"{topic}-value", WRAPPER)
    move = registry.register(unique("chess"), MOVE)
    return [wrapped(move)] * 20, "silver_chess"


def debezium_json(topic: str, registry: HttpRegistry) -> tuple[list[bytes | None], str]:
    events = [debezium(lsn=n, ts_ms=n) | {"after": {"id": n}} for n in range(20)]
    return [*texts(*events)], "public_orders_log"


def cloud_events(topic: str, registry: HttpRegistry) -> tuple[list[bytes | None], str]:
    event = {"specversion": "1.0", "source": "/shop", "type": "created", "data": {"total": 1}}
    return [*texts(*({**event, "id": str(n)} for n in range(20)))], "created"


@pytest.fixture
def topics(services: SecuredServices) -> Topics:
    return Topics(services.kafka)


@pytest.fixture
def registry(services: SecuredServices) -> HttpRegistry:
    return HttpRegistry(RegistryConfig.model_validate({"url": services.registry}))


@pytest.mark.parametrize(
    "fill",
    [plain_json, avro, wrapped_protobuf, debezium_json, cloud_events],
    ids=lambda f: f.__name__,
)
def test_a_strangers_topic_becomes_rows(
    fill: Fill,
    cli: Cli,
    services: SecuredServices,
    topics: Topics,
    registry: HttpRegistry,
    tasks: SparkSession,
) -> None:
    topic = topics.create(unique("t").replace("-", "_"), 2)
    values, table = fill(topic, registry)
    topics.send(topic, values, keys=[b'{"id": 1}'] * len(values))
    found = cli(
        *("init", "--kafka", services.kafka, "--topic", topic, "--registry", services.registry),
        "--json",
    )
    assert found.code == 0, found.err
    assert found.json["plan"]["records"] == found.json["plan"]["waiting"] == 20
    assert not found.json["plan"]["dead_letters"]
    text = Path("pipeline.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=pipeline.schema.json\n")
    assert len(text.splitlines()) < 35
    assert Path("pipeline.schema.json").is_file()
    assert cli("validate", "pipeline.yaml").code == 0
    summary = Pipeline.load("pipeline.yaml").run(spark=tasks)
    assert (summary.counts.read, summary.counts.written) == (20, 20)
    rows = cli("query", f'select count(*) as n from "{table}"', "--json").json["rows"]
    assert rows == [{"n": 20}]


def test_context_attributes_of_cloud_events_are_in_the_tables(
    cli: Cli, own_folder: Path, tasks: SparkSession
) -> None:
    event = {"specversion": "1.0", "source": "/shop", "subject": "cart", "data": {"id": 7}}
    moment = "2024-02-29T12:00:00Z"
    kinds = ({**event, "type": f"shop/{n % 3}", "id": str(n), "time": moment} for n in range(97))
    values = [*texts(*kinds), b"{", b'{"id": 1}', b""]
    write_deltalake("events", pa.table({"value": pa.array(values, pa.binary())}))
    found = cli("init", "events", "--json")
    assert found.code == 0, found.err
    assert found.json["plan"]["waiting"] == 100
    counts = Pipeline.load("pipeline.yaml").run(spark=tasks).counts
    assert (counts.read, counts.written) == (100, 97)
    # what was foreseen is what came
    assert sum(found.json["plan"]["dead_letters"].values()) == counts.dead_lettered
    asked = "select id, _cloudevent.id as own, _cloudevent.source as s, _cloudevent.subject as on_"
    rows = cli("query", f"{asked} from shop_1 order by own limit 1", "--json").json["rows"]
    assert rows == [{"id": 7, "own": "1", "s": "/shop", "on_": "cart"}]


def preview_of(*tables: tuple[str, Role, int]) -> Preview:
    return Preview(tables=tuple(TablePreview(name, role, True, n, ()) for name, role, n in tables))


@pytest.mark.parametrize(
    ("tables", "table"),
    [
        ([("clicks", Role.EACH, 500), ("dead_letters", Role.DEAD_LETTERS, 2)], "clicks"),
        ([("a", Role.EACH, 1), ("b", Role.EACH, 9), ("raw", Role.BRONZE, 10)], "b"),
        ([("orders_log", Role.LOG, 300), ("orders", Role.MERGED, 0)], "orders"),
        ([("dead_letters", Role.DEAD_LETTERS, 2)], ""),
    ],
)
def test_the_first_question_is_about_the_rows_that_people_want(
    tables: list[tuple[str, Role, int]], table: str
) -> None:
    assert table_to_show(preview_of(*tables)) == table


def test_a_file_that_is_there_is_left_alone(cli: Cli, own_folder: Path) -> None:
    write_deltalake("t", pa.table({"value": texts({"id": 1})}))
    file = own_folder / "pipeline.yaml"
    file.write_text("mine")
    assert cli("init", "t").code == 2
    assert cli("init", "t", "--dry-run").code == 0
    assert file.read_text() == "mine"
    assert cli("init", "t", "--force").code == 0
    assert load(file).config.name == "t"
    assert [path.name for path in own_folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["a: {b}", "it's #1", "${x", 'q"<b>', "- x", "ünï \U0001f409"])
def test_paths_with_anything_in_them(cli: Cli, own_folder: Path, name: str) -> None:
    write_deltalake(str(own_folder / name), pa.table({"value": texts({"id": 1})}))
    # whoever means the sign itself doubles it, as in a file
    result = cli("init", "--delta", f"./{name.replace('${', '$${')}", "--json")
    assert result.code == 0, result.out
    assert load("pipeline.yaml").config.source.path == f"./{name}"  # type: ignore[union-attr]


def test_columns_of_a_table_are_found(cli: Cli, own_folder: Path) -> None:
    columns = {"offset": [1], "wrapper": texts({"id": 1}), "key": [b"k"]}
    write_deltalake("t", pa.table(columns))
    assert cli("init", "t").code == 0
    assert (load("pipeline.yaml").config.source.value) == "wrapper"  # type: ignore[union-attr]
    write_deltalake("numbers", pa.table({"a": [1]}))
    wrong = cli("init", "numbers", "--output", "other.yaml", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (1, "SOURCE_UNCLEAR")
    assert not Path("other.yaml").exists()


def test_a_folder_of_change_files(cli: Cli, own_folder: Path) -> None:
    made = cli("produce", "cdc", "in", "--tables", 2, "--events", 40)
    assert made.code == 0, made.err
    assert cli("init", "in").code == 0
    config = load("pipeline.yaml").config
    assert config.cdc is not None and config.cdc.format == "datastream"
    Path("empty").mkdir()
    assert cli("init", "--files", "empty", "--output", "b.yaml").code == 1


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--kafka", NOWHERE, "--delta", "x"),
        ("x", "--topic", "t"),
        ("--kafka", NOWHERE, "--topic", "t", "--kafka-option", "nothing"),
        ("--kafka", "no port", "--topic", "t"),
        ("--kafka", NOWHERE, "--topic", "a b"),
        ("--kafka", NOWHERE, "--topic", "t", "--kafka-option", "sasl.username=${env:NOT_SET_X}"),
    ],
)
def test_what_cannot_be_looked_at(cli: Cli, words: tuple[str, ...]) -> None:
    found = cli("init", *words, "--json")
    assert (found.code, list(found.json)) == (2, ["version", "error"])
    assert not Path("pipeline.yaml").exists()


def test_secrets_are_variables_or_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    login = ("--kafka", NOWHERE, "--topic", "t", "--kafka-option")
    refused = cli("init", *login, "sasl.password=opensesame")
    assert (refused.code, "opensesame" in refused.err + refused.out) == (2, False)
    assert "${env:SASL_PASSWORD}" in refused.err
    assert cli("init", "x", "--registry", "http://u:opensesame@h").err.count("opensesame") == 0
    monkeypatch.setenv("KAFKA_PASSWORD", "opensesame")
    monkeypatch.setattr("distributary.source.kafka.broker._FIRST_SECONDS", (1.0,))
    monkeypatch.setattr("distributary.source.kafka.broker.ANSWER_SECONDS", 1.0)
    away = cli(
        *("init", *login, "sasl.password=${env:KAFKA_PASSWORD}", "--kafka-option"),
        *("sasl.username=me", "--kafka-option", "sasl.mechanism=PLAIN", "--kafka-option"),
        *("security.protocol=SASL_PLAINTEXT", "--debug"),
    )
    assert (away.code, "opensesame" in away.err + away.out) == (75, False)


def test_variables_are_written_as_they_were_typed(
    cli: Cli, own_folder: Path, services: SecuredServices, topics: Topics, monkeypatch: Any
) -> None:
    topic = topics.create(unique("t"))
    topics.send(topic, texts({"id": 1}))
    monkeypatch.setenv("BROKER", services.kafka)
    assert cli("init", "--kafka", "${env:BROKER}", "--topic", topic, "-q").code == 0
    text = Path("pipeline.yaml").read_text()
    assert 'bootstrap_servers: "${env:BROKER}"' in text


def test_topics_that_give_nothing(
    cli: Cli, services: SecuredServices, topics: Topics, registry: HttpRegistry
) -> None:
    empty, garbage, huge = (topics.create(unique("t"), 1) for _ in range(3))
    topics.send(garbage, [bytes([n, 255, 254, 3, 0]) * 9 for n in range(1, 40)])
    topics.send(huge, [b"\xff" * 900_000] * 60)
    where = ("init", "--kafka", services.kafka, "--topic")
    for topic in (empty, garbage, huge):
        for more in ((), ("--registry", services.registry)):
            found = cli(*where, topic, *more, "--json")
            assert (found.code, found.json["error"]["code"]) == (1, "SOURCE_UNCLEAR"), found.out
            assert topic in found.json["error"]["where"]
            assert "\x1b" not in found.out
    missing = cli(*where, f"{empty}-nope", "--json")
    assert (missing.code, missing.json["error"]["code"]) == (75, "SOURCE_UNAVAILABLE")
    topics.send(empty, texts({"id": 1}))
    down = cli(*where, empty, "--registry", f"http://{NOWHERE}", "--json")
    assert (down.code, down.json["error"]["code"]) == (75, "REGISTRY_UNAVAILABLE")
    unnamed = cli("init", "--kafka", services.kafka, "--json")
    assert (unnamed.code, empty in unnamed.json["error"]["what"]) == (2, True)
    assert not Path("pipeline.yaml").exists()


def test_it_asks_in_a_terminal(cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake("t", pa.table({"value": texts({"id": 1})}))
    answers = iter(["delta", "t", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *words, **more: next(answers))
    assert cli("init").code == 0
    assert load("pipeline.yaml").config.source.type == "delta"
