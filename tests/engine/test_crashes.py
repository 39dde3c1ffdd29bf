"""A run in a process of its own, killed, paused and doubled."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from distributary.engine.kill_points import KILL, PAUSE, KillPoint
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games

pytestmark = pytest.mark.spark

RUN = """
import sys
from distributary.errors import DistributaryError
from distributary.engine.pipeline import Pipeline
pipeline = Pipeline.load(sys.argv[1])
pipeline.bus.subscribe(lambda event: print(type(event).__name__, flush=True))
try:
    print("summary", pipeline.run().counts.equation(), flush=True)
except DistributaryError as error:
    print("error", error.code, error.what, flush=True)
    sys.exit(error.exit_code)
"""
MERGING = (KillPoint.BEFORE_MERGE, KillPoint.BEFORE_AGGREGATES)
SMALL = "spark: {master: 'local[2]', driver_memory: 1g}"


def start(games: Games, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(games.root / "games.yaml")],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def run(games: Games, **variables: str) -> tuple[int, str]:
    process = start(games, **variables)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def gone(process: subprocess.Popen[str]) -> None:
    """The JVM of a killed run ends by itself; a test must not leave it behind."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter() if _session(p) == process.pid]
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"left running: {left}")


def kill_in_a_batch(process: subprocess.Popen[str], *, after: float) -> None:
    """SIGKILL so many seconds after its first batch has begun."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("BatchStarted"):
            break
    time.sleep(after)
    process.kill()
    process.communicate()
    gone(process)


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return -1


@pytest.mark.slow
def test_a_kill_at_each_step_is_harmless(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=8, records=4, bad=6), records_per_file=16)
    games.send_all()
    games.write_file(batch=12, extra=SMALL)
    # nothing is merged here
    for number, moment in enumerate(m for m in KillPoint if m not in MERGING):
        code, output = run(games, **{KILL: f"{moment}:{number}"})
        assert code == -signal.SIGKILL, output
        assert "summary" not in output
    code, output = run(games)
    assert code == 0, output
    games.assert_each_record_once()


@pytest.mark.slow
def test_a_kill_among_many_prepared_commits_is_harmless(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=60, versions=3, records=2), records_per_file=120)
    games.send_all()
    games.write_file(batch=120, extra=SMALL)
    # the tables are there from the first batch on, so that commits of the second are prepared
    code, output = run(games, **{KILL: f"{KillPoint.AFTER_FIRST_COMMIT}:1"})
    assert code == -signal.SIGKILL, output
    code, output = run(games)
    assert code == 0, output
    games.assert_each_record_once()


@pytest.mark.slow
def test_kills_at_random_moments_are_harmless(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=6, records=20, bad=34), records_per_file=40)
    games.send_all()
    games.write_file(batch=40, extra=SMALL)
    dice = random.Random(7)
    for _ in range(4):
        kill_in_a_batch(start(games), after=dice.uniform(0.0, 1.5))
    code, output = run(games)
    assert code == 0, output
    games.assert_each_record_once()


@pytest.mark.slow
def test_a_paused_owner_is_fenced_when_it_wakes_up(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=1, records=10))
    games.send_all()
    games.write_file(extra=SMALL)
    paused = start(games, **{PAUSE: KillPoint.AFTER_STAGE})
    try:
        _wait_until_stopped(paused)
        code, output = run(games)
        assert code == 0, output
        games.assert_each_record_once()
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    output, _ = paused.communicate(timeout=300)
    assert paused.returncode != 0
    assert "CHECKPOINT_FENCED" in output
    games.assert_each_record_once()


def _wait_until_stopped(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, "it ended instead"
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.1)


@pytest.mark.slow
def test_of_two_started_at_once_one_runs_and_the_other_names_it(tmp_path: Path) -> None:
    games = Games(tmp_path, GamesPlan(games=3, versions=1, records=10))
    games.send_all()
    games.write_file(extra=SMALL)
    both = [start(games), start(games)]
    outputs = [process.communicate(timeout=300)[0] for process in both]
    assert Counter(process.returncode for process in both) == {0: 1, 75: 1}, outputs
    loser = next(o for p, o in zip(both, outputs, strict=True) if p.returncode == 75)
    winner = next(p for p in both if p.returncode == 0)
    assert "CHECKPOINT_OWNED" in loser
    assert str(winner.pid) in loser
    games.assert_each_record_once()


DEFECT = """
import os
from distributary.decode.protobuf.decoder import ProtobufDecoder

decode = ProtobufDecoder.decode

def dying(self, payloads):
    for payload in payloads.to_pylist():
        if b"custom_NAME_1" in payload:
            os._exit(139)
        if b"custom_NAME_3" in payload:
            raise MemoryError
    return decode(self, payloads)

ProtobufDecoder.decode = dying
"""


@pytest.mark.slow
def test_records_that_kill_their_workers_are_found_and_dead_lettered(tmp_path: Path) -> None:
    """In each batch the process dies on one payload, as with a native decoder with a defect."""
    games = Games(tmp_path, GamesPlan(games=1, versions=1, records=4), records_per_file=2)
    games.send_all()
    games.write_file(tables="{each: 'silver_{type}'}", batch=2, extra=SMALL)
    folder = tmp_path / "defect"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DEFECT.replace("NAME", games.plan.names[0]))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    code, output = run(games, PYTHONPATH=os.pathsep.join(paths))
    assert code == 0, output
    assert output.count("BatchSettled") == 2
    assert "read 4 = written 2 + dead letters 2 + parked 0" in output
    codes = [letter["error_code"] for letter in games.rows("dead_letters")]
    assert codes == ["CRASHED_DECODER"] * 2
    games.assert_each_record_once()
