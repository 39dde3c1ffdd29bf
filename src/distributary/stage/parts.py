"""Hop two's reading half: the records of a table as decoded parts, one per writer schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from distributary.config.lake import Evolution
from distributary.decode.base import Decoder, HasColumns
from distributary.decode.change.base import ChangeDecoder
from distributary.decode.formats import CAPACITY, change_decoder_for, decoder_for
from distributary.decode.protobuf.decoder import decode_together
from distributary.delta.parquet import write_file
from distributary.errors import ErrorCode
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.evolve.types import side_base
from distributary.evolve.unified import REST, rest_as_json, share_of
from distributary.model.cache import Cache
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded, Failure
from distributary.model.expectation import RuleCount
from distributary.model.plan import Catalog, Rejected, Route, RouteKey, StageOrder
from distributary.model.record import RAW, TIMESTAMP
from distributary.model.table import Column, Fill, TablePlan
from distributary.stage.exchange import Share, Slice, open_run
from distributary.stage.files import (
    DATE,
    Letter,
    file_fact,
    file_name,
    letters_batch,
    metadata_columns,
    metadata_plan,
)
from distributary.stage.guard import GuardedChanges, GuardedDecoder
from distributary.stage.partitions import partition_facts, with_date
from distributary.stage.rules import count_dropped
from distributary.stage.unwrap import limits_of

# Rows of several databases in one table: a column tells them apart, as part of the key.

SHARD = Column("_shard", pa.string(), "database that the row comes from")
_KEY = "_key"


def sharded_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """A change decoder's columns, with the database in the end."""
    return (*columns, SHARD)


class _Sharded:
    def __init__(self, inner: HasColumns) -> None:
        self.columns = sharded_columns(inner.columns)


_SHARDED: Cache[HasColumns] = Cache(CAPACITY)


def sharded(decoder: HasColumns) -> HasColumns:
    """What `with_shard` makes of a decoder's columns; the same object for the same decoder."""
    return _SHARDED.of((decoder,), lambda: _Sharded(decoder))


def with_shard(batch: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Changes of one database; a row without a key stays without one."""
    keys = batch.column(_KEY)
    lists = [[SHARD.name, *key] if key else key for key in keys.to_pylist()]
    names = list(batch.schema.names)
    arrays = list(batch.columns)
    arrays[names.index(_KEY)] = pa.array(lists, keys.type)
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

    def add(self, parts: Sequence[Part]) -> list[tuple[str, str]]:
        """Keep the rows of one table's parts, in the unified table's columns; may write a file."""
        for part in parts:
            self._records += part.records
            if part.batch.num_rows:
                self._parts.append(self._columns(part))
                self._times.append(part.raw.column("timestamp"))
        return self.finish() if sum(part.nbytes for part in self._parts) > BYTES_PER_FILE else []

    def finish(self) -> list[tuple[str, str]]:
        """Write what is not written yet."""
        facts = self._written()
        self._parts, self._times, self._records = [], [], 0
        return facts

    def _written(self) -> list[tuple[str, str]]:
        if not self._parts:
            return [file_fact(self._table.name, self._records, None)] if self._records else []
        table = pa.concat_tables(self._parts)
        if self._table.partition_by:
            times = pa.chunked_array([c for t in self._times for c in t.chunks], TIMESTAMP)
            body = with_date(table, times, self._table)
            offset = body["_offset"] if "_offset" in body.column_names else None
            return partition_facts(
                body, self._table, self._order, records=self._records, offsets=offset
            )
        offsets = table["_offset"].to_numpy() if "_offset" in table.column_names else np.array([-1])
        staged = write_file(
            table,
            self._table.path,
            self._table.staged(file_name(self._order)),
            first_offset=int(offsets.min()),
            last_offset=int(offsets.max()),
        )
        return [file_fact(self._table.name, self._records, staged)]

    def _columns(self, part: Part) -> pa.Table:
        writer = tuple(Column(f.name, f.type) for f in part.batch.schema)
        share = share_of(self._own, writer, self._reserved | {REST})
        table = pa.Table.from_batches([align(part.batch, share.fills, self._schema)])
        if any(c.name == REST for c in self._own):
            table = table.append_column(REST, rest_as_json(part.batch, share.rest))
        count = part.batch.num_rows
        table = table.append_column(TYPE.name, pa.repeat(pa.scalar(part.route.type), count))
        ids = pa.array(np.full(count, part.route.schema_id, dtype=np.int64))
        extra = metadata_columns(part.raw, ids, self._catalog.metadata, self._order)
        for name, array in extra:
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


@dataclass(frozen=True, slots=True)
class _Portion:
    """Records of one key, as many as are decoded at once."""

    key: RouteKey
    raw: pa.Table
    payloads: pa.BinaryArray


class Runs:
    """The runs of a stage, opened at their first use."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[pa.RecordBatch, pa.BinaryArray]] = {}

    def slice(self, one: Slice) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Raw records and their payloads."""
        found = self._opened.get(one.path)
        if found is None:
            batch = open_run(one.path)
            found = batch.select(RAW.names), batch.column("payload")
            self._opened[one.path] = found
        return found[0].slice(one.start, one.rows), found[1].slice(one.start, one.rows)


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


def _decoded(
    shares: Sequence[Share], runs: Runs, catalog: Catalog, order: StageOrder
) -> Iterator[_Found]:
    """Parts and dead letters, as they come."""
    together: list[_Portion] = []
    size = 0
    for share in shares:
        for portion in _portions(share, runs):
            weight = portion.payloads.nbytes
            if together and size + weight > _BYTES_PER_DECODE:
                yield from _decode(together, catalog, order)
                together, size = [], 0
            together.append(portion)
            size += weight
    yield from _decode(together, catalog, order)


def passed_over(shares: Sequence[Share], catalog: Catalog) -> int:
    """How many records of these shares are only counted."""
    routes = [(catalog.routes[share.key], share) for share in shares]
    silent = [s for route, s in routes if isinstance(route, Rejected) and route.passed_over]
    return sum(one.rows for share in silent for one in share.slices)


def _portions(share: Share, runs: Runs) -> Iterator[_Portion]:
    """Slices put together, up to a size at which a decoder gains nothing from more."""
    raws: list[pa.RecordBatch] = []
    payloads: list[pa.BinaryArray] = []
    size = 0
    for one in share.slices:
        raw, payload = runs.slice(one)
        if raws and size + payload.nbytes > _BYTES_PER_DECODE:
            yield _portion(share.key, raws, payloads)
            raws, payloads, size = [], [], 0
        raws.append(raw)
        payloads.append(payload)
        size += payload.nbytes
    yield _portion(share.key, raws, payloads)


def _portion(key: RouteKey, raws: list[pa.RecordBatch], payloads: list[pa.BinaryArray]) -> _Portion:
    joined = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
    return _Portion(key, pa.Table.from_batches(raws, RAW), joined)


def _decode(portions: Sequence[_Portion], catalog: Catalog, order: StageOrder) -> Iterator[_Found]:
    """Decode portions of one table."""
    routed: list[tuple[_Portion, Route]] = []
    for portion in portions:
        route = catalog.routes[portion.key]
        if isinstance(route, Route):
            routed.append((portion, route))
        elif not route.passed_over:
            letters = _refused(portion.raw.num_rows, portion.key, route)
            yield None, letters_batch(portion.raw, letters, order)
    if catalog.changes is not None:
        for portion, route in routed:
            changes = _Changes.of(route, catalog, catalog.changes, guarded=order.guarded)
            for payloads, raw in _slices(portion.payloads, portion.raw, changes.decoder, catalog):
                found = _keyed(changes.decode(payloads, raw), route, changes.shape, catalog)
                yield _found(raw, found, route, changes.shape, catalog, order)
        return
    decoders = [_decoder_of(route, catalog, guarded=order.guarded) for _, route in routed]
    if len(routed) > 1:
        decoded = decode_together(tuple(decoders), [portion.payloads for portion, _ in routed])
        if decoded is not None:
            for (portion, route), decoder, found in zip(routed, decoders, decoded, strict=True):
                yield _found(portion.raw, found, route, decoder, catalog, order)
            return
    for (portion, route), decoder in zip(routed, decoders, strict=True):
        for payloads, raw in _slices(portion.payloads, portion.raw, decoder, catalog):
            found = decoder.decode(payloads)
            yield _found(raw, found, route, decoder, catalog, order)


def _slices(
    payloads: pa.BinaryArray, raw: pa.Table, decoder: Decoder | ChangeDecoder, catalog: Catalog
) -> Iterator[tuple[pa.BinaryArray, pa.Table]]:
    """Records in parts that become columns of a bounded size."""
    if catalog.changes is not None and catalog.changes.format == "datastream":
        # both halves of a change of key must be seen together
        yield payloads, raw
        return
    for part in decoder.expansion.slices(payloads, limit=catalog.max_decoded_bytes):
        yield payloads[part], raw.slice(part.start, part.stop - part.start)


def _found(
    raw: pa.Table,
    decoded: Decoded,
    route: Route,
    shape: HasColumns,
    catalog: Catalog,
    order: StageOrder,
) -> _Found:
    letters = [_failed(failure, route) for failure in decoded.failed]
    dead = letters_batch(raw, letters, order) if letters else None
    return _part(raw, decoded, route, shape, catalog), dead


def _keyed(decoded: Decoded, route: Route, shape: HasColumns, catalog: Catalog) -> Decoded:
    """Changes without those whose key the table has no room for: a side column is no key.

    Without its value a key would be null, and all such rows one row.
    """
    table = catalog.tables.get(route.table)
    sides = {c.name for c in table.columns if side_base(c.comment)} if table is not None else set()
    if table is None or not sides:
        return decoded
    moved = {f.source for f in fills_for(table, shape, catalog) if f.target in sides}
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


def failures(payloads: pa.BinaryArray, raw: pa.Table, route: Route, catalog: Catalog) -> int:
    """How many of some records of one key cannot be decoded."""
    if catalog.changes is not None:
        changes = _Changes.of(route, catalog, catalog.changes, guarded=False)
        parts = _slices(payloads, raw, changes.decoder, catalog)
        return sum(len(changes.decode(some, of).failed) for some, of in parts)
    decoder = _decoder(route, catalog, guarded=False)
    parts = _slices(payloads, raw, decoder, catalog)
    return sum(len(decoder.decode(some).failed) for some, _ in parts)


@dataclass(frozen=True, slots=True)
class _Changes:
    """How the change events of a route are decoded."""

    decoder: ChangeDecoder
    shape: HasColumns
    shard: str

    @classmethod
    def of(
        cls, route: Route, catalog: Catalog, settings: ChangeSettings, *, guarded: bool
    ) -> _Changes:
        keys = catalog.schemas.get(route.key_schema_id)
        schema, limits = catalog.schemas[route.schema_id], limits_of(catalog)
        decoder = change_decoder_for(schema, settings, limits, keys=keys)
        shape = sharded(decoder) if route.shard else decoder
        if guarded:
            decoder = GuardedChanges(decoder, schema, settings, limits, keys)
        return cls(decoder, shape, route.shard)

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        found = self.decoder.decode(payloads, raw)
        return replace(found, ok=with_shard(found.ok, self.shard)) if self.shard else found


_ROUTED: Cache[Decoder] = Cache(CAPACITY)


def _decoder_of(route: Route, catalog: Catalog, *, guarded: bool) -> Decoder:
    """The same as `_decoder`, found again by the route itself as long as the catalog stays."""
    if guarded:
        return _decoder(route, catalog, guarded=True)
    return _ROUTED.of((route,), lambda: _decoder(route, catalog, guarded=False), owner=catalog)


def _decoder(route: Route, catalog: Catalog, *, guarded: bool) -> Decoder:
    schema = catalog.schemas[route.schema_id]
    limits = replace(limits_of(catalog), raw_bytes=route.raw_bytes)
    decoder = decoder_for(schema, route.message, limits)
    return GuardedDecoder(decoder, schema, route.message, limits) if guarded else decoder


def _part(
    raw: pa.Table, decoded: Decoded, route: Route, decoder: HasColumns, catalog: Catalog
) -> Part:
    records = raw.num_rows - len(decoded.failed)
    dropped = count_dropped(raw, decoded) if catalog.drop_unknown_fields else None
    if decoded.origin is not None:
        raw = raw.take(decoded.origin)
    table = catalog.tables.get(route.table)
    fills = fills_for(table, decoder, catalog) if table is not None else ()
    return Part(route, decoded.ok, fills, raw, records, dropped)


def _refused(count: int, key: RouteKey, why: Rejected) -> list[Letter]:
    return [
        Letter(row, why.code, why.message, "route", type=key.claim, schema_id=key.schema_id)
        for row in range(count)
    ]


def _failed(failure: Failure, route: Route) -> Letter:
    return Letter(
        failure.index,
        failure.code,
        failure.message,
        "decode",
        failure.position,
        type=route.type,
        schema_id=route.schema_id,
    )


_FILLS: Cache[tuple[Fill, ...]] = Cache(_MOST_SHAPES)


def fills_for(table: TablePlan, decoder: HasColumns, catalog: Catalog) -> tuple[Fill, ...]:
    """How a schema's columns reach the table; kept between tasks for the same two objects.

    The driver has evolved the table already, so the same pure merge finds a place for everything.
    """

    def merged() -> tuple[Fill, ...]:
        policy = Evolution.model_validate(dict(catalog.evolution))
        return merge(table.columns, decoder.columns, policy).fills

    return _FILLS.of((table, decoder), merged)
