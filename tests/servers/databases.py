"""Databases with many writers, whose server can be replaced by another one.

The writers are processes with one connection each. They meet at the same rows, so that statements
wait for locks and commit in another order than they began; they change keys, delete and insert, and
hold transactions open.
"""

from __future__ import annotations

import random
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow.json import ParseOptions, read_json

from distributary_lab.services.processes import HOST
from tests.services.debezium import Debezium, json_events
from tests.services.mariadb import MariaDB
from tests.services.postgres import DATABASE, USER, Postgres
from tests.services.shared import unique

KEYS = {"accounts": ("id",), "items": ("order_id", "no")}
COLUMNS = {
    "accounts": ("id", "name", "balance", "note"),
    "items": ("order_id", "no", "qty", "note"),
}
"""The tables and their columns from the beginning."""
HOT = 6
"""Rows at which all writers meet."""
_SENTINEL = 0
"""The key of the row that is changed last in each table, to see it arrive."""
_LONG_SECONDS = 1.0


class Database(ABC):
    """Two tables on a server, the connector that follows it, and all servers that were started."""

    kind: ClassVar[str]
    pause: ClassVar[str]
    """SQL that waits so many seconds."""
    ignore: ClassVar[tuple[str, str]]
    """How an insert begins and ends that leaves a row as it is if it is there."""

    def __init__(self, root: Path, debezium: Debezium, stack: ExitStack) -> None:
        self.root, self.debezium, self._stack = root, debezium, stack
        self.schema = unique("shop").replace("-", "").replace("_", "")
        self.name = unique("shop")
        self.extra: tuple[str, ...] = ()
        """Columns that `accounts` has been given since."""
        self._touched, self._servers = 0, 0

    server: Any

    @property
    def url(self) -> str:
        """Return the address of the server that has the database now, for `verify --source`."""
        scheme, database = self.address
        password, port = self.server.password, self.server.port
        return f"{scheme}://{USER}:{password}@{HOST}:{port}/{database}"

    @property
    @abstractmethod
    def address(self) -> tuple[str, str]:
        """Return the scheme of the address, and the name of the database in it."""

    @abstractmethod
    def execute(self, script: str) -> str:
        """Run SQL in the schema."""

    @abstractmethod
    def connection(self) -> subprocess.Popen[str]:
        """Start a client that reads SQL, in the schema, and survives errors."""

    @abstractmethod
    def lines(self, table: str) -> str:
        """Select all rows of a table, each as a line of JSON."""

    def rows(self, table: str, schema: pa.Schema) -> pa.Table:
        """Select all rows of a table, with the types of a schema."""
        options = ParseOptions(explicit_schema=schema)
        text = self.lines(table).encode()
        return read_json(BytesIO(text), parse_options=options).select(schema.names)

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return int(self.execute(f"select count(*) from {table};"))

    @abstractmethod
    def promote(self) -> None:
        """Have a replica take over, and the connector follow it where it ended."""

    @abstractmethod
    def restore(self, *, snapshot: bool, changes: int = 0) -> None:
        """Put a dump back on a new server, and have the connector follow that.

        The connector begins with a snapshot, or sends nothing but changes from then on. Writers
        make so many changes before the connector is there; none of them removes a row.
        """

    def follow(self, **settings: str) -> None:
        """Have the connector follow the server."""
        # the connector would refuse an offset that it got from another server: operators who let it
        # go on at a promoted one switch that check off
        shape = json_events(schemas=False) | {"internal.log.position.check.enable": "false"}
        self.debezium.follow(self.server, self.name, schemas=self.schema, settings=shape | settings)

    def create(self, rows: int) -> None:
        """Make the tables, with so many rows."""
        self.execute(
            "create table accounts (id int primary key, name varchar(60), balance int, note text);"
            "create table items (order_id int, no int, qty int, note varchar(60),"
            " primary key (order_id, no));"
        )
        for first in range(1, rows + 1, 1000):
            ids = range(first, min(first + 1000, rows + 1))
            values = ", ".join(f"({n}, 'name {n}', {n}, null)" for n in ids)
            self.execute(f"insert into accounts (id, name, balance, note) values {values};")
        values = ", ".join(f"({n}, 1, {n}, null)" for n in range(1, 100))
        self.execute(f"insert into items (order_id, no, qty, note) values {values};")
        self.size = rows

    def add_column(self) -> None:
        """Give a table one more column."""
        self.extra = (*self.extra, f"extra{len(self.extra)}")
        self.execute(f"alter table accounts add column {self.extra[-1]} int;")

    def write(self, changes: int, *, seed: int, writers: int = 4, removing: bool = True) -> None:
        """Change about so many rows, by several connections at once; return when all are done."""
        started = [self.connection() for _ in range(writers)]
        scripts = [
            self._script(random.Random(f"{seed}-{number}"), changes // writers, removing=removing)
            for number in range(writers)
        ]
        for process, script in zip(started, scripts, strict=True):
            assert process.stdin is not None
            process.stdin.write(script)
            process.stdin.close()
        for process in started:
            assert process.wait(600) in (0, 1, 3), process.args

    def _script(self, dice: random.Random, changes: int, *, removing: bool) -> str:
        """Write the transactions of one writer."""
        lines: list[str] = []
        left = changes
        long_at = dice.randint(0, changes)
        while left > 0:
            span = min(left, max(1, changes // dice.choice((10, 40, 160))))
            # writers meet at a hot row, wait for each other, and go on elsewhere
            lines += ["begin;", self._hot(dice)]
            if dice.random() < 0.3:
                lines.append(self.pause.format(dice.choice((0.005, 0.02, 0.1))))
            lines += [self._statement(dice, span, removing=removing) for _ in range(2)]
            if long_at >= 0 and left <= long_at:
                lines.append(self.pause.format(_LONG_SECONDS))
                long_at = -1
            lines += [self._hot(dice), "rollback;" if dice.random() < 0.05 else "commit;"]
            left -= span + 2
        return "\n".join(lines) + "\n"

    def _hot(self, dice: random.Random) -> str:
        extra = "".join(f", {name} = {dice.randint(0, 99)}" for name in self.extra)
        return (
            f"update accounts set balance = balance + {dice.randint(1, 9)},"
            f" note = 'n{dice.randint(0, 999)}'{extra} where id = {dice.randint(1, HOT)};"
        )

    def _statement(self, dice: random.Random, span: int, *, removing: bool) -> str:
        first = dice.randint(HOT + 1, max(HOT + 1, self.size - span))
        some = dice.randint(HOT + 1, 2 * self.size)
        # no writer meets the row that shows that all has arrived
        order = some % 99 + _SENTINEL + 1
        orders = first % 90 + _SENTINEL + 1
        begin, end = self.ignore
        kinds = [
            f"update accounts set balance = balance + 1, note = 'm{dice.randint(0, 99)}'"
            f" where id between {first} and {first + span - 1};",
            f"{begin} into accounts (id, name, balance) values ({some}, 'new {some}', 0){end};",
            f"update items set qty = qty + 1 where order_id between {orders} and"
            f" {orders + min(span, 20)};",
            f"{begin} into items (order_id, no, qty) values ({order}, {some % 7}, 1){end};",
        ]
        removals = [
            f"delete from accounts where id = {some};",
            f"update accounts set id = {some} where id = {first};",
            f"update items set no = no + 10 where order_id = {order} and no < 10;",
            f"delete from items where order_id = {order} and no > 10;",
        ]
        return dice.choice(kinds[:1] * 4 + kinds + (removals if removing else []))

    def touch(self) -> int:
        """Change one row of each table, as the last change of all; return its value."""
        self._touched += 1
        for table, key in (("accounts", ("id",)), ("items", ("order_id", "no"))):
            value = COLUMNS[table][2]
            places = ", ".join(str(_SENTINEL) for _ in key)
            begin, end = self.ignore
            self.execute(
                f"{begin} into {table} ({', '.join(key)}, {value}) values ({places}, 0){end};"
                f"update {table} set {value} = {self._touched}"
                f" where {' and '.join(f'{name} = {_SENTINEL}' for name in key)};"
            )
        return self._touched

    def names(self, table: str) -> Sequence[str]:
        """Return the columns of a table."""
        return (*COLUMNS[table], *(self.extra if table == "accounts" else ()))

    def _place(self) -> Path:
        """Return a folder for one more server."""
        self._servers += 1
        return self.root / f"{self.kind}{self._servers}"

    def _client(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # deadlocks and keys that are taken end a statement, not the writer
            stderr=subprocess.DEVNULL,
            text=True,
        )


class MariaDBDatabase(Database):
    """A database of MariaDB, with a replica behind its primary."""

    kind = "mariadb"
    pause = "select sleep({});"

    @property
    def address(self) -> tuple[str, str]:
        return "mariadb", self.schema

    ignore = ("insert ignore", "")

    def __init__(self, root: Path, debezium: Debezium, stack: ExitStack) -> None:
        super().__init__(root, debezium, stack)
        self.server = self._start(server_id=1)
        self.replica = self._start(server_id=2)
        self.replica.follow(self.server)
        self.server.execute(f"create database {self.schema};")

    def _start(self, *, server_id: int) -> MariaDB:
        # small files: a log has several, and positions in it begin anew again and again
        settings = {"max-binlog-size": str(2**20)}
        server = MariaDB(self._place(), server_id=server_id, settings=settings)
        return self._stack.enter_context(server)

    def execute(self, script: str) -> str:
        return self.server.execute(script, database=self.schema)

    def connection(self) -> subprocess.Popen[str]:
        return self._client(self.server.client(self.schema, force=True))

    def lines(self, table: str) -> str:
        pairs = ", ".join(f"'{name}', {name}" for name in self.names(table))
        return self.execute(f"select json_object({pairs}) from {table};")

    def promote(self) -> None:
        self.replica.caught_up(self.server)
        self.server.kill()
        self.replica.promote()
        self.debezium.forget(self.name)
        self.server = self.replica
        self.follow()

    def restore(self, *, snapshot: bool, changes: int = 0) -> None:
        dump = self.server.dump(self.schema)
        # a server that is set up from a template: the number of a server that was there before
        server = self._start(server_id=1)
        server.execute(dump)
        self.debezium.set_offsets(self.name, None)
        self.debezium.forget(self.name)
        self.server.kill()
        self.server = server
        if changes:
            self.write(changes, seed=changes, removing=False)
        mode = {"snapshot.mode": "initial" if snapshot else "no_data"}
        self.follow(**mode, **self._new_history())

    def reset_log(self) -> None:
        """Remove the server's own log, and have the connector follow the new one."""
        self.debezium.set_offsets(self.name, None)
        self.debezium.forget(self.name)
        # Debezium's client fails at a server that has no transaction id yet
        self.server.execute("reset master; create database if not exists aside;")
        self.follow(**{"snapshot.mode": "no_data"}, **self._new_history())

    def _new_history(self) -> dict[str, str]:
        """Return the setting of a file for what the connector knows of the tables' columns."""
        file = f"connect/history/{unique('history')}.jsonl"
        return {"schema.history.internal.file.filename": file}


class PostgresDatabase(Database):
    """A schema of PostgreSQL, with a standby behind its primary."""

    kind = "postgres"
    pause = "select pg_sleep({});"
    ignore = ("insert", " on conflict do nothing")

    @property
    def address(self) -> tuple[str, str]:
        return "postgresql", DATABASE

    def __init__(self, root: Path, debezium: Debezium, stack: ExitStack) -> None:
        super().__init__(root, debezium, stack)
        self.server: Postgres = stack.enter_context(Postgres(self._place()))
        # the log of a server that has worked for a while
        for _ in range(3):
            self.server.execute("select pg_logical_emit_message(false, 'a', 'b'), pg_switch_wal();")
        self.standby = stack.enter_context(self.server.standby(self._place()))
        self.server.execute(f"create schema {self.schema};")

    def follow(self, **settings: str) -> None:
        # what was sent once can be sent again: the server keeps its log
        kept = {"flush.lsn.source": "false", "slot.drop.on.stop": "false"}
        super().follow(**kept, **settings)

    def execute(self, script: str) -> str:
        return self.server.execute(f"set search_path to {self.schema};\n{script}")

    def connection(self) -> subprocess.Popen[str]:
        client = self._client(self.server.client())
        assert client.stdin is not None
        client.stdin.write(f"set search_path to {self.schema};\n")
        return client

    def lines(self, table: str) -> str:
        names = ", ".join(self.names(table))
        return self.execute(f"select row_to_json(each) from (select {names} from {table}) each;")

    def promote(self) -> None:
        self.standby.caught_up(self.server)
        self.debezium.forget(self.name)
        self.server.kill()
        self.standby.promote()
        self.server = self.standby
        # the slot was lost with the primary: what is not sent yet is in no other
        self.follow()

    def restore(self, *, snapshot: bool, changes: int = 0) -> None:
        dump = self.server.dump(self.schema)
        server = self._stack.enter_context(Postgres(self._place()))
        server.execute(dump)
        self.debezium.set_offsets(self.name, None)
        self.debezium.forget(self.name)
        self.server.kill()
        self.server = server
        if changes:
            self.write(changes, seed=changes, removing=False)
        self.follow(**{"snapshot.mode": "initial" if snapshot else "no_data"})
