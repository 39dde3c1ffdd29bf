"""Commands of the product in forked processes that share one JVM: a run costs a second, not ten.

The server imports the product and starts Spark once. Each command is then a fork of it, with its
own process id, session, memory and connection to the JVM: it can be killed and stopped as any
other process, and the JVM stays. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_OPTIONS = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
_IMPORTED = (
    *("distributary.engine.pipeline", "distributary.operations.repair.resume_table"),
    *("distributary.observe.verify.coordinates", "distributary.source.files.source"),
    *("distributary.cli.run", "distributary.cli.upkeep.repair", "distributary.cli.upkeep.verify"),
    *("distributary.cli.command.live", "distributary.supervise.supervisor"),
    *("duckdb", "pyiceberg.catalog.sql"),
)
"""What commands would import one by one, which takes a third of the time of a short one."""


class ForkServer:
    """The server, as the harness sees it. It ends with the harness: by the pipe between them."""

    def __init__(self, log: Path) -> None:
        self._ended: dict[int, int] = {}
        self._unread = b""
        with log.open("wb") as errors:
            self._server: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
                [sys.executable, "-m", "tests.faults.forkserver", str(log)],
                stderr=errors,
                **_OPTIONS,
            )

    def start(
        self, arguments: Sequence[str], *, out: Path, err: Path, variables: Mapping[str, str]
    ) -> ForkedProcess:
        """Fork a process that runs one command of the product."""
        request = [list(arguments), str(out), str(err), dict(variables)]
        self._stdin.write(json.dumps(request) + "\n")
        while True:
            answer = self._answer(None)
            if "started" in answer:
                # numbers come again: an earlier process may have had this one
                self._ended.pop(answer["started"], None)
                return ForkedProcess(self, answer["started"])

    def poll(self, pid: int, seconds: float | None = 0.0) -> int | None:
        """Return how a process ended, as `subprocess` says it, or None if it runs."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while pid not in self._ended:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._answer(left):
                return None
        return self._ended[pid]

    def close(self) -> None:
        self._stdin.close()
        self._server.wait(60)

    @property
    def _stdin(self) -> Any:
        return self._server.stdin

    @property
    def _stdout(self) -> int:
        return self._server.stdout.fileno() if self._server.stdout else -1

    def _answer(self, seconds: float | None) -> dict[str, int]:
        """Read one answer and note what it says; empty if none comes in time."""
        # without a buffer of Python's, which `select` does not see
        while b"\n" not in self._unread:
            if not select.select([self._stdout], [], [], seconds)[0]:
                return {}
            data = os.read(self._stdout, 65536)
            if not data:
                raise RuntimeError("the fork server has died")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, int] = json.loads(line)
        if "ended" in answer:
            self._ended[answer["ended"]] = answer["status"]
        return answer


class ForkedProcess:
    """One command, with what the harness needs of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self._status: int | None = None
        """How it ended; kept, because another process may get its number."""

    @property
    def returncode(self) -> int:
        return self._status or 0

    def poll(self, seconds: float | None = 0.0) -> int | None:
        if self._status is None:
            self._status = self._server.poll(self.pid, seconds)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        status = self.poll(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("distributary", timeout or 0.0)
        return status


def _serve(log: Path) -> None:
    """Fork a process for each line of standard input, and say how each of them ends."""
    from importlib import import_module

    from distributary.engine.worker import keep_pandas_out

    keep_pandas_out()
    for module in _IMPORTED:
        import_module(module)
    context = _spark(log)
    # a fork answers to the harness by files only
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 1024)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.discard(pid)
                    code = os.waitstatus_to_exitcode(status)
                    answers.write(json.dumps({"ended": pid, "status": code}) + "\n")
        if 0 not in ready:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            begun, begin = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                arguments, out, err, variables = json.loads(line)
                _take_outputs(out, err)
                os.write(begin, b".")
                _command(context, arguments, variables)
            # a signal to its group reaches it only once it has one, and its logs are read at once
            os.read(begun, 1)
            os.close(begun)
            os.close(begin)
            running.add(pid)
            answers.write(json.dumps({"started": pid}) + "\n")


def _spark(log: Path) -> Any:
    from distributary.spark.session import spark_session
    from distributary.spark.settings import SparkSettings

    settings = SparkSettings(
        master="local[2]", driver_memory="1g", log_file=log.with_suffix(".spark"), short_lived=True
    )
    context = spark_session(settings, app_name="faults").sparkContext
    # Python's workers start now, and not in the first run
    context.parallelize(range(2), 2).foreachPartition(lambda numbers: None)
    return context


def _take_outputs(out: str, err: str) -> None:
    """Write standard output and standard error to files from now on."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)


def _command(context: Any, arguments: list[str], variables: dict[str, str]) -> NoReturn:
    """Become the process of one command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ |= {"COLUMNS": "200", **variables}
    # the sockets to the JVM are the server's: this process has to open its own
    client = context._gateway._gateway_client
    client.deque.clear()
    client.thread_connection = threading.local()
    sys.argv = ["distributary", *arguments]
    from distributary.cli.command_line import program

    program()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
