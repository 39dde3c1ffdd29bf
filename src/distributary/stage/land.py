"""Hop two of a stage: each table's decoded records become its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.evolve.align import Aligner
from distributary.merge.dedupe import redelivered
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.model.identity import ByIdentity
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import Role, TablePlan
from distributary.stage.expectations import count_changes, count_facts, held_to_rules
from distributary.stage.facts import change_fact, file_fact
from distributary.stage.heap import settle
from distributary.stage.loads import Load
from distributary.stage.metadata import metadata_columns
from distributary.stage.names import file_name
from distributary.stage.parquet import UPLOADS, write_file
from distributary.stage.partition_limits import within_limits
from distributary.stage.partitions import partition_facts, with_date
from distributary.stage.parts import Part, Runs, decode_shares, passed_over
from distributary.stage.runs import facts_batch, open_run
from distributary.stage.unified import UnifiedWriter

_MOST_SHAPES = 50_000


def land(load: Load, catalog: Catalog, order: StageOrder) -> Iterator[pa.RecordBatch]:
    """Runs in, files on disk, facts out."""
    facts: list[tuple[str, str]] = []
    runs = Runs()
    dead = [open_run(path) for path in load.letters]
    unified = UnifiedWriter(catalog, order) if catalog.unified else None
    skipped = 0
    for shares in load.tables.values():
        skipped += passed_over(shares, catalog)
        for parts, letters in decode_shares(shares, runs, catalog, order):
            dead += letters
            facts += _dropped(parts, catalog)
            parts, refused = within_limits(parts, catalog, order)
            dead += refused
            if catalog.expectations:
                held = held_to_rules(parts, catalog, order)
                parts = held.parts
                dead += held.dead
                facts += held.facts
            if unified is not None:
                facts += unified.add(parts)
            facts += _land_table(parts, catalog, order)
    if unified is not None:
        facts += unified.finish()
    facts += _land_dead(dead, catalog, order)
    if skipped:
        facts.append(("skipped", json.dumps(skipped)))
    settle(catalog)
    UPLOADS.finish()
    yield facts_batch(facts)


def _dropped(parts: Sequence[Part], catalog: Catalog) -> list[tuple[str, str]]:
    counts = [part.dropped for part in parts if part.dropped is not None]
    if not any(count.violated for count in counts):
        return []
    return count_facts(parts[0].route.table or catalog.unified, counts)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How parts of certain schemas come together as rows of a table."""

    schema: pa.Schema
    aligners: tuple[Aligner, ...]

    @classmethod
    def of(cls, table: TablePlan, parts: Sequence[Part]) -> _Shape:
        targets = {fill.target for part in parts for fill in part.fills}
        schema = pa.schema([pa.field(c.name, c.type) for c in table.columns if c.name in targets])
        aligners = tuple(Aligner(part.batch.schema, part.fills, schema) for part in parts)
        return cls(schema, aligners)


_SHAPES: ByIdentity[_Shape] = ByIdentity(_MOST_SHAPES)


def _aligned(table: TablePlan, parts: Sequence[Part]) -> pa.Table:
    """The parts' rows with the table's columns, less those that no part has."""
    made_of = (table, *(part.fills for part in parts))
    known = _SHAPES.get(made_of, lambda: _Shape.of(table, parts))
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
    ids = schema_ids_of(filled)
    facts: list[tuple[str, str]] = []
    if table.role is Role.LOG:
        again = redelivered(table.path, body)
        if again.true_count:
            facts.append(("skipped", json.dumps(again.true_count)))
            records -= again.true_count
            body, raw, ids = (rows.filter(pc.invert(again)) for rows in (body, raw, ids))
        if not body.num_rows:
            return [*facts, file_fact(table.name, records, None)]
        facts.append(change_fact(table.name, body))
        if catalog.expectations:
            facts += count_changes(table, body, raw, catalog)
    for name, array in metadata_columns(raw, ids, catalog.metadata, order):
        body = body.append_column(pa.field(name, array.type), array)
    if table.partition_by:
        body = with_date(body, raw.column("timestamp"), table)
        offsets = raw.column("offset")
        return facts + partition_facts(
            body, table, order, records=records, offsets=offsets, schema_ids=ids
        )
    bounds = pc.min_max(raw.column("offset"))
    staged = write_file(
        body,
        table.path,
        table.staged(file_name(order)),
        first_offset=bounds["min"].as_py(),
        last_offset=bounds["max"].as_py(),
        schema_ids=[part.route.schema_id for part in filled],
    )
    return [*facts, file_fact(table.name, records, staged)]


def schema_ids_of(parts: Iterable[Part]) -> pa.Int64Array:
    """The schema of each row of these parts."""
    numbers = [(p.route.schema_id, p.batch.num_rows) for p in parts]
    ids, rows = zip(*numbers, strict=True)
    return pa.array(np.repeat(np.array(ids, dtype=np.int64), rows))


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
