"""Workers that share no disk with the driver or each other, and a bucket for everything at rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.model.table import Role
from distributary.spark.jars import ensure_connectors
from tests.services.secured import SecuredServices
from tests.services.shared import unique
from tests.services.spark_cluster import (
    DRIVER_CONF,
    DRIVER_ENVIRONMENT,
    EXECUTORS,
    connect_server,
    kill_an_executor,
    spark_cluster,
)
from tests.source.s3_server import BUCKET, S3Server, s3_server

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_CONF = {**DRIVER_CONF, **EXECUTORS}
_PATIENCE_SECONDS = 600


def _environment(variables: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return {**os.environ, **DRIVER_ENVIRONMENT, **variables}.items()


@dataclass
class Ground:
    """A pipeline file and its bucket; the driver is a process of its own."""

    folder: Path
    server: S3Server
    services: SecuredServices
    address: str

    def write_file(self, spark: str, *, options: bool = True) -> Path:
        self.topic = unique("wrapper")
        path = self.folder / "games.yaml"
        known = self.server.options if options else {}
        path.write_text(
            f"""
name: games
source:
  type: kafka
  bootstrap_servers: "{self.services.kafka}"
  topics: [{self.topic}]
  max_records_per_batch: 150
registry: {{url: "{self.services.registry}"}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}
tables: {{bronze: bronze_events, each: "silver_{{type}}", unified: unified_gold}}
lake: {{path: {self.address}, storage_options: {json.dumps(known)}}}
run: {{lease: 5s}}
spark: {{{spark}}}
"""
        )
        return path

    def send(self, *flags: object) -> int:
        """Simulated games; how many messages."""
        where = ("--bootstrap-servers", self.services.kafka, "--registry-url")
        words = ("games", *where, self.services.registry, "--topic", self.topic, "--json", *flags)
        command = [sys.executable, "-m", "distributary", "produce", *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        sent: int = json.loads(done.stdout)["messages"]
        return sent

    def start(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributary", "run", str(self.folder / "games.yaml")],
            env={k: v for k, v in _environment(variables) if v},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        told, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        return process.returncode, told

    def rows(self, table: str) -> list[dict[str, Any]]:
        place = DeltaTable(f"{self.address}/{table}", storage_options=self.server.options)
        rows: list[dict[str, Any]] = place.to_pyarrow_table().to_pylist()
        return rows

    def assert_each_record_once(self, messages: int) -> None:
        pipeline = Pipeline.load(self.folder / "games.yaml")
        known = pipeline.ledger().tables("games")
        tables = [t.table for t in known if t.role == Role.EACH]
        found = Counter(row["_offset"] for table in tables for row in self.rows(table))
        found.update(row["offset"] for row in self.rows("dead_letters"))
        assert sorted(found) == list(range(messages))
        assert set(found.values()) == {1}
        assert pipeline.ledger().totals("games").balanced


@pytest.fixture
def ground(tmp_path: Path, services: SecuredServices) -> Iterator[Ground]:
    (tmp_path / "own").mkdir()
    with s3_server() as server:
        yield Ground(tmp_path, server, services, f"s3://{BUCKET}/{unique('lake')}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process its own mounts")
def test_a_driver_and_an_executor_are_killed_and_every_record_is_there_once(
    ground: Ground, tmp_path: Path
) -> None:
    # in the place of all files of this test, the pipeline's among them, workers see nothing
    with spark_cluster(tmp_path / "work", hidden=tmp_path) as master:
        ground.write_file(f'master: "{master}", driver_memory: 1g, conf: {json.dumps(_CONF)}')
        flags = ("--games", 4, "--versions", 3, "--records", 40, "--bad", 6)
        messages = ground.send(*flags)
        code, _ = ground.run(**{KILL: f"{KillPoint.AFTER_MANIFEST}:0"})
        assert code == -9
        running = ground.start()
        kill_an_executor(running)
        told, _ = running.communicate(timeout=_PATIENCE_SECONDS)
        assert running.returncode == 0, told
        code, told = ground.run(**{KILL: f"{KillPoint.BEFORE_SETTLE}:0"})
        assert code == 0, told
        ground.assert_each_record_once(messages)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process its own mounts")
def test_run_brings_packages_and_credentials_to_workers_that_have_none(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tasks do not have the variables of the driver, and the Python of the workers no package
    with spark_cluster(tmp_path / "work", hidden=tmp_path) as master:
        log = {"enabled": "true", "dir": str(tmp_path), "compress": "false"}
        conf = {**_CONF, **{f"spark.eventLog.{name}": value for name, value in log.items()}}
        ground.write_file(f'master: "{master}", conf: {json.dumps(conf)}', options=False)
        messages = ground.send("--games", 2, "--versions", 2, "--records", 20, "--bad", 3)
        monkeypatch.setitem(DRIVER_ENVIRONMENT, "PYSPARK_PYTHON", "")
        for name, value in ground.server.options.items():
            monkeypatch.setenv(name.upper(), value)
        code, told = ground.run()
        assert code == 0, told
    ground.assert_each_record_once(messages)
    (events,) = tmp_path.glob("eventlog*/events*")
    assert ground.server.options["aws_secret_access_key"] not in events.read_text()


def test_records_of_kafka_through_spark_connect(ground: Ground) -> None:
    with connect_server(ensure_connectors()) as address:
        ground.write_file(f'remote: "{address}"')
        messages = ground.send("--games", 2, "--versions", 2, "--records", 20, "--bad", 3)
        code, told = ground.run()
        assert code == 0, told
    ground.assert_each_record_once(messages)
