"""Servers that take over from each other, by a model of a database that has its own idea of order.

The model commits changes one after the other: that is their order. Events say something else:
positions, which count anew when a server takes over; times, which are those of statements; and they
may be sent again or, in files, come late.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.apply import events_schema, look_at, merge_table, prepare
from distributary.changes.events.incarnations import incarnations_of
from distributary.changes.events.log_events import read_in_turn
from distributary.changes.history import merge_history
from distributary.changes.merge_order import MergeOrder, RebuildNeededError
from distributary.changes.merge_target import MemoryTarget
from distributary.changes.rebuild import merge_in_order, rebuild, verify
from distributary.decode.change.envelope import log_name, transaction_of
from distributary.errors import ErrorCode, PublishError, SourceWentBackError
from distributary.model.change import READ_TIE
from tests.changes.logs import Event, Shop, plain

SECOND = 1_000


@dataclass(frozen=True)
class Committed:
    """A change as the model committed it."""

    number: int
    """The order in which the database committed: what no event says."""
    server: int
    position: tuple[int, int]
    time: int
    """Milliseconds: of the statement."""
    id: int
    op: str

    def event(self, offset: int) -> Event:
        place = (1, 0, *self.position, 0, 1, f"{offset:019}")
        values: dict[str, Any] = {"id": self.id, "region": "EU", "price": float(self.number)}
        return Event(
            place,
            self.op,
            values,
            deleted=self.op == "delete",
            offset=offset,
            time=self.time,
            uuid=f"{self.server}-{self.position}-{self.id}",
            hash=self.number + 1,
        )


@st.composite
def databases(draw: st.DrawFn, *, servers: int = 3, ids: int = 3) -> list[Committed]:
    """What one to three servers commit, one after the other."""
    changes: list[Committed] = []
    clock = 1_700_000_000 * SECOND
    for server in range(draw(st.integers(1, servers))):
        # a server that takes over does so after the last commit of the one before
        clock += draw(st.integers(70, 10_000)) * SECOND
        # no statement waits while the log goes on by two files
        began = rotated = clock
        file, at = draw(st.integers(1, 9)), 0
        for _ in range(draw(st.integers(1, 8))):
            at += draw(st.integers(1, 50))
            if draw(st.integers(0, 4)) == 0:
                file, at = file + 1, 4
                began, rotated = rotated, clock
            clock += draw(st.integers(0, 5)) * SECOND
            waited = draw(st.integers(0, 30)) * SECOND
            op = draw(st.sampled_from(["update", "update", "update", "delete"]))
            changes.append(
                Committed(
                    len(changes),
                    server,
                    (file, at),
                    max(began, clock - waited),
                    draw(st.integers(1, ids)),
                    op,
                )
            )
    return changes


def rows_of(changes: Sequence[Committed]) -> list[tuple[Any, ...]]:
    """The rows of the database: each as its last commit left it."""
    state: dict[int, tuple[Any, ...]] = {}
    for change in sorted(changes, key=lambda each: each.number):
        if change.op == "delete":
            state.pop(change.id, None)
        else:
            state[change.id] = (change.id, float(change.number))
    return sorted(state.values())


@dataclass
class Lake(Shop):
    """A shop whose log is a table, as a pipeline has it."""

    seen: set[str] = field(default_factory=set)
    last: MergeOrder = field(init=False)
    """The last batch that was merged."""
    waiting: MergeOrder = field(init=False)
    """The last batch."""

    def commit(self, events: Sequence[Event], **settings: Any) -> None:
        """Write a batch into the log, without what it has, and merge it."""
        self.merge(self.written(events, **settings))

    def merge(self, order: MergeOrder) -> None:
        """Merge a batch that the log has, and bring the history up to date."""
        merge_in_order(order)
        merge_history(replace(order, path=str(self.folder / "orders_history"), current=order.path))
        self.last = order

    def written(self, events: Sequence[Event], **settings: Any) -> MergeOrder:
        """Write a batch into the log, without what it has."""
        fresh = [event for event in events if event.uuid not in self.seen]
        self.seen.update(event.uuid for event in fresh)
        log = str(self.folder / "log" / "table")
        order = self.waiting = self.order(fresh, **{"log": log, **settings})
        rows = pq.read_table(order.files[0])
        write_deltalake(log, rows, mode="append", schema_mode="merge")
        return order

    def found(self) -> list[tuple[Any, ...]]:
        return plain(self.rows(), "id", "price")


def lake(folder: str) -> Lake:
    made = Lake(Path(folder), settings={"arrival": "partitions"})
    return made


def cut(draw: st.DrawFn, events: Sequence[Event]) -> list[list[Event]]:
    """Cut a stream into batches."""
    ends = sorted(draw(st.lists(st.integers(0, len(events)), max_size=4)))
    return [list(events[a:b]) for a, b in zip([0, *ends], [*ends, len(events)], strict=True)]


# Servers behind a connector: replicas that have the transactions of the server before them at other
# positions of their own logs, dumps that are put back elsewhere, logs that begin anew.

Ids = Literal["mariadb", "mysql", "none"]
"""How transactions are numbered in events."""
Row = tuple[int, float]
_SLOW = -20
"""Seconds by which a clock may be slow without a doubt: servers need longer to take over."""


@dataclass
class Server:
    """A server and its log: changes, each at a position of this log."""

    number: int
    ids: Ids
    server_id: int
    skew: int
    """Seconds by which its clock differs."""
    file: int
    at: int = 0
    log: list[Logged] = field(default_factory=list)
    transactions: dict[int, int] = field(default_factory=dict)
    """The last number that each server has given to a transaction, as far as this one knows."""

    def add(self, change: Committed, gtid: str | None, step: int) -> None:
        if step % 5 == 0:
            self.file, self.at = self.file + 1, 0
        self.at += step
        self.log.append(Logged(change, gtid, self.server_id, (self.file, self.at)))

    def gtid(self) -> str | None:
        """Number the next transaction that is committed here."""
        if self.ids == "none":
            return None
        shared = self.ids == "mariadb"
        last = max(self.transactions.values(), default=0) if shared else 0
        number = max(self.transactions.get(self.server_id, 0), last) + 1
        self.transactions[self.server_id] = number
        return f"0-{self.server_id}-{number}" if shared else f"uuid-{self.server_id}:{number}"


@dataclass(frozen=True)
class Logged:
    """A change in the log of a server."""

    change: Committed
    gtid: str | None
    server_id: int
    """Of the server that committed it."""
    position: tuple[int, int]

    def event(self, offset: int) -> Event:
        change = self.change
        place = (1, 0, *self.position, 0, 1, f"{offset:019}")
        source = {"server_id": self.server_id, "gtid": self.gtid, "snapshot": "false"}
        # the hash has all but the position, as Debezium's events have it
        content = zlib.crc32(f"{change.number} {change.time} {source}".encode())
        return Event(
            place,
            change.op,
            {"id": change.id, "region": "EU", "price": float(change.number)},
            deleted=change.op == "delete",
            offset=offset,
            time=change.time,
            uuid=f"{self.position}-{content}",
            hash=content,
            source=source,
        )


def read_row(row: Row, server: Server, time: int, offset: int) -> Event:
    """A row of a snapshot."""
    place = (0, 0, server.file, server.at + 1, 0, 1, f"{offset:019}")
    source = {"server_id": 0, "gtid": None, "snapshot": "true"}
    content = zlib.crc32(f"{row} {time} {server.number}".encode())
    return Event(
        place,
        "read",
        {"id": row[0], "region": "EU", "price": row[1]},
        deleted=False,
        offset=offset,
        time=time,
        uuid=f"{place[2:4]}-{content}",
        hash=content,
        source=source,
    )


class Cluster:
    """Servers that take over from each other, and what a connector sends of them."""

    def __init__(self, draw: st.DrawFn, ids: Ids) -> None:
        self.draw, self.ids = draw, ids
        self.clock = 1_700_000_000
        self.server = self._server(server_id=1, file=draw(st.integers(1, 60)))
        self.changes: list[Committed] = []
        self.events: list[Event] = []
        self.sent = 0
        """How much of the server's log the connector has sent."""
        self.read = 0
        """Where the connector has begun in the log of this server."""
        self.renumbered = False
        """Whether the numbers of transactions have begun again."""
        self.is_doubtful = False
        """Whether a clock was slow while numbers decided nothing: an operator may be asked."""

    def _server(self, *, server_id: int, file: int, skew: int = 0) -> Server:
        number = 0 if not hasattr(self, "server") else self.server.number + 1
        return Server(number, self.ids, server_id, skew, file)

    def write(self, count: int, *, deletes: bool = True) -> None:
        """Commit some transactions of one or two changes each."""
        draw, server = self.draw, self.server
        began = self.clock
        for _ in range(count):
            self.clock += draw(st.integers(0, 5))
            gtid = server.gtid()
            for _ in range(draw(st.sampled_from([1, 1, 2]))):
                time = max(began, self.clock - draw(st.integers(0, 30))) + server.skew
                words = ["update", "update", "delete"] if deletes else ["update"]
                change = Committed(
                    len(self.changes),
                    server.number,
                    (0, 0),
                    time * SECOND,
                    draw(st.integers(1, 3)),
                    draw(st.sampled_from(words)),
                )
                self.changes.append(change)
                server.add(change, gtid, draw(st.integers(1, 50)))

    def send(self, *, back: int = 0) -> None:
        """Send what was not sent, and some of what was before it, in the order of the log."""
        for logged in self.server.log[max(self.read, self.sent - back) :]:
            self.events.append(logged.event(len(self.events)))
        self.sent = len(self.server.log)

    def snapshot(self) -> None:
        """Send all rows as they are, and go on behind them."""
        # the rows of a snapshot have no transaction whose number could decide
        self.is_doubtful |= self.server.skew < _SLOW
        for row in rows_of(self.changes):
            time = (self.clock + self.server.skew) * SECOND
            self.events.append(read_row(row, self.server, time, len(self.events)))
        self.sent = self.read = len(self.server.log)

    def promote(self) -> None:
        """Have a replica take over: its log has the transactions of the server before it."""
        draw, before = self.draw, self.server
        self.clock += draw(st.integers(1, 200))
        skew = self._skew([0, 0, -20, -7200])
        server = self._server(
            server_id=before.server_id + 1, file=draw(st.integers(1, 60)), skew=skew
        )
        server.transactions = dict(before.transactions)
        for logged in before.log:
            server.add(logged.change, logged.gtid, draw(st.integers(1, 50)))
            server.log[-1] = replace(server.log[-1], server_id=logged.server_id)
        self.server = server

    def restore(self) -> None:
        """Put a dump back on a server whose log begins anew, and so do its numbers."""
        self.clock += self.draw(st.integers(40, 200))
        server_id = self.draw(st.sampled_from([1, self.server.server_id, 9]))
        self.renumbered = True
        self.server = self._server(
            server_id=server_id,
            file=self.draw(st.integers(1, 3)),
            skew=self._skew([0, 0, 0, -300, -7200]),
        )
        self.sent = self.read = 0

    def _skew(self, seconds: Sequence[int]) -> int:
        """Draw by how much the clock of the next server differs."""
        skew = self.draw(st.sampled_from(seconds))
        numbered = self.ids == "mariadb" and not self.renumbered
        self.is_doubtful |= skew < _SLOW and not numbered
        return skew


@st.composite
def streams(draw: st.DrawFn) -> tuple[Cluster, list[list[Event]]]:
    """What a connector sends of servers that take over, and now and then some of it once more."""
    cluster = Cluster(draw, draw(st.sampled_from(["mariadb", "mysql", "none"])))
    cluster.write(draw(st.integers(1, 4)))
    if draw(st.booleans()):
        cluster.snapshot()
    for _ in range(draw(st.integers(1, 4))):
        cluster.write(draw(st.integers(1, 4)))
        cluster.send(back=draw(st.sampled_from([0, 0, 1, 5])))
        step = draw(st.sampled_from(["promote", "promote", "restore", "snapshot", "nothing"]))
        if step == "promote":
            cluster.promote()
        elif step == "restore":
            cluster.restore()
            if draw(st.booleans()):
                # what happens before the connector is there is in its snapshot alone
                cluster.write(draw(st.integers(0, 3)), deletes=False)
                cluster.snapshot()
        elif step == "snapshot":
            cluster.write(draw(st.integers(0, 3)), deletes=False)
            cluster.snapshot()
    cluster.write(draw(st.integers(0, 3)))
    cluster.send(back=draw(st.sampled_from([0, 0, 1, 5])))
    return cluster, cut(draw, cluster.events)


@given(streams())
def test_a_topic_is_what_the_database_says(stream: tuple[Cluster, list[list[Event]]]) -> None:
    cluster, batches = stream
    rows = rows_of(cluster.changes)
    with tempfile.TemporaryDirectory() as folder:
        shop = lake(folder)
        for batch in batches:
            if batch:
                try:
                    shop.commit(batch)
                except SourceWentBackError:
                    assert cluster.is_doubtful
                    shop.merge(replace(shop.waiting, undecided="replaced"))
        assert shop.found() == rows
        current = [row for row in shop.history() if row["_current"]]
        assert plain(current, "id", "price") == rows
        assert verify(shop.last.log, shop.last).agrees
        rebuild(shop.last.log, shop.last)
        assert shop.found() == rows


@st.composite
def folders(draw: st.DrawFn) -> tuple[list[Committed], list[list[Event]]]:
    """What Datastream writes: files of any order, those of an earlier server also late."""
    changes = draw(databases())
    late = draw(st.booleans())
    sent: list[Event] = []
    for server in sorted({0 if late else change.server for change in changes}):
        own = [change for change in changes if late or change.server == server]
        for change in draw(st.permutations(own)):
            sent.append(change.event(len(sent)))
    return changes, cut(draw, sent)


@given(folders())
def test_a_folder_is_what_the_database_says(
    stream: tuple[list[Committed], list[list[Event]]],
) -> None:
    changes, batches = stream
    with tempfile.TemporaryDirectory() as folder:
        shop = lake(folder)
        for batch in batches:
            if batch:
                shop.commit(batch, arrival="files")
        assert shop.found() == rows_of(changes)
        current = [row for row in shop.history() if row["_current"]]
        assert plain(current, "id", "price") == rows_of(changes)
        assert verify(shop.last.log, shop.last).agrees


def change(position: tuple[int, int], seconds: int, price: float, **more: Any) -> Event:
    """A change of the one row at a position, some seconds after noon."""
    known: dict[str, Any] = {"op": "update", "offset": 0, "phase": 1, **more}
    values = {"id": 1, "region": "EU", "price": price}
    place = (known["phase"], 0, *position, 0, 1, f"{known['offset']:019}")
    return Event(
        place,
        known["op"],
        values,
        deleted=known["op"] == "delete",
        offset=known["offset"],
        partition=known.get("partition", 0),
        time=1_700_000_000_000 + seconds * SECOND,
        uuid=f"{position}-{price}",
        hash=zlib.crc32(f"{price} {seconds}".encode()),
        source={
            "gtid": known.get("gtid"),
            "server_id": known.get("server_id", 1),
            "snapshot": known.get("snapshot", "false" if known["phase"] else "true"),
            "file": known.get("file"),
        },
    )


def prices(shop: Lake) -> list[float]:
    return [price for _, price in shop.found()]


@pytest.mark.parametrize("turned", [False, True])
def test_a_statement_that_waited_for_a_lock_wins(tmp_path: Path, turned: bool) -> None:
    shop = lake(str(tmp_path))
    events = [change((7, 1000), 10, 1.0), change((7, 2000), 5, 2.0, offset=1)]
    for event in reversed(events) if turned else events:
        shop.commit([event], arrival="files")
    assert prices(shop) == [2.0]


def test_a_snapshot_of_a_new_server_heals(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0)])
    # rows that were read lose to any change, but not to one of a server that is gone
    shop.commit([change((3, 4), 100, 2.0, offset=1, phase=0, op="read")])
    assert prices(shop) == [2.0]
    shop.commit([change((3, 200), 200, 3.0, offset=2)])
    assert prices(shop) == [3.0]


def starts(shop: Lake) -> int:
    return len(incarnations_of(shop.last.path).starts)


def test_an_older_offset_of_a_server_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    old = change((57, 1000), 0, 1.0, gtid="0-1-5")
    shop.commit([old, change((57, 2000), 1, 2.0, offset=1, gtid="0-1-6")])
    new = change((3, 600), 10, 3.0, offset=2, gtid="0-2-7", server_id=2)
    shop.commit([new])
    # the replica that took over has the transactions of the server before it elsewhere in its log
    again = replace(old, place=(1, 0, 3, 300, 0, 1, f"{3:019}"), offset=3, uuid="another place")
    shop.commit([again])
    assert prices(shop) == [3.0]
    assert starts(shop) == 1


@pytest.mark.parametrize("seconds", [-7200, -10])
def test_numbers_that_begin_again_with_a_slow_clock_are_refused(
    tmp_path: Path, seconds: int
) -> None:
    for word, expected in (("replaced", [2.0, 3.0]), ("repeated", [1.0, 1.0])):
        shop = lake(str(tmp_path / word))
        shop.commit([change((57, 1000), 0, 1.0, gtid="0-1-500")])
        # a dump was restored on a server that counts anew; or a dead letter is sent again
        with pytest.raises(SourceWentBackError, match="by transaction 0-1-5, after 0-1-500"):
            shop.commit([change((3, 4), seconds, 2.0, offset=1, gtid="0-1-5")])
        assert prices(shop) == [1.0]
        merge_table(replace(shop.waiting, undecided=word))
        assert prices(shop) == expected[:1]
        # the answer holds for what follows, as long as positions and numbers go up
        later = change((3, 8), seconds + 1, 3.0, offset=2, gtid="0-1-6")
        shop.commit([later], undecided="repeated" if word == "repeated" else "refuse")
        assert prices(shop) == expected[1:]
        assert verify(shop.last.log, shop.last).agrees
        rebuild(shop.last.log, shop.last)
        assert prices(shop) == expected[1:]


def test_numbers_that_begin_again_without_the_time_of_the_source_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flattened(event: Event) -> str:
        return json.dumps({"__source_gtid": event.source["gtid"]})

    monkeypatch.setattr("tests.changes.logs._envelope", flattened)
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0, gtid="0-1-500")])
    # the time is that of the connector, and says nothing about the source
    with pytest.raises(SourceWentBackError):
        shop.commit([change((3, 4), 100, 2.0, offset=1, gtid="0-1-5")])


@pytest.mark.parametrize("gtids", [("0-1-4", "0-1-5", "0-1-6"), (None, None, None)])
@pytest.mark.parametrize("seconds", [10, 25, -7200])
def test_a_partition_that_was_overtaken_changes_nothing(
    tmp_path: Path, gtids: tuple[str | None, ...], seconds: int
) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((7, 500), seconds - 10, 1.0, gtid=gtids[0], offset=10)])
    # the topic was given a second partition, which is read first
    shop.commit([change((7, 2000), 30, 3.0, gtid=gtids[2], partition=1)])
    shop.commit([change((7, 1000), seconds, 2.0, gtid=gtids[1], offset=11)])
    assert prices(shop) == [3.0]
    assert starts(shop) == 0


def test_a_row_that_was_healed_overtakes_no_partition(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    healed = change((57, 1000), 0, 1.0, op="read", partition=1)
    shop.commit([replace(healed, place=(*healed.place[:6], READ_TIE))], arrival="unknown")
    shop.commit([change((3, 4), 10, 2.0)])
    assert prices(shop) == [2.0]
    assert starts(shop) == 1


def test_two_servers_may_have_a_row_at_one_position(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((1, 700), 0, 1.0, gtid="0-1-5")])
    shop.commit([change((1, 900), 1, 2.0, offset=1, gtid="0-1-6")])
    shop.commit([change((1, 700), 9, 3.0, offset=2, gtid="0-9-1", server_id=9)])
    assert prices(shop) == [3.0]
    # so may one whose transactions have no numbers
    shop.commit([change((1, 650), 19, 4.0, offset=3, server_id=3)])
    shop.commit([change((1, 640), 20, 5.0, offset=4, server_id=4)])
    assert prices(shop) == [5.0]


def test_a_clock_that_is_wrong_does_not_matter_where_transactions_have_numbers(
    tmp_path: Path,
) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0, gtid="0-1-5")])
    shop.commit([change((3, 4), -7200, 2.0, offset=1, gtid="0-2-6", server_id=2)])
    assert prices(shop) == [2.0]
    # numbers of two servers of MySQL say nothing about each other
    other = lake(str(tmp_path / "mysql"))
    other.commit([change((57, 1000), 0, 1.0, gtid="aaaa:5")])
    with pytest.raises(SourceWentBackError):
        other.commit([change((3, 4), -7200, 2.0, offset=1, gtid="bbbb:1", server_id=2)])


def test_a_log_of_another_name_is_of_another_server(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0, file="mysql-bin.000057")])
    # its clock is two hours slow
    shop.commit([change((3, 4), -7200, 2.0, offset=1, file="binlog.000003")])
    assert prices(shop) == [2.0]
    assert starts(shop) == 1
    # the same position in two logs is not one place
    shop.commit([change((3, 4), -7000, 3.0, offset=2, file="third.000003")])
    assert prices(shop) == [3.0]
    # the same name decides nothing
    with pytest.raises(SourceWentBackError):
        shop.commit([change((2, 4), -9000, 4.0, offset=3, file="third.000002")])


@pytest.mark.parametrize(
    ("envelope", "name", "number"),
    [
        ({"source": {"file": "mysql-bin.000003", "gtid": "aaaa:7"}}, "mysql-bin", 7),
        ({"source": {"file": "a.b.000003", "gtid": "0-1-8"}}, "a.b", 8),
        ({"__source_file": "binlog.000003", "__source_gtid": "0-1-8"}, "binlog", 8),
        ({"source_metadata": {"log_file": "mysql-bin.000131"}}, "mysql-bin", None),
        ({"source_metadata": {"binlog_file": "b.1", "gtid": "aaaa:9"}}, "b", 9),
        ({"position": "master.000006:800911", "gtid": "ff2e:1"}, "master", 1),
        ({"source": {"lsn": 1}}, "", None),
        ({"source_metadata": {"log_file": ""}, "position": 7}, "", None),
    ],
)
def test_envelopes_of_each_writer_name_log_and_transaction(
    envelope: dict[str, Any], name: str, number: int | None
) -> None:
    assert log_name(envelope) == name
    transaction = transaction_of(envelope)
    assert (transaction.number if transaction else None) == number


def test_servers_that_write_in_turns_into_one_log_are_one_source(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    for number in range(6):
        # a log has the changes of other servers under their own numbers
        server = 1 + number % 2
        at, gtid = (7, 100 * (number + 1)), f"{server}-{server}-{100 - number}"
        written = change(at, number, float(number), offset=number, gtid=gtid, server_id=server)
        shop.commit([written])
    assert prices(shop) == [5.0]
    assert starts(shop) == 0


def test_a_second_snapshot_has_what_was_not_sent(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((7, 100), 0, 1.0)])
    # the log was gone before the connector had read it: it begins with a snapshot
    shop.commit([change((7, 900), 100, 2.0, offset=1, phase=0, op="read")])
    assert prices(shop) == [2.0]
    shop.commit([change((7, 950), 101, 3.0, offset=2)])
    assert prices(shop) == [3.0]
    assert starts(shop) == 1
    rebuild(shop.last.log, shop.last)
    assert prices(shop) == [3.0]


def test_a_snapshot_of_a_new_server_wins_against_the_snapshot_before(tmp_path: Path) -> None:
    for together in (False, True):
        shop = lake(str(tmp_path / str(together)))
        first = change((57, 1000), 0, 1.0, phase=0, op="read")
        second = change((3, 4), 100, 2.0, offset=1, phase=0, op="read")
        for batch in [[first, second]] if together else [[first], [second]]:
            shop.commit(batch)
        assert prices(shop) == [2.0]


def test_a_table_that_was_emptied_gets_the_rows_of_a_new_server(tmp_path: Path) -> None:
    emptied = replace(change((57, 1000), 0, 0.0, op="truncate", offset=1), key=())
    first = change((57, 900), -1, 1.0)
    again = replace(first, offset=2, uuid="of another shape", hash=9)
    second = change((3, 4), 100, 2.0, offset=3, op="insert")
    for number, batches in enumerate(
        ([[first, emptied], [again], [second]], [[first, emptied, again, second]])
    ):
        shop = lake(str(tmp_path / str(number)))
        for batch in batches:
            shop.commit(batch)
            assert prices(shop) == ([2.0] if second in batch else [])
        assert starts(shop) == 1


def test_rows_of_an_incremental_snapshot_begin_nothing(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((7, 100), 0, 1.0)])
    known = {"phase": 0, "op": "read", "snapshot": "incremental"}
    shop.commit([change((7, 100), 50, 1.0, offset=1, **known)])
    assert starts(shop) == 0


def test_a_row_that_was_deleted_comes_back_with_a_new_server(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0), change((57, 2000), 1, 2.0, op="delete", offset=1)])
    assert prices(shop) == []
    shop.commit([change((3, 4), 100, 3.0, offset=2, op="insert")])
    assert prices(shop) == [3.0]


def test_an_event_with_another_shape_that_was_sent_before_is_known(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    first, second = change((7, 1), 0, 1.0), change((7, 2), 1, 2.0, offset=1)
    shop.commit([first, second])
    # a column was added meanwhile: the connector sends the old position with another content
    shop.commit([replace(first, offset=2, uuid="other")])
    assert prices(shop) == [2.0]


def test_what_cannot_be_decided_is_refused_until_an_operator_says(tmp_path: Path) -> None:
    for word, expected in (("replaced", [2.0, 3.0]), ("repeated", [1.0, 1.0])):
        shop = lake(str(tmp_path / word))
        shop.commit([change((57, 1000), 0, 1.0)])
        old = change((3, 4), -7200, 2.0, offset=1)
        with pytest.raises(SourceWentBackError) as caught:
            shop.commit([old])
        assert caught.value.code is ErrorCode.SOURCE_WENT_BACK
        assert prices(shop) == [1.0]
        merge_table(replace(shop.waiting, undecided=word))
        assert prices(shop) == expected[:1]
        shop.commit([change((3, 8), -7000, 3.0, offset=2)], undecided=word)
        assert prices(shop) == expected[1:]
        # what was said holds for whatever is made of the log later
        rebuild(shop.last.log, shop.last)
        assert prices(shop) == expected[1:]
        assert verify(shop.last.log, shop.last).agrees


def test_a_history_of_files_is_numbered_again_when_a_server_is_found_late(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    first = change((7, 1000), 0, 1.0)
    # of a row that nobody has seen before: nothing shows that another server has it
    other = replace(change((3, 4), 100, 2.0, offset=1), values={"id": 2, "price": 2.0})
    shop.commit([first, other], arrival="files")
    assert not incarnations_of(shop.last.path).starts
    found = change((3, 8), 101, 3.0, offset=2)
    late = replace(change((7, 2000), 5, 4.0, offset=3), values={"id": 2, "price": 4.0})
    shop.commit([found, late], arrival="files")
    assert len(incarnations_of(shop.last.path).starts) == 1
    assert sorted(prices(shop)) == [2.0, 3.0]
    versions = plain(shop.history(), "id", "price", "_current")
    assert versions == [(1, 1.0, False), (1, 3.0, True), (2, 2.0, True), (2, 4.0, False)]
    # the same batch again adds nothing
    merge_history(replace(shop.last, path=str(tmp_path / "orders_history"), current=shop.last.path))
    assert plain(shop.history(), "id", "price", "_current") == versions


def test_a_server_is_known_although_the_table_has_no_row_yet(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    gone = change((3, 4), 100, 2.0, offset=1, op="delete")
    shop.commit([change((7, 1000), 0, 1.0), gone])
    assert prices(shop) == []
    assert len(incarnations_of(shop.last.path).starts) == 1
    assert plain(shop.history(), "price", "_current") == [(1.0, False), (2.0, False)]
    shop.commit([change((3, 8), 101, 3.0, offset=2)])
    assert prices(shop) == [3.0]
    assert len(incarnations_of(shop.last.path).starts) == 1


def test_in_files_a_removed_row_shows_that_another_server_has_it(tmp_path: Path) -> None:
    for seconds, expected in ((100, [3.0]), (5, [])):
        shop = lake(str(tmp_path / str(seconds)))
        removal = change((7, 2000), 10, 2.0, offset=1, op="delete")
        other = replace(change((7, 1), 0, 1.0, offset=2), values={"id": 2, "price": 1.0})
        shop.commit([change((7, 1000), 0, 1.0), removal, other], arrival="files")
        # the tombstone has no time: that of the delete is in the log
        shop.commit([change((3, 4), seconds, 3.0, offset=3)], arrival="files")
        assert [price for price in prices(shop) if price != 1.0] == expected
        assert verify(shop.last.log, shop.last).agrees


def test_a_statement_waited_on_the_new_server(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((7, 2000), 10, 1.0)], arrival="files")
    # the second one began a second before the first, and was committed after it
    waited = change((9, 8), 100, 3.0, offset=2)
    shop.commit([change((3, 4), 101, 2.0, offset=1), waited], arrival="files")
    assert prices(shop) == [3.0]
    assert starts(shop) == 1


def test_a_late_file_of_the_server_before_loses(tmp_path: Path) -> None:
    old, new = change((7, 2000), 10, 1.0), change((3, 4), 100, 2.0, offset=1)
    removed = change((3, 9), 101, 3.0, op="delete", offset=2)
    for number, batches in enumerate(
        ([[new], [old]], [[new, old]], [[old], [new]], [[new, removed], [old]])
    ):
        shop = lake(str(tmp_path / str(number)))
        for batch in batches:
            shop.commit(batch, arrival="files")
        assert prices(shop) == ([] if number == 3 else [2.0])
        assert starts(shop) == 1
        assert verify(shop.last.log, shop.last).agrees
        rebuild(shop.last.log, shop.last)
        assert prices(shop) == ([] if number == 3 else [2.0])


def test_without_a_log_times_decide(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0)])
    shop.commit([change((57, 500), -5, 9.0, offset=1)], log="")
    assert prices(shop) == [1.0]
    shop.commit([change((3, 4), 3600, 2.0, offset=2)], log="")
    assert prices(shop) == [2.0]
    with pytest.raises(SourceWentBackError):
        shop.commit([change((2, 4), 3630, 3.0, offset=3)], log="")


def test_dead_letters_that_are_sent_again_begin_nothing(tmp_path: Path) -> None:
    shop = lake(str(tmp_path))
    shop.commit([change((57, 1000), 0, 1.0, offset=5)])
    shop.commit([change((3, 4), 100, 2.0, offset=6)])
    letter = change((57, 900), -1, 9.0, offset=4)
    shop.commit([letter], arrival="unknown")
    assert prices(shop) == [2.0]


@pytest.mark.parametrize("id_", [1, 2], ids=["a row of the table", "another row"])
def test_a_table_that_was_merged_by_times_is_made_again_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_: int
) -> None:
    envelope = '{"read_method":"mysql-cdc-binlog"}'
    monkeypatch.setattr("tests.changes.logs._envelope", lambda event: envelope)
    shop = lake(str(tmp_path))
    first, second = change((7, 1000), 10, 1.0), change((7, 2000), 5, 2.0, offset=1)

    def with_time(event: Event) -> Event:
        return replace(event, place=(1, event.time or 0, *event.place[2:]))

    shop.commit([with_time(first), with_time(second)], arrival="files")
    assert prices(shop) == [1.0], "as times say it"
    late = replace(change((7, 1500), 30, 4.0, offset=3), values={"id": id_, "price": 4.0})
    order = shop.written([late], arrival="files")
    merge_in_order(order)
    rows = [(1, 2.0), (2, 4.0)][:id_]
    assert sorted(plain(shop.rows(), "id", "price")) == rows, "as positions say it"
    assert all(row["_seq"][1] == 0 for row in shop.rows())
    assert (
        DeltaTable(tmp_path / "orders").metadata().configuration["distributary.order"] == "position"
    )
    assert verify(order.log, order).agrees
    history = replace(order, path=str(tmp_path / "orders_history"), current=order.path)
    merge_history(history)
    current = [row for row in shop.history() if row["_current"]]
    assert plain(current, "id", "price") == rows
    assert all(row["_seq"][1] == 0 for row in shop.history())


def test_a_table_by_times_that_only_spark_may_write_is_not_sent_to_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = '{"read_method":"mysql-cdc-binlog"}'
    monkeypatch.setattr("tests.changes.logs._envelope", lambda event: envelope)
    shop = lake(str(tmp_path))
    first = change((7, 1000), 10, 1.0)
    shop.commit([replace(first, place=(1, 10, *first.place[2:]))], arrival="files")
    table = DeltaTable(tmp_path / "orders")
    table.alter.add_constraint({"placed": "_seq IS NOT NULL"})
    order = shop.written([change((7, 1500), 30, 4.0, offset=3)], arrival="files")
    before, columns = look_at(order)
    assert before is not None
    target = MemoryTarget(before.rows(columns.schema))
    ((events, _),) = read_in_turn(order.files, events_schema(columns))
    with pytest.raises(RebuildNeededError) as caught:
        prepare(order, before, columns, events, target)
    assert "move the folder of the table away" in caught.value.next_step
    with pytest.raises(PublishError):
        rebuild(order.log, replace(order, batch=-1))
    Path(order.path).rename(tmp_path / "away")
    rebuild(order.log, replace(order, batch=-1))
    assert prices(shop) == [4.0]
