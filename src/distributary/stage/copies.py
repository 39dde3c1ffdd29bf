"""Copies of one event that two tasks of a stage have landed: a log has each event once.

A task drops what it meets twice, and what the log has. Where a table was so heavy that it was cut,
neither of two tasks sees what the other has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.merge.keys import KeyIndex
from distributary.model.manifest import StagedFile
from distributary.model.plan import StageOrder
from distributary.model.table import TablePlan
from distributary.stage.names import file_name
from distributary.stage.parquet import write_file

_ID = ("_uuid", "_hash")
Flags = npt.NDArray[np.bool_]


def without_copies(
    table: TablePlan, files: Sequence[StagedFile], order: StageOrder
) -> tuple[list[StagedFile], Counter[str]]:
    """The files without rows that a file before them has, and what those were."""
    ids = [_columns(f"{table.path}/{file.path}", [*_ID, "_op"]) for file in files]
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
    for file, mine in zip(files, ids, strict=True):
        wanted = keep[start : start + mine.num_rows]
        start += mine.num_rows
        if wanted.all():
            kept.append(file)
            continue
        if wanted.any():
            kept.append(_rewritten(table, file, wanted, order))
        Path(f"{table.path}/{file.path}").unlink()
    return kept, Counter(every.column("_op").filter(pa.array(~keep)).to_pylist())


def _rewritten(table: TablePlan, file: StagedFile, wanted: Flags, order: StageOrder) -> StagedFile:
    rows = _columns(f"{table.path}/{file.path}").filter(pa.array(wanted))
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


def _columns(path: str, names: list[str] | None = None) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read(columns=names)
