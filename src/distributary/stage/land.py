"""Hop two of a stage: decode each table's records by their own schemas and write its file."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from distributary.config.evolution import Evolution
from distributary.decode.base import Decoder
from distributary.decode.cache import decoder_for
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.model.plan import Catalog, Route, StageOrder
from distributary.model.record import RAW
from distributary.model.table import Fill, TablePlan
from distributary.stage.facts import file_fact
from distributary.stage.group import group, positions
from distributary.stage.guard import GuardedDecoder
from distributary.stage.heap import settle
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.metadata import metadata_columns
from distributary.stage.names import file_name
from distributary.stage.packets import DEAD, ROWS, Packet, facts_batch, from_batches
from distributary.stage.parquet import write_file
from distributary.stage.unified import UnifiedWriter
from distributary.stage.unwrap import Rows, limits_of, unwrap


@dataclass(frozen=True, slots=True)
class Part:
    """Decoded records of one schema: columns, and the raw rows they came from."""

    route: Route
    batch: pa.RecordBatch
    fills: tuple[Fill, ...]
    rows: Rows
    schema_id: int
    records: int


def land(
    batches: Iterable[pa.RecordBatch], catalog: Catalog, order: StageOrder
) -> Iterator[pa.RecordBatch]:
    """Packets in, files on disk, facts out."""
    facts: list[tuple[str, str]] = []
    packets: dict[str, list[Packet]] = defaultdict(list)
    dead: list[pa.RecordBatch] = []
    for packet in from_batches(batches):
        if packet.kind == ROWS:
            packets[packet.name].append(packet)
        elif packet.kind == DEAD:
            dead.append(pa.ipc.read_record_batch(packet.body, DEAD_LETTER_SCHEMA))
        else:
            facts.append((packet.name, bytes(packet.body).decode()))
    unified = UnifiedWriter(catalog, order) if catalog.unified else None
    for name in sorted(packets):
        raw = _joined(packets.pop(name))
        parts, letters = decode_parts(raw, catalog, guarded=order.guarded)
        if letters:
            dead.append(letters_batch(raw, letters, order))
        if unified is not None:
            unified.add(raw, parts)
        facts += _land_table(raw, parts, catalog, order)
    if unified is not None:
        facts += unified.finish()
    facts += _land_dead(dead, catalog, order)
    settle(catalog)
    yield facts_batch(facts)


def _joined(packets: list[Packet]) -> pa.RecordBatch:
    batches = [pa.ipc.read_record_batch(p.body, RAW) for p in packets]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def decode_parts(
    raw: pa.RecordBatch, catalog: Catalog, *, guarded: bool = False
) -> tuple[list[Part], list[Letter]]:
    """Each group of records by the schema it was written with, never by another."""
    unwrapped = unwrap(raw, catalog, guarded=guarded)
    groups = group(unwrapped)
    parts: list[Part] = []
    letters: list[Letter] = []
    wheres = positions(groups.codes, len(groups.keys))
    # one copy for all groups: each of them is a slice of it
    in_order = np.concatenate([np.empty(0, dtype=np.int64), *wheres])
    sorted_payloads = unwrapped.payloads.take(pa.array(in_order))
    start = 0
    for key, where in zip(groups.keys, wheres, strict=True):
        payloads = sorted_payloads.slice(start, len(where))
        start += len(where)
        route = catalog.routes[key]
        if not isinstance(route, Route):
            continue  # hop one has dead-lettered these already
        schema = catalog.schemas[route.schema_id]
        decoder: Decoder = decoder_for(schema, route.message, limits_of(catalog))
        if guarded:
            decoder = GuardedDecoder(decoder, schema, route.message, limits_of(catalog))
        decoded = decoder.decode(payloads)
        for failure in decoded.failed:
            letters.append(
                Letter(
                    int(unwrapped.rows[where[failure.index]]),
                    failure.code,
                    failure.message,
                    "decode",
                    failure.position,
                    type=route.type,
                    schema_id=key.schema_id,
                )
            )
        origin = decoded.origin
        kept = where if origin is None else where[origin.to_numpy(zero_copy_only=False)]
        table = catalog.tables.get(route.table)
        fills = fills_for(table, decoder, catalog) if table is not None else ()
        records = len(where) - len(decoded.failed)
        rows = unwrapped.rows[kept]
        parts.append(Part(route, decoded.ok, fills, rows, key.schema_id, records))
    return parts, letters


_FILLS: dict[tuple[int, int], tuple[TablePlan, Decoder, tuple[Fill, ...]]] = {}


def fills_for(table: TablePlan, decoder: Decoder, catalog: Catalog) -> tuple[Fill, ...]:
    """How a schema's columns reach the table; kept between tasks for the same two objects.

    The driver has evolved the table already, so the same pure merge finds a place for everything.
    """
    key = (id(table), id(decoder))
    known = _FILLS.get(key)
    if known is None or known[0] is not table or known[1] is not decoder:
        if len(_FILLS) > 50_000:
            _FILLS.clear()
        policy = Evolution.model_validate(dict(catalog.evolution))
        known = (table, decoder, merge(table.columns, decoder.columns, policy).fills)
        _FILLS[key] = known
    return known[2]


def _land_table(
    raw: pa.RecordBatch, parts: list[Part], catalog: Catalog, order: StageOrder
) -> list[tuple[str, str]]:
    if not parts or not parts[0].route.table:
        return []
    table = catalog.tables[parts[0].route.table]
    records = sum(part.records for part in parts)
    targets = {fill.target for part in parts for fill in part.fills}
    schema = pa.schema([pa.field(c.name, c.type) for c in table.columns if c.name in targets])
    aligned = [align(part.batch, part.fills, schema) for part in parts if part.batch.num_rows]
    rows = np.concatenate([part.rows for part in parts]) if parts else np.empty(0, np.int64)
    if not len(rows):
        return [file_fact(table.name, records, None)]
    ids = np.concatenate([np.full(len(p.rows), p.schema_id, dtype=np.int64) for p in parts])
    body = pa.Table.from_batches(aligned, schema)
    extra = metadata_columns(raw, rows, ids, catalog.metadata, order)
    for name, array in extra:
        body = body.append_column(pa.field(name, array.type), array)
    offsets = raw.column("offset").to_numpy()[rows]
    staged = write_file(
        body,
        table.path,
        file_name(order),
        first_offset=int(offsets.min()),
        last_offset=int(offsets.max()),
        schema_ids=[part.schema_id for part in parts],
    )
    return [file_fact(table.name, records, staged)]


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
