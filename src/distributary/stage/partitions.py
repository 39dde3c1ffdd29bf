"""The rows of one table by the values of its partition columns: one file for each combination.

Only partitioned tables come here. The values are whatever the records hold, so the number of files
is bounded: what a table cannot take becomes dead letters, which can be sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.parquet import write_file
from distributary.errors import ErrorCode
from distributary.evolve.align import align
from distributary.model.manifest import StagedFile
from distributary.model.names import (
    HIVE_NULL,
    LONGEST_FOLDER,
    OTHER_LABEL,
    hive_folder,
    label_columns,
    label_folder,
)
from distributary.model.plan import StageOrder
from distributary.model.table import Column, TablePlan
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import Values, combinations, positions
from distributary.stage.files import (
    DATE,
    Fact,
    file_fact,
    file_name,
    letters_batch,
    metadata_columns,
)

if TYPE_CHECKING:
    from distributary.stage.parts import Part


Codes = npt.NDArray[np.int64]

MOST_PARTITIONS = 1_000
"""Of one table in one task and batch: each of them is a file."""

_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31: before and after these, engines spell days in different ways."""


def can_partition(type_: pa.DataType) -> bool:
    """Text, whole numbers, true or false, days: their values have one spelling everywhere."""
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_signed_integer(type_)
        or kinds.is_boolean(type_)
        or kinds.is_date32(type_)
    )


def partition_columns(wanted: Iterable[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """Those of the wanted columns by which a table with these columns can be partitioned."""
    able = {column.name for column in columns if can_partition(column.type)}
    chosen = tuple(name for name in wanted if name in able)
    # a file needs something to hold
    return chosen if len(chosen) < len(columns) else chosen[:-1]


def days(times: pa.ChunkedArray) -> pa.Array:
    """The day of each moment; null if it has none, and beyond the most frequent days."""
    moments = times.cast(pa.int64()).combine_chunks()
    numbers = moments.fill_null(0).to_numpy() // _DAY
    unknown = np.asarray(moments.is_null()) | (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
    distinct, sizes = np.unique(numbers[~unknown], return_counts=True)
    if len(distinct) >= MOST_PARTITIONS:
        kept = distinct[np.argsort(-sizes, kind="stable")[: MOST_PARTITIONS - 1]]
        unknown |= ~np.isin(numbers, kept)
    numbers[unknown] = 0
    return pa.array(numbers.astype(np.int32), pa.int32(), mask=unknown).cast(pa.date32())


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as Delta spells them; an empty text is null, as Delta's protocol has it."""
    texts = column.cast(pa.string())
    if pa.types.is_date32(column.type):
        number = column.cast(pa.int32())
        known = pc.and_(pc.greater_equal(number, _FIRST_DAY), pc.less_equal(number, _LAST_DAY))
        # a text that has no folder
        return pc.if_else(known, texts, HIVE_NULL)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _largest(codes: Codes) -> set[int]:
    """The numbers of the partitions with the most rows, as many as may be written."""
    return set(np.argsort(-np.bincount(codes), kind="stable")[:MOST_PARTITIONS].tolist())


def table_facts(
    body: pa.Table,
    table: TablePlan,
    order: StageOrder,
    *,
    records: int,
    times: pa.ChunkedArray,
    offsets: pa.ChunkedArray | None = None,
    schema_ids: pa.Array | pa.ChunkedArray | None = None,
) -> list[Fact]:
    """Write rows of a table; one fact a file, of which the first tells the records of all."""
    if DATE.name in table.partition_by:
        body = body.append_column(pa.field(DATE.name, DATE.type), days(times))
    files = write_files(body, table, order, offsets=offsets, schema_ids=schema_ids)
    counts = [records] + [0] * (len(files) - 1)
    return [file_fact(table.name, n, file) for n, file in zip(counts, files, strict=True)]


def write_files(
    body: pa.Table,
    table: TablePlan,
    order: StageOrder,
    *,
    offsets: pa.ChunkedArray | None = None,
    schema_ids: pa.Array | pa.ChunkedArray | None = None,
) -> list[StagedFile]:
    """One file for each partition of a Delta table, or for each label of a plain one."""

    def written(rows: pa.Table, folder: str, values: Values, where: pa.Array | None) -> StagedFile:
        at, ids = offsets, schema_ids
        if where is not None:
            at, ids = (None if column is None else column.take(where) for column in (at, ids))
        bounds = {} if at is None else pc.min_max(at).as_py()
        in_log = table.format == "delta"
        return write_file(
            rows,
            table.path,
            table.staged(folder + file_name(order)),
            partition_values=dict(zip(table.partition_by, values, strict=True)) if in_log else None,
            first_offset=bounds.get("min", -1),
            last_offset=bounds.get("max", -1),
            schema_ids=()
            if ids is None
            else [i for i in ids.unique().to_pylist() if i is not None],
        )

    if not table.partition_by:
        return [written(body, "", (), None)]
    found, codes = combinations(_texts(_column(body, name)) for name in table.partition_by)
    folders = _folders(found, codes, table)
    values = dict(zip(folders, found, strict=True))
    stored = _stored(body, table)
    if len(values) == 1:
        # most batches are of one day: nothing is copied then
        return [written(stored, f"{folders[0]}/", found[0], None)]
    numbers = {folder: number for number, folder in enumerate(values)}
    codes = np.array([numbers[folder] for folder in folders], dtype=np.int64)[codes]
    places = zip(values.items(), map(pa.array, positions(codes, len(values))), strict=True)
    return [written(stored.take(at), f"{folder}/", own, at) for (folder, own), at in places]


def delta_folder(table: TablePlan, values: Values) -> str | None:
    """The folder of a partition of a Delta table; None where one of the values has no folder."""
    found = [hive_folder(n, v) for n, v in zip(table.partition_by, values, strict=True)]
    folders = [folder for folder in found if folder is not None]
    return "/".join(folders) if len(folders) == len(found) else None


def _folders(found: list[Values], codes: Codes, table: TablePlan) -> list[str]:
    if table.format == "delta":
        return [delta_folder(table, values) or _unnamed(values) for values in found]
    labels = list(label_columns(table.partition_by).values())
    other = "/".join(f"{label}={OTHER_LABEL}" for label in labels)
    kept = _largest(codes)
    return [
        "/".join(label_folder(label, v) for label, v in zip(labels, values, strict=True))
        if number in kept
        else other
        for number, values in enumerate(found)
    ]


def _column(body: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or nulls: no schema of this batch may have it any more."""
    if name in body.column_names:
        return body[name]
    return pa.chunked_array([pa.nulls(body.num_rows, pa.string())])


def _stored(body: pa.Table, table: TablePlan) -> pa.Table:
    """What goes into the files: a Delta table has its partition values in the log instead."""
    if table.format != "delta":
        return body
    stored = body.select([n for n in body.column_names if n not in table.partition_by])
    if not stored.num_columns:
        # rows of no columns cannot be written: one that the writer does not have stands for them
        first = next(c for c in table.columns if c.name not in table.partition_by)
        stored = pa.table({first.name: pa.nulls(body.num_rows, first.type)})
    return stored


def _unnamed(values: Values) -> str:
    """A folder for values that have none, in a table that cannot refuse a record.

    It is somebody else's who has partitioned it, and most readers take the values from the log.
    """
    return f"partition-{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"


# Records refused by their rows: those as they would be written, and what is left of a part.

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
    known = dict(metadata_columns(raw, schema_ids_of(parts), catalog.metadata, order))
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


def schema_ids_of(parts: Iterable[Part]) -> pa.Int64Array:
    """The schema of each row of these parts."""
    ids, rows = zip(*((p.route.schema_id, p.batch.num_rows) for p in parts), strict=True)
    return pa.array(np.repeat(np.array(ids, dtype=np.int64), rows))


def without_records(part: Part, bad: Flags) -> tuple[Part, npt.NDArray[np.int64]]:
    """A part without the records of which any row is bad, and the first bad row of each of them.

    Half a record is none.
    """
    _, records = combinations(part.raw.column(name) for name in _COORDINATES)
    refused, first = np.unique(records[bad], return_index=True)
    mask = pa.array(~np.isin(records, refused))
    rest = replace(
        part,
        batch=part.batch.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - len(refused),
    )
    return rest, np.flatnonzero(bad)[first]


# Records whose partition cannot be written: found before anything is, and dead-lettered whole.

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
    found, codes = combinations(_texts(known[name]) for name in table.partition_by)
    nameless = {n for n, values in enumerate(found) if delta_folder(table, values) is None}
    beyond = set(range(len(found))) - _largest(codes) - nameless
    if not nameless and not beyond:
        return parts, []
    why = dict.fromkeys(nameless, _NO_FOLDER) | dict.fromkeys(beyond, _TOO_MANY)
    reasons = np.array([why.get(number, "") for number in range(len(found))])
    ends = np.cumsum([part.batch.num_rows for part in filled])
    kept: list[Part] = [part for part in parts if not part.batch.num_rows]
    dead: list[pa.RecordBatch] = []
    for part, reason in zip(filled, np.split(reasons[codes], ends[:-1]), strict=True):
        rest, rows = without_records(part, reason != "")
        kept.append(rest)
        if len(rows):
            code = ErrorCode.PARTITION_REFUSED
            letters = [part.letter(row, code, str(reason[row]), "write") for row in rows.tolist()]
            dead.append(letters_batch(part.raw, letters, order))
    return kept, dead
