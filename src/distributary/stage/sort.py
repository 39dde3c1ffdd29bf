"""Hop one of a stage: unwrap a task's records, sort them by key, leave them as a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.json.infer import infer
from distributary.decode.json.kinds import adds_nothing, profile_texts, together
from distributary.decode.json.pattern import familiar
from distributary.delta.parquet import UPLOADS
from distributary.errors import ErrorCode
from distributary.model.names import refused_type_name
from distributary.model.plan import UNFRAMED, Rejected, RouteKey, StageOrder
from distributary.model.record import FAMILIAR, RAW
from distributary.stage.bronze import BronzeWriter
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import (
    SORTED,
    Groups,
    KeyRange,
    Run,
    facts_batch,
    group,
    positions,
    write_run,
)
from distributary.stage.files import Fact, Letter, gathered, letters_batch
from distributary.stage.unwrap import Rows, ShardFilter, Unwrapped, known_shape, unwrap

# What records that come without any schema look like.


def joined(found: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One shape or profile for each claim."""
    result: dict[str, dict[str, Any]] = {}
    for claim, look in found:
        known = result.get(claim)
        result[claim] = look if known is None else together(known, look)
    return result


def shapes(
    unwrapped: Unwrapped,
    groups: Groups,
    catalog: Catalog,
    refused: Collection[int] = (),
    *,
    careful: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What records look like of each claim whose records name no schema.

    Of change events it is a JSON Schema, and of other records a profile: the kinds of values that
    their fields have. Records that look like those before them say nothing. With `careful` one
    record is looked at after the other, in memory that does not depend on what is in them.
    """
    changes = catalog.changes is not None
    payloads = unwrapped.payloads
    new = ~np.isin(unwrapped.rows, unwrapped.familiar)
    for number, rows in enumerate(positions(groups.codes, len(groups.keys))):
        key = groups.keys[number]
        if key.schema_id != UNFRAMED or key.guid or number in refused:
            continue
        rows = rows[new[rows]]
        if not len(rows):
            continue
        values = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
        expected = {} if careful else known_shape(catalog, key)
        few = not changes and len(values) <= _FEW
        if expected and not few:
            known = familiar(values, expected)
            if known.all():
                continue
            values = values.filter(pa.array(~known)) if known.any() else values
        look = (
            infer(values, parts=True, careful=careful)
            if changes
            else profile_texts(values, careful=careful or few)
        )
        if look is None or (
            few and expected and adds_nothing(look, dict(expected), catalog.evolution)
        ):
            continue
        yield key.claim, look


_FEW = 10
"""Records that are parsed sooner than an expression is made that they could match."""
_BYTES_PER_RUN = 256 * 1024 * 1024
BAD_NAME = "the type's name cannot become the name of a table"
_TOO_MANY = Rejected(
    ErrorCode.TOO_MANY_TYPES,
    "more new types came in one batch than evolution.max_new_tables_per_batch allows",
)


def sort(
    batches: Iterable[pa.RecordBatch],
    catalog: Catalog,
    order: StageOrder,
    known: Collection[RouteKey] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Raw records in; runs on disk, facts out.

    `known` are the keys that had an answer when these records were sorted before, if they were:
    what was refused then is refused again, whatever is known by now.
    """
    bronze = BronzeWriter(catalog, order) if catalog.bronze and order.lane == "stream" else None
    seen = skipped = size = newest = 0
    share = ShardFilter()
    for batch in _in_runs(share.own(batches)):
        raw = batch.select(RAW.names)
        seen += raw.num_rows
        size += pc.sum(pc.binary_length(raw.column("value"))).as_py() or 0
        newest = max(newest, pc.max(raw.column("timestamp")).cast(pa.int64()).as_py() or 0)
        unwrapped = unwrap(raw, catalog, guarded=order.guarded)
        if FAMILIAR.name in batch.schema.names:
            unwrapped.familiar = np.flatnonzero(batch.column(FAMILIAR.name))
        if catalog.whole:
            # nothing is judged here: whoever reads bronze sees the same record again
            unwrapped.letters, unwrapped.skipped = [], 0
        skipped += unwrapped.skipped
        if bronze is not None:
            bronze.add(raw, unwrapped)
        yield facts_batch(_sorted(raw, unwrapped, catalog, order, known))
    seen, skipped = seen + share.others, skipped + share.others
    told = {"records": seen, "skipped": skipped, "bytes": size, "newest_us": newest}
    facts: list[Fact] = [("seen", json.dumps(told))]
    if bronze is not None:
        facts += bronze.finish()
        UPLOADS.finish()
    yield facts_batch(facts)


def _in_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As much as fits in a run at once: fewer, larger groups are cheaper than many small ones."""
    filled = (batch for batch in batches if batch.num_rows)
    for some in gathered(filled, lambda batch: batch.nbytes, _BYTES_PER_RUN):
        yield some[0] if len(some) == 1 else pa.concat_batches(some)


def _sorted(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    catalog: Catalog,
    order: StageOrder,
    known: Collection[RouteKey] | None,
) -> Iterator[Fact]:
    decoding = catalog.each or bool(catalog.unified)
    letters = unwrapped.letters
    if decoding and len(unwrapped.rows):
        groups = group(unwrapped, catalog.unions)
        refused = _refused(groups, catalog, order, known)
        if refused:
            letters = letters + _letters(unwrapped, groups, refused)
        timed = catalog.changes is not None
        run = _run(raw, unwrapped, groups, refused, order, timed=timed)
        if run is not None:
            yield "run", run.as_json()
        new = {key.guid for key in groups.keys if key not in catalog.routes}
        for guid in new & unwrapped.carried.keys():
            yield "carried", json.dumps(unwrapped.carried[guid])
        if catalog.infer:
            found = shapes(unwrapped, groups, catalog, refused, careful=order.guarded)
            for claim, shape in found:
                yield "shape", json.dumps([claim, shape], ensure_ascii=False)
    if letters:
        yield "letters", json.dumps(write_run(letters_batch(raw, letters, order), order.folder))


def _run(
    raw: pa.RecordBatch,
    unwrapped: Unwrapped,
    groups: Groups,
    refused: dict[int, Rejected],
    order: StageOrder,
    *,
    timed: bool,
) -> Run | None:
    """One copy of everything for all keys: each key's records are then a slice of it."""
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
    return Run(path, tuple(ranges))


def _in_order(column: pa.Array, rows: Rows) -> pa.Array:
    """These rows of a column, which is nothing but itself where all are in their places."""
    in_place = len(rows) == len(column) and (np.diff(rows) == 1).all()
    return column if in_place else column.take(pa.array(rows))


def _is_same(payloads: pa.BinaryArray, values: pa.BinaryArray) -> bool:
    """Whether payloads are the values that they were found in, all of them and untouched."""
    either = [
        (each.offset, *(b and b.address for b in each.buffers())) for each in (payloads, values)
    ]
    return len(payloads) == len(values) and either[0] == either[1]


def _refused(
    groups: Groups, catalog: Catalog, order: StageOrder, known: Collection[RouteKey] | None
) -> dict[int, Rejected]:
    """The keys that need no answer of the driver, so that strangers cannot flood it."""
    refused: dict[int, Rejected] = {}
    answered = catalog.routes if known is None else known
    new: set[RouteKey] = set()
    for number, key in enumerate(groups.keys):
        told = key if known is None else _before(key, known, catalog)
        if told in answered:
            continue
        code = None
        if catalog.envelope is not None:
            code = refused_type_name(
                key.claim, strict=catalog.strict_names, longest=catalog.max_type_name
            )
        if code is not None:
            refused[number] = Rejected(code, BAD_NAME)
            continue
        new.add(told)
        if len(new) > order.most_new_keys:
            refused[number] = _TOO_MANY
    return refused


def _before(key: RouteKey, known: Collection[RouteKey], catalog: Catalog) -> RouteKey:
    """What a key was then: that a schema of Avro is a union may be known only since."""
    whole = key._replace(message_index=())
    return whole if whole in catalog.unions and whole not in known else key


def _letters(unwrapped: Unwrapped, groups: Groups, refused: dict[int, Rejected]) -> list[Letter]:
    letters = []
    for i in np.flatnonzero(np.isin(groups.codes, list(refused))).tolist():
        number, row = int(groups.codes[i]), int(unwrapped.rows[i])
        key, why = groups.keys[number], refused[number]
        letter = Letter(row, why.code, why.message, "route", None, key.claim, key.schema_id)
        letters.append(letter)
    return letters
