"""The whole program on the newest patch of each version of Spark, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from distributary.spark.versions import VERSIONS, has_delta
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import TABLES, Games, column
from tests.services.shared import unique
from tests.services.spark_cluster import connect_server
from tests.services.spark_installation import LOCKS, SparkInstallation, spark_installation
from tests.topics import Topics

if TYPE_CHECKING:
    from distributary_lab.services.services import Services

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PLAN = GamesPlan(games=3, versions=2, records=20, bad=6)
KAFKA = """
name: {name}
source: {{type: kafka, bootstrap_servers: "{servers}", topics: [{topic}], reader: {reader}}}
payload: {{format: json}}
tables: {{each: "{name}_{{topic}}"}}
lake: {{path: {lake}}}
"""


@pytest.fixture(scope="module", params=VERSIONS)
def minor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def there(minor: str, tmp_path_factory: pytest.TempPathFactory) -> SparkInstallation:
    return spark_installation(minor, tmp_path_factory.mktemp(f"spark-{minor}"))


def output(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command said, if it ended well."""
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return json.loads(done.stdout)


def test_every_version_has_a_lock() -> None:
    assert {file.stem for file in LOCKS.glob("*.lock")} == set(VERSIONS)


def test_doctor_names_the_version(minor: str, there: SparkInstallation, tmp_path: Path) -> None:
    done = there.run("doctor", "--json", folder=tmp_path)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["spark"]["state"] == "pass"
    assert f"Spark {minor}." in found["spark"]["found"]
    assert ("without Delta" in found["spark"]["found"]) is not has_delta(minor)


def test_the_demo_of_games(there: SparkInstallation, tmp_path: Path) -> None:
    words = ("--games", "3", "--versions", "2", "--records", "20", "--bad", "3")
    said = output(there.run("demo", "games", *words, "--json", folder=tmp_path))
    assert (said["exact"], said["written"], said["dead_lettered"]) == (True, 3 * 2 * 20, 3)


def test_change_data_are_merged_as_the_database_has_them(
    there: SparkInstallation, tmp_path: Path
) -> None:
    words = ("--tables", "2", "--events", "200", "--json")
    said = output(there.run("demo", "cdc", *words, folder=tmp_path))
    # the demo compares the tables with their logs and with the database
    assert said["exact"] and said["written"] >= 200


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_a_topic_is_read_by_tasks_and_by_sparks_connector(
    there: SparkInstallation, tmp_path: Path, services: Services, reader: str
) -> None:
    topics = Topics(services.kafka)
    topic = topics.create(unique("matrix"), partitions=3)
    topics.send(topic, (json.dumps({"id": number}).encode() for number in range(3000)))
    file = tmp_path / "kafka.yaml"
    servers = services.kafka
    text = KAFKA.format(
        name=reader, servers=servers, topic=topic, reader=reader, lake=tmp_path / "lake"
    )
    file.write_text(text)
    said = output(there.run("run", file, "--available-now", "--json", folder=tmp_path))
    assert (said["read"], said["written"]) == (3000, 3000)
    (table,) = (tmp_path / "lake").glob(f"{reader}_*")
    assert Counter(column(table, "id")) == Counter(range(3000))


def test_the_exchange_by_sparks_shuffle(there: SparkInstallation, tmp_path: Path) -> None:
    games = Games(tmp_path, PLAN)
    while games.send_round() is not None:
        file = games.write_file(tables=TABLES, extra="run: {exchange: spark}")
        output(there.run("run", file, "--json", folder=tmp_path))
    games.assert_each_record_once()


def test_spark_itself_writes_the_tables_where_delta_is_there(
    minor: str, there: SparkInstallation, tmp_path: Path
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_all()
    tables = TABLES.replace("{bronze", "{publisher: spark, bronze")
    done = there.run("run", games.write_file(tables=tables), "--json", folder=tmp_path)
    if has_delta(minor):
        output(done)
        games.assert_each_record_once()
        commit = DeltaTable(str(games.lake / games.tables()[0])).history(1)[0]
        assert str(commit["engineInfo"]).startswith(f"Apache-Spark/{minor}.")
        return
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (1, "CONNECTORS_MISSING")
    assert "tables.publisher: spark" in error["what"] and minor in error["what"]
    assert games.tables() == []
    doctor = there.run("doctor", tmp_path / "games.yaml", "--json", folder=tmp_path)
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert checks["delta"]["state"] == "fail"


@pytest.fixture(scope="module")
def server(there: SparkInstallation) -> Iterator[str]:
    jars = there.connectors()
    with connect_server(jars, home=there.home(), environment=there.environment) as address:
        yield address


@pytest.mark.parametrize("exchange", ["auto", "spark"])
def test_a_server_of_spark_connect(
    there: SparkInstallation, tmp_path: Path, server: str, exchange: str
) -> None:
    games = Games(tmp_path, PLAN)
    games.send_all()
    extra = f"spark: {{remote: '{server}'}}\nrun: {{exchange: {exchange}}}"
    output(
        there.run("run", games.write_file(tables=TABLES, extra=extra), "--json", folder=tmp_path)
    )
    games.assert_each_record_once()
