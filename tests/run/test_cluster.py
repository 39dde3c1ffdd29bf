"""The same pipeline on a Spark standalone cluster: two workers on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary.dev.spark_cluster import DRIVER_CONF, DRIVER_ENVIRONMENT, spark_cluster
from distributary.simulate.games import GamesPlan
from tests.run.lakes import Games
from tests.run.test_crashes import RUN

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with spark_cluster(tmp_path / "work") as address:
        yield address


def test_a_cluster_is_only_another_master(tmp_path: Path, master: str) -> None:
    games = Games(tmp_path, GamesPlan(games=4, versions=2, records=20, bad=6), records_per_file=20)
    games.send_all()
    games.write_file(
        extra=f"""
spark:
  master: {master}
  driver_memory: 1g
  conf: {json.dumps({**DRIVER_CONF, **EXECUTORS})}
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(games.root / "games.yaml")],
        env={**os.environ, **DRIVER_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "read 166 = written 160 + dead letters 6 + parked 0" in done.stdout
    games.assert_each_record_once()
