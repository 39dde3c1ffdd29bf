"""The JVM and the workers end with the process that started them, and not before it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distributary.observe.ledger.ledger import Ledger
from distributary.spark.java import require_java
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.supervise.children import gone
from tests.waiting import eventually

SETTINGS = 'spark: {driver_memory: 512m, master: "local[1]"}'
# a program whose JVM starts and never says a word; the process goes on after the failure
SILENT = """
import sys, time
from pathlib import Path
from distributary.errors import SetupError
from distributary.spark import session

folder, session._MOST_SECONDS, session._END_SECONDS = Path(sys.argv[1]), float(sys.argv[2]), 0.1
try:
    session.spark_session(session.SparkSettings(log_file=folder / "spark.log"))
except SetupError as error:
    (folder / "code").write_text(str(error.code))
time.sleep(600)
"""


@contextmanager
def started(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process as the leader of a group, as a shell or `timeout` does."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def paused_run(folder: Path) -> Iterator[tuple[Games, subprocess.Popen[str]]]:
    """Run a pipeline that pauses itself in the middle of its first batch."""
    games = Games(folder, GamesPlan(games=2, versions=1, records=5))
    file = games.write_file(tables="{each: 'silver_{type}'}", extra=SETTINGS)
    games.send_all()
    command = [sys.executable, "-m", "distributary", "run", str(file), "--continuous", "--json"]
    pause = {"DISTRIBUTARY_PAUSE_AT": "after_plan:0", "XDG_STATE_HOME": str(folder / "state")}
    with started(command, pause) as process:
        status = psutil.Process(process.pid).status
        eventually(lambda: status() == psutil.STATUS_STOPPED, seconds=200)
        yield games, process


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def is_jvm(process: psutil.Process) -> bool:
    return "java" in process.name()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_for_the_group_lets_the_batch_end(tmp_path: Path, number: signal.Signals) -> None:
    with paused_run(tmp_path) as (games, process):
        children = family(process)
        assert any(map(is_jvm, children))
        os.killpg(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 128 + number, err
        assert json.loads(out)["stopped"] == "stopped"
        assert Ledger(str(games.lake)).totals("games").written == 10
        assert [child for child in children if not gone(child.pid)] == []


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    with paused_run(tmp_path) as (_, process):
        children = family(process)
        assert {"java", "python"} <= {child.name().rstrip("0123456789.") for child in children}
        process.kill()
        assert [child for child in children if not gone(child.pid)] == []


@pytest.mark.slow
@pytest.mark.spark
def test_a_jvm_that_is_ended_with_the_run_is_a_stop(tmp_path: Path) -> None:
    with paused_run(tmp_path) as (_, process):
        (jvm,) = filter(is_jvm, family(process))
        # as systemd does with KillMode=control-group
        jvm.terminate()
        process.terminate()
        assert gone(jvm.pid)
        os.kill(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 143, err + out
        assert json.loads(out)["stopped"] == "stopped"


def silent_java(folder: Path) -> Path:
    """Make a Java home whose Spark neither answers nor reads its standard input nor ends."""
    java = require_java().path
    fake = folder / "java" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text(
        "#!/bin/bash\n"
        'case "$*" in *org.apache.spark.deploy.SparkSubmit*)\n'
        f"  trap '' TERM HUP INT; echo $$ > {folder}/jvm.new; mv {folder}/jvm.new {folder}/jvm\n"
        "  exec sleep 600 ;;\n"
        f'*) exec {java} "$@" ;;\n'
        "esac\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    return fake.parent.parent


@contextmanager
def silent_run(folder: Path, *, seconds: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a process that waits for a silent JVM, and give the number of the JVM."""
    home, file = silent_java(folder), folder / "jvm"
    command = [sys.executable, "-c", SILENT, str(folder), str(seconds)]
    with started(command, {"JAVA_HOME": str(home)}) as process:
        eventually(file.exists, seconds=100)
        yield process, int(file.read_text())


@pytest.mark.spark
def test_a_jvm_that_never_answers_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with silent_run(tmp_path, seconds=600) as (process, jvm):
        assert psutil.pid_exists(jvm)
        process.kill()
        assert gone(jvm)


@pytest.mark.spark
def test_a_jvm_that_never_answers_does_not_outlive_the_failure(tmp_path: Path) -> None:
    with silent_run(tmp_path, seconds=2) as (process, jvm):
        eventually((tmp_path / "code").exists, seconds=60)
        assert (tmp_path / "code").read_text() == "SPARK_FAILED"
        assert gone(jvm)
        assert process.poll() is None
