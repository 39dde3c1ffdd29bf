"""Records refused by their rows: those as they would be written, and what is left of a part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.evolve.align import align
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import TablePlan
from distributary.stage.metadata import DATE, metadata_columns
from distributary.stage.partitions import Partitions, days

if TYPE_CHECKING:
    from distributary.stage.parts import Part

Flags = npt.NDArray[np.bool_]

_COORDINATES = ("topic", "partition", "offset")


def columns_as_written(
    parts: Sequence[Part],
    table: TablePlan,
    names: Collection[str],
    catalog: Catalog,
    order: StageOrder,
) -> dict[str, pa.ChunkedArray]:
    """Some columns of a table for all rows of these parts."""
    raw = pa.concat_tables([part.raw for part in parts])
    ids = [np.full(p.batch.num_rows, p.route.schema_id, dtype=np.int64) for p in parts]
    known = dict(metadata_columns(raw, pa.array(np.concatenate(ids)), catalog.metadata, order))
    if DATE.name in table.partition_by and DATE.name in names:
        known[DATE.name] = days(raw.column("timestamp"))
    own = [c for c in table.columns if c.name in names and c.name not in known]
    if own:
        schema = pa.schema([pa.field(c.name, c.type) for c in own])
        rows = pa.Table.from_batches([align(p.batch, p.fills, schema) for p in parts], schema)
        known |= {name: rows[name] for name in rows.column_names}
    return {
        name: k if isinstance(k, pa.ChunkedArray) else pa.chunked_array([k])
        for name, k in known.items()
        if name in names
    }


def without_records(part: Part, bad: Flags) -> tuple[Part, npt.NDArray[np.int64]]:
    """A part without the records of which any row is bad, and the first bad row of each of them.

    Half a record is none.
    """
    records = Partitions.of([part.raw.column(name) for name in _COORDINATES]).codes
    refused, first = np.unique(records[bad], return_index=True)
    mask = pa.array(~np.isin(records, refused))
    rest = replace(
        part,
        batch=part.batch.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - len(refused),
    )
    return rest, np.flatnonzero(bad)[first]
