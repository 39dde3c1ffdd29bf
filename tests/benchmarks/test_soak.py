"""A soak that is ended before its time takes everything with it that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_soak_that_was_ended(tmp_path: Path, kind: signal.Signals) -> None:
    options = ["--minutes", "60", "--tables", "2", "--sample", "2", "--output", str(tmp_path)]
    soak = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.soak", *options, "--folder", str(tmp_path / "soak")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert soak.stderr is not None
        # a first sample: broker, registry, producer and run are there
        assert soak.stderr.readline()
        started = psutil.Process(soak.pid).children(recursive=True)
        names = " ".join(map(_command, started))
        assert all(part in names for part in ("kafka", "distributary run", "benchmarks.pace"))
        soak.send_signal(kind)
        assert soak.wait(180) in (128 + kind, -kind)
        eventually(lambda: not any(map(_runs, started)), seconds=180)
    finally:
        soak.kill()
        soak.communicate()


def _command(process: psutil.Process) -> str:
    # `status` is called for each sample, and may have ended by now
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
