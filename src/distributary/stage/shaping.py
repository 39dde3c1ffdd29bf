"""Hop two, shapes: decoded rows get their columns, are filtered, or become dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.config.document import printable
from distributary.errors import ErrorCode
from distributary.model.plan import StageOrder
from distributary.model.shape_rule import SqlExpression
from distributary.shape.checks import Flags
from distributary.shape.rows import ShapedRows, shaper_of
from distributary.stage.exchange import combinations
from distributary.stage.files import Letter, letters_batch, spelled_value
from distributary.stage.partitions import COORDINATES

if TYPE_CHECKING:
    from distributary.stage.decoding import DecodedPart

_LONGEST_EXPRESSION = 200
_MOST_VALUES = 5


def shaped(
    part: DecodedPart, order: StageOrder, *, single: bool
) -> tuple[DecodedPart, list[pa.RecordBatch]]:
    """Apply the shapes of a part's route; return the part and rows for the dead-letter table.

    With `single`, each record has one row. Else a record is filtered if all of its rows are, and
    becomes a dead letter if an expression fails for any of them.
    """
    dead = []
    for shape in part.route.shapes:
        result = shaper_of(shape)(part.batch, part.raw)
        if not result.failed and result.kept.all():
            part = replace(part, batch=result.rows)
            continue
        numbers = _record_numbers(part, single=single)
        refused = np.zeros(part.batch.num_rows, np.bool_)
        letters = list(_letters(part, result, numbers, refused))
        if letters:
            dead.append(letters_batch(part.raw, letters, order))
        part = _reduced(part, result, numbers, refused, letters=len(letters))
    return part, dead


def _record_numbers(part: DecodedPart, *, single: bool) -> npt.NDArray[np.int64]:
    """Return a number for each row that rows of one record share."""
    if single:
        return np.arange(part.batch.num_rows)
    return combinations(part.raw.column(name) for name in COORDINATES)[1]


def _letters(
    part: DecodedPart, result: ShapedRows, numbers: npt.NDArray[np.int64], refused: Flags
) -> Iterator[Letter]:
    """Yield a dead letter for each record with a failed row; mark its rows in `refused`."""
    for expression, flags in result.failed:
        fresh = np.flatnonzero(flags & ~refused)
        records, first = np.unique(numbers[fresh], return_index=True)
        for row in fresh[np.sort(first)].tolist():
            text = _message(expression, result.inputs, row)
            yield part.letter(row, ErrorCode.SHAPE_FAILED, text, "shape")
        refused |= np.isin(numbers, records)


def _reduced(
    part: DecodedPart,
    result: ShapedRows,
    numbers: npt.NDArray[np.int64],
    refused: Flags,
    *,
    letters: int,
) -> DecodedPart:
    """Return the part with the rows that are neither filtered nor refused."""
    stay = result.kept & ~refused
    before = len(np.unique(numbers[~refused]))
    filtered = before - len(np.unique(numbers[stay]))
    mask = pa.array(stay)
    return replace(
        part,
        batch=result.rows.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - letters - filtered,
        filtered=part.filtered + filtered,
    )


def _message(expression: SqlExpression, inputs: pa.Table, row: int) -> str:
    """Describe the expression that failed for a row, and the values that it read."""
    text = printable(expression.text, longest=_LONGEST_EXPRESSION)
    parts = [f"{expression.setting} cannot be evaluated: {text}"]
    parts += [spelled_value(inputs, names, row) for names in expression.columns[:_MOST_VALUES]]
    return "; ".join(filter(None, parts))
