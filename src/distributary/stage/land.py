"""Hop two of a stage: each table's decoded records become its file."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.changes.events.copies import redelivered
from distributary.changes.events.log_events import KeyIndex
from distributary.decode.formats import built
from distributary.delta.parquet import UPLOADS, write_file
from distributary.evolve.align import Aligner
from distributary.model.cache import Cache
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, ENCRYPTED, SECRETS, WITHHELD
from distributary.model.facts import (
    DeadLettersCounted,
    Fact,
    FileStaged,
    RecordsFiltered,
    RecordsSkipped,
)
from distributary.model.manifest import StagedFile
from distributary.model.routing import StageOrder
from distributary.model.table import Role, TablePlan
from distributary.shape.raw_encryption import encrypted
from distributary.stage.decoding import (
    DecodedPart,
    UnifiedWriter,
    decode_shares,
    open_records,
    passed_over,
)
from distributary.stage.drop_erased import without_erased_values
from distributary.stage.exchange import Load, combinations, facts_batch, open_run
from distributary.stage.rows.checking import count_changes, count_facts, held_to_rules
from distributary.stage.rows.keying import KeyedRows, held_to_key, with_change_columns
from distributary.stage.rows.partitions import (
    COORDINATES,
    raw_records_of,
    schema_ids_of,
    table_facts,
    within_limits,
)
from distributary.stage.task_outputs import count_events, file_name, metadata_columns
from distributary.stage.task_plan import TaskPlan
from distributary.store.base import at

# Long-lived objects of a worker are hidden from the garbage collector. PySpark collects all garbage
# after each task; with a thousand compiled decoders, that is a walk over a hundred thousand objects
# that live as long as the worker.

_frozen: tuple[TaskPlan | None, int] = (None, 0)


def settle(plan: TaskPlan) -> None:
    """Freeze the objects of a new plan or of new decoders against garbage collection."""
    global _frozen
    known, decoders = _frozen
    if plan is not known or built() != decoders:
        _frozen = (plan, built())
        gc.collect()
        gc.freeze()


_MOST_SHAPES = 50_000


def land(load: Load, plan: TaskPlan, order: StageOrder) -> Iterator[pa.RecordBatch]:
    """Read runs, write the files of tables, and yield facts."""
    facts: list[Fact] = []
    # Each run is opened once, at its first use.
    opened = cache(open_records)
    dead = [open_run(path) for path in load.letters]
    unified = UnifiedWriter(plan, order) if plan.output.unified else None
    skipped = 0
    for shares in load.tables.values():
        skipped += passed_over(shares, plan)
        for parts, letters in decode_shares(shares, opened, plan, order):
            dead += letters
            if filtered := sum(part.filtered for part in parts):
                facts.append(RecordsFiltered(parts[0].route.table, filtered))
            dropped = [part.dropped for part in parts if part.dropped is not None]
            if any(count.violated for count in dropped):
                facts += count_facts(parts[0].route.table or plan.output.unified, dropped)
            if plan.erased:
                parts, erased = without_erased_values(parts, plan)
                facts += erased
            parts, refused = within_limits(parts, plan, order)
            dead += refused
            if plan.output.expectations:
                held = held_to_rules(parts, plan, order)
                parts = held.parts
                dead += held.dead
                facts += held.facts
            keyed = held_to_key(parts, plan, order)
            dead += keyed.dead
            if unified is not None:
                facts += unified.add([part for part in keyed.parts if not part.tombstones])
            facts += _land_table(keyed, plan, order)
    if unified is not None:
        facts += unified.finish()
    if dead:
        facts += _land_dead(dead, plan, order)
    if skipped:
        facts.append(RecordsSkipped(skipped))
    settle(plan)
    UPLOADS.finish()
    yield facts_batch(facts)


_ALIGNERS: Cache[tuple[pa.Schema, list[Aligner]]] = Cache(_MOST_SHAPES)
"""The aligners for parts of certain schemas to rows of a table."""


def _aligned(table: TablePlan, parts: Sequence[DecodedPart]) -> pa.Table:
    """Return the parts' rows in the table's columns, without the columns that no part has."""

    def aligners() -> tuple[pa.Schema, list[Aligner]]:
        targets = {fill.target for part in parts for fill in part.fills}
        schema = pa.schema([pa.field(c.name, c.type) for c in table.columns if c.name in targets])
        return schema, [Aligner(part.batch.schema, part.fills, schema) for part in parts]

    schema, cached = _ALIGNERS.of((table, *(part.fills for part in parts)), aligners)
    batches = [align(part.batch) for align, part in zip(cached, parts, strict=True)]
    return pa.Table.from_batches(batches, schema)


def _land_table(rows: KeyedRows, plan: TaskPlan, order: StageOrder) -> list[Fact]:
    parts = rows.parts
    if not parts or not parts[0].route.table:
        return []
    table = plan.output.tables[parts[0].route.table]
    records = sum(part.records for part in parts)
    filled = [part for part in parts if part.batch.num_rows]
    if not filled:
        return [FileStaged(table.name, records, None)]
    body = _aligned(table, filled)
    raw = raw_records_of(filled)
    ids = schema_ids_of(filled)
    facts: list[Fact] = []
    rule = plan.output.keys.get(table.name)
    if rule is not None:
        body = with_change_columns(body, raw, table, rule, rows.deletes)
    if table.role is Role.LOG:
        again = redelivered(table.path, body)
        if again.true_count:
            dropped = _records_in(raw) - _records_in(raw.filter(pc.invert(again)))
            facts.append(RecordsSkipped(dropped))
            records -= dropped
            body, raw, ids = (some.filter(pc.invert(again)) for some in (body, raw, ids))
        if not body.num_rows:
            return [*facts, FileStaged(table.name, records, None)]
        facts.append(count_events(table.name, body))
        if plan.output.expectations and plan.changes is not None:
            facts += count_changes(table, body, raw, plan)
    for name, array in metadata_columns(raw, ids, plan.output.metadata, order):
        body = body.append_column(pa.field(name, array.type), array)
    return facts + table_facts(
        body,
        table,
        order,
        records=records,
        times=raw.column("timestamp"),
        offsets=raw.column("offset"),
        schema_ids=ids,
    )


def _records_in(raw: pa.Table) -> int:
    """Return the number of records that rows came in: a record may have several rows."""
    values, _ = combinations(raw.column(name) for name in COORDINATES)
    return len(values)


def _land_dead(dead: list[pa.RecordBatch], plan: TaskPlan, order: StageOrder) -> list[Fact]:
    rows = pa.Table.from_batches(dead, DEAD_LETTER_SCHEMA)
    # a replay compares its dead letters with the selected ones, so it keeps their records
    if plan.output.raw_records == "withhold" and order.lane == "stream":
        rows = _withheld(rows)
    elif plan.output.raw_records == "encrypt":
        rows = sealed_letters(rows, order.mask_key)
    facts = table_facts(
        rows,
        plan.output.tables[plan.output.dead_letters],
        order,
        records=rows.num_rows,
        times=rows["timestamp"],
        offsets=rows["offset"],
    )
    return [*facts, DeadLettersCounted(Counter(rows["error_code"].to_pylist()))]


def sealed_letters(rows: pa.Table, mask_key: bytes) -> pa.Table:
    """Return dead letters with encrypted records, and the note that says so."""
    rows = encrypted(rows, SECRETS, ("topic", "partition", "offset"), mask_key)
    return _with_note(rows, ENCRYPTED)


def _withheld(rows: pa.Table) -> pa.Table:
    """Return dead letters without the contents of their records."""
    for name in SECRETS:
        field = DEAD_LETTER_SCHEMA.field(name)
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
    return _with_note(rows, WITHHELD)


def _with_note(rows: pa.Table, note: str) -> pa.Table:
    place = rows.schema.get_field_index("note")
    return rows.set_column(place, rows.schema.field(place), pa.repeat(note, rows.num_rows))


# Removal of copies of one event that two tasks of a stage have landed: a log has each event once. A
# task drops the copies that it sees, and events that the log has. If a heavy table is cut, two
# tasks do not see each other's events.

_ID = ("_uuid", "_hash")
Flags = npt.NDArray[np.bool_]


def without_copies(
    table: TablePlan, files: Sequence[StagedFile], order: StageOrder
) -> tuple[list[StagedFile], Counter[str]]:
    """Remove rows that an earlier file has; return the files, and the removed rows by operation."""
    ids = [_columns(table, file, [*_ID, "_op"]) for file in files]
    every = pa.concat_tables(ids)
    index = KeyIndex(every, _ID)
    first = np.zeros(every.num_rows, np.bool_)
    first[np.unique(index.groups, return_index=True)[1]] = True
    nameless = pc.equal(pc.binary_length(every.column("_uuid")).fill_null(0), 0)
    keep = first | nameless.to_numpy(zero_copy_only=False)
    if keep.all():
        return list(files), Counter()
    kept: list[StagedFile] = []
    start = 0
    for file, rows in zip(files, ids, strict=True):
        wanted = keep[start : start + rows.num_rows]
        start += rows.num_rows
        if wanted.all():
            kept.append(file)
            continue
        if wanted.any():
            kept.append(_rewritten(table, file, wanted, order))
        at(table.path).remove(file.path)
    return kept, Counter(every.column("_op").filter(pa.array(~keep)).to_pylist())


def _rewritten(table: TablePlan, file: StagedFile, wanted: Flags, order: StageOrder) -> StagedFile:
    rows = _columns(table, file).filter(pa.array(wanted))
    folder, _, _ = file.path.rpartition("/")
    name = f"{folder}/{file_name(order)}" if folder else file_name(order)
    written = write_file(rows, table.path, name)
    return replace(
        written,
        partition_values=file.partition_values,
        first_offset=file.first_offset,
        last_offset=file.last_offset,
        schema_ids=file.schema_ids,
    )


def _columns(table: TablePlan, file: StagedFile, names: list[str] | None = None) -> pa.Table:
    with at(table.path).open(file.path) as opened:
        return pq.ParquetFile(opened).read(columns=names)
