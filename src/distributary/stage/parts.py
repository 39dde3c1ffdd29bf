"""Hop two's reading half: the records of a table as decoded parts, one per writer schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import Decoder, HasColumns
from distributary.decode.change.base import ChangeDecoder
from distributary.decode.formats import CAPACITY, change_decoder_for, decoder_for
from distributary.decode.protobuf.decoder import decode_together
from distributary.errors import ErrorCode
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.evolve.types import side_base
from distributary.evolve.unified import REST, rest_as_json, share_of
from distributary.model.cache import Cache
from distributary.model.deadletter import Decoded, Failure
from distributary.model.expectation import RuleCount
from distributary.model.plan import Rejected, Route, RouteKey, StageOrder
from distributary.model.record import RAW, TIMESTAMP
from distributary.model.table import Column, Fill, TablePlan
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import Groups, Share, open_run, positions
from distributary.stage.files import (
    DATE,
    Fact,
    Letter,
    file_fact,
    gathered,
    letters_batch,
    metadata_columns,
    metadata_plan,
)
from distributary.stage.guard import GuardedDecoder
from distributary.stage.partitions import schema_ids_of, table_facts
from distributary.stage.rules import count_dropped
from distributary.stage.unwrap import Unwrapped

# Rows of several databases in one table: a column tells them apart, as part of the key.

SHARD = Column("_shard", pa.string(), "database that the row comes from")
_KEY = "_key"


def _with_shard(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Changes of one database; a row without a key stays without one."""
    keys = batch.column(_KEY)
    lengths = pc.list_value_length(keys).fill_null(0).to_numpy()
    keyed = lengths > 0
    offsets = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(lengths + keyed, out=offsets[1:])
    own = np.ones(offsets[-1], np.bool_)
    own[offsets[:-1][keyed]] = False
    columns = keys.flatten()
    places = np.full(len(own), len(columns))
    places[own] = np.arange(len(columns))
    every = pa.concat_arrays([columns, pa.array([SHARD.name], columns.type)])
    lists = pa.ListArray.from_arrays(
        pa.array(offsets),
        every.take(pa.array(places)),
        type=keys.type,
        mask=keys.is_null() if keys.null_count else None,
    )
    names = list(batch.schema.names)
    arrays = list(batch.columns)
    arrays[names.index(_KEY)] = lists
    shards = pa.repeat(pa.scalar(shard, pa.string()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*arrays, shards], names=[*names, SHARD.name])


# The unified table: every type's rows in one file a task, shared fields as columns.
#
# Rows of more than a bounded size are several files.

TYPE = Column("_type", pa.string(), "type of the record")
BYTES_PER_FILE = 512 * 1024 * 1024
"""As columns in memory: what a task holds of one table at once."""


class UnifiedWriter:
    """Collects the parts of a task and writes them."""

    def __init__(self, catalog: Catalog, order: StageOrder) -> None:
        self._catalog, self._order = catalog, order
        self._table = catalog.tables[catalog.unified]
        system = {c.name for c in (TYPE, DATE, *metadata_plan(catalog.metadata))}
        self._own = tuple(c for c in self._table.columns if c.name not in system)
        self._reserved = frozenset(system)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._own if c.name != REST])
        self._parts: list[pa.Table] = []
        self._times: list[pa.ChunkedArray] = []
        self._records = 0

    def add(self, parts: Sequence[Part]) -> list[Fact]:
        """Keep the rows of one table's parts, in the unified table's columns; may write a file."""
        for part in parts:
            self._records += part.records
            if part.batch.num_rows:
                self._parts.append(self._columns(part))
                self._times.append(part.raw.column("timestamp"))
        return self.finish() if sum(part.nbytes for part in self._parts) > BYTES_PER_FILE else []

    def finish(self) -> list[Fact]:
        """Write what is not written yet."""
        parts, times, records = self._parts, self._times, self._records
        self._parts, self._times, self._records = [], [], 0
        if not parts:
            return [file_fact(self._table.name, records, None)] if records else []
        rows = pa.concat_tables(parts)
        return table_facts(
            rows,
            self._table,
            self._order,
            records=records,
            times=pa.chunked_array([c for t in times for c in t.chunks], TIMESTAMP),
            offsets=rows["_offset"] if "_offset" in rows.column_names else None,
        )

    def _columns(self, part: Part) -> pa.Table:
        writer = tuple(Column(f.name, f.type) for f in part.batch.schema)
        share = share_of(self._own, writer, self._reserved | {REST})
        table = pa.Table.from_batches([align(part.batch, share.fills, self._schema)])
        if any(c.name == REST for c in self._own):
            table = table.append_column(REST, rest_as_json(part.batch, share.rest))
        types = pa.repeat(pa.scalar(part.route.type), part.batch.num_rows)
        table = table.append_column(TYPE.name, types)
        ids = schema_ids_of([part])
        for name, array in metadata_columns(part.raw, ids, self._catalog.metadata, self._order):
            table = table.append_column(name, array)
        return table


_BYTES_PER_DECODE = 64 * 1024 * 1024
_MOST_SHAPES = 50_000


@dataclass(frozen=True, slots=True)
class Part:
    """Decoded records of one schema: columns, and the raw rows they came from."""

    route: Route
    batch: pa.RecordBatch
    fills: tuple[Fill, ...]
    raw: pa.Table
    """The raw record of each row of `batch`."""
    records: int
    dropped: RuleCount | None = None
    """Records of which something is in no row, where that is allowed."""

    def letter(self, row: int, code: ErrorCode, message: str, stage: str) -> Letter:
        """Why the record of a row is a dead letter."""
        route = self.route
        return Letter(row, code, message, stage, type=route.type, schema_id=route.schema_id)


Runs = Callable[[str], tuple[pa.RecordBatch, pa.BinaryArray]]


def open_records(path: str) -> tuple[pa.RecordBatch, pa.BinaryArray]:
    """The raw records of a run, and their payloads."""
    batch = open_run(path)
    payloads = batch.column("payload")
    whole = payloads.null_count == len(payloads)
    return batch.select(RAW.names), batch.column("value") if whole else payloads


def decode_shares(
    shares: Sequence[Share], runs: Runs, catalog: Catalog, order: StageOrder
) -> Iterator[tuple[list[Part], list[pa.RecordBatch]]]:
    """The records of a table's shares as parts, and the rows for the dead-letter table.

    As much as one file should hold at once; changes, of which copies are looked for, all at once.
    Records of keys that are to be passed over are in neither.
    """
    parts: list[Part] = []
    dead: list[pa.RecordBatch] = []
    size = 0
    for part, letters in _decoded(shares, runs, catalog, order):
        if part is not None:
            weight = part.batch.nbytes
            if parts and size + weight > BYTES_PER_FILE and catalog.changes is None:
                yield parts, dead
                parts, dead, size = [], [], 0
            parts.append(part)
            size += weight
        if letters is not None:
            dead.append(letters)
    yield parts, dead


_Found = tuple[Part | None, pa.RecordBatch | None]
_Portion = tuple[RouteKey, pa.Table, pa.BinaryArray]
"""Raw records of one key with their payloads, as many as are decoded at once."""


def _decoded(
    shares: Sequence[Share], runs: Runs, catalog: Catalog, order: StageOrder
) -> Iterator[_Found]:
    """Parts and dead letters, as they come."""
    portions = (portion for share in shares for portion in _portions(share, runs))
    for together in gathered(portions, lambda portion: portion[2].nbytes, _BYTES_PER_DECODE):
        yield from _decode(together, catalog, order)


def passed_over(shares: Sequence[Share], catalog: Catalog) -> int:
    """How many records of these shares are only counted."""
    routes = [(catalog.routes[share.key], share) for share in shares]
    silent = [s for route, s in routes if isinstance(route, Rejected) and route.passed_over]
    return sum(one.rows for share in silent for one in share.slices)


def _portions(share: Share, runs: Runs) -> Iterator[_Portion]:
    """Slices put together, up to a size at which a decoder gains nothing from more."""

    def sliced() -> Iterator[tuple[pa.RecordBatch, pa.BinaryArray]]:
        for path, start, rows in share.slices:
            records, contents = runs(path)
            yield records.slice(start, rows), contents.slice(start, rows)

    for some in gathered(sliced(), lambda piece: piece[1].nbytes, _BYTES_PER_DECODE):
        payloads = [payload for _, payload in some]
        joined = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
        yield share.key, pa.Table.from_batches([raw for raw, _ in some], RAW), joined


def _decode(portions: Sequence[_Portion], catalog: Catalog, order: StageOrder) -> Iterator[_Found]:
    """Decode portions of one table."""
    routed: list[tuple[pa.Table, pa.BinaryArray, _RouteDecoder]] = []
    for key, raw, payloads in portions:
        route = catalog.routes[key]
        if isinstance(route, Route):
            routed.append((raw, payloads, _decoder_of(route, catalog, guarded=order.guarded)))
        elif not route.passed_over:
            letters = [
                Letter(row, route.code, route.message, "route", None, key.claim, key.schema_id)
                for row in range(raw.num_rows)
            ]
            yield None, letters_batch(raw, letters, order)
    if len(routed) > 1 and catalog.changes is None:
        decoders = tuple(cast(Decoder, decoder.inner) for _, _, decoder in routed)
        together = decode_together(decoders, [payloads for _, payloads, _ in routed])
        if together is not None:
            for (raw, _, decoder), decoded in zip(routed, together, strict=True):
                yield _found(raw, decoded, decoder, catalog, order)
            return
    for raw, payloads, decoder in routed:
        for some, decoded in _decoded_slices(payloads, raw, decoder, catalog):
            yield _found(some, decoded, decoder, catalog, order)


def _decoded_slices(
    payloads: pa.BinaryArray, raw: pa.Table, decoder: _RouteDecoder, catalog: Catalog
) -> Iterator[tuple[pa.Table, Decoded]]:
    for some, of in _slices(payloads, raw, decoder.inner, catalog):
        changes = catalog.changes is not None
        decoded = decoder.decode(some, of, changes=changes)
        yield of, _keyed(decoded, decoder, catalog) if changes else decoded


def _slices(
    payloads: pa.BinaryArray, raw: pa.Table, decoder: Decoder | ChangeDecoder, catalog: Catalog
) -> Iterator[tuple[pa.BinaryArray, pa.Table]]:
    """Records in parts that become columns of a bounded size."""
    if catalog.changes is not None and catalog.changes.related:
        yield payloads, raw
        return
    for part in decoder.expansion.slices(payloads, limit=catalog.limits.max_decoded_bytes):
        yield payloads[part], raw.slice(part.start, part.stop - part.start)


def _found(
    raw: pa.Table, decoded: Decoded, decoder: _RouteDecoder, catalog: Catalog, order: StageOrder
) -> _Found:
    route, dead = decoder.route, None
    if decoded.failed:
        letters = [
            Letter(f.index, f.code, f.message, "decode", f.position, route.type, route.schema_id)
            for f in decoded.failed
        ]
        dead = letters_batch(raw, letters, order)
    records = raw.num_rows - len(decoded.failed)
    dropped = count_dropped(raw, decoded) if catalog.limits.drop_unknown_fields else None
    if decoded.origin is not None:
        raw = raw.take(decoded.origin)
    table = catalog.tables.get(route.table)
    more = (SHARD,) if route.shard else ()
    fills = () if table is None else fills_for(table, decoder.inner, catalog, *more)
    return Part(route, decoded.ok, fills, raw, records, dropped), dead


def _keyed(decoded: Decoded, decoder: _RouteDecoder, catalog: Catalog) -> Decoded:
    """Changes without those whose key the table has no room for: a side column is no key.

    Without its value a key would be null, and all such rows one row.
    """
    table = catalog.tables.get(decoder.route.table)
    sides = {c.name for c in table.columns if side_base(c.comment)} if table is not None else set()
    if table is None or not sides:
        return decoded
    moved = {f.source for f in fills_for(table, decoder.inner, catalog) if f.target in sides}
    keys = decoded.ok.column(_KEY).to_pylist() if moved else []
    lost = {row: moved & set(key or ()) for row, key in enumerate(keys)}
    lost = {row: names for row, names in lost.items() if names}
    if not lost:
        return decoded
    rows = decoded.ok.num_rows
    origin = decoded.origin.to_pylist() if decoded.origin is not None else list(range(rows))
    why = {
        origin[row]: f"{', '.join(sorted(names))}: the key has another type than its column"
        for row, names in lost.items()
    }
    kept = pa.array([row for row in range(rows) if origin[row] not in why], pa.int64())
    refused = (Failure(i, ErrorCode.TYPE_CHANGE_REFUSED, text) for i, text in why.items())
    return replace(
        decoded,
        ok=decoded.ok.take(kept),
        origin=pa.array([origin[row] for row in kept.to_pylist()], pa.int64()),
        failed=(*decoded.failed, *refused),
    )


def failures(
    raw: pa.RecordBatch, unwrapped: Unwrapped, groups: Groups, catalog: Catalog
) -> Iterator[tuple[RouteKey, int, Counter[str]]]:
    """Yield each key with a table, its records, and by code those that cannot be decoded."""
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        route = catalog.routes.get(key)
        if isinstance(route, Route):
            same = pa.Table.from_batches([raw.take(pa.array(unwrapped.rows[rows]))])
            payloads = unwrapped.payloads.take(pa.array(rows))
            found = _decoded_slices(payloads, same, _decoder_of(route, catalog), catalog)
            codes = Counter(str(failure.code) for _, decoded in found for failure in decoded.failed)
            yield key, len(rows), codes


@dataclass(frozen=True, slots=True)
class _RouteDecoder:
    """Decodes the records of a route, be they changes of rows or not."""

    route: Route
    inner: Decoder | ChangeDecoder

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table, *, changes: bool) -> Decoded:
        if not changes:
            return cast(Decoder, self.inner).decode(payloads)
        found = cast(ChangeDecoder, self.inner).decode(payloads, raw)
        shard = self.route.shard
        return replace(found, ok=_with_shard(found.ok, shard)) if shard else found


_ROUTED: Cache[_RouteDecoder] = Cache(CAPACITY)


def _decoder_of(route: Route, catalog: Catalog, *, guarded: bool = False) -> _RouteDecoder:
    """The decoder of a route, found again by the route itself as long as the catalog stays."""

    def make() -> _RouteDecoder:
        schema = catalog.schemas[route.schema_id]
        build: Callable[[], Decoder | ChangeDecoder]
        if catalog.changes is None:
            limits = replace(catalog.limits, raw_bytes=route.raw_bytes)
            build = partial(decoder_for, schema, route.message, limits)
        else:
            keys = catalog.schemas.get(route.key_schema_id)
            build = partial(change_decoder_for, schema, catalog.changes, catalog.limits, keys=keys)
        return _RouteDecoder(route, GuardedDecoder(build) if guarded else build())

    return make() if guarded else _ROUTED.of((route,), make, owner=catalog)


_FILLS: Cache[tuple[Fill, ...]] = Cache(_MOST_SHAPES)


def fills_for(
    table: TablePlan, decoder: HasColumns, catalog: Catalog, *more: Column
) -> tuple[Fill, ...]:
    """How a schema's columns, and `more`, reach the table; kept for the very same objects.

    The driver has evolved the table already, so the same pure merge finds a place for everything.
    """
    return _FILLS.of(
        (table, decoder, *more),
        lambda: merge(table.columns, (*decoder.columns, *more), catalog.evolution).fills,
    )
