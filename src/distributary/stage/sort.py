"""Hop one of a stage: unwrap a task's records, sort them by key, and write them as a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.json.infer import infer
from distributary.decode.json.kinds import profile_texts, together
from distributary.decode.json.known_shapes import Group, adding_nothing
from distributary.delta.parquet import UPLOADS
from distributary.errors import ErrorCode
from distributary.model.facts import (
    Fact,
    KeyRange,
    LettersFile,
    RecordsRead,
    SchemaCarried,
    ShapeSeen,
    SortedRun,
)
from distributary.model.names import refused_type_name
from distributary.model.record import FAMILIAR, RAW, LastRecords, last_records
from distributary.model.routing import UNFRAMED, Rejected, RouteKey, StageOrder
from distributary.stage.bronze import BronzeWriter
from distributary.stage.drop_erased import without_erased
from distributary.stage.exchange import (
    SORTED,
    RecordGroups,
    facts_batch,
    group,
    positions,
    write_run,
)
from distributary.stage.task_outputs import Letter, gathered, letters_batch
from distributary.stage.task_plan import TaskPlan
from distributary.stage.unwrap import Rows, ShardFilter, Unwrapped, decodable, known_shape, unwrap

# The inference of shapes for records that come without any schema.


def joined(looks: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Merge shapes or profiles into one for each claim."""
    result: dict[str, dict[str, Any]] = {}
    for claim, look in looks:
        known = result.get(claim)
        result[claim] = look if known is None else together(known, look)
    return result


def shapes(
    unwrapped: Unwrapped,
    groups: RecordGroups,
    plan: TaskPlan,
    refused: Collection[int] = (),
    *,
    careful: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the shape of each claim whose records name no schema.

    The shape is a JSON Schema for change events, and for other records a profile: the kinds of
    values of their fields. Records of a known shape are skipped. With `careful`, records are parsed
    one after the other, in memory that does not depend on their content.
    """
    payloads = unwrapped.payloads
    new = ~np.isin(unwrapped.rows, unwrapped.familiar)
    inferred: list[tuple[RouteKey, Rows]] = []
    for number, rows in enumerate(positions(groups.codes, len(groups.keys))):
        key, rows = groups.keys[number], rows[new[rows]]
        if key.tombstone and plan.changes is None:
            continue
        if len(rows) and key.schema_id == UNFRAMED and not key.guid and number not in refused:
            inferred.append((key, rows))
    if not careful:
        known = [(rows, known_shape(plan, key)) for key, rows in inferred]
        new &= ~adding_nothing(payloads, [Group(rows, shape) for rows, shape in known if shape])
    for key, rows in inferred:
        rows = rows[new[rows]]
        if not len(rows):
            continue
        values = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
        look = (
            infer(values, parts=True, careful=careful)
            if plan.changes is not None
            else profile_texts(values, careful=careful or len(values) <= _FEW)
        )
        if look is not None:
            yield key.claim, look


_FEW = 10
"""The number of records up to which parsing each is quicker than having Arrow read them."""
_BYTES_PER_RUN = 256 * 1024 * 1024
BAD_NAME = "the type's name cannot become the name of a table"
_TOO_MANY = Rejected(
    ErrorCode.TOO_MANY_TYPES,
    "more new types came in one batch than evolution.max_new_tables_per_batch allows",
)


def sort(
    batches: Iterable[pa.RecordBatch],
    plan: TaskPlan,
    order: StageOrder,
    known: Collection[RouteKey] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Sort raw records into runs on disk, and yield facts.

    `known` are the keys that had a route when these records were sorted before, if they were: keys
    that were refused then are refused again, whatever routes exist now.
    """
    bronze = BronzeWriter(plan, order) if plan.output.bronze and order.lane == "stream" else None
    seen = skipped = size = newest = 0
    heartbeats: dict[str, int] = {}
    share = ShardFilter()
    last: LastRecords = {}
    for batch in _in_runs(share.own(batches)):
        raw = batch.select(RAW.names)
        seen += raw.num_rows
        size += pc.sum(pc.binary_length(raw.column("value"))).as_py() or 0
        newest = max(newest, pc.max(raw.column("timestamp")).cast(pa.int64()).as_py() or 0)
        if order.last_records:
            last |= last_records(raw)
        if plan.erased:
            batch = without_erased(batch, plan)
            skipped += raw.num_rows - batch.num_rows
            raw = batch.select(RAW.names)
            if not raw.num_rows:
                continue
        unwrapped = unwrap(raw, plan, guarded=order.guarded)
        if FAMILIAR.name in batch.schema.names:
            unwrapped.familiar = np.flatnonzero(batch.column(FAMILIAR.name))
        if plan.output.whole:
            # No record is refused here: the jobs that read bronze will refuse it.
            unwrapped.letters, unwrapped.skipped = [], 0
        skipped += unwrapped.skipped
        for topic, moment in unwrapped.heartbeats.items():
            heartbeats[topic] = max(moment, heartbeats.get(topic, moment))
        if bronze is not None:
            bronze.add(raw, unwrapped)
        yield facts_batch(_sorted(raw, unwrapped, plan, order, known))
    seen, skipped = seen + share.others, skipped + share.others
    facts: list[Fact] = [RecordsRead(seen, skipped, size, newest, last, heartbeats)]
    if bronze is not None:
        facts += bronze.finish()
        UPLOADS.finish()
    yield facts_batch(facts)


def _in_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches up to the size of a run: few large groups are cheaper than many small ones."""
    filled = (batch for batch in batches if batch.num_rows)
    for some in gathered(filled, lambda batch: batch.nbytes, _BYTES_PER_RUN):
        yield some[0] if len(some) == 1 else pa.concat_batches(some)


def _sorted(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    plan: TaskPlan,
    order: StageOrder,
    known: Collection[RouteKey] | None,
) -> Iterator[Fact]:
    decoding = plan.output.each or bool(plan.output.unified)
    if decoding:
        unwrapped = decodable(unwrapped, plan)
    letters = unwrapped.letters
    if decoding and len(unwrapped.rows):
        groups = group(unwrapped, plan.routing.unions)
        refused = _refused(groups, plan, order, known)
        if refused:
            letters = letters + _letters(unwrapped, groups, refused)
        timed = plan.changes is not None
        run = _run(raw, unwrapped, groups, refused, order, timed=timed)
        if run is not None:
            yield run
        new = {key.guid for key in groups.keys if key not in plan.routing.routes}
        for guid in new & unwrapped.carried.keys():
            yield SchemaCarried(unwrapped.carried[guid])
        if plan.routing.infer:
            looks = shapes(unwrapped, groups, plan, refused, careful=order.guarded)
            for claim, shape in looks:
                yield ShapeSeen(claim, shape)
    if letters:
        yield LettersFile(write_run(letters_batch(raw, letters, order), order.folder))


def _run(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    groups: RecordGroups,
    refused: dict[int, Rejected],
    order: StageOrder,
    *,
    timed: bool,
) -> SortedRun | None:
    """Write one run for all keys, in which each key's records are a slice.

    None if all are refused.
    """
    in_order = np.argsort(groups.codes, kind="stable")
    if refused:
        in_order = in_order[~np.isin(groups.codes[in_order], list(refused))]
        if not len(in_order):
            return None
    columns = [_in_order(column, unwrapped.rows[in_order]) for column in raw.columns]
    whole = _is_same(unwrapped.payloads, raw.column("value"))
    nothing = pa.nulls(len(in_order), pa.binary())
    columns.append(nothing if whole else _in_order(unwrapped.payloads, in_order))
    path = write_run(pa.RecordBatch.from_arrays(columns, schema=SORTED), order.folder)
    offsets = columns[RAW.get_field_index("offset")].to_numpy()
    moments = columns[RAW.get_field_index("timestamp")]
    times = moments.cast(pa.int64()).fill_null(0).to_numpy() if timed else offsets
    ranges, start = [], 0
    for number, (key, count) in enumerate(zip(groups.keys, groups.counts(), strict=True)):
        if number not in refused:
            newest = int(times[start : start + count].max()) if timed else 0
            ranges.append(KeyRange(key, start, count, int(offsets[start]), newest))
            start += count
    return SortedRun(path, tuple(ranges))


def _in_order(column: pa.Array, rows: Rows) -> pa.Array:
    """Return these rows of a column; the column itself, uncopied, if they are all rows in order."""
    in_place = len(rows) == len(column) and (np.diff(rows) == 1).all()
    return column if in_place else column.take(pa.array(rows))


def _is_same(payloads: pa.BinaryArray, values: pa.BinaryArray) -> bool:
    """Return whether payloads are the unchanged buffers of the values they were found in."""
    either = [
        (array.offset, *(b and b.address for b in array.buffers())) for array in (payloads, values)
    ]
    return len(payloads) == len(values) and either[0] == either[1]


def _refused(
    groups: RecordGroups, plan: TaskPlan, order: StageOrder, known: Collection[RouteKey] | None
) -> dict[int, Rejected]:
    """Return the keys to refuse without the driver, so that unknown records cannot flood it."""
    refused: dict[int, Rejected] = {}
    answered = plan.routing.routes if known is None else known
    new: set[RouteKey] = set()
    for number, key in enumerate(groups.keys):
        earlier = key if known is None else _before(key, known, plan)
        if earlier in answered:
            continue
        code = None
        if plan.records.envelope is not None:
            code = refused_type_name(
                key.claim, strict=plan.records.strict_names, longest=plan.records.max_type_name
            )
        if code is not None:
            refused[number] = Rejected(code, BAD_NAME)
            continue
        new.add(earlier)
        if len(new) > order.most_new_keys:
            refused[number] = _TOO_MANY
    return refused


def _before(key: RouteKey, known: Collection[RouteKey], plan: TaskPlan) -> RouteKey:
    """Return the key that the first pass saw, if its Avro schema turned out to be a union since."""
    whole = key._replace(message_index=())
    return whole if whole in plan.routing.unions and whole not in known else key


def _letters(
    unwrapped: Unwrapped, groups: RecordGroups, refused: dict[int, Rejected]
) -> list[Letter]:
    letters = []
    for i in np.flatnonzero(np.isin(groups.codes, list(refused))).tolist():
        number, row = int(groups.codes[i]), int(unwrapped.rows[i])
        key, why = groups.keys[number], refused[number]
        letter = Letter(row, why.code, why.message, "route", None, key.claim, key.schema_id)
        letters.append(letter)
    return letters
