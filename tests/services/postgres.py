"""PostgreSQL with logical decoding: the one that is installed, with data for one run.

Run as a program, it waits until the process that started it is gone, then removes all of a folder.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from distributary.errors import ErrorCode, SetupError
from distributary.spark.jars import Progress
from distributary_lab.services.processes import (
    HOST,
    Guarded,
    Running,
    end,
    free_port,
    launch,
    lent,
    mark,
    require_free,
    running,
)
from distributary_lab.services.services import alone, wait_until_up

# A folder for a program that refuses to run as root: another user's, where that one can reach it.
#
# Folders of root are closed to others, those above them included: what is lent lies in the
# system's folder for temporary files, and a link in the service's folder tells where. Whoever is
# not root lends nothing to anybody, but has the same layout.

_USERS = ("postgres", "nobody")


def other_user() -> tuple[int, int] | None:
    """User and group for a program that root must not run itself; None for everybody else."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with suppress(KeyError):
            known = pwd.getpwnam(name)
            return known.pw_uid, known.pw_gid
    raise SetupError(
        "PostgreSQL does not run as root, and there is no other user for it",
        code=ErrorCode.SERVICE_FAILED,
        where=f"users {', '.join(_USERS)}",
        next_step="useradd --system postgres, or start this as another user than root",
    )


def lend(folder: Path) -> Path:
    """The folder that the other user has; made at the first call."""
    link, user = lent(folder), other_user()
    if _is_whole(link, user[0] if user else os.geteuid()):
        return link.resolve()
    link.unlink(missing_ok=True)
    place = Path(tempfile.mkdtemp(prefix="distributary-dev-"))
    if user:
        os.chown(place, *user)
    link.symlink_to(place)
    return place


def _is_whole(link: Path, user: int) -> bool:
    """Whether it leads to a closed folder of that user: others may write in the system's folder."""
    if not link.is_dir():
        return False
    found = link.stat()
    return found.st_uid == user and not found.st_mode & 0o077


def take_back(folder: Path) -> None:
    """Remove what was lent."""
    link = lent(folder)
    if link.is_symlink():
        shutil.rmtree(link.resolve(), ignore_errors=True)
        link.unlink()


# A service that has a folder of its own: started, killed and stopped by itself.

_EVIDENCE_LINES = 12


class Single(Guarded):
    """Used with `with`, it ends with this process, however that ends; its data goes with it."""

    watcher = (str(Path(__file__).resolve()),)
    name = ""
    """How people call it."""
    title = ""
    """What it is, for a sentence."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__(folder)
        self.port = port or free_port(but=set())

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "logs" / f"{self.name}.log"

    def evidence(self) -> str:
        """The last lines of what it said."""
        text = self.log.read_text("utf-8", "replace") if self.log.is_file() else ""
        return "\n".join(text.splitlines()[-_EVIDENCE_LINES:])

    @abstractmethod
    def answers(self) -> bool:
        """Whether it speaks its protocol."""

    @abstractmethod
    def _launch(self, say: Progress) -> Running:
        """Start it; the folder is there, and the port is free."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove its data; it does not run."""

    def start(self, progress: Progress | None = None) -> bool:
        """Start it and wait until it answers; False if it runs already.

        Raises SetupError when something is not installed, the port is taken or it does not start.
        """
        say = progress or (lambda _: None)
        with alone(self.folder, say):
            live = running(self.folder).get(self.name)
            if live is None:
                require_free(self.port, service=self.title)
                say(f"starting {self.title} at port {self.port}")
            process = live or self._launch(say)
            try:
                wait_until_up(self, process)
            except BaseException:
                if live is None:
                    end([process], gently=False)
                raise
        return live is None

    def stop(self) -> bool:
        """Stop it, wait until it is gone and remove its data; False if it did not run."""
        live = end_soon(self.folder)
        self._discard()
        return live

    def kill(self) -> None:
        """End it as a crash would; its data stays."""
        end(running(self.folder).values(), gently=False)

    def restart(self) -> None:
        """It again, at the same port with the same data; killed first if it runs."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._discard()
            raise


def end_soon(folder: Path) -> bool:
    """Stop what runs for a folder; False if nothing does."""
    live = running(folder)
    if "postgres" in live:
        # asked with SIGTERM, it would wait until its clients have gone by themselves
        live["postgres"].processes[0].send_signal(signal.SIGINT)
    end(live.values())
    return bool(live)


USER = "app"
DATABASE = "postgres"
INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian keeps the server's programs, of which it puts none on the path."""

_MOST_SECONDS = 120
_POLL_SECONDS = 0.05
_KEY_LINE = 6

_SETTINGS = {
    "listen_addresses": HOST,
    # the paths of sockets are short, and those of folders may not be
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    # a crash of the machine ends the data anyway
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    # the other kinds leave files or segments behind when the server is killed
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Postgres(Single):
    """A server whose data is gone when it is stopped; one user, who may do everything."""

    name = "postgres"
    title = "PostgreSQL"

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        super().__init__(folder, port=port)
        self.password = secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def execute(self, script: str, *, database: str = DATABASE) -> str:
        """Run SQL as `psql` does and return what it prints; SetupError where it is refused."""
        ended = self._psql(script, database)
        if ended.returncode:
            raise SetupError(
                "PostgreSQL refused a statement",
                code=ErrorCode.SERVICE_FAILED,
                where=self.address,
                evidence=ended.stderr.strip(),
                next_step="correct the statement",
            )
        return ended.stdout

    def rows(self, query: str, *, database: str = DATABASE) -> list[dict[str, Any]]:
        """The rows of one query, as JSON has them."""
        script = f"select coalesce(json_agg(each), '[]') from ({query}) each;"
        found: list[dict[str, Any]] = json.loads(self.execute(script, database=database))
        return found

    def answers(self) -> bool:
        """Whether it answers a query."""
        return self._psql("select 1", DATABASE).returncode == 0

    def _psql(self, script: str, database: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.client(database), "-v", "ON_ERROR_STOP=1"],
            input=script,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=_MOST_SECONDS,
            check=False,
        )

    def standby(self, folder: Path) -> Postgres:
        """Return a standby that streams from this server and can be promoted; not started yet."""
        copy = Postgres(folder)
        copy.password = self.password
        copy.folder.mkdir(parents=True, exist_ok=True)
        place = lend(copy.folder)
        run_as(
            [
                *(program("pg_basebackup"), "-h", HOST, "-p", str(self.port), "-U", USER),
                *("-D", str(place / "data"), "-X", "stream", "-c", "fast", "--no-sync"),
                "--write-recovery-conf",
            ],
            place,
            other_user(),
            what="PostgreSQL",
            environment={"PGPASSWORD": self.password, "HOME": str(place)},
        )
        return copy

    def caught_up(self, primary: Postgres) -> None:
        """Wait until this standby has replayed all that its primary has written."""
        reached = primary.execute("select pg_current_wal_lsn()").strip()
        query = f"select pg_last_wal_replay_lsn() >= '{reached}'::pg_lsn as done"
        deadline = time.monotonic() + _MOST_SECONDS
        while not self.rows(query)[0]["done"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a standby has not reached {reached}")
            time.sleep(_POLL_SECONDS)

    def promote(self) -> None:
        """Become a primary, and wait until it is one."""
        self.execute("select pg_promote()")

    def dump(self, schema: str) -> str:
        """Return SQL that makes a schema again elsewhere."""
        place = ("-h", HOST, "-p", str(self.port), "-U", USER, "-d", DATABASE)
        return subprocess.run(
            [program("pg_dump"), *place, "--schema", schema, "--no-publications"],
            env=os.environ | {"PGPASSWORD": self.password},
            capture_output=True,
            encoding="utf-8",
            timeout=_MOST_SECONDS,
            check=True,
        ).stdout

    def client(self, database: str = DATABASE) -> list[str]:
        """Return the command of a connection that reads SQL and survives errors."""
        place = ("-h", HOST, "-p", str(self.port), "-U", USER, "-d", database)
        return [program("psql"), "-X", "-q", "-A", "-t", *place]

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process must have in its environment."""
        return os.environ | {"PGPASSWORD": self.password, "PGCLIENTENCODING": "UTF8"}

    def _launch(self, say: Progress) -> Running:
        place = lend(self.folder)
        data = place / "data"
        if not data.exists():
            self._make(data)
        settings = _SETTINGS | {"port": str(self.port)}
        return launch(
            [
                *(program("postgres"), "-D", str(data)),
                *(f"--{key}={value}" for key, value in settings.items()),
                *("-c", mark(self.name, self.port, self.folder)),
            ],
            service=self.name,
            port=self.port,
            folder=place,
            output=self.log,
            user=other_user(),
        )

    def _make(self, data: Path) -> None:
        words = data.with_name("password")
        user = other_user()
        # the folder is the other user's, who could put a link there
        words.unlink(missing_ok=True)
        with open(os.open(words, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(self.password)
            if user:
                os.fchown(file.fileno(), *user)
        try:
            run_as(
                [
                    *(program("initdb"), "-D", str(data), "-U", USER, "--no-sync"),
                    *("--auth=scram-sha-256", f"--pwfile={words}", "--encoding=UTF8", "--locale=C"),
                ],
                data.parent,
                user,
                what="PostgreSQL",
            )
        finally:
            words.unlink()

    def _discard(self) -> None:
        discard(self.folder)


def discard(folder: Path) -> None:
    """Remove the data of a server that does not run."""
    _release_memory(folder)
    take_back(folder)


def program(name: str) -> str:
    """One of PostgreSQL's programs, from the path or where Debian keeps them; else SetupError."""
    found = shutil.which(name)
    if found is None:
        there = [p for p in INSTALLED.glob(f"*/bin/{name}") if os.access(p, os.X_OK)]
        newest = max(there, key=lambda path: _version(path.parent.parent.name), default=None)
        found = str(newest) if newest else None
    if found is None:
        raise SetupError(
            "PostgreSQL is not installed",
            code=ErrorCode.SERVICE_FAILED,
            where=f"{name} on the path, or in {INSTALLED}/*/bin",
            next_step="sudo apt-get install postgresql",
        )
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def run_as(
    command: Sequence[str],
    place: Path,
    user: tuple[int, int] | None,
    *,
    what: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program that makes the folder of a server's data, as another user where root asks."""
    try:
        ended = subprocess.run(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOST_SECONDS,
            check=False,
            env=os.environ | (environment or {}),
            user=user[0] if user else None,
            group=user[1] if user else None,
            extra_groups=() if user else None,
        )
        evidence = "\n".join(ended.stderr.strip().splitlines()[-6:]) if ended.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        evidence = type(error).__name__
    if evidence:
        raise SetupError(
            f"the folder of {what}'s data could not be made",
            code=ErrorCode.SERVICE_FAILED,
            where=str(place),
            evidence=evidence,
            next_step=f"read the evidence; a program of the installed {what} said it",
        )


def _release_memory(folder: Path) -> None:
    """A server that was killed leaves a shared memory segment; its file of numbers names it."""
    with suppress(OSError, IndexError, ValueError):
        # only a server that did not end by itself leaves it there
        lines = (lent(folder) / "data" / "postmaster.pid").read_text("ascii").splitlines()
        segment = int(lines[_KEY_LINE].split()[1])
        remover = shutil.which("ipcrm")
        if remover:
            subprocess.run([remover, "-m", str(segment)], capture_output=True, check=False)


if __name__ == "__main__":
    # the pipe on standard input ends with the process at its other end
    sys.stdin.buffer.read()
    end_soon(Path(sys.argv[1]))
    discard(Path(sys.argv[1]))
