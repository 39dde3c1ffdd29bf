"""Shapes applied to rows: conditions and computed columns over Arrow, without Python per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.rules.expressions import enclosed
from distributary.model.cache import Cache
from distributary.model.rules.shape_plan import BATCH_TIME, ShapePlan
from distributary.model.rules.shape_rule import SqlExpression
from distributary.shape.checks import Flags
from distributary.shape.evaluation import Evaluation, as_arrow, input_schema
from distributary.shape.mask import masked

_MOST_KNOWN = 2_000


@dataclass(frozen=True, slots=True)
class ShapedRows:
    """The rows of a batch after a shape, and what became of the others."""

    rows: pa.RecordBatch
    """All rows, also those that are filtered or failed, with the columns of the shape; arrays that
    become rows are arrays still."""
    kept: Flags
    """Rows that fulfil the condition, or whose condition failed."""
    failed: tuple[tuple[SqlExpression, Flags], ...]
    """The expressions that failed, each with its rows; only rows that are kept."""
    inputs: pa.Table
    """The values that expressions have read."""


class Shaper:
    """A shape, ready to be applied."""

    def __init__(self, shape: ShapePlan) -> None:
        self._shape = shape
        self._exploded = "" if shape.exploded is None else shape.exploded.name
        columns = [
            shape.exploded if c.name == self._exploded and shape.exploded is not None else c
            for c in shape.columns
        ]
        self._schema = pa.schema([pa.field(c.name, c.type) for c in columns])
        self._unmasked = self._schema
        if shape.masks:
            names = self._schema.names
            self._unmasked = pa.schema(list(zip(names, shape.unmasked, strict=True)))
        self._inputs = input_schema(shape.inputs)
        where = [] if shape.where is None else [f"coalesce({enclosed(shape.where.text)}, false)"]
        # An expression that failed has no struct, so it differs from one whose value is null.
        texts = [f"TRY({{'v': {text}}})" for text in (*where, *(c.sql for c in shape.computed))]
        self._expressions = (*filter(None, [shape.where]), *(c.expression for c in shape.computed))
        self._evaluation = Evaluation(self._inputs, texts, as_arrow) if texts else None
        self._failed = pa.schema(
            [
                (f"v{number}", pa.struct([("v", type_)]))
                for number, type_ in enumerate(
                    (*(pa.bool_() for _ in where), *(c.type for c in shape.computed))
                )
            ]
        )

    def __call__(
        self, batch: pa.RecordBatch, raw: pa.Table, key: bytes = b"", now_us: int = 0
    ) -> ShapedRows:
        """Apply the shape to decoded rows; `raw` has the raw record of each row.

        `key` is that of the masks, `now_us` the time of the batch in microseconds since 1970.
        """
        inputs = self._values(batch, raw, now_us)
        kept = np.ones(batch.num_rows, np.bool_)
        answers = self._answers(inputs) if batch.num_rows else []
        failed = []
        flags = [np.asarray(answer.is_null()) for answer in answers]
        if self._shape.where is not None and answers:
            fulfilled = answers[0].field(0).to_numpy(zero_copy_only=False).astype(np.bool_)
            kept = flags[0] | fulfilled
        for expression, rows in zip(self._expressions, flags, strict=False):
            if (mine := rows & kept).any():
                failed.append((expression, mine))
        values = answers[len(answers) - len(self._shape.computed) :]
        rows = self._masked(self._output(batch, values), key)
        return ShapedRows(rows, kept, tuple(failed), inputs)

    def _masked(self, rows: pa.RecordBatch, key: bytes) -> pa.RecordBatch:
        if not self._shape.masks:
            return rows
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for mask in self._shape.masks:
            columns[mask.column] = masked(columns[mask.column], mask, key)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=self._schema)

    def _values(self, batch: pa.RecordBatch, raw: pa.Table, now_us: int) -> pa.Table:
        there = set(batch.schema.names)
        columns = []
        for one in self._shape.inputs:
            if one.name in there:
                columns.append(batch.column(one.name))
            elif one.name == BATCH_TIME:
                moment = pa.scalar(now_us, pa.int64()).cast(one.type)
                columns.append(pa.repeat(moment, batch.num_rows))
            elif one.name.startswith("_"):
                columns.append(raw.column(one.name.removeprefix("_")))
            else:
                columns.append(pa.nulls(batch.num_rows, one.type))
        columns = columns or [pa.nulls(batch.num_rows, pa.int8())]
        return pa.Table.from_arrays(columns, schema=self._inputs)

    def _answers(self, inputs: pa.Table) -> list[pa.StructArray]:
        if self._evaluation is None:
            return []
        parts = self._evaluation.halving(inputs, self._nothing)
        tables = [
            part.cast(self._failed) if part.schema != self._failed else part for part in parts
        ]
        whole = pa.concat_tables(tables)
        if whole.num_rows != inputs.num_rows:
            raise ValueError(f"{whole.num_rows} answers for {inputs.num_rows} rows")
        return [_one(column) for column in whole.columns]

    def _nothing(self, count: int) -> pa.Table:
        return pa.Table.from_arrays(
            [pa.nulls(count, f.type) for f in self._failed], schema=self._failed
        )

    def _output(self, batch: pa.RecordBatch, values: list[pa.StructArray]) -> pa.RecordBatch:
        columns = []
        for source, field in zip(self._shape.sources, self._unmasked, strict=True):
            if isinstance(source, str):
                columns.append(batch.column(source))
            elif values:
                columns.append(pc.struct_field(values[source], 0))
            else:
                columns.append(pa.nulls(0, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._unmasked)


def _one(column: pa.ChunkedArray) -> pa.StructArray:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


_KNOWN: Cache[Shaper] = Cache(_MOST_KNOWN)


def shaper_of(shape: ShapePlan) -> Shaper:
    """Return the shaper for a shape, kept as long as the plan that holds the shape."""
    return _KNOWN.of((shape,), lambda: Shaper(shape))
