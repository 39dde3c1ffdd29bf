"""Servers that take over from each other, by a model of a database that has its own idea of order.

The model commits changes one after the other: that is their order. Events say something else:
positions, which count anew when a server takes over; times, which are those of statements; and they
may be sent again or, in files, come late.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.apply import merge_table
from distributary.changes.history import merge_history
from distributary.changes.rebuild import merge_in_order, rebuild, verify
from distributary.changes.shape import MergeOrder
from distributary.errors import ErrorCode, SourceWentBackError
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
        )


@st.composite
def databases(draw: st.DrawFn, *, servers: int = 3, ids: int = 3) -> list[Committed]:
    """What one to three servers commit, one after the other."""
    changes: list[Committed] = []
    clock = 1_700_000_000 * SECOND
    for server in range(draw(st.integers(1, servers))):
        # a server that takes over does so after the last commit of the one before
        clock += draw(st.integers(70, 10_000)) * SECOND
        began = clock
        file, at = draw(st.integers(1, 9)), 0
        for _ in range(draw(st.integers(1, 8))):
            at += draw(st.integers(1, 50))
            if draw(st.integers(0, 4)) == 0:
                file, at = file + 1, 4
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
        order = self.written(events, **settings)
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


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Committed], list[list[Event]]]:
    """What a connector sends: in order, and now and then some of it once more."""
    changes = draw(databases())
    sent: list[Committed] = []
    at = 0
    while at < len(changes):
        sent.append(changes[at])
        at += 1
        if draw(st.integers(0, 6)) == 0:
            # started again from an older offset, of the same server
            back = draw(st.integers(0, 4))
            first = next(n for n, c in enumerate(changes) if c.server == changes[at - 1].server)
            at = max(first, at - back)
    events = [change.event(offset) for offset, change in enumerate(sent)]
    return changes, cut(draw, events)


@given(streams())
def test_a_topic_is_what_the_database_says(
    stream: tuple[list[Committed], list[list[Event]]],
) -> None:
    changes, batches = stream
    with tempfile.TemporaryDirectory() as folder:
        shop = lake(folder)
        for batch in batches:
            if batch:
                shop.commit(batch)
        assert shop.found() == rows_of(changes)
        current = [row for row in shop.history() if row["_current"]]
        assert plain(current, "id", "price") == rows_of(changes)
        assert verify(shop.last.log, shop.last).agrees
        rebuild(shop.last.log, shop.last)
        assert shop.found() == rows_of(changes)


@st.composite
def folders(draw: st.DrawFn) -> tuple[list[Committed], list[list[Event]]]:
    """What Datastream writes: files of any order within a server's time."""
    changes = draw(databases())
    sent: list[Event] = []
    for server in sorted({change.server for change in changes}):
        own = [change for change in changes if change.server == server]
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
        time=1_700_000_000_000 + seconds * SECOND,
        uuid=f"{position}-{price}",
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


def test_a_table_that_was_merged_by_times_is_made_again_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = '{"read_method":"mysql-cdc-binlog"}'
    monkeypatch.setattr("tests.changes.logs._envelope", lambda event: envelope)
    shop = lake(str(tmp_path))
    first, second = change((7, 1000), 10, 1.0), change((7, 2000), 5, 2.0, offset=1)

    def with_time(event: Event) -> Event:
        return replace(event, place=(1, event.time or 0, *event.place[2:]))

    shop.commit([with_time(first), with_time(second)], arrival="files")
    assert prices(shop) == [1.0], "as times say it"
    other = replace(change((7, 3000), 20, 3.0, offset=2), values={"id": 2, "price": 3.0})
    late = change((7, 1500), 30, 4.0, offset=3)
    order = shop.written([other, late], arrival="files")
    merge_in_order(order)
    assert sorted(prices(shop)) == [2.0, 3.0], "as positions say it"
    assert all(row["_seq"][1] == 0 for row in shop.rows())
    assert verify(order.log, order).agrees
    merge_history(replace(order, path=str(tmp_path / "orders_history"), current=order.path))
    current = [row for row in shop.history() if row["_current"]]
    assert plain(current, "id", "price") == [(1, 2.0), (2, 3.0)]
