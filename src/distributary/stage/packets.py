"""The exchange through Spark: its shuffle carries records between the two hops.

If workers share no disk, both hops are one job. A task of hop one makes a packet of each run for
each target partition: an Arrow stream compressed with zstd, because data through the JVM costs by
its size. The partitions of Spark's shuffle bring the packets to the tasks that land their tables,
together with the facts of hop one (`partition_keys.py`). Spark handles lost executors, retries and
speculation. Keys without a route are reported and their records not sent: once the driver has a
route, the job runs again for those keys alone.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.model.facts import KeyRange, LettersFile, SortedRun, encode, route_key
from distributary.model.manifest import compact, parsed
from distributary.model.routing import RouteKey, StageOrder
from distributary.stage.exchange import (
    HELD,
    Load,
    Share,
    Slice,
    documents_batch,
    facts_of,
    pieces_of,
    table_of,
)
from distributary.stage.land import land
from distributary.stage.sort import sort
from distributary.stage.task_plan import TaskPlan

PACKET_DDL = "target int, kind string, body string, packet binary"
_SCHEMA = pa.schema(
    [
        pa.field("target", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("body", pa.string()),
        pa.field("packet", pa.binary()),
    ]
)
_FACTS = 0
"""The partition whose task passes the facts of hop one on."""
_PACKET, _LETTERS = "packet", "letters"
"""The kinds of rows that carry records; those of other kinds are facts."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Again:
    """The keys of a second job over the records of a batch."""

    only: Collection[RouteKey]
    """The keys whose records are sent: the first job could only report them."""
    known: Collection[RouteKey]
    """The keys that had a route in the first job, and the unions it knew."""

    @classmethod
    def after(cls, plan: TaskPlan, only: Collection[RouteKey]) -> Again:
        """Build the second job for some keys of records that were sorted with a plan."""
        return cls(only, frozenset(plan.routing.routes) | plan.routing.unions)


@dataclass(frozen=True, slots=True)
class Targets:
    """The partitions that land each table, chosen by the rows of the batch before."""

    partitions: int
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def by_weight(cls, rows: Mapping[str, int], partitions: int) -> Targets:
        """Assign light tables to the emptiest partition, and spread heavy ones over several."""
        fair = max(1, -(-sum(rows.values()) // partitions))
        filled = [0] * partitions
        assigned: dict[str, tuple[int, ...]] = {}
        for name in sorted(rows, key=lambda name: (-rows[name], name)):
            pieces = pieces_of(rows[name], rows[name], fair, partitions)
            chosen = sorted(range(partitions), key=lambda at: (filled[at], at))[:pieces]
            for at in chosen:
                filled[at] += rows[name] // pieces
            assigned[name] = tuple(chosen)
        return cls(partitions, assigned)

    def of(self, table: str) -> tuple[int, ...]:
        """Return the partitions of a table; a new table gets one by the hash of its name."""
        return self.tables.get(table) or (zlib.crc32(table.encode()) % self.partitions,)


def pack(
    batches: Iterable[pa.RecordBatch],
    plan: TaskPlan,
    order: StageOrder,
    targets: Targets,
    again: Again | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run hop one: turn raw records into packets and facts; with `again`, for its keys only."""
    HELD.clear()
    only, known = (None, None) if again is None else (again.only, again.known)
    if only is not None:
        # The first job has reported and landed everything else.
        plan = plan.without_bronze()
    for batch in sort(batches, plan, order, known):
        rows: list[tuple[int, str, str, pa.RecordBatch | None]] = []
        for fact in facts_of([batch]):
            match fact:
                case SortedRun():
                    rows += _packets(fact, plan, targets, only)
                case LettersFile():
                    letters = HELD.pop(fact.path)
                    rows += [(_FACTS, _LETTERS, "", letters)] if only is None else []
                case _ if only is None:
                    rows.append((_FACTS, *encode(fact), None))
        if rows:
            yield _rows(rows)


def _packets(
    run: SortedRun, plan: TaskPlan, targets: Targets, only: Collection[RouteKey] | None
) -> Iterator[tuple[int, str, str, pa.RecordBatch | None]]:
    data = HELD.pop(run.path)
    wanted = [r for r in run.ranges if only is None or _is_one_of(r.key, only, plan)]
    yield _FACTS, *encode(SortedRun("", tuple(wanted))), None
    by_target: dict[int, list[KeyRange]] = defaultdict(list)
    for r in wanted:
        if r.key in plan.routing.routes:
            for target, piece in _cut(r, targets.of(table_of(plan.routing.routes[r.key]))):
                by_target[target].append(piece)
    for target, ranges in by_target.items():
        rows = pa.concat_batches([data.slice(r.start, r.count) for r in ranges])
        yield target, _PACKET, compact([[r.key, r.count] for r in ranges]), rows


def _is_one_of(key: RouteKey, only: Collection[RouteKey], plan: TaskPlan) -> bool:
    """Return whether a key is wanted, or is a branch of a wanted key that is a union now."""
    whole = key._replace(message_index=())
    return key in only or (whole in only and whole in plan.routing.unions)


def _cut(r: KeyRange, targets: tuple[int, ...]) -> Iterator[tuple[int, KeyRange]]:
    """Cut the rows of a key into a share for each target; a repeated task cuts the same shares."""
    size, start = -(-r.count // len(targets)), r.start
    for target in targets:
        count = min(size, r.start + r.count - start)
        if count > 0:
            yield target, replace(r, start=start, count=count)
            start += count


def _rows(rows: list[tuple[int, str, str, pa.RecordBatch | None]]) -> pa.RecordBatch:
    packets = [None if rows is None else _stream(rows) for *_, rows in rows]
    columns = [*zip(*(row[:3] for row in rows), strict=True), packets]
    arrays = [pa.array(column, f.type) for column, f in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _stream(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def land_packets(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """Run hop two: turn packets into files of tables and facts."""
    HELD.clear()
    documents: list[tuple[str, str]] = []
    load = Load()
    slices: dict[RouteKey, list[Slice]] = defaultdict(list)
    for batch in batches:
        kinds, bodies = (batch.column(i).to_pylist() for i in (1, 2))
        for row, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
            if kind not in (_PACKET, _LETTERS):
                documents.append((kind, body))
                continue
            name = f"packet {len(HELD)}"
            with pa.ipc.open_stream(batch.column(3)[row].as_buffer()) as reader:
                HELD[name] = reader.read_next_batch()
            if kind == _LETTERS:
                load.letters.append(name)
                continue
            start = 0
            for key, count in parsed(body):
                slices[route_key(*key)].append(Slice(name, start, count))
                start += count
    for key in sorted(slices):
        table = table_of(plan.routing.routes[key])
        load.tables.setdefault(table, []).append(Share(key, tuple(slices[key])))
    if documents:
        yield documents_batch(documents)
    if load.tables or load.letters:
        yield from land(load, plan, order)
    HELD.clear()
