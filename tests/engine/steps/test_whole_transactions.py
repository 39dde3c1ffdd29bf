"""Batches of change data end where transactions of the source end."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.cdc import TransactionsConfig
from distributary.config.load import load_text
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import RunSummary, StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.steps.whole_transactions import End, cut_before, read_ends, read_events
from distributary.errors import DistributaryError
from distributary.model.manifest import SourceRange
from distributary.model.record import RAW, Partition
from distributary.observe.events import BatchSettled, Event, RecordsHeld
from distributary.source.base import BatchInput, Position
from distributary.spark.in_process import in_process

E = TypeVar("E", bound=Event)
ENDS = "bank.transaction"
PIPELINE = """\
name: bank
source: {{type: kafka, bootstrap_servers: "broker:9092", topic_pattern: "bank.*"}}
payload: {{format: json}}
tables: {{each: "{{table}}"}}
cdc: {{format: debezium{cdc}}}
lake: {{path: {lake}}}
"""
Message = tuple[bytes | None, Any]


class Topics:
    """Partitions in memory, read as Kafka's are: a share of each one's backlog at a time."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.messages: dict[Partition, list[Message]] = {}
        self.most = most
        self.age = 0.0
        """The age of messages in seconds, of those that are written from now on."""
        self._times: dict[Partition, list[int]] = {}

    def write(self, topic: str, value: Any, *, key: Any = None, partition: int = 0) -> None:
        place = topic, partition
        known = None if key is None else json.dumps(key).encode()
        self.messages.setdefault(place, []).append((known, value))
        moment = int((time.time() - self.age) * 1e6)
        self._times.setdefault(place, []).append(moment)

    def first(self) -> Position:
        return {"offsets": []}

    def newest(self) -> Position:
        return _position({place: len(messages) for place, messages in self.messages.items()})

    def advance(self, start: Position, until: Position) -> Position | None:
        before, ends = _offsets(start), _offsets(until)
        left = {place: end - before.get(place, 0) for place, end in ends.items()}
        total = sum(left.values())
        if not total:
            return None
        share = min(1.0, self.most / total)
        taken = {place: -int(-count * share // 1) for place, count in left.items()}
        return _position({place: before.get(place, 0) + count for place, count in taken.items()})

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        return _position(_offsets(start) | {(r.topic, r.partition): r.end for r in ranges})

    def open(self, spark: Any, start: Position, end: Position) -> BatchInput:
        begin, ends = _offsets(start), _offsets(end)
        ranges = tuple(
            SourceRange(*place, begin.get(place, 0), stop, stop - begin.get(place, 0))
            for place, stop in ends.items()
            if stop > begin.get(place, 0)
        )
        rows = [row for one in ranges for row in self._rows(one)]
        batch = pa.RecordBatch.from_pylist(rows, schema=RAW)

        def reader(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield batch

        def read(topics: Sequence[str]) -> Iterator[pa.RecordBatch]:
            some = [row for one in ranges if one.topic in topics for row in self._rows(one)]
            yield pa.RecordBatch.from_pylist(some, schema=RAW)

        def shorter(cuts: Mapping[Partition, int]) -> BatchInput:
            return replace(self.open(spark, start, _position(ends | dict(cuts))), start=start)

        def longer() -> BatchInput | None:
            further = self.advance(end, self.newest())
            return None if further is None else self.open(spark, start, further)

        lag = {f"{t}/{p}": len(m) - ends.get((t, p), 0) for (t, p), m in self.messages.items()}
        return BatchInput(
            reader=reader,
            ranges=ranges,
            end=end,
            lag=sum(lag.values()),
            lag_by_partition=lag,
            read=read,
            shorter=shorter,
            longer=longer,
        )

    def _rows(self, one: SourceRange) -> Iterator[dict[str, Any]]:
        place = one.topic, one.partition
        for offset in range(one.start, one.end):
            key, value = self.messages[place][offset]
            yield {
                "key": key,
                "value": None if value is None else json.dumps(value).encode(),
                "headers": None,
                "topic": one.topic,
                "partition": one.partition,
                "offset": offset,
                "timestamp": self._times[place][offset],
            }

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        yield from ()

    def explain(self, error: Exception) -> DistributaryError | None:
        return None


def _position(offsets: Mapping[Partition, int]) -> Position:
    return {"offsets": [[*place, offset] for place, offset in sorted(offsets.items())]}


def _offsets(position: Position) -> dict[Partition, int]:
    return {(topic, partition): offset for topic, partition, offset in position["offsets"]}


class Bank:
    """A bank whose accounts are in several tables: each transfer is one transaction in two."""

    def __init__(
        self, folder: Path, *, tables: int = 3, most: int = 1 << 30, cdc: str = ""
    ) -> None:
        self.topics = Topics(most)
        self.tables = tables
        self.lake = folder / "lake"
        self._text = PIPELINE.format(lake=self.lake, cdc=cdc)
        self._place = 100
        self._balance: Counter[int] = Counter()
        self.events: list[Event] = []

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def event(self, table: int, amount: int, *, number: int, total_order: int, block: bool) -> None:
        self._place += 1
        self._balance[table] += amount
        source = {
            "connector": "postgresql",
            "name": "bank",
            "ts_ms": 1_700_000_000_000 + self._place,
            "snapshot": "false",
            "db": "d",
            "sequence": json.dumps([str(number * 1000), str(self._place)]),
            "schema": "public",
            "table": f"t{table}",
            "txId": number,
            "lsn": self._place,
        }
        event: dict[str, Any] = {
            "before": None,
            "after": {"id": 1, "balance": self._balance[table]},
            "source": source,
            "op": "u",
            "ts_ms": 1,
        }
        if block:
            identity = f"{number}:{self._place}"
            event["transaction"] = {"id": identity, "total_order": total_order}
        self.topics.write(f"bank.public.t{table}", event, key={"id": 1})

    def transfer(
        self,
        number: int,
        one: int,
        other: int,
        *,
        end: bool = True,
        second: bool = True,
        block: bool = True,
    ) -> None:
        """Move money, or only a half of it, or without the message about the end."""
        if block:
            self.topics.write(ENDS, {"status": "BEGIN", "id": f"{number}:1", "event_count": None})
        self.event(one, 10, number=number, total_order=1, block=block)
        if second:
            self.event(other, -10, number=number, total_order=2, block=block)
        if end and block:
            self.end(number, one, other)

    def end(self, number: int, *tables: int) -> None:
        counts = [{"data_collection": f"public.t{t}", "event_count": 1} for t in tables]
        end = {"status": "END", "id": f"{number}:{self._place}", "event_count": len(tables)}
        self.topics.write(ENDS, {**end, "data_collections": counts})

    def run(self) -> RunSummary:
        loaded = load_text(self._text, file="bank.yaml", environ={})
        with Pipeline(loaded).open(in_process(partial(pytest.fail, "no Spark"))) as context:
            context.reports.bus.subscribe(self.events.append)
            return StreamRun(context, self.topics, stop=threading.Event()).run(AVAILABLE_NOW)

    def assert_whole_in_every_batch(self, transfers: Mapping[int, tuple[int, int]]) -> None:
        """Compare the batches of both halves of each transaction."""
        halves: dict[int, set[int]] = {}
        count: Counter[int] = Counter()
        for table in range(self.tables):
            path = self.lake / f"t{table}_log"
            rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
            for row in rows:
                number = json.loads(row["_envelope"])["source"]["txId"]
                halves.setdefault(number, set()).add(row["_batch"])
                count[number] += 1
        assert all(len(batches) == 1 for batches in halves.values()), halves
        assert {n: count[n] for n in transfers} == dict.fromkeys(transfers, 2)


def test_the_half_of_a_transaction_is_held_back(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    bank.transfer(1, 0, 1)
    bank.transfer(2, 1, 2, end=False, second=False)
    first = bank.run()
    assert (first.batches, first.counts.written) == (1, 2)
    settled = bank.of(BatchSettled)[0].held
    assert settled is not None and (settled.records, settled.transactions) == (1, 1)
    assert settled.example == "2"
    assert abs(settled.since - datetime.now(UTC)) < timedelta(minutes=1)
    # nothing has changed: nothing is read
    assert bank.run().batches == 0
    assert [(event.batch, event.held) for event in bank.of(RecordsHeld)] == [(1, settled)] * 2
    bank.event(2, -10, number=2, total_order=2, block=True)
    assert bank.run().batches == 0
    bank.end(2, 1, 2)
    assert bank.run().counts.written == 2
    assert bank.of(BatchSettled)[-1].held is None
    bank.assert_whole_in_every_batch({1: (0, 1), 2: (1, 2)})


def test_an_end_that_is_visible_before_the_events_waits_for_them(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    # however slow this machine is
    bank.topics.age = -600
    bank.transfer(1, 0, 1)
    bank.transfer(2, 1, 2, end=False, second=False)
    bank.end(2, 1, 2)
    assert bank.run().counts.written == 2
    bank.event(2, -10, number=2, total_order=2, block=True)
    assert bank.run().counts.written == 2
    bank.assert_whole_in_every_batch({1: (0, 1), 2: (1, 2)})


@pytest.mark.parametrize("most", [3, 7, 20])
def test_small_batches_of_a_backlog_have_whole_transactions(tmp_path: Path, most: int) -> None:
    bank, dice = Bank(tmp_path, tables=5, most=most), random.Random(most)
    transfers = {}
    for number in range(1, 25):
        one, other = dice.sample(range(5), 2)
        transfers[number] = (one, other)
        bank.transfer(number, one, other)
    summary = bank.run()
    assert summary.counts.written == 48 and summary.batches > 1
    bank.assert_whole_in_every_batch(transfers)


def test_a_transaction_whose_end_never_comes_is_read_in_the_end(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    bank.topics.age = 120
    bank.transfer(1, 0, 1, end=False, second=False)
    assert bank.run().counts.written == 1


def test_a_batch_grows_for_a_large_transaction_up_to_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def filled(name: str, cdc: str) -> Bank:
        bank = Bank(tmp_path / name, most=4, cdc=cdc)
        for n in range(20):
            bank.event(n % 2, 1, number=7, total_order=n + 1, block=True)
        counts = [{"data_collection": f"public.t{t}", "event_count": 10} for t in range(2)]
        end = {"status": "END", "id": "7:1", "event_count": 20, "data_collections": counts}
        bank.topics.write(ENDS, end)
        return bank

    with caplog.at_level(logging.WARNING):
        grown = filled("grown", "").run()
        assert (grown.batches, grown.counts.written) == (1, 20)
        assert "is cut" not in caplog.text
        cut = filled("cut", ", transactions: {max_records: 10}").run()
    assert cut.counts.written == 20 and cut.batches > 1
    assert "transaction 7 is cut" in caplog.text


def test_without_ends_a_later_transaction_shows_that_one_has_ended(tmp_path: Path) -> None:
    bank = Bank(tmp_path, cdc=", transactions: {whole: always}")
    bank.transfer(1, 0, 1, block=False)
    bank.transfer(2, 1, 2, block=False, second=False)
    assert bank.run().counts.written == 2
    bank.event(2, -10, number=2, total_order=2, block=False)
    bank.transfer(3, 0, 1, block=False)
    assert bank.run().counts.written == 2
    bank.assert_whole_in_every_batch({1: (0, 1), 2: (1, 2)})


def test_never_reads_what_is_there(tmp_path: Path) -> None:
    bank = Bank(tmp_path, cdc=", transactions: {whole: never}")
    bank.transfer(2, 1, 2, end=False, second=False)
    assert bank.run().counts.written == 1


def test_events_that_a_condition_keeps_out_are_not_waited_for(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    bank.topics.age = 20
    bank.transfer(1, 0, 1)
    # as a dead letter, or an event of a topic that the connector filters
    bank.transfer(2, 1, 2, second=False, end=False)
    bank.end(2, 1, 2)
    bank.transfer(3, 0, 1)
    assert bank.run().counts.written == 5


# The decision alone, for any transactions and any ends of partitions.


def rows_of(events: Sequence[tuple[int, int, int, int]]) -> pa.Table:
    """Rows of logs: transaction, number in it, partition and offset."""
    envelopes = [
        json.dumps({"transaction": {"id": f"{n}:{9}", "total_order": o}}, separators=(",", ":"))
        for n, o, _, _ in events
    ]
    return pa.table(
        {
            "_envelope": pa.array(envelopes, pa.string()),
            "_topic": [f"bank.public.t{line}" for _, _, line, _ in events],
            "_partition": pa.array([0] * len(events), pa.int32()),
            "_offset": pa.array([offset for *_, offset in events], pa.int64()),
            "_timestamp": pa.array([10**15] * len(events), pa.timestamp("us", "UTC")),
        }
    )


@settings(max_examples=200)
@given(data=st.data())
def test_no_transaction_is_ever_cut(data: st.DataObject) -> None:
    lines = data.draw(st.integers(1, 4), "partitions")
    parts = data.draw(
        st.lists(st.lists(st.integers(0, lines - 1), min_size=1, max_size=4), max_size=8), "events"
    )
    offsets: Counter[int] = Counter()
    every: list[tuple[int, int, int, int]] = []
    messages: list[tuple[Partition, int, int, Any]] = []
    for number, members in enumerate(parts, 1):
        for order, line in enumerate(members, 1):
            every.append((number, order, line, offsets[line]))
            offsets[line] += 1
        counts = [
            {"data_collection": f"public.t{line}", "event_count": count}
            for line, count in Counter(members).items()
        ]
        end = {"status": "END", "id": f"{number}:1", "data_collections": counts}
        messages.append(((ENDS, 0), len(messages), 10**15, end))
    stops = {
        line: data.draw(st.integers(0, offsets[line]), f"stop {line}") for line in range(lines)
    }
    stop = data.draw(st.integers(0, len(messages)), "stop of ends")
    inside = [event for event in every if event[3] < stops[event[2]]]
    ends: dict[tuple[str, str], End] = read_ends(messages[:stop])
    unread: set[Partition] = {(f"bank.public.t{n}", 0) for n in stops if stops[n] < offsets[n]}
    if stop < len(messages):
        unread.add((ENDS, 0))
    events = read_events(rows_of(inside), {"bank"}, always=False)
    if events is None:
        assert not inside
        return
    cuts, held = cut_before(
        events,
        ends,
        unread=unread,
        reads=bool,
        settings=TransactionsConfig(),
        now_us=10**15 + 1,
    )
    left = [e for e in inside if e[3] < cuts.get((f"bank.public.t{e[2]}", 0), 1 << 60)]
    whole = Counter(number for number, *_ in left)
    assert all(count == len(parts[number - 1]) for number, count in whole.items())
    assert held.records == len(inside) - len(left)
    # an end is read with its transaction, so that the next batch does not lack it
    last = cuts.get((ENDS, 0), stop)
    assert all(number > last or number in whole for number in {n for n, *_ in inside})
    if not unread:
        assert not cuts
