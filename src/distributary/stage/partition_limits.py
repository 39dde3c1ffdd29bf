"""Records whose partition cannot be written: found before anything is, and dead-lettered whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.evolve.align import align
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import TablePlan
from distributary.route.partition_names import LONGEST_FOLDER
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.metadata import DATE, metadata_columns
from distributary.stage.partitions import MOST_PARTITIONS, Partitions, days, delta_folder

if TYPE_CHECKING:
    from distributary.stage.parts import Part

_COORDINATES = ("topic", "partition", "offset")
_NO_FOLDER = f"a partition's value is longer than {LONGEST_FOLDER} bytes or has no spelling"
_TOO_MANY = f"its partition is beyond the {MOST_PARTITIONS:,} largest of the table in one task"


def within_limits(
    parts: list[Part], catalog: Catalog, order: StageOrder
) -> tuple[list[Part], list[pa.RecordBatch]]:
    """The parts of one table without such records, and the rows for the dead-letter table."""
    table = catalog.tables.get(parts[0].route.table) if parts else None
    # a plain Parquet table takes every value, because its folders have labels only
    if table is None or not table.partition_by or table.format != "delta":
        return parts, []
    filled = [part for part in parts if part.batch.num_rows]
    if not filled:
        return parts, []
    found = Partitions.of(_keys(filled, table, catalog, order))
    refused = _refused(found, table)
    if not refused:
        return parts, []
    why = np.full(len(found.values), -1, dtype=np.int64)
    why[list(refused)] = list(refused.values())
    ends = np.cumsum([part.batch.num_rows for part in filled])
    reasons = np.split(why[found.codes], ends[:-1])
    kept: list[Part] = [part for part in parts if not part.batch.num_rows]
    dead: list[pa.RecordBatch] = []
    for part, reason in zip(filled, reasons, strict=True):
        rest, letters = _cut(part, reason)
        kept.append(rest)
        if letters:
            dead.append(letters_batch(part.raw, letters, order))
    return kept, dead


def _keys(
    parts: Sequence[Part], table: TablePlan, catalog: Catalog, order: StageOrder
) -> list[pa.ChunkedArray]:
    """The partition columns of all rows, as they would be written."""
    raw = pa.concat_tables([part.raw for part in parts])
    ids = [np.full(p.batch.num_rows, p.route.schema_id, dtype=np.int64) for p in parts]
    known = dict(metadata_columns(raw, pa.array(np.concatenate(ids)), catalog.metadata, order))
    if DATE.name in table.partition_by:
        known[DATE.name] = days(raw.column("timestamp"))
    own = [c for c in table.columns if c.name in table.partition_by and c.name not in known]
    schema = pa.schema([pa.field(c.name, c.type) for c in own])
    if own:
        rows = pa.Table.from_batches([align(p.batch, p.fills, schema) for p in parts], schema)
        known |= {name: rows[name] for name in rows.column_names}
    return [
        k if isinstance(k, pa.ChunkedArray) else pa.chunked_array([k])
        for k in (known[name] for name in table.partition_by)
    ]


def _refused(found: Partitions, table: TablePlan) -> dict[int, int]:
    """The partitions that cannot be written, and whether there are too many (1) or not (0)."""
    nameless = {n for n, v in enumerate(found.values) if delta_folder(table, v) is None}
    beyond = set(range(len(found.values))) - found.largest() - nameless
    return dict.fromkeys(nameless, 0) | dict.fromkeys(beyond, 1)


def _cut(part: Part, reason: npt.NDArray[np.int64]) -> tuple[Part, list[Letter]]:
    """A part without the records of which any row is refused: half a record is none."""
    bad = reason >= 0
    if not bad.any():
        return part, []
    records = Partitions.of([part.raw.column(name) for name in _COORDINATES]).codes
    refused, first = np.unique(records[bad], return_index=True)
    letters = [
        Letter(
            int(row),
            ErrorCode.PARTITION_REFUSED,
            _TOO_MANY if reason[row] else _NO_FOLDER,
            "write",
            type=part.route.type,
            schema_id=part.route.schema_id,
        )
        for row in np.flatnonzero(bad)[first]
    ]
    mask = pa.array(~np.isin(records, refused))
    rest = replace(
        part,
        batch=part.batch.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - len(refused),
    )
    return rest, letters
