"""The same pipeline on a Spark standalone cluster: two workers on this machine."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from distributary.simulate.games import GamesPlan
from tests.run.lakes import Games
from tests.run.test_crashes import RUN

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }

    def launch(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                str(SPARK_CLASS),
                f"org.apache.spark.deploy.{kind}",
                "--host",
                "127.0.0.1",
                *arguments,
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    web = ("--webui-port", "0")
    processes = [launch("master.Master", "--port", str(port), *web)]
    _until_listening(port)
    worker = ("--cores", "1", "--memory", "1g", *web, address)
    processes += [launch("worker.Worker", *worker) for _ in range(2)]
    yield address
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.wait(timeout=60)


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the master did not start"
            time.sleep(0.2)


def test_a_cluster_is_only_another_master(tmp_path: Path, master: str) -> None:
    games = Games(tmp_path, GamesPlan(games=4, versions=2, records=20, bad=6), records_per_file=20)
    games.send_all()
    games.write_file(
        extra=f"""
spark:
  master: {master}
  driver_memory: 1g
  conf:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 512m
    spark.executor.cores: "1"
    spark.cores.max: "2"
    spark.scheduler.minRegisteredResourcesRatio: "1.0"
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(games.root / "games.yaml")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "read 166 = written 160 + dead letters 6 + parked 0" in done.stdout
    games.assert_each_record_once()
