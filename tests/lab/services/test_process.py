from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from distributary.errors import ErrorCode, SetupError
from distributary_lab.services import processes
from distributary_lab.services.processes import end, launch, running
from tests.lab.services.marked import SLEEP, start_marked

STUBBORN = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(1, flush=True)
{SLEEP}
"""
# like the scripts that choose a Java: they stay, and what they start has the same arguments
WRAPPER = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "{SLEEP}", *sys.argv[1:]])
print(child.pid, flush=True)
child.wait()
"""

# starts a service and a guard, as `with Services` does, and goes on for ever
OWNER = """
import sys, time
from pathlib import Path
from distributary_lab.services.processes import watching
from distributary_lab.services.services import Services
from tests.lab.services.marked import start_marked
folder = Path(sys.argv[1])
start_marked(folder, "kafka", 9092)
guard = watching(Services.watcher, folder)
print("ready", flush=True)
time.sleep(300)
"""


def wait_until_written(path: Path) -> None:
    while not path.read_text():
        time.sleep(0.01)


def test_a_service_is_known_by_its_mark(folder: Path) -> None:
    started = start_marked(folder, "kafka", 19092)
    found = running(folder)
    assert list(found) == ["kafka"]
    assert (found["kafka"].port, found["kafka"].pid) == (19092, started.pid)
    assert found["kafka"].alive


def test_strangers_are_never_taken_for_services(folder: Path, tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP, str(folder)])
    elsewhere = tmp_path.resolve() / "dev-2"
    other = start_marked(elsewhere, "kafka", 9092)
    try:
        assert running(folder) == {}
        end(running(folder).values())
        assert stranger.poll() is None
        assert other.alive
    finally:
        end([other], gently=False)
        stranger.kill()
        stranger.wait()


def test_a_number_that_was_given_to_another_process_is_left_alone(folder: Path) -> None:
    service = start_marked(folder, "kafka", 9092)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        # what is remembered of the service, with the number of somebody who was born later
        process = psutil.Process(service.pid)
        process._pid = stranger.pid
        end([replace(service, processes=(process,))])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_dead_process_is_not_running_also_before_it_is_buried(folder: Path) -> None:
    service = start_marked(folder, "registry", 8081)
    os.kill(service.pid, signal.SIGKILL)
    os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)
    assert not service.alive
    assert running(folder) == {}


def test_whoever_does_not_listen_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TERM_SECONDS", 0.2)
    service = start_marked(folder, "kafka", 9092, script=STUBBORN)
    wait_until_written(folder / "kafka.out")
    end([service])
    assert not service.alive
    end([service])


def test_a_script_that_starts_java_is_ended_with_it(folder: Path) -> None:
    wrapper = start_marked(folder, "kafka", 9092, script=WRAPPER)
    wait_until_written(folder / "kafka.out")
    child = int((folder / "kafka.out").read_text())
    found = running(folder)["kafka"]
    assert [process.pid for process in found.processes] == [wrapper.pid, child]
    end([found])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_is_not_there(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(SetupError) as caught:
        launch(["/nowhere/java"], service="kafka", port=1, folder=folder, output=folder / "out")
    assert caught.value.code is ErrorCode.SERVICE_FAILED


def test_services_end_with_the_process_that_wanted_them(folder: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        service = running(folder)["kafka"]
        owner.kill()
    service.processes[0].wait(timeout=60)
    assert running(folder) == {}
