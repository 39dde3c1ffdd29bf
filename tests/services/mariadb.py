"""MariaDB with a binary log of rows: the one that is installed, with data for one run."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributary.errors import ErrorCode, SetupError
from distributary.spark.jars import Progress
from distributary_lab.services.processes import HOST, Running, launch, mark
from tests.services.postgres import Single, discard, lend, other_user, run_as

USER = "app"
REPLICA = "replica"
"""The user as whom a replica reads the log, so that connectors can be told from replicas."""

_MOST_SECONDS = 300

_SETTINGS = {
    "bind-address": HOST,
    "skip-name-resolve": "1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    # a replica writes what it reads into a log of its own, at positions of its own
    "log-slave-updates": "1",
    "innodb-buffer-pool-size": "64M",
    # a crash of the machine ends the data anyway
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-doublewrite": "0",
    "sync-binlog": "0",
    "character-set-server": "utf8mb4",
    "default-time-zone": "+00:00",
    "max-connections": "60",
}


class MariaDB(Single):
    """A server whose data is gone when it is stopped; one user, who may do everything."""

    name = "mariadb"
    title = "MariaDB"

    def __init__(
        self,
        folder: Path,
        *,
        server_id: int = 1,
        log_name: str = "binlog",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a server; its log consists of the files `log_name.000001` and so on."""
        super().__init__(folder, port=port)
        self.server_id, self.log_name = server_id, log_name
        self.password = secrets.token_urlsafe(16)
        self._settings = dict(settings or {})

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def execute(self, script: str, *, database: str = "") -> str:
        """Run SQL as `mariadb` does and return what it prints; SetupError where it is refused."""
        ended = subprocess.run(
            self.client(database),
            input=script,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=_MOST_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise SetupError(
                "MariaDB refused a statement",
                code=ErrorCode.SERVICE_FAILED,
                where=self.address,
                evidence=ended.stderr.strip(),
                next_step="correct the statement",
            )
        return ended.stdout

    def rows(self, query: str, *, database: str = "") -> list[dict[str, Any]]:
        """Return the rows of one query, whose columns are JSON objects named `row`."""
        return [json.loads(line) for line in self.execute(query, database=database).splitlines()]

    def client(self, database: str = "", *, force: bool = False) -> list[str]:
        """Return the command of a connection that reads SQL; with `force` it survives errors."""
        return [
            *(program("mariadb"), "--no-defaults", "--batch", "--raw", "--skip-column-names"),
            *("--protocol=tcp", f"--host={HOST}", f"--port={self.port}", f"--user={USER}"),
            *("--default-character-set=utf8mb4", *(["--force"] if force else []), database),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """What a client's process must have in its environment."""
        return os.environ | {"MYSQL_PWD": self.password}

    def answers(self) -> bool:
        """Return whether it answers a query."""
        try:
            return self.execute("select 1").strip() == "1"
        except SetupError:
            return False

    def position(self) -> tuple[str, int]:
        """Return the file and the position at which its log ends."""
        file, at = self.execute("show master status").split("\t")[:2]
        return file, int(at)

    # replicas and restored dumps

    def follow(self, primary: MariaDB) -> None:
        """Become a replica of a server, from the first transaction of its log on."""
        self.execute(
            f"change master to master_host='{HOST}', master_port={primary.port},"
            f" master_user='{REPLICA}', master_password='{primary.password}',"
            " master_use_gtid=slave_pos; start slave;"
        )

    def caught_up(self, primary: MariaDB) -> None:
        """Wait until this replica has all that is in the log of its primary."""
        reached = primary.execute("select @@gtid_binlog_pos").strip()
        waited = self.execute(f"select master_gtid_wait('{reached}', {_MOST_SECONDS // 2})")
        if waited.strip() != "0":
            raise SetupError(
                "a replica does not follow",
                code=ErrorCode.SERVICE_FAILED,
                where=self.address,
                evidence=self.execute("show slave status"),
                next_step="read the evidence",
            )

    def promote(self) -> None:
        """Become a primary."""
        self.execute("stop slave; reset slave all;")

    def dump(self, database: str) -> str:
        """Return SQL that makes a database again elsewhere."""
        return subprocess.run(
            [
                *(program("mariadb-dump"), "--no-defaults", "--protocol=tcp", f"--host={HOST}"),
                *(f"--port={self.port}", f"--user={USER}", "--single-transaction"),
                *("--hex-blob", "--databases", database),
            ],
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=_MOST_SECONDS,
            check=True,
        ).stdout

    def is_followed(self) -> bool:
        """Return whether a connector reads the log."""
        return bool(
            self.execute(
                "select 1 from information_schema.processlist"
                f" where command like 'Binlog Dump%' and user = '{USER}'"
            )
        )

    def end_followers(self) -> None:
        """End the connections of connectors, which the server keeps until it has an event."""
        ids = self.execute(
            "select id from information_schema.processlist"
            f" where command like 'Binlog Dump%' and user = '{USER}'"
        )
        for number in ids.split():
            # it may have ended by itself
            with suppress(SetupError):
                self.execute(f"kill {number}")

    def _launch(self, say: Progress) -> Running:
        place = lend(self.folder)
        data = place / "data"
        if not data.exists():
            self._make(place, data)
        settings = _SETTINGS | {
            "datadir": str(data),
            # the paths of sockets are short, and those of folders may not be
            "socket": str(place / "socket"),
            "pid-file": str(place / "pid"),
            "port": str(self.port),
            "server-id": str(self.server_id),
            "log-bin": self.log_name,
            "init-file": str(place / "users.sql"),
        }
        settings |= self._settings
        return launch(
            [
                *(program("mariadbd"), "--no-defaults"),
                *(f"--{key}={value}" for key, value in settings.items()),
                # a setting of clusters, which takes any text and is not used by a single server
                *("--wsrep-node-name", mark(self.name, self.port, self.folder)),
            ],
            service=self.name,
            port=self.port,
            folder=place,
            output=self.log,
            user=other_user(),
        )

    def _make(self, place: Path, data: Path) -> None:
        user = other_user()
        words = place / "users.sql"
        words.unlink(missing_ok=True)
        with open(os.open(words, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            # each server has its own users: none of this is in its log
            file.write(
                "set sql_log_bin=0;\n"
                f"alter user root@localhost identified by '{self.password}';\n"
                f"create user if not exists {USER}@'%' identified by '{self.password}';\n"
                f"grant all on *.* to {USER}@'%' with grant option;\n"
                f"create user if not exists {REPLICA}@'%' identified by '{self.password}';\n"
                f"grant replication slave on *.* to {REPLICA}@'%';\n"
            )
            if user:
                os.fchown(file.fileno(), *user)
        run_as(
            [
                *(program("mariadb-install-db"), "--no-defaults", f"--datadir={data}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
                "--innodb-flush-log-at-trx-commit=0",
            ],
            place,
            user,
            what="MariaDB",
        )

    def _discard(self) -> None:
        discard(self.folder)


def program(name: str) -> str:
    """Return the path of one of MariaDB's programs; SetupError where it is not installed."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise SetupError(
            "MariaDB is not installed",
            code=ErrorCode.SERVICE_FAILED,
            where=f"{name} on the path",
            next_step="sudo apt-get install mariadb-server",
        )
    return path


def is_installed() -> bool:
    """Return whether the server's program is there."""
    try:
        return bool(program("mariadbd"))
    except SetupError:
        return False
