"""Change data where driver and workers share no disk: files, lake and progress are in a bucket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from distributary.engine.kill_points import KILL, PAUSE, KillPoint
from distributary.model.table import Role
from distributary.store.base import at
from distributary_lab.simulate.cdc.datastream_files import FileRound
from distributary_lab.simulate.cdc.shapes import CHAOS, CdcPlan
from tests.lakes.changes import EACH, BucketFeed
from tests.services.shared import unique
from tests.services.spark_cluster import (
    DRIVER_CONF,
    DRIVER_ENVIRONMENT,
    EXECUTORS,
    kill_an_executor,
    spark_cluster,
)
from tests.source.s3_server import BUCKET, s3_server
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process its own mounts"),
]

_TABLES = 20
_PATIENCE_SECONDS = 900


@dataclass
class ClusterFeed(BucketFeed):
    """Change files in a bucket, a lake in the same bucket, and a driver in its own process."""

    master: str = ""

    def send_round(self) -> FileRound | None:
        assert self.server is not None
        sent = super().send_round()
        for file in sent.files if sent else ():
            self.server.put(f"{self.feed}/{file.path}", file.data)
        return sent

    @property
    def feed(self) -> str:
        """The folder of the change files in the bucket."""
        return f"{self.address.removeprefix(f's3://{BUCKET}/')}-files"

    def write_file(
        self, *, source: str = "", cdc: str = "", tables: str = EACH, extra: str = ""
    ) -> Path:
        conf = json.dumps({**DRIVER_CONF, **EXECUTORS})
        spark = f'spark: {{master: "{self.master}", driver_memory: 1g, conf: {conf}}}'
        more = f"run: {{lease: 5s}}\n{spark}\n{extra}"
        path = super().write_file(source=source, cdc=cdc, tables=tables, extra=more)
        there = f"discovery: discovery-bucket, bucket: s3://{BUCKET}, path: {self.feed},"
        path.write_text(path.read_text().replace(f"path: {self.files},", there))
        return path

    def start(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributary", "run", str(self.root / "changes.yaml")],
            env={**os.environ, **DRIVER_ENVIRONMENT, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        told, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        return process.returncode, told

    def merged_commits(self) -> int:
        """Commits in the tables that are made of a log."""
        tables = self.tables(Role.MERGED).values()
        return sum(len(list(at(f"{self.address}/{t}").files("_delta_log"))) for t in tables)


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[ClusterFeed]:
    plan = CdcPlan(tables=_TABLES, events=1200, rows=5, rounds=3, features=CHAOS)
    with s3_server() as server, spark_cluster(tmp_path / "work", hidden=tmp_path) as master:
        address = f"s3://{BUCKET}/{unique('lake')}"
        yield ClusterFeed(tmp_path, plan, server=server, address=address, master=master)


def test_a_driver_and_executors_are_killed_and_tables_are_what_the_source_is(
    feed: ClusterFeed,
) -> None:
    feed.write_file(cdc=", history: true")
    feed.send_round()
    # the log has the batch, no table made of it does
    code, told = feed.finish(feed.start(**{KILL: f"{KillPoint.BEFORE_MERGE}:0"}))
    assert code == -signal.SIGKILL, told
    running = feed.start()
    kill_an_executor(running)
    code, told = feed.finish(running)
    assert code == 0, told
    feed.send_all()
    before = feed.merged_commits()
    running = feed.start(**{PAUSE: f"{KillPoint.BEFORE_MERGE}:1"})
    eventually(lambda: _is_stopped(running), seconds=_PATIENCE_SECONDS)
    running.send_signal(signal.SIGCONT)
    # some tables have the batch, others do not
    eventually(lambda: feed.merged_commits() > before, seconds=_PATIENCE_SECONDS)
    kill_an_executor(running)
    code, told = feed.finish(running)
    assert code == 0, told
    assert len(feed.tables(Role.MERGED)) >= _TABLES
    feed.assert_true()
    feed.assert_verified()


def _is_stopped(process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[0]
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
