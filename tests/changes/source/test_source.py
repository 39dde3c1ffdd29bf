"""Databases that run, and lakes made of their changes by hand: what differs is named and healed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.changes.apply import merge_table
from distributary.changes.merge_order import MergeOrder
from distributary.changes.rebuild import rebuild, verify
from distributary.changes.source import compare
from distributary.changes.source.base import Database, Moment, Position, connect
from distributary.changes.source.compare import Comparison, SourceCheck, Wrong
from distributary.changes.source.lake_side import MergedTable
from distributary.changes.source.reads import events_of
from distributary.config.database import parse_address, with_variables
from distributary.engine.slots import ask_slots
from distributary.errors import ConfigError, ErrorCode, SourceError
from distributary.model.change import CHANGE_COLUMNS
from distributary.model.table import Column
from tests.changes.logs import ARRIVAL, LIFE, NOW, Event, rows_of
from tests.services.mariadb import MariaDB
from tests.services.postgres import DATABASE, USER, Postgres

COLUMNS = (
    Column("order_id", pa.int64()),
    Column("name", pa.string()),
    Column("qty", pa.decimal128(12, 3)),
    Column("at", pa.int64()),
    Column("doc", pa.string()),
    Column("data", pa.binary()),
    Column("spare", pa.string()),
)
KEY = ("order_id", "name")
MADE = """
create table items (order_id int, name varchar(30), qty decimal(12,3), at timestamp(3) null,
  doc {json}, data {bytes}, own int, primary key (order_id, name));
"""


@dataclass
class Server:
    """A database with one table, and how to talk to it."""

    server: Postgres | MariaDB
    kind: str
    name: str

    def execute(self, script: str) -> None:
        if isinstance(self.server, Postgres):
            self.server.execute(f"set search_path to {self.name}; {script}")
        else:
            self.server.execute(script, database=self.name)

    @property
    def url(self) -> str:
        server = self.server
        database = DATABASE if isinstance(server, Postgres) else self.name
        return f"{self.kind}://{USER}:{server.password}@127.0.0.1:{server.port}/{database}"

    @property
    def names(self) -> tuple[str, str, str]:
        postgres = isinstance(self.server, Postgres)
        return (DATABASE, self.name, "items") if postgres else (self.name, "", "items")

    def position(self) -> Position:
        """Return where the log ends now."""
        if isinstance(self.server, Postgres):
            query = "select (pg_current_wal_insert_lsn() - '0/0')::int8 as a"
            return (int(self.server.rows(query)[0]["a"]), 0, 0)
        file, at = self.server.position()
        return (int(file.rpartition(".")[2]), at, 0)

    def written(self) -> Position:
        """Return a place within the last change."""
        a, b, c = self.position()
        return (a, b - 1, c) if b else (a - 1, b, c)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Postgres | MariaDB]:
    folder = tmp_path_factory.mktemp(request.param)
    with Postgres(folder) if request.param == "postgresql" else MariaDB(folder) as server:
        yield server


@pytest.fixture
def server(running: Postgres | MariaDB, request: pytest.FixtureRequest) -> Server:
    name = f"shop{abs(hash(request.node.name)) % 10**9}"
    postgres = isinstance(running, Postgres)
    running.execute(f"create {'schema' if postgres else 'database'} {name};")
    made = Server(running, "postgresql" if postgres else "mariadb", name)
    made.execute(
        MADE.format(
            json="jsonb" if postgres else "json", bytes="bytea" if postgres else "varbinary(20)"
        )
    )
    return made


@dataclass
class Lake:
    """A log and a merged table, batch by batch."""

    folder: Path
    server: Server
    batch: int = -1
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> str:
        return str(self.folder / "items_log")

    def order(self, files: tuple[str, ...] = ()) -> MergeOrder:
        return MergeOrder(
            table="items",
            path=str(self.folder / "items"),
            tombstones=str(self.folder / "tombstones"),
            files=files,
            columns=COLUMNS,
            app_id=LIFE,
            batch=self.batch,
            now_us=NOW,
            log=self.log,
            arrival="unknown",
            **self.settings,
        )

    def add(self, events: pa.Table, *, merging: bool = True) -> None:
        """Write a batch into the log, and merge it."""
        self.batch += 1
        arrival = [
            pa.array([f"batch {self.batch}"] * events.num_rows),
            pa.array([0] * events.num_rows, pa.int32()),
            pa.array(range(events.num_rows), pa.int64()),
            pa.array([self.batch] * events.num_rows, pa.int64()),
        ]
        for name, values in zip(ARRIVAL.names, arrival, strict=True):
            if name in events.column_names:
                events = events.drop_columns([name])
            events = events.append_column(name, values)
        before = {*DeltaTable(self.log).file_uris()} if Path(self.log).exists() else set()
        for column in COLUMNS:
            if column.name not in events.column_names:
                events = events.append_column(column.name, pa.nulls(events.num_rows, column.type))
        names = [c.name for c in (*CHANGE_COLUMNS, *COLUMNS)] + ARRIVAL.names
        write_deltalake(self.log, events.select(names), mode="append")
        files = {*DeltaTable(self.log).file_uris()} - before
        if merging:
            merge_table(self.order(tuple(files)))

    def change(self, position: Position, op: str, *, age: float = 0, **values: Any) -> None:
        """Bring a change of the stream."""
        now = int((time.time() - age) * 1000)
        event = Event((1, 0, *position, 1, "0"), op, values, key=KEY, time=now)
        self.add(rows_of([event], COLUMNS))

    def compare(
        self, database: Database, *, sample: float | None = None, **more: Any
    ) -> tuple[SourceCheck, Wrong, Moment, Comparison]:
        merged = MergedTable(self.log, self.order())
        comparison = Comparison(merged, database, self.server.names, sample=sample, **more)
        return (*comparison.run(patience=5), comparison)

    def heal(self, database: Database) -> SourceCheck:
        """Bring what differs into the log, and return what a second comparison finds."""
        _, wrong, moment, comparison = self.compare(database)
        if wrong.count:
            self.add(
                events_of(
                    wrong,
                    moment,
                    key=comparison.key,
                    left_out=comparison.left_out,
                    incarnations=comparison.merged.incarnations,
                    address=database.address,
                )
            )
        return self.compare(database)[0]


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    connected = connect(parse_address(server.url))
    yield connected
    connected.close()


@pytest.fixture
def lake(server: Server, tmp_path: Path) -> Lake:
    """A lake that has every row of the database."""
    rows = ", ".join(
        f"({n}, '{name} {n}', {n}.5, '2024-01-01 00:00:{n % 60:02}.25',"
        f""" '{{"b": {n}, "a": [1]}}', '{n}', {n})"""
        for n in range(300)
        for name in ("a", "B", "ö")
    )
    server.execute(f"insert into items values {rows};")
    made = Lake(tmp_path, server)
    micros = 1_704_067_200_000_000
    values = {
        "order_id": [n for n in range(300) for _ in "aBö"],
        "name": [f"{c} {n}" for n in range(300) for c in "aBö"],
        "qty": [Decimal(f"{n}.500") for n in range(300) for _ in "aBö"],
        # without a schema, Debezium has milliseconds
        "at": [(micros + n % 60 * 1_000_000 + 250_000) // 1000 for n in range(300) for _ in "aBö"],
        "doc": [f'{{"a":[1],"b":{n}}}' for n in range(300) for _ in "aBö"],
        "data": [str(n).encode() for n in range(300) for _ in "aBö"],
        "spare": ["kept"] * 900,
    }
    position = server.position()
    events = [
        Event((0, 0, *position, 1, "0"), "read", dict(zip(values, row, strict=True)), key=KEY)
        for row in zip(*values.values(), strict=True)
    ]
    made.add(rows_of(events, COLUMNS))
    return made


def wrongs(check: SourceCheck) -> tuple[int, int, int]:
    return check.missing, check.extra, check.different


def test_a_lake_that_has_every_row_agrees(lake: Lake, database: Database) -> None:
    check, wrong, *_ = lake.compare(database)
    assert check.agrees, check
    assert (check.source_rows, check.lake_rows, wrong.count) == (900, 900, 0)
    assert check.source_checksum == check.lake_checksum
    assert check.only_in_source == ("own",)
    assert check.only_in_lake == ("spare",)


def test_each_kind_of_difference_is_named_although_one_has_many_rows(
    lake: Lake, server: Server, database: Database
) -> None:
    rows = ", ".join(f"({number}, '')" for number in range(2000, 2020))
    server.execute(
        f"insert into items (order_id, name) values {rows};"
        "update items set qty = -1 where order_id = 7 and name = 'B 7';"
        "delete from items where order_id = 8 and name = 'B 8';"
    )
    check = lake.compare(database)[0]
    assert wrongs(check) == (20, 1, 1)
    named = [(one.column, one.source is None, one.lake is None) for one in check.differences]
    # rows that are missing, one that only the lake has, one with both values
    assert named == [("", False, True)] * 8 + [("", True, False), ("qty", False, False)]


def test_what_the_stream_has_missed_is_named_and_healed(
    lake: Lake, server: Server, database: Database
) -> None:
    server.execute(
        "update items set qty = -1, doc = null where order_id = 7;"
        "delete from items where order_id = 8; insert into items (order_id, name) values (999, '');"
        "update items set order_id = 2000 where order_id = 9 and name = 'B 9';"
    )
    check = lake.compare(database)[0]
    assert wrongs(check) == (2, 4, 3)
    assert not check.agrees
    assert not check.passed
    by_key = {(one.key, one.column): (one.source, one.lake) for one in check.differences}
    assert by_key['{"name":"","order_id":999}', ""] == ("a row", None)
    assert by_key['{"name":"a 8","order_id":8}', ""] == (None, "a row")
    assert len(check.differences) == 10
    healed = lake.heal(database)
    assert healed.agrees, healed
    assert healed.source_rows == healed.lake_rows == 898
    # once more: nothing is left to do
    batch = lake.batch
    assert lake.heal(database).agrees
    assert lake.batch == batch
    rows = DeltaTable(lake.order().path).to_pyarrow_table().to_pylist()
    # of a column that only the lake has, a healed row keeps its value
    assert {row["spare"] for row in rows if row["order_id"] == 7} == {"kept"}
    # the log says so, too
    assert verify(lake.log, lake.order()).agrees
    rebuild(lake.log, lake.order())
    assert lake.compare(database)[0].agrees


def test_a_healed_row_wins_over_changes_before_it_and_loses_to_those_after(
    lake: Lake, server: Server, database: Database
) -> None:
    early = server.position()
    server.execute("update items set qty = 5 where order_id = 7 and name = 'a 7';")
    assert lake.heal(database).agrees
    lake.change(early, "update", order_id=7, name="a 7", qty=Decimal(-3))
    assert lake.compare(database)[0].agrees
    server.execute("delete from items where order_id = 7 and name = 'a 7';")
    lake.change(server.written(), "delete", order_id=7, name="a 7")
    assert lake.compare(database)[0].agrees
    # a wrong change with a place of before that comes late does not bring it back
    lake.change(early, "insert", order_id=7, name="a 7")
    assert lake.compare(database)[0].agrees


def test_rows_that_change_meanwhile_are_compared_as_they_were(
    lake: Lake, server: Server, database: Database
) -> None:
    server.execute("update items set qty = 0 where order_id = 20 and name = 'a 20';")
    done = []

    def change(what: str, *_: Any) -> None:
        if what == "waiting for the stream" or done:
            return
        done.append(what)
        server.execute(
            "update items set qty = 6 where order_id in (20, 21); delete from items where"
            " order_id = 22; insert into items (order_id, name) values (5000, 'new');"
        )
        at = server.written()
        for name in "aBö":
            lake.change(at, "update", order_id=20, name=f"{name} 20", qty=Decimal(6))
            lake.change(at, "update", order_id=21, name=f"{name} 21", qty=Decimal(6))
            lake.change(at, "delete", order_id=22, name=f"{name} 22")
        lake.change(at, "insert", order_id=5000, name="new")

    merged = MergedTable(lake.log, lake.order())
    comparison = Comparison(merged, database, server.names)
    opened = database.open

    def open_and_change(patience: float) -> Moment:
        moment = opened(patience)
        change("snapshot")
        return moment

    database.open = open_and_change  # type: ignore[method-assign]
    check = comparison.run(patience=5)[0]
    # what was wrong before the snapshot is found in the log, although the table is right by now
    assert wrongs(check) == (0, 0, 1), check
    assert check.passed
    assert check.differences[0].key == '{"name":"a 20","order_id":20}'


def test_a_table_that_is_not_its_log_is_told_apart(lake: Lake, database: Database) -> None:
    DeltaTable(lake.order().path).delete("order_id = 3")
    check, wrong, *_ = lake.compare(database)
    assert not check.agrees
    assert check.unlike_log == 3
    # the log is right: there is nothing to read again
    assert wrong.count == 0


def test_a_sample_counts_all_rows(lake: Lake, server: Server, database: Database) -> None:
    assert lake.compare(database, sample=0.5)[0].agrees
    server.execute("delete from items where order_id = 3;")
    check = lake.compare(database, sample=0.5)[0]
    assert (check.source_rows, check.lake_rows) == (897, 900)
    assert not check.agrees


def test_an_empty_table_agrees_and_what_it_has_lost_is_healed(
    lake: Lake, server: Server, database: Database
) -> None:
    server.execute("delete from items;")
    check = lake.heal(database)
    assert check.agrees
    assert check.source_rows == check.lake_rows == 0


def test_what_cannot_be_compared_is_refused_by_name(
    lake: Lake, server: Server, database: Database, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        database.describe((*server.names[:2], "itemz"))
    assert error.value.code is ErrorCode.NOT_FOUND
    lake.change((0, 0, 0), "update", order_id=1, name="a 1")
    with pytest.raises(ConfigError):
        lake.compare(database)


def test_a_server_that_is_behind_the_log_is_another_one(
    lake: Lake, server: Server, database: Database
) -> None:
    a, b, c = server.position()
    lake.change((a + 10**9, b, c), "update", age=3600, order_id=1, name="a 1")
    with pytest.raises(SourceError) as error:
        lake.compare(database)
    assert error.value.code is ErrorCode.SOURCE_UNCLEAR


def test_a_transaction_that_stays_open_is_named(server: Server, lake: Lake) -> None:
    if not isinstance(server.server, Postgres):
        pytest.skip("a snapshot of MariaDB stands between two transactions")
    writer, reader = (connect(parse_address(server.url)) for _ in range(2))
    try:
        writer._execute("begin")  # type: ignore[attr-defined]
        writer._execute(f"insert into {server.name}.items values (1, 'z')")  # type: ignore[attr-defined]
        with pytest.raises(SourceError) as error:
            reader.open(0.2)
        assert error.value.code is ErrorCode.SOURCE_BUSY
        assert "process" in error.value.evidence
        writer._execute("rollback")  # type: ignore[attr-defined]
        assert reader.open(0.2).low > (0, 0, 0)
    finally:
        writer.close()
        reader.close()


def test_a_password_is_never_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "wrong-and-secret")
    url = server.url.replace(server.server.password, "${SHOP_PASSWORD}")
    address = parse_address(with_variables(url))
    assert address.password == "wrong-and-secret"
    assert "secret" not in repr(address) + address.shown
    with pytest.raises(SourceError) as error:
        connect(address)
    assert "secret" not in json.dumps(error.value.as_dict())
    for bad in ("oracle://u:secret@h/d", "postgresql://u:secret@h:notaport/d", "u:secret@h"):
        with pytest.raises(ConfigError) as unfit:
            parse_address(bad)
        assert "secret" not in json.dumps(unfit.value.as_dict())


def test_slots_of_the_database_are_told_with_the_log_that_they_hold_back(server: Server) -> None:
    if not isinstance(server.server, Postgres):
        pytest.skip("readers of a binary log do not hold it back")
    name = server.name
    server.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    server.execute(f"select pg_create_physical_replication_slot('{name}_standby', true)")
    try:
        server.execute("insert into items select n, 'x' from generate_series(1, 1000) n")
        (slot,) = [each for each in ask_slots(server.url) if each.name == name]
        assert (slot.active, slot.lost, slot.database) == (False, False, DATABASE)
        assert slot.bytes > 50_000
        everything = connect(parse_address(server.url))
        assert f"{name}_standby" in {each.name for each in everything.slots()}
        everything.close()
    finally:
        server.execute(f"select pg_drop_replication_slot('{name}')")
        server.execute(f"select pg_drop_replication_slot('{name}_standby')")
    assert name not in {each.name for each in ask_slots(server.url)}


def test_more_rows_than_are_compared_by_value_are_a_difference_all_the_same(
    lake: Lake, server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("update items set qty = qty + 1 where order_id < 100;")
    # hashes of a few ranges at a time, and no row kept meanwhile
    monkeypatch.setattr(compare, "MOST_HASHES", 50)
    monkeypatch.setattr(compare, "MOST_KEPT", 0)
    check, wrong, *_ = lake.compare(database)
    assert wrongs(check) == (0, 0, 300)
    assert (check.cut_off, wrong.count) == (False, 300)
    monkeypatch.setattr(compare, "MOST_DIFFERENT", 120)
    check, wrong, *_ = lake.compare(database)
    assert wrongs(check) == (0, 0, 120)
    assert check.cut_off and not check.agrees
    server.execute("update items set qty = qty - 1 where order_id < 100;")
    check = lake.compare(database)[0]
    assert check.agrees and not check.cut_off


@pytest.mark.parametrize("rows", [0, 1, 10**6, 10**7, 10**12])
def test_a_large_table_has_more_ranges_of_hashes(rows: int) -> None:
    ranges = compare._Ranges(rows)
    assert 2**12 <= ranges.count <= 2**20
    assert ranges.count >= min(rows / compare.RANGE_ROWS / 2, 2**20)
    keys = np.array([0, 2**63, 2**64 - 1], np.uint64)
    assert ranges.of(keys).tolist() == [0, ranges.count // 2, ranges.count - 1]
