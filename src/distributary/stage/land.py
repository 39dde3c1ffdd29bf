"""Hop two of a stage: decode each table's records by their own schemas and write its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.evolution import Evolution
from distributary.decode.base import Decoder
from distributary.decode.cache import decoder_for
from distributary.evolve.align import Aligner
from distributary.evolve.merge import merge
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.model.decoded import Failure
from distributary.model.plan import Catalog, Rejected, Route, RouteKey, StageOrder
from distributary.model.record import RAW
from distributary.model.table import Fill, TablePlan
from distributary.stage.facts import file_fact
from distributary.stage.guard import GuardedDecoder
from distributary.stage.heap import settle
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.loads import Load, Share, Slice
from distributary.stage.metadata import metadata_columns
from distributary.stage.names import file_name
from distributary.stage.parquet import write_file
from distributary.stage.partition_limits import within_limits
from distributary.stage.partitions import partition_facts, with_date
from distributary.stage.runs import facts_batch, open_run
from distributary.stage.unified import UnifiedWriter
from distributary.stage.unwrap import limits_of

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


def land(load: Load, catalog: Catalog, order: StageOrder) -> Iterator[pa.RecordBatch]:
    """Runs in, files on disk, facts out."""
    facts: list[tuple[str, str]] = []
    runs = _Runs()
    dead = [open_run(path) for path in load.letters]
    unified = UnifiedWriter(catalog, order) if catalog.unified else None
    for shares in load.tables.values():
        parts: list[Part] = []
        for share in shares:
            decoded, letters = _decode(share, runs, catalog, order)
            parts += decoded
            dead += letters
        parts, refused = within_limits(parts, catalog, order)
        dead += refused
        if unified is not None:
            unified.add(parts)
        facts += _land_table(parts, catalog, order)
    if unified is not None:
        facts += unified.finish()
    facts += _land_dead(dead, catalog, order)
    settle(catalog)
    yield facts_batch(facts)


class _Runs:
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


def _decode(
    share: Share, runs: _Runs, catalog: Catalog, order: StageOrder
) -> tuple[list[Part], list[pa.RecordBatch]]:
    """A share's records as parts, and the rows for the dead-letter table."""
    route = catalog.routes[share.key]
    parts: list[Part] = []
    dead: list[pa.RecordBatch] = []
    for raws, payloads in _portions([runs.slice(one) for one in share.slices]):
        raw = pa.Table.from_batches(raws, RAW)
        if isinstance(route, Rejected):
            letters = _refused(raw.num_rows, share.key, route)
        else:
            part, failed = decode_part(raw, payloads, route, catalog, guarded=order.guarded)
            parts.append(part)
            letters = [_failed(failure, route) for failure in failed]
        if letters:
            dead.append(letters_batch(raw, letters, order))
    return parts, dead


def _portions(
    slices: Sequence[tuple[pa.RecordBatch, pa.BinaryArray]],
) -> Iterator[tuple[list[pa.RecordBatch], pa.BinaryArray]]:
    """Slices put together, up to a size at which a decoder gains nothing from more."""
    raws: list[pa.RecordBatch] = []
    payloads: list[pa.BinaryArray] = []
    size = 0
    for raw, payload in slices:
        if raws and size + payload.nbytes > _BYTES_PER_DECODE:
            yield raws, pa.concat_arrays(payloads)
            raws, payloads, size = [], [], 0
        raws.append(raw)
        payloads.append(payload)
        size += payload.nbytes
    yield raws, payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)


def decode_part(
    raw: pa.Table,
    payloads: pa.BinaryArray,
    route: Route,
    catalog: Catalog,
    *,
    guarded: bool = False,
) -> tuple[Part, tuple[Failure, ...]]:
    """Records of one key by the schema they were written with, never by another."""
    schema = catalog.schemas[route.schema_id]
    decoder: Decoder = decoder_for(schema, route.message, limits_of(catalog))
    if guarded:
        decoder = GuardedDecoder(decoder, schema, route.message, limits_of(catalog))
    decoded = decoder.decode(payloads)
    if decoded.origin is not None:
        raw = raw.take(decoded.origin)
    table = catalog.tables.get(route.table)
    fills = fills_for(table, decoder, catalog) if table is not None else ()
    records = len(payloads) - len(decoded.failed)
    return Part(route, decoded.ok, fills, raw, records), decoded.failed


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


_FILLS: dict[tuple[int, int], tuple[TablePlan, Decoder, tuple[Fill, ...]]] = {}


def fills_for(table: TablePlan, decoder: Decoder, catalog: Catalog) -> tuple[Fill, ...]:
    """How a schema's columns reach the table; kept between tasks for the same two objects.

    The driver has evolved the table already, so the same pure merge finds a place for everything.
    """
    key = (id(table), id(decoder))
    known = _FILLS.get(key)
    if known is None or known[0] is not table or known[1] is not decoder:
        if len(_FILLS) > _MOST_SHAPES:
            _FILLS.clear()
        policy = Evolution.model_validate(dict(catalog.evolution))
        known = (table, decoder, merge(table.columns, decoder.columns, policy).fills)
        _FILLS[key] = known
    return known[2]


@dataclass(frozen=True, slots=True)
class _Shape:
    """How parts of certain schemas come together as rows of a table."""

    table: TablePlan
    fills: tuple[tuple[Fill, ...], ...]
    schema: pa.Schema
    aligners: tuple[Aligner, ...]

    @classmethod
    def of(cls, table: TablePlan, parts: Sequence[Part]) -> _Shape:
        targets = {fill.target for part in parts for fill in part.fills}
        schema = pa.schema([pa.field(c.name, c.type) for c in table.columns if c.name in targets])
        aligners = tuple(Aligner(part.batch.schema, part.fills, schema) for part in parts)
        return cls(table, tuple(part.fills for part in parts), schema, aligners)


_SHAPES: dict[tuple[int, ...], _Shape] = {}


def _aligned(table: TablePlan, parts: Sequence[Part]) -> pa.Table:
    """The parts' rows with the table's columns, less those that no part has.

    Shapes are kept between tasks, found again by the objects they were made of: comparing schemas
    would cost more than the alignment itself.
    """
    key = (id(table), *(id(part.fills) for part in parts))
    known = _SHAPES.get(key)
    same = known is not None and known.table is table
    if known is None or not (
        same and all(mine is part.fills for mine, part in zip(known.fills, parts, strict=True))
    ):
        if len(_SHAPES) > _MOST_SHAPES:
            _SHAPES.clear()
        known = _SHAPES[key] = _Shape.of(table, parts)
    batches = [align(part.batch) for align, part in zip(known.aligners, parts, strict=True)]
    return pa.Table.from_batches(batches, known.schema)


def _land_table(parts: list[Part], catalog: Catalog, order: StageOrder) -> list[tuple[str, str]]:
    if not parts or not parts[0].route.table:
        return []
    table = catalog.tables[parts[0].route.table]
    records = sum(part.records for part in parts)
    filled = [part for part in parts if part.batch.num_rows]
    if not filled:
        return [file_fact(table.name, records, None)]
    body = _aligned(table, filled)
    raw = pa.concat_tables([part.raw for part in filled])
    for name, array in metadata_columns(raw, schema_ids_of(filled), catalog.metadata, order):
        body = body.append_column(pa.field(name, array.type), array)
    if table.partition_by:
        body = with_date(body, raw.column("timestamp"), table)
        ids, offsets = schema_ids_of(filled), raw.column("offset")
        return partition_facts(body, table, order, records=records, offsets=offsets, schema_ids=ids)
    bounds = pc.min_max(raw.column("offset"))
    staged = write_file(
        body,
        table.path,
        table.staged(file_name(order)),
        first_offset=bounds["min"].as_py(),
        last_offset=bounds["max"].as_py(),
        schema_ids=[part.route.schema_id for part in filled],
    )
    return [file_fact(table.name, records, staged)]


def schema_ids_of(parts: Iterable[Part]) -> pa.Int64Array:
    """The schema of each row of these parts."""
    ids = [np.full(p.batch.num_rows, p.route.schema_id, dtype=np.int64) for p in parts]
    return pa.array(ids[0] if len(ids) == 1 else np.concatenate(ids))


def _land_dead(
    dead: list[pa.RecordBatch], catalog: Catalog, order: StageOrder
) -> list[tuple[str, str]]:
    if not dead:
        return []
    table = pa.Table.from_batches(dead, DEAD_LETTER_SCHEMA)
    offsets = table["offset"].to_numpy()
    staged = write_file(
        table,
        catalog.tables[catalog.dead_letters].path,
        file_name(order),
        first_offset=int(offsets.min()),
        last_offset=int(offsets.max()),
    )
    codes = Counter(table["error_code"].to_pylist())
    return [
        file_fact(catalog.dead_letters, table.num_rows, staged),
        ("dead", json.dumps(codes)),
    ]
