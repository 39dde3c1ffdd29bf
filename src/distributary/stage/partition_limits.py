"""Records whose partition cannot be written: found before anything is, and dead-lettered whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.errors import ErrorCode
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import TablePlan
from distributary.route.partition_names import LONGEST_FOLDER
from distributary.stage.letters import Letter, letters_batch
from distributary.stage.partitions import MOST_PARTITIONS, Partitions, delta_folder
from distributary.stage.refusing import columns_as_written, without_records

if TYPE_CHECKING:
    from distributary.stage.parts import Part

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
    known = columns_as_written(filled, table, table.partition_by, catalog, order)
    found = Partitions.of([known[name] for name in table.partition_by])
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


def _refused(found: Partitions, table: TablePlan) -> dict[int, int]:
    """The partitions that cannot be written, and whether there are too many (1) or not (0)."""
    nameless = {n for n, v in enumerate(found.values) if delta_folder(table, v) is None}
    beyond = set(range(len(found.values))) - found.largest() - nameless
    return dict.fromkeys(nameless, 0) | dict.fromkeys(beyond, 1)


def _cut(part: Part, reason: npt.NDArray[np.int64]) -> tuple[Part, list[Letter]]:
    """A part without the records of which any row is refused."""
    if not (reason >= 0).any():
        return part, []
    rest, rows = without_records(part, reason >= 0)
    letters = [
        Letter(
            int(row),
            ErrorCode.PARTITION_REFUSED,
            _TOO_MANY if reason[row] else _NO_FOLDER,
            "write",
            type=part.route.type,
            schema_id=part.route.schema_id,
        )
        for row in rows
    ]
    return rest, letters
