"""Python workers are reached through a folder that only its user may look into."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from distributary.spark import sockets as module
from distributary.spark.settings import SparkSettings, spark_conf
from distributary.spark.sockets import socket_folder
from distributary.stage.exchange import documents_batch, documents_of
from distributary.stage.job import run_tasks

HOLDER = """
import sys
from distributary.spark.sockets import socket_folder
print(socket_folder(), flush=True)
sys.stdin.read()
"""
NOBODY = 65534
REACHED = 0


def _processes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield documents_batch([("worker", json.dumps([os.getpid(), os.getppid()]))])


def as_nobody(act: Callable[[], object]) -> int:
    """Return the error number of an act of another user, or 0."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            code = REACHED
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def socket_of_workers(spark: SparkSession) -> str:
    """Return the address at which workers are forked, of a session that has some."""
    _, daemon = next(json.loads(body) for _, body in documents_of(run_tasks(spark, 2, _processes)))
    (path,) = (c.laddr for c in psutil.Process(daemon).net_connections("unix") if c.laddr)
    return str(path)


@pytest.mark.spark
def test_workers_listen_at_no_port(spark: SparkSession) -> None:
    numbers = {
        number
        for _, body in documents_of(run_tasks(spark, 2, _processes))
        for number in json.loads(body)
    }
    open_ports = [
        connection
        for number in numbers
        if psutil.pid_exists(number)
        for connection in psutil.Process(number).net_connections("inet")
        # a worker that has written to a bucket still has connections to it
        if connection.status == psutil.CONN_LISTEN
    ]
    assert open_ports == []


@pytest.mark.spark
def test_the_sockets_of_workers_lie_in_a_private_folder(spark: SparkSession) -> None:
    folder = Path(socket_of_workers(spark)).parent
    assert folder == socket_folder()
    assert folder.parent == Path(tempfile.gettempdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()
    # what Spark tells the driver and the driver asks of Spark passes through it, too
    assert spark.sparkContext._accumulatorServer.server_address.startswith(f"{folder}/")  # type: ignore[union-attr]


@pytest.mark.spark
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_another_user_reaches_no_worker(spark: SparkSession) -> None:
    path = socket_of_workers(spark)
    # the folder keeps others out, whatever the process's umask has left of the socket's rights
    os.chmod(path, 0o777)
    assert as_nobody(lambda: connect(path)) == errno.EACCES
    connect(path)


@pytest.mark.parametrize("master", ["local", "local[2]"])
def test_what_the_user_sets_stands(master: str, tmp_path: Path) -> None:
    mine = {"spark.python.unix.domain.socket.enabled": "false"}
    settings = SparkSettings(master=master, conf=mine)
    conf = spark_conf(settings, app_name="test", sockets=tmp_path)
    assert conf["spark.python.unix.domain.socket.enabled"] == "false"
    without = spark_conf(SparkSettings(master=master), app_name="test")
    assert not [name for name in without if "socket" in name]


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def parent() -> Iterator[Path]:
    """Provide a folder for temporary files whose path is short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_folder_goes_with_its_process(parent: Path) -> None:
    process, folder = started(parent)
    assert folder.parent == parent
    (folder / ".1.sock").touch()
    process.communicate(timeout=60)
    assert list(parent.iterdir()) == []


def test_the_next_process_removes_what_killed_ones_have_left(parent: Path) -> None:
    killed, left = started(parent)
    alive, held = started(parent)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (left / ".1.sock").touch()
    third, folder = started(parent)
    try:
        assert set(parent.iterdir()) == {held, folder}
    finally:
        for process in (alive, third):
            process.communicate(timeout=60)
    assert list(parent.iterdir()) == []


def test_folders_of_other_users_and_links_stay(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = parent / "precious"
    precious.mkdir()
    (parent / "distributary-py-link").symlink_to(precious)
    (parent / "distributary-py-file").touch()
    other = parent / "distributary-py-other"
    other.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: other.stat().st_uid + 1)
    module._remove_leftovers(str(parent))
    names = {path.name for path in parent.iterdir()}
    assert {"precious", "distributary-py-link", "distributary-py-file"} <= names
    assert other.exists()
    monkeypatch.undo()
    module._remove_leftovers(str(parent))
    assert not other.exists()
    assert precious.exists()


def test_a_long_path_or_a_place_where_others_rename_is_passed_over(parent: Path) -> None:
    long = parent / ("x" * 80)
    shared = parent / "shared"
    for place in (long, shared):
        place.mkdir()
    shared.chmod(0o770)
    for place in (long, shared):
        process, folder = started(place)
        process.communicate(timeout=60)
        assert folder.parent == Path("/tmp")
        assert not folder.exists()
    assert not module._suits(str(long))
    shared.chmod(0o1777)
    assert module._suits(str(shared))


def test_a_forked_process_leaves_the_folder_of_its_parent(parent: Path) -> None:
    module._remove(parent, os.getpid() + 1)
    assert parent.exists()
