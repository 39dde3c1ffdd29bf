"""Actions of the page: our own commands, each in a process of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any

from distributary.errors import ConfigError, DistributaryError, ErrorCode

TOKEN_VARIABLE = "DISTRIBUTARY_TOKEN"  # noqa: S105
TRIAL_SECONDS = 900.0
"""The lifetime of a dry run: its result may change later."""
_MOST_KEPT = 50
_MOST_LINES = 200
_MOST_BYTES = 1 << 20
_END_SECONDS = 20.0


class JobAction(StrEnum):
    """The actions of the page."""

    REPLAY = "replay"
    DISCARD = "discard"
    RESUME = "resume"
    PAUSE = "pause"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class Wish:
    """An action and its arguments."""

    action: JobAction
    pipeline: str
    reason: str = ""
    type: str = ""
    id: str = ""
    table: str = ""
    note: str = ""
    source_was: str = ""
    """`replaced` or `repeated`, for a table whose source went back in its log."""

    def command(self, *, lake: str, file: str | None, dry_run: bool) -> list[str]:
        """Return the words after `distributary`; none of them can be taken for an option."""
        last: list[str] = []
        if self.action in (JobAction.PAUSE, JobAction.CONTINUE):
            words = [str(self.action)]
            words += option("note", self.note) if self.action is JobAction.PAUSE else []
            last = [file] if file else []
        elif self.action is JobAction.RESUME:
            last = [self.table]
            words = ["resume", *option("file", file), *option("source-was", self.source_was)]
        else:
            words = ["dlq", str(self.action)]
            words += option("file", file) if self.action is JobAction.REPLAY else []
            words += [*option("reason", self.reason), *option("type", self.type)]
            words += option("id", self.id)
            words += [f"--note={self.note}"] if self.action is JobAction.DISCARD else []
            words += [] if dry_run else ["--yes"]
        words += ["--json", f"--lake={lake}", f"--pipeline={self.pipeline}"]
        words += ["--dry-run"] if dry_run else []
        return [*words, "--", *last] if last else words


@dataclass(frozen=True, slots=True)
class Job:
    """One process, running or ended."""

    id: str
    wish: Wish
    dry_run: bool
    started_at: datetime
    state: str = "running"
    """`running`, `done`, or `failed`."""
    ended_at: datetime | None = None
    lines: tuple[str, ...] = ()
    """The lines of the process on standard error."""
    result: dict[str, Any] = field(default_factory=dict)
    """The document that it printed at its end."""
    exit_code: int | None = None


class Jobs:
    """Starts one job at a time for each pipeline. Thread-safe."""

    def __init__(self, *, lake: str, file: str | None = None) -> None:
        self._lake, self._file = lake, file
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._trials: dict[str, float] = {}
        self._changes = 0

    @property
    def changes(self) -> int:
        """Return a number that grows whenever a job starts, prints or ends."""
        return self._changes

    def every(self) -> list[Job]:
        """Return all jobs, the newest first."""
        with self._lock:
            return list(self._jobs.values())[::-1]

    def get(self, id: str) -> Job | None:
        """Return one job by its id."""
        with self._lock:
            return self._jobs.get(id)

    def start(self, wish: Wish, *, dry_run: bool, after: str = "") -> Job:
        """Start a job; one that changes something needs the id of a dry run of the same action."""
        with self._lock:
            if not dry_run:
                self._require_trial(wish, after)
            running = (job for job in self._jobs.values() if job.state == "running")
            busy = next((job for job in running if job.wish.pipeline == wish.pipeline), None)
            if busy is not None:
                raise DistributaryError(
                    f"an action for pipeline {wish.pipeline} is running already",
                    code=ErrorCode.ACTION_RUNNING,
                    evidence=f"{busy.wish.action}, job {busy.id}",
                    next_step="wait until it is done",
                )
            # a dry run permits one action only
            self._trials.pop(after, None)
            job = Job(secrets.token_hex(6), wish, dry_run, datetime.now(UTC))
            process = spawn(wish.command(lake=self._lake, file=self._file, dry_run=dry_run))
            self._jobs[job.id] = job
            self._processes[job.id] = process
            ended = [id for id, job in self._jobs.items() if job.state != "running"]
            for old in ended[: max(len(self._jobs) - _MOST_KEPT, 0)]:
                del self._jobs[old]
                self._trials.pop(old, None)
            self._changes += 1
        threading.Thread(
            target=self._follow, args=(job.id, process), name=f"job-{job.id}", daemon=True
        ).start()
        return job

    def close(self) -> None:
        """Ask all processes to end and wait for them; they leave nothing half done."""
        with self._lock:
            running = list(self._processes.values())
        for process in running:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _require_trial(self, wish: Wish, after: str) -> None:
        trial = self._jobs.get(after)
        ended = self._trials.get(after, 0.0)
        good = trial is not None and trial.wish == wish and trial.dry_run
        if not good or time.monotonic() - ended > TRIAL_SECONDS:
            raise ConfigError(
                "the action needs a dry run first",
                code=ErrorCode.CONFIRMATION_NEEDED,
                evidence="no recent dry run of exactly this action",
                next_step="send the action with dry_run first, then again with the id of that "
                "job as `after`",
            )

    def _follow(self, id: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101
        document = bytearray()
        reader = threading.Thread(
            target=_drain, args=(process.stdout, document), name=f"job-{id}-out", daemon=True
        )
        reader.start()
        with process.stderr as stderr:
            for line in stderr:
                self._hear(id, line[:2000].decode("utf-8", "replace").rstrip())
        code = process.wait()
        reader.join()
        result: Any = {}
        with suppress(ValueError):
            result = json.loads(document)
        result = result if isinstance(result, dict) else {}
        failed = isinstance(result.get("error"), dict) or code not in (0, 1)
        ended: dict[str, Any] = {"ended_at": datetime.now(UTC), "result": result, "exit_code": code}
        with self._lock:
            self._processes.pop(id, None)
            self._changes += 1
            # only ended jobs are ever removed
            job = self._jobs[id]
            self._jobs[id] = replace(job, state="failed" if failed else "done", **ended)
            if job.dry_run and not failed:
                self._trials[id] = time.monotonic()

    def _hear(self, id: str, line: str) -> None:
        with self._lock:
            job = self._jobs[id]
            if line:
                self._jobs[id] = replace(job, lines=(*job.lines, line)[-_MOST_LINES:])
                self._changes += 1


def spawn(words: Sequence[str], *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start one of our own commands in a process and a process group of its own."""
    return subprocess.Popen(  # noqa: S603 - no shell, and options cannot be smuggled in
        [sys.executable, "-m", "distributary", *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a child needs no token, and has no terminal for questions
        env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
        # Ctrl-C goes to the dashboard, which then asks its children to end
        start_new_session=True,
    )


def option(name: str, value: str | None) -> list[str]:
    """Return an option of a command if it has a value."""
    # as one word, so that a value that begins with a dash stays a value
    return [f"--{name}={value}"] if value else []


def _drain(stream: IO[bytes], into: bytearray) -> None:
    with stream:
        while chunk := stream.read(65536):
            into += chunk[: max(_MOST_BYTES - len(into), 0)]
