"""The example of `docs/howto/debezium.md`, on real servers: from an empty database to tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from distributary.config.load import load
from distributary.engine.pipeline import Pipeline
from distributary_lab.services.services import Services
from tests.docs.pages import DOCS, ROOT
from tests.lab.services.test_artifacts import dependencies
from tests.lakes.debezium import messages
from tests.services.debezium import LOCK, Debezium
from tests.services.postgres import Postgres
from tests.services.shared import unique
from tests.waiting import eventually

EXAMPLE = ROOT / "examples" / "debezium"
CONNECTOR: dict[str, str] = json.loads((EXAMPLE / "connector.json").read_text("utf-8"))
OF_THE_SERVER = {"tasks.max", "topic.prefix", "schema.include.list", "slot.name"} | {
    "publication.name"
}
"""What the tests' server needs otherwise, beside `database.*`."""


def test_the_containers_have_the_versions_of_the_tests_and_are_on_loopback_only() -> None:
    services = YAML(typ="safe").load(EXAMPLE / "docker-compose.yml")["services"]
    kafka = services["kafka"]["image"].rpartition(":")[2]
    connect = services["connect"]["image"].rpartition(":")[2]
    assert kafka == dependencies()["kafka_2.13"]
    ivy = (LOCK.folder / "ivy.xml").read_text("utf-8")
    assert f'"debezium-connector-postgres" rev="{connect}.' in ivy
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    database = services["postgres"]["environment"]
    assert CONNECTOR["database.hostname"] in services
    assert CONNECTOR["database.dbname"] == database["POSTGRES_DB"]
    assert CONNECTOR["database.password"] == database["POSTGRES_PASSWORD"]


def test_the_pipeline_reads_the_topics_of_the_connector() -> None:
    source = load(EXAMPLE / "shop.yaml").config.source
    prefix = CONNECTOR["topic.prefix"]
    for topic in (f"{prefix}.public.orders", f"__debezium-heartbeat.{prefix}"):
        assert re.fullmatch(source.topic_pattern, topic)


def test_the_page_names_the_files_of_the_example() -> None:
    page = (DOCS / "howto" / "debezium.md").read_text("utf-8")
    missing = [path.name for path in EXAMPLE.iterdir() if path.name not in page]
    assert missing == []


@pytest.mark.slow
@pytest.mark.spark
def test_from_an_empty_database_to_tables(
    services: Services, postgres: Postgres, debezium: Debezium, tmp_path: Path, spark: SparkSession
) -> None:
    name = unique("shop").replace("-", "")
    schema = f"s{name}"
    run_sql(postgres, schema, "shop.sql")
    own = {
        key: value
        for key, value in CONNECTOR.items()
        if not key.startswith("database.") and key not in OF_THE_SERVER
    }
    debezium.follow(postgres, name, schemas=schema, settings=own)
    file = tmp_path / "shop.yaml"
    text = (EXAMPLE / "shop.yaml").read_text("utf-8").replace("shop(", f"{name}(")
    text = re.sub(r"\$\{env:KAFKA_SERVER.*\}", services.kafka, text)
    file.write_text(text.replace("./lake", str(tmp_path / "lake")))

    def arrive(**counts: int) -> None:
        for table, count in counts.items():
            topic = f"{name}.{schema}.{table}"
            eventually(lambda t=topic, c=count: messages(services.kafka, t) >= c, seconds=60)
        done = Pipeline.load(file).run(trigger="available_now", spark=spark)
        assert done.counts.balanced and done.counts.dead_lettered == 0

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        path = tmp_path / "lake" / f"{schema}_{table}"
        found = DeltaTable(str(path)).to_pyarrow_table(columns=[*columns]).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    arrive(customers=2, orders=3)
    assert rows("orders", "id", "status") == [(1, "open"), (2, "open"), (3, "paid")]
    run_sql(postgres, schema, "changes.sql")
    # a tombstone follows the delete
    arrive(customers=4, orders=6, refunds=1)
    assert rows("orders", "id", "status") == [(1, "paid"), (2, "open")]
    assert rows("customers", "id", "country") == [(1, None), (2, "DE"), (3, None)]
    assert rows("refunds", "id", "reason") == [(1, "too large")]
    assert len(rows("orders_log", "_op")) == 5


def run_sql(postgres: Postgres, schema: str, name: str) -> None:
    script = (EXAMPLE / name).read_text("utf-8")
    postgres.execute(
        f"create schema if not exists {schema}; set search_path to {schema};\n{script}"
    )
