"""Tables that are healed from their database, or read from it again, while the stream goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from distributary.changes.source.base import Database, connect
from distributary.changes.source.compare import Comparison, SourceCheck
from distributary.cli.command_line import main
from distributary.config.database import parse_address
from distributary.engine import batch as batch_module
from distributary.engine.kill_points import KILL, KillPoint
from distributary.engine.pipeline import Pipeline
from distributary.engine.steps import commits, merges
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.operations import source_comparison as source_module
from distributary.operations.source_comparison import (
    LANE,
    comparison,
    heal,
    is_unfinished,
    read_again,
)
from tests.decode.datastream_samples import event
from tests.lakes.changes import CHANGE_MOMENTS, rows_of
from tests.services.mariadb import MariaDB
from tests.services.postgres import DATABASE, USER, Postgres
from tests.source.change_files import MINUTE, lines, put

pytestmark = [pytest.mark.spark, pytest.mark.services]

ROWS = 250
RANGE = 100
"""Rows of a range of keys here: three ranges, the last of them not full."""
FILE = """\
name: shop
source: {{type: files, path: {root}/in, format: json, settle: 0s}}
cdc: {{format: datastream}}
tables: {{each: "{{table}}"}}
lake: {{path: {root}/lake}}
spark: {{master: 'local[2]', driver_memory: 1g}}
trigger: available_now
"""
_COMMAND = f"""
import sys
from distributary.operations import source_comparison
source_comparison.RANGE_ROWS = {RANGE}
from distributary.cli.command_line import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass
class Shop:
    """A database with one table, and a pipeline over files of its changes."""

    server: Postgres | MariaDB
    root: Path
    name: str
    files: int = 0

    @property
    def in_postgres(self) -> bool:
        return isinstance(self.server, Postgres)

    @property
    def url(self) -> str:
        scheme, database = ("postgresql", DATABASE) if self.in_postgres else ("mariadb", self.name)
        return f"{scheme}://{USER}:{self.server.password}@127.0.0.1:{self.server.port}/{database}"

    def execute(self, script: str) -> None:
        if isinstance(self.server, Postgres):
            self.server.execute(f"set search_path to {self.name}; {script}")
        else:
            self.server.execute(script, database=self.name)

    def create(self) -> None:
        self.server.execute(f"create {'schema' if self.in_postgres else 'database'} {self.name};")
        self.execute("create table orders (id int primary key, val varchar(60));")

    def _place(self) -> dict[str, Any]:
        """Return where a change that was just committed stands, as Datastream says it."""
        if isinstance(self.server, Postgres):
            query = "select (pg_current_wal_insert_lsn() - '0/0')::int8 - 1 as a"
            at = int(self.server.rows(query)[0]["a"])
            return {"schema": self.name, "lsn": f"{at >> 32:X}/{at & 0xFFFFFFFF:X}"}
        file, position = self.server.position()
        return {"database": self.name, "log_file": file, "log_position": position - 1}

    def sent(self, changes: Sequence[tuple[str, int, str]]) -> None:
        """Write a file of changes that were just committed: operation, id and value."""
        kind = "postgresql" if self.in_postgres else "mysql"
        place, now = self._place(), int(time.time() * 1000)
        events = []
        for op, id_, val in changes:
            self.files += 1
            where = {**place, "change_type": op, "is_deleted": op == "DELETE"}
            if not self.in_postgres:
                del where["is_deleted"]
            row = {"id": id_, "val": val}
            events.append(
                event(self.files, kind, payload=row, metadata=where, source_timestamp=now)
            )
        path = f"shop_orders/{MINUTE}/{self.files:06}.jsonl"
        put(self.root / "in", path, lines(events))

    def change(self, changes: Sequence[tuple[str, int, str]], *, sent: bool = True) -> None:
        """Change rows of the database, one transaction each, and send what happened."""
        statements = {
            "INSERT": "insert into orders values ({0}, '{1}');",
            "UPDATE": "update orders set val = '{1}' where id = {0};",
            "DELETE": "delete from orders where id = {0};",
        }
        for op, id_, val in changes:
            self.execute(statements[op].format(id_, val))
            if sent:
                self.sent([(op, id_, val)])

    def fill(self) -> None:
        values = ", ".join(f"({n}, 'v{n}')" for n in range(ROWS))
        self.execute(f"insert into orders values {values};")
        self.sent([("INSERT", n, f"v{n}") for n in range(ROWS)])

    @property
    def file(self) -> Path:
        path = self.root / "shop.yaml"
        path.write_text(FILE.format(root=self.root))
        return path

    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.file)

    def known(self) -> TableSummary:
        tables = self.pipeline().ledger().tables("shop", schema_ids=False)
        return next(table for table in tables if table.table == "orders")

    def run(self, tasks: SparkSession) -> None:
        assert self.pipeline().run(spark=tasks).counts.balanced

    def compare(self, database: Database) -> SourceCheck:
        return comparison(self.pipeline(), self.known(), database).run(patience=5)[0]

    def heal(self, tasks: SparkSession, database: Database) -> int:
        compared = comparison(self.pipeline(), self.known(), database)
        _, wrong, moment = compared.run(patience=5)
        with self.pipeline().open(tasks, lane=LANE) as context:
            return heal(context, self.known(), compared, wrong, moment, address=self.url[:10])

    def rows(self) -> dict[int, str]:
        return {row["id"]: row["val"] for row in rows_of(self.root / "lake" / "orders")}

    def there(self) -> dict[int, str]:
        """Return the rows of the database, by its own client."""
        if isinstance(self.server, Postgres):
            rows = self.server.rows(f"select id, val from {self.name}.orders")
            return {row["id"]: row["val"] for row in rows}
        query = "select json_object('id', id, 'val', val) from orders"
        found = self.server.rows(query, database=self.name)
        return {row["id"]: row["val"] for row in found}

    def reads(self) -> int:
        """Return how many rows of the log were read from the database."""
        return sum(row["_op"] == "read" for row in rows_of(self.root / "lake" / "orders_log"))

    def command(self, *words: str, **variables: str) -> tuple[int, str]:
        """Run a command in a process of its own."""
        with subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *words, "--file", str(self.file)],
            env={**os.environ, "SHOP_URL": self.url, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            output, _ = process.communicate(timeout=300)
        return process.returncode, output


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Postgres | MariaDB]:
    folder = tmp_path_factory.mktemp(request.param)
    with Postgres(folder) if request.param == "postgresql" else MariaDB(folder) as server:
        yield server


@pytest.fixture
def shop(running: Postgres | MariaDB, tmp_path: Path) -> Shop:
    made = Shop(running, tmp_path, f"shop{os.urandom(4).hex()}")
    made.create()
    return made


@pytest.fixture
def database(shop: Shop) -> Iterator[Database]:
    connected = connect(parse_address(shop.url))
    yield connected
    connected.close()


WRONG = [("UPDATE", 7, "changed"), ("DELETE", 8, ""), ("INSERT", 900, "new")]
"""What the stream has missed in the tests below."""


def test_what_differs_is_healed_in_one_batch_beside_the_stream(
    shop: Shop, database: Database, tasks: SparkSession
) -> None:
    shop.fill()
    shop.run(tasks)
    shop.change(WRONG, sent=False)
    # a change that the stream still has on its way, and that heals nothing
    shop.change([("UPDATE", 20, "on its way")])
    compared = comparison(shop.pipeline(), shop.known(), database)
    check, wrong, moment = compared.run(patience=5)
    assert (check.missing, check.extra, check.different) == (1, 1, 2)
    # the stream goes on between the comparison and the healing
    shop.change([("UPDATE", 7, "after the snapshot")])
    shop.run(tasks)
    with shop.pipeline().open(tasks, lane=LANE) as context:
        assert heal(context, shop.known(), compared, wrong, moment, address="here") == 4
    assert shop.rows() == shop.there()
    assert shop.rows()[7] == "after the snapshot"
    assert shop.compare(database).agrees
    # the account of the batch stands in the ledger, and the marks say the same
    assert shop.pipeline().ledger().totals("shop").read == ROWS + 2 + 4
    assert main(["verify", "orders", "--file", str(shop.file)]) == 0
    # again: nothing is left to do
    assert shop.heal(tasks, database) == 0
    assert shop.reads() == 3


class _Killed(BaseException):
    """Nobody catches it: what is done up to here is on disk, nothing else happens."""


@contextmanager
def _killed_at(moment: KillPoint, *, at: int = 1) -> Iterator[None]:
    """End the work at a moment of the batch with this number, counted from now on."""
    met = 0

    def die(now: KillPoint, *_: object) -> None:
        nonlocal met
        met += now is moment
        if now is moment and met == at:
            raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        for module in (batch_module, commits, merges):
            patch.setattr(module, "reached", die)
        with pytest.raises(_Killed):
            yield


@pytest.mark.parametrize(
    ("running", "moment"),
    # of the other database only what was read differs, not the batch that is killed
    [("postgresql", moment) for moment in CHANGE_MOMENTS]
    + [
        pytest.param("mariadb", moment, marks=pytest.mark.slow)
        for moment in CHANGE_MOMENTS
        if moment is not KillPoint.AFTER_STAGE
    ]
    + [("mariadb", KillPoint.AFTER_STAGE)],
    indirect=["running"],
)
def test_a_healing_that_was_killed_is_finished_with_the_same_rows(
    moment: KillPoint, shop: Shop, database: Database, tasks: SparkSession
) -> None:
    shop.fill()
    shop.run(tasks)
    shop.change(WRONG, sent=False)
    with _killed_at(moment):
        shop.heal(tasks, database)
    # the stream does not wait for it
    shop.change([("UPDATE", 7, "later"), ("UPDATE", 30, "later")])
    shop.run(tasks)
    shop.heal(tasks, database)
    assert shop.rows() == shop.there()
    assert shop.compare(database).agrees
    # the command looks for what was begun before it compares; this comparison did not
    assert not is_unfinished(shop.pipeline())
    assert shop.reads() <= 3
    assert main(["verify", "orders", "--file", str(shop.file)]) == 0


def test_a_whole_table_is_read_again_while_rows_change_between_its_ranges(
    shop: Shop, database: Database, tasks: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "RANGE_ROWS", RANGE)
    shop.fill()
    shop.run(tasks)
    shop.change(WRONG, sent=False)
    shop.change([("UPDATE", 150, "missed"), ("DELETE", 240, "")], sent=False)
    calls = iter(
        [
            # behind the range that was read, in one that was not, and a key that moves between
            [("UPDATE", 9, "behind"), ("UPDATE", 160, "ahead"), ("DELETE", 10, "")],
            [("DELETE", 230, ""), ("INSERT", 10, "again"), ("INSERT", 901, "at the end")],
        ]
    )

    steps: list[tuple[int, int | None]] = []

    def beside(what: str, rows: int, total: int | None) -> None:
        if what != "read":
            return
        steps.append((rows, total))
        if rows and (changes := next(calls, None)):
            shop.change(changes)
            shop.run(tasks)

    with shop.pipeline().open(tasks, lane=LANE) as context:
        compared = comparison(shop.pipeline(), shop.known(), database)
        count, check = read_again(
            context, shop.known(), compared, database, patience=5, total=ROWS, progress=beside
        )
    assert count == len(shop.there())
    assert steps[:3] == [(0, ROWS), (RANGE, ROWS), (2 * RANGE, ROWS)]
    assert steps[-1] == (count, ROWS)
    # the rows that only the lake had
    assert (check.missing, check.extra, check.different) == (0, 2, 0)
    assert shop.rows() == shop.there()
    assert shop.compare(database).agrees


@pytest.mark.parametrize("moment", [KillPoint.AFTER_STAGE, KillPoint.BEFORE_MERGE])
def test_a_snapshot_that_was_killed_goes_on_after_its_last_range(
    moment: KillPoint,
    shop: Shop,
    database: Database,
    tasks: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "RANGE_ROWS", RANGE)
    shop.fill()
    shop.run(tasks)
    shop.change(WRONG, sent=False)

    def read() -> int:
        with shop.pipeline().open(tasks, lane=LANE) as context:
            compared = comparison(shop.pipeline(), shop.known(), database)
            return read_again(context, shop.known(), compared, database, patience=5)[0]

    with _killed_at(moment, at=2):
        read()
    done = shop.reads()
    assert done in (RANGE, 2 * RANGE)
    # what was read before the kill changes once more, and so does what was not
    shop.change([("UPDATE", 3, "later"), ("UPDATE", 210, "later"), ("INSERT", 950, "later")])
    shop.run(tasks)
    read()
    assert shop.rows() == shop.there()
    # no range that was settled is read again: only the one that was cut off may be
    assert ROWS <= shop.reads() <= ROWS + RANGE + 2
    assert shop.compare(database).agrees


@pytest.mark.slow
def test_commands_that_are_killed_are_finished_by_the_next_ones(
    shop: Shop, tasks: SparkSession
) -> None:
    shop.fill()
    shop.run(tasks)
    shop.change(WRONG, sent=False)
    verify = ("verify", "orders", "--source", "${SHOP_URL}")
    code, output = shop.command(*verify, "--json")
    assert code == 1, output
    code, output = shop.command(*verify, "--heal", "--dry-run")
    assert code == 1 and "1 of 1 table differs from the source" in output
    assert shop.rows() != shop.there()
    code, output = shop.command(*verify, "--heal", "--yes", **{KILL: KillPoint.BEFORE_MERGE})
    assert code == -signal.SIGKILL, output
    assert is_unfinished(shop.pipeline())
    # finished before it is compared: nothing differs any more, and no row is read twice
    code, output = shop.command(*verify, "--heal", "--yes")
    assert code == 0, output
    assert "read again" not in output
    assert (shop.rows(), shop.reads()) == (shop.there(), 2)
    shop.change([("UPDATE", 150, "missed"), ("DELETE", 3, "")], sent=False)
    snapshot = ("snapshot", "orders", "--source", "${SHOP_URL}", "--yes")
    code, output = shop.command(*snapshot, **{KILL: f"{KillPoint.AFTER_MANIFEST}:2"})
    assert code == -signal.SIGKILL, output
    code, output = shop.command(*snapshot)
    assert code == 0, output
    assert shop.rows() == shop.there()
    code, output = shop.command(*verify, "--json")
    assert code == 0, output
    (table,) = json.loads(output)["tables"]
    assert table["agrees"] and table["source_rows"] == table["lake_rows"] == ROWS - 1


def test_a_comparison_of_another_table_is_refused(
    shop: Shop, database: Database, tasks: SparkSession
) -> None:
    shop.fill()
    shop.run(tasks)
    log = next(
        table
        for table in shop.pipeline().ledger().tables("shop", schema_ids=False)
        if table.table == "orders_log"
    )
    with pytest.raises(Exception, match="orders_log"):
        Comparison.run(comparison(shop.pipeline(), log, database))
