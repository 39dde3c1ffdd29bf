"""Hop two, shapes: decoded rows get their columns, are filtered, or become dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from distributary.decode.base import SLICE_BYTES
from distributary.errors import ErrorCode
from distributary.model.names import printable
from distributary.model.routing import StageOrder
from distributary.model.rules.shape_plan import ShapePlan
from distributary.model.rules.shape_rule import ShapeFunction, SqlExpression
from distributary.model.table import Column
from distributary.shape.checks import Flags
from distributary.shape.explode import Ints, exploded_bytes, items_as_rows, whole
from distributary.shape.function import call
from distributary.shape.row_shapes import ShapedRows, shaper_of
from distributary.stage.exchange import combinations
from distributary.stage.rows.partitions import COORDINATES
from distributary.stage.task_outputs import Letter, letters_batch, spelled_value

if TYPE_CHECKING:
    from distributary.stage.decoding import DecodedPart

_LONGEST_EXPRESSION = 200
_REPEATED = ("key", "headers")
"""Columns of the raw record that each of its rows has again."""
_MOST_VALUES = 5


@dataclass(slots=True)
class ShapedParts:
    """The result of the shapes of a route for one part."""

    parts: list[DecodedPart]
    """The rows, as one part or, if items of arrays became rows, as several."""
    dead: list[pa.RecordBatch] = field(default_factory=list)


def shaped(part: DecodedPart, order: StageOrder, *, single: bool, most_bytes: int) -> ShapedParts:
    """Apply the shapes of a part's route.

    With `single`, each record has one row. Else a record is filtered if all of its rows are, and
    becomes a dead letter if an expression fails for any of them. So does a record whose rows would
    have more than `most_bytes`.
    """
    done = ShapedParts([part])
    for shape in part.route.shapes:
        before, done.parts = done.parts, []
        for one in before:
            one = _evaluated(one, shape, order, done.dead, single=single)
            if shape.exploded is None:
                done.parts.append(one)
            else:
                name = shape.exploded.name
                done.parts += _exploded(
                    one, name, order, done.dead, single=single, limit=most_bytes
                )
        single = single and shape.exploded is None
    return done


def _evaluated(
    part: DecodedPart,
    shape: ShapePlan,
    order: StageOrder,
    dead: list[pa.RecordBatch],
    *,
    single: bool,
) -> DecodedPart:
    """Return the rows that fulfil the condition of a shape, with its columns."""
    if shape.function is not None:
        return _called(part, shape.function, shape.columns, order, dead, single=single)
    result = shaper_of(shape)(part.batch, part.raw, order.mask_key, order.now_us)
    if not result.failed and result.kept.all():
        return replace(part, batch=result.rows)
    stay, letters = result.kept, 0
    numbers = None if single else _record_numbers(part, single=False)
    before = part.batch.num_rows if numbers is None else len(np.unique(numbers))
    if result.failed:
        refused = np.zeros(part.batch.num_rows, np.bool_)
        places = np.arange(part.batch.num_rows) if numbers is None else numbers
        records = list(_letters(part, result, places, refused))
        dead.append(letters_batch(part.raw, records, order))
        stay, letters = stay & ~refused, len(records)
    after = np.count_nonzero(stay) if numbers is None else len(np.unique(numbers[stay]))
    filtered = before - letters - int(after)
    mask = pa.array(stay)
    return replace(
        part,
        batch=result.rows.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - letters - filtered,
        filtered=part.filtered + filtered,
    )


def _called(
    part: DecodedPart,
    function: ShapeFunction,
    columns: Sequence[Column],
    order: StageOrder,
    dead: list[pa.RecordBatch],
    *,
    single: bool,
) -> DecodedPart:
    """Return the rows that a function makes; records for which it fails become dead letters."""
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    rows, failed, reasons = call(function, part.batch, schema)
    if not reasons:
        return replace(part, batch=rows)
    hidden = any(one.masks for one in part.route.shapes)
    numbers = _record_numbers(part, single=single)
    refused, first = np.unique(numbers[failed], return_index=True)
    letters = []
    for row in np.sort(np.flatnonzero(failed)[first]).tolist():
        # the text of an exception may quote a value that a mask removes
        why = reasons[row].partition(":")[0] if hidden else reasons[row]
        text = f"{function.setting} fails: {why}"
        letters.append(part.letter(row, ErrorCode.SHAPE_FAILED, text, "shape"))
    dead.append(letters_batch(part.raw, letters, order))
    stay = pa.array(~np.isin(numbers, refused))
    return replace(
        part,
        batch=rows.filter(stay),
        raw=part.raw.filter(stay),
        records=part.records - len(letters),
    )


def _exploded(
    part: DecodedPart,
    name: str,
    order: StageOrder,
    dead: list[pa.RecordBatch],
    *,
    single: bool,
    limit: int,
) -> Iterator[DecodedPart]:
    """Yield parts with a row for each item of a column's arrays, each as large as memory allows."""
    weights = exploded_bytes(part.batch, name, part.raw.select(_REPEATED))
    if weights.sum() > limit:
        part, weights = _without_large(part, name, weights, order, dead, single=single, limit=limit)
    for some in _slices(part, weights, single=single):
        batch, origin = items_as_rows(some.batch, name)
        yield replace(some, batch=batch, raw=_repeated(some.raw, origin))


def _without_large(
    part: DecodedPart,
    name: str,
    weights: Ints,
    order: StageOrder,
    dead: list[pa.RecordBatch],
    *,
    single: bool,
    limit: int,
) -> tuple[DecodedPart, Ints]:
    """Remove records whose rows would have more bytes than the limit."""
    numbers = _record_numbers(part, single=single)
    sums = np.bincount(numbers, weights).astype(np.int64)
    large = sums[numbers] > limit
    if not large.any():
        return part, weights
    rows = np.flatnonzero(large)
    rows = rows[np.sort(np.unique(numbers[rows], return_index=True)[1])]
    setting = f"limits.max_decoded_bytes is {limit}"
    letters = [
        part.letter(
            row,
            ErrorCode.PAYLOAD_EXPANDS,
            f"explode: the rows of {printable(name)} would have {sums[numbers[row]]} bytes; "
            f"{setting}",
            "shape",
        )
        for row in rows.tolist()
    ]
    dead.append(letters_batch(part.raw, letters, order))
    stay = pa.array(~large)
    rest = replace(
        part,
        batch=part.batch.filter(stay),
        raw=part.raw.filter(stay),
        records=part.records - len(letters),
    )
    return rest, weights[~large]


def _slices(part: DecodedPart, weights: Ints, *, single: bool) -> Iterator[DecodedPart]:
    """Yield slices of whole records that weigh about as much as may be decoded at once."""
    if weights.sum() <= SLICE_BYTES:
        yield part
        return
    numbers = _record_numbers(part, single=single)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(starts[1:], len(weights))
    before = np.concatenate(([0], np.cumsum(weights)))
    cuts = [0]
    for start, end in zip(starts[1:].tolist(), ends[1:].tolist(), strict=True):
        if before[end] - before[cuts[-1]] > SLICE_BYTES:
            cuts.append(start)
    counts = [len(np.unique(numbers[a:b])) for a, b in pairwise([*cuts, len(weights)])]
    for place, (start, stop) in enumerate(pairwise([*cuts, len(weights)])):
        some = replace(
            part,
            batch=part.batch.slice(start, stop - start),
            raw=part.raw.slice(start, stop - start),
            records=counts[place],
        )
        if place:
            yield replace(some, dropped=None, filtered=0)
        else:
            # the first slice also counts the records without rows
            yield replace(some, records=part.records - sum(counts[1:]))


def _repeated(raw: pa.Table, origin: Ints) -> pa.Table:
    """Return the raw record of each row; all rows of a record share its value."""
    place = raw.schema.get_field_index("value")
    value = whole(raw.column(place))
    if not pa.types.is_dictionary(value.type):
        numbers = pa.array(np.arange(len(value), dtype=np.int32))
        value = pa.DictionaryArray.from_arrays(numbers, value)
    return raw.set_column(place, "value", value).take(pa.array(origin))


def _record_numbers(part: DecodedPart, *, single: bool) -> Ints:
    """Return a number for each row that rows of one record share."""
    if single:
        return np.arange(part.batch.num_rows)
    return combinations(part.raw.column(name) for name in COORDINATES)[1]


def _letters(
    part: DecodedPart, result: ShapedRows, numbers: Ints, refused: Flags
) -> Iterator[Letter]:
    """Yield a dead letter for each record with a failed row; mark its rows in `refused`."""
    # a message must not contain a value that a mask removes
    hidden = any(shape.masks for shape in part.route.shapes)
    for expression, flags in result.failed:
        fresh = np.flatnonzero(flags & ~refused)
        records, first = np.unique(numbers[fresh], return_index=True)
        for row in fresh[np.sort(first)].tolist():
            text = _message(expression, result.inputs, row, hidden=hidden)
            yield part.letter(row, ErrorCode.SHAPE_FAILED, text, "shape")
        refused |= np.isin(numbers, records)


def _message(expression: SqlExpression, inputs: pa.Table, row: int, *, hidden: bool) -> str:
    """Describe the expression that failed for a row, and the values that it read."""
    text = printable(expression.text, longest=_LONGEST_EXPRESSION)
    parts = [f"{expression.setting} cannot be evaluated: {text}"]
    if hidden:
        return f"{parts[0]}; its values are not shown, because the table has masks"
    parts += [spelled_value(inputs, names, row) for names in expression.columns[:_MOST_VALUES]]
    return "; ".join(filter(None, parts))
