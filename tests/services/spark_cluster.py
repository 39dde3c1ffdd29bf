"""A standalone Spark cluster on loopback, for as long as a block lasts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from distributary.errors import ErrorCode, SetupError
from distributary_lab.services.processes import HOST, free_port

_PATIENCE_SECONDS = 300
_END_SECONDS = 60

_ALONE = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell's command: what follows runs with an empty folder in the place of the first word."""

DRIVER_ENVIRONMENT = {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
"""What the process of a driver needs to be found by the workers, and to have them find Python."""

DRIVER_CONF = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    # a driver that begins with half of its executors measures, and tests, something else
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}
"""One small executor on each of two workers."""


@contextmanager
def spark_cluster(
    folder: Path, *, workers: int = 2, memory: str = "1g", hidden: Path | None = None
) -> Iterator[str]:
    """A master and workers of one core each; their address.

    Instead of the folder `hidden` each worker sees one of its own, empty at first, as on machines
    that share no disk. It takes root to make that so.
    """
    port = free_port(but=set())
    address = f"spark://{HOST}:{port}"
    environment = {
        **os.environ,
        **DRIVER_ENVIRONMENT,
        "SPARK_WORKER_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    page = ("--host", HOST, "--webui-port", "0")
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_launch("master.Master", *page, "--port", str(port), env=environment))
        _until_listening(port, started[0])
        for _ in range(workers):
            size = ("--cores", "1", "--memory", memory)
            words = (*page, *size, address)
            started.append(_launch("worker.Worker", *words, env=environment, hidden=hidden))
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=_END_SECONDS)


def kill_an_executor(driver: subprocess.Popen[str]) -> None:
    """As soon as one of this process's clusters works on a task: as a system short of memory."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and driver.poll() is None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                # its Python workers come with the first task
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and any(
                    "pyspark" in " ".join(child.cmdline()) for child in process.children(True)
                ):
                    process.kill()
                    return
        time.sleep(0.05)
    raise AssertionError("no executor was at work")


@contextmanager
def connect_server(
    jars: Sequence[Path],
    *,
    master: str = "local[2]",
    home: Path | None = None,
    environment: Mapping[str, str] = DRIVER_ENVIRONMENT,
) -> Iterator[str]:
    """A Spark Connect server, of this process's Spark or that in `home`; its address."""
    port = free_port(but=set())
    found = ",".join(map(str, jars))
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.jars": found,
        "spark.ui.enabled": "false",
        **(_DELTA if any(jar.name.startswith("delta-spark") for jar in jars) else {}),
        **DRIVER_CONF,
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    server = subprocess.Popen(
        [
            *(str((home or _spark_folder()) / "bin" / "spark-submit"), "--master", master, *words),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            "spark-internal",
        ],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_listening(port, server)
        yield f"sc://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait(timeout=_END_SECONDS)


def _spark_folder() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SetupError("PySpark is not installed", next_step="pip install distributary")
    return Path(found.origin).parent


def _launch(
    kind: str, *arguments: str, env: dict[str, str], hidden: Path | None = None
) -> subprocess.Popen[bytes]:
    program = _spark_folder() / "bin" / "spark-class"
    alone = ["unshare", "--mount", "sh", "-c", _ALONE, str(hidden)] if hidden is not None else []
    return subprocess.Popen(
        [*alone, str(program), f"org.apache.spark.deploy.{kind}", *arguments],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _until_listening(port: int, master: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and master.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SetupError(
        "the master of the Spark cluster did not start",
        code=ErrorCode.SERVICE_FAILED,
        where=f"{HOST}:{port}",
        next_step="look whether Java runs: distributary doctor",
    )
