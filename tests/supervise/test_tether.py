"""A process ends with its supervisor, and a supervisor that reads nothing holds nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.errors import LakeUnavailableError
from distributary.observe.events import BatchStarted, Failed, TableParked, decode
from distributary.supervise.process import VARIABLE, Channel, start_tied
from tests.supervise.children import gone
from tests.waiting import eventually

# a supervisor that starts one process, says its number, and waits to be killed
SUPERVISOR = """
import sys, time
from distributary.supervise.process import Child
child = Child.start([sys.executable, "-c", sys.argv[1]], grace=float(sys.argv[2]))
print(child.pid, flush=True)
time.sleep(600)
"""
TIED = "from distributary.supervise.process import hold_tether\nhold_tether()\n"
GENTLE = f"""{TIED}
import signal, sys, time
def stop(*_):
    open(FILE, "w").write("stopped")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
open(READY, "w").close()
time.sleep(600)
"""
DEAF = f"""{TIED}
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(FILE, "w").write(str(other.pid))
open(READY, "w").close()
time.sleep(600)
"""


def killed_supervisor(
    body: str, folder: Path, *, grace: float, supervisor: str = SUPERVISOR
) -> int:
    """Kills a supervisor whose process is up; the process's number."""
    ready, file = folder / "ready", folder / "file"
    code = f"FILE, READY = {str(file)!r}, {str(ready)!r}\n{body}"
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor, code, str(grace)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    eventually(ready.exists, seconds=30)
    process.kill()
    process.communicate()
    return pid


def test_a_process_stops_when_its_supervisor_was_killed(tmp_path: Path) -> None:
    pid = killed_supervisor(GENTLE, tmp_path, grace=60)
    assert gone(pid)
    assert (tmp_path / "file").read_text() == "stopped"


def test_it_is_killed_with_what_it_started_when_it_does_not_stop(tmp_path: Path) -> None:
    pid = killed_supervisor(DEAF, tmp_path, grace=0.1)
    assert gone(pid)
    assert gone(int((tmp_path / "file").read_text()))


def test_without_a_supervisor_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Channel.from_environment(mask=str) is None


def test_events_go_down_the_pipe_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    inlet, outlet = os.pipe()
    monkeypatch.setenv(VARIABLE, str(outlet))
    channel = Channel.from_environment(mask=lambda text: text.replace("hunter2", "***"))
    assert channel is not None and VARIABLE not in os.environ
    error = LakeUnavailableError("no hunter2", where="at hunter2", key="hunter2")
    channel(Failed(pipeline="p", error=error, retry_in=1.0))
    channel(TableParked(pipeline="p", batch=1, table="t", records=1, error="hunter2"))
    channel.close()
    with os.fdopen(inlet) as pipe:
        text = pipe.read()
    assert "hunter2" not in text
    failed, parked = (decode(line) for line in text.splitlines())
    assert isinstance(failed, Failed) and isinstance(parked, TableParked)
    assert type(failed.error) is LakeUnavailableError
    assert (failed.error.where, failed.error.context, failed.error.retryable) == (
        "at ***",
        {"key": "***"},
        True,
    )


def test_a_supervisor_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.supervise.process._LAST_WORDS_SECONDS", 0.05)
    inlet, outlet = os.pipe()
    channel = Channel(outlet)
    for batch in range(20_000):
        channel(BatchStarted(pipeline="p" * 50, batch=batch))
    channel.close()
    # the writer is freed, and ends
    os.close(inlet)
    eventually(lambda: not channel._writer.is_alive(), seconds=60)


def test_a_supervisor_that_has_gone_is_no_error() -> None:
    inlet, outlet = os.pipe()
    os.close(inlet)
    channel = Channel(outlet)
    channel(BatchStarted(pipeline="p", batch=1))
    channel.close()
    assert not channel._writer.is_alive()
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


# a program that starts one process with its output in a file, says its number, and is killed
STARTER = """
import subprocess, sys, time
from distributary.supervise.process import start_tied
options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
process, tether = start_tied([sys.executable, "-c", sys.argv[1]], grace=60.0, **options)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_a_tied_process_without_pipes_of_its_own_ends_as_well(tmp_path: Path) -> None:
    pid = killed_supervisor(GENTLE, tmp_path, grace=60, supervisor=STARTER)
    assert gone(pid)
    assert (tmp_path / "file").read_text() == "stopped"


def test_a_program_that_is_not_there_leaves_no_pipe() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        start_tied(["/nowhere/at-all"], grace=1.0)
    assert len(os.listdir("/proc/self/fd")) == before
