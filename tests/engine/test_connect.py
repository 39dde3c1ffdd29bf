"""The engine on a Spark Connect server: what shared and serverless compute gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary.errors import ConfigError
from distributary.spark.jars import ensure_connectors
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import TABLES, Games
from tests.services.spark_cluster import connect_server

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with connect_server(ensure_connectors()) as address:
        yield address


@pytest.mark.parametrize("exchange", ["auto", "spark"])
def test_every_record_reaches_its_table(server: str, tmp_path: Path, exchange: str) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=3, records=10, bad=6))
    extra = f"spark: {{remote: '{server}'}}\nrun: {{exchange: {exchange}}}"
    while games.send_round() is not None:
        file = games.write_file(tables=TABLES, extra=extra)
        # a session of Connect and a classic one do not go together in one process
        command = [sys.executable, "-m", "distributary", "run", str(file), "--json"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    games.assert_each_record_once()


_QUERY = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(*(spark.sql(f"SELECT * FROM games.{table}").count() for table in sys.argv[2:]))
"""


def test_tables_are_in_the_catalog_of_the_server(server: str, tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=5))
    games.send_round()
    file = games.write_file(extra=f"spark: {{remote: '{server}'}}")
    place = f"lake: {{path: {games.lake}"
    file.write_text(file.read_text().replace(place, f"{place}, database: games"))
    command = [sys.executable, "-m", "distributary", "run", str(file), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["catalog"]["problems"] == []
    command = [sys.executable, "-c", _QUERY, server, *games.tables()]
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert asked.stdout.split() == ["5", "5"], asked.stderr[-2000:]


def test_a_server_that_the_environment_names_is_taken(server: str, tmp_path: Path) -> None:
    """As serverless compute has it: the file says nothing of a server."""
    games = Games(tmp_path, GamesPlan(games=2, versions=1, records=10))
    games.send_all()
    command = [sys.executable, "-m", "distributary", "run", str(games.write_file()), "--json"]
    environ = {**os.environ, "SPARK_REMOTE": server, "JAVA_HOME": "/nowhere"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    games.assert_each_record_once()


def test_what_needs_the_jvm_is_refused_with_it(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=1))
    remote = "spark: {remote: 'sc://127.0.0.1:1'}"
    for tables in ("{each: 'silver_{type}', publisher: spark}",):
        with pytest.raises(ConfigError):
            games.pipeline(tables=tables, extra=remote)


def test_a_server_that_is_not_there_is_named_without_its_token(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=1))
    games.send_round()
    extra = "spark: {remote: 'sc://127.0.0.1:1/;token=canary-token'}"
    file = games.write_file(extra=extra)
    command = [sys.executable, "-m", "distributary", "run", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "SPARK_FAILED" in done.stderr
    assert "canary-token" not in done.stderr + done.stdout
