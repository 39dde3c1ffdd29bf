"""The exchange through Spark: records travel between the two hops by Spark's own shuffle.

Where workers share no disk with each other, both hops are one job. A task of hop one makes a packet
of each run for each target partition, an Arrow stream with zstd inside, because what passes through
the JVM costs by its size. `repartitionById` brings the packets to the tasks that land their tables,
and what hop one tells the driver rides along. Lost executors, retries and speculation are Spark's.
Records of a key without a route are told and not sent: once the driver has an answer, the job runs
once more for those keys alone.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.model.manifest import compact, parsed
from distributary.model.plan import RouteKey, StageOrder
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import (
    HELD,
    KeyRange,
    Load,
    Run,
    Share,
    Slice,
    facts_batch,
    pieces_of,
    route_key,
    table_of,
)
from distributary.stage.land import land
from distributary.stage.sort import sort

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
"""The partition whose task passes on what hop one tells."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Again:
    """What a job is about that comes after one over all records of a batch."""

    only: Collection[RouteKey]
    """The keys whose records it sends: those that the job before could only tell."""
    known: Collection[RouteKey]
    """The keys that the job over all records had an answer for, and the unions it knew."""

    @classmethod
    def after(cls, catalog: Catalog, only: Collection[RouteKey]) -> Again:
        """Some keys, of records that were sorted with a catalog."""
        return cls(only, frozenset(catalog.routes) | catalog.unions)


@dataclass(frozen=True, slots=True)
class Targets:
    """Which partitions land which tables: by what they weighed in the batch before."""

    partitions: int
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def by_weight(cls, rows: Mapping[str, int], partitions: int) -> Targets:
        """Light tables go where there is room; a heavy one is spread over several partitions."""
        fair = max(1, -(-sum(rows.values()) // partitions))
        filled = [0] * partitions
        found: dict[str, tuple[int, ...]] = {}
        for name in sorted(rows, key=lambda name: (-rows[name], name)):
            pieces = pieces_of(rows[name], rows[name], fair, partitions)
            chosen = sorted(range(partitions), key=lambda at: (filled[at], at))[:pieces]
            for at in chosen:
                filled[at] += rows[name] // pieces
            found[name] = tuple(chosen)
        return cls(partitions, found)

    def of(self, table: str) -> tuple[int, ...]:
        """The partitions of a table; one that is new goes anywhere, but always there."""
        return self.tables.get(table) or (zlib.crc32(table.encode()) % self.partitions,)


def pack(
    batches: Iterable[pa.RecordBatch],
    catalog: Catalog,
    order: StageOrder,
    targets: Targets,
    again: Again | None = None,
) -> Iterator[pa.RecordBatch]:
    """Hop one: raw records in, packets and facts out. With `again`, of its keys alone."""
    HELD.clear()
    only, known = (None, None) if again is None else (again.only, again.known)
    if only is not None:
        # everything else was told and landed by the job before
        catalog = replace(catalog, bronze="")
    for told in sort(batches, catalog, order, known):
        rows: list[tuple[int, str, str, pa.RecordBatch | None]] = []
        for kind, body in zip(*(told.column(i).to_pylist() for i in (0, 1)), strict=True):
            if kind == "run":
                rows += _packets(Run.of(parsed(body)), catalog, targets, only)
            elif kind == "letters":
                letters = HELD.pop(json.loads(body))
                rows += [(_FACTS, kind, "", letters)] if only is None else []
            elif only is None:
                rows.append((_FACTS, kind, body, None))
        if rows:
            yield _rows(rows)


def _packets(
    run: Run, catalog: Catalog, targets: Targets, only: Collection[RouteKey] | None
) -> Iterator[tuple[int, str, str, pa.RecordBatch | None]]:
    data = HELD.pop(run.path)
    wanted = [r for r in run.ranges if only is None or _is_one_of(r.key, only, catalog)]
    yield _FACTS, "run", Run("", tuple(wanted)).as_json(), None
    mine: dict[int, list[KeyRange]] = defaultdict(list)
    for r in wanted:
        if r.key in catalog.routes:
            for target, piece in _cut(r, targets.of(table_of(catalog.routes[r.key]))):
                mine[target].append(piece)
    for target, ranges in mine.items():
        rows = pa.concat_batches([data.slice(r.start, r.count) for r in ranges])
        yield target, "packet", compact([[r.key, r.count] for r in ranges]), rows


def _is_one_of(key: RouteKey, only: Collection[RouteKey], catalog: Catalog) -> bool:
    """Whether a key is wanted, or a branch of one that has become a union of Avro since."""
    whole = key._replace(message_index=())
    return key in only or (whole in only and whole in catalog.unions)


def _cut(r: KeyRange, targets: tuple[int, ...]) -> Iterator[tuple[int, KeyRange]]:
    """The rows of a key, a share for each target: the same ones if the task has to run again."""
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
    batches: Iterable[pa.RecordBatch], catalog: Catalog, order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """Hop two: packets in, files of tables and facts out."""
    HELD.clear()
    facts: list[tuple[str, str]] = []
    load = Load()
    slices: dict[RouteKey, list[Slice]] = defaultdict(list)
    for batch in batches:
        kinds, bodies = (batch.column(i).to_pylist() for i in (1, 2))
        for row, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
            if kind not in ("packet", "letters"):
                facts.append((kind, body))
                continue
            name = f"packet {len(HELD)}"
            with pa.ipc.open_stream(batch.column(3)[row].as_buffer()) as reader:
                HELD[name] = reader.read_next_batch()
            if kind == "letters":
                load.letters.append(name)
                continue
            start = 0
            for key, count in parsed(body):
                slices[route_key(*key)].append(Slice(name, start, count))
                start += count
    for key in sorted(slices):
        table = table_of(catalog.routes[key])
        load.tables.setdefault(table, []).append(Share(key, tuple(slices[key])))
    if facts:
        yield facts_batch(facts)
    if load.tables or load.letters:
        yield from land(load, catalog, order)
    HELD.clear()
