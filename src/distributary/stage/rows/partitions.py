"""Partitioned tables: one file for each combination of partition values.

The values come from the records, so the number of files is limited: records beyond the limit become
dead letters, which can be replayed.
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
from distributary.model.facts import Fact, FileStaged
from distributary.model.manifest import StagedFile
from distributary.model.names import (
    HIVE_NULL,
    LONGEST_FOLDER,
    OTHER_LABEL,
    hive_folder,
    label_columns,
    label_folder,
)
from distributary.model.routing import StageOrder
from distributary.model.table import Column, TablePlan
from distributary.model.table_format import TABLE_FORMATS
from distributary.stage.exchange import Values, combinations, positions
from distributary.stage.task_outputs import (
    DATE,
    TYPE,
    file_name,
    letters_batch,
    metadata_columns,
)
from distributary.stage.task_plan import TaskPlan

if TYPE_CHECKING:
    from distributary.stage.decoding import DecodedPart


Codes = npt.NDArray[np.int64]

MOST_PARTITIONS = 1_000
"""The largest number of partitions of one table in one task and batch, because each of them is a
file."""

_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The days 0001-01-01 and 9999-12-31; beyond them, engines spell days differently."""


def can_partition(type_: pa.DataType) -> bool:
    """Return whether all engines spell a type's values alike: text, integers, booleans, days."""
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_signed_integer(type_)
        or kinds.is_boolean(type_)
        or kinds.is_date32(type_)
    )


def partition_columns(wanted: Iterable[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the wanted columns by which a table with these columns can be partitioned."""
    able = {column.name for column in columns if can_partition(column.type)}
    chosen = tuple(name for name in wanted if name in able)
    # A file needs at least one column.
    return chosen if len(chosen) < len(columns) else chosen[:-1]


def days(times: pa.ChunkedArray) -> pa.Array:
    """Return the day of each time; null for unknown times and for days beyond the most frequent."""
    moments = times.cast(pa.int64()).combine_chunks()
    numbers = moments.fill_null(0).to_numpy() // _DAY
    unknown = np.asarray(moments.is_null()) | (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
    distinct, sizes = np.unique(numbers[~unknown], return_counts=True)
    if len(distinct) >= MOST_PARTITIONS:
        kept = distinct[np.argsort(-sizes, kind="stable")[: MOST_PARTITIONS - 1]]
        unknown |= ~np.isin(numbers, kept)
    numbers[unknown] = 0
    return pa.array(numbers.astype(np.int32), pa.int32(), mask=unknown).cast(pa.date32())


def frequent_types(types: pa.ChunkedArray, *, days: int = 1) -> pa.Array:
    """Return the type of each record of bronze, and null for types without a partition.

    These are types that no folder can be named after, and those beyond the most frequent, of which
    there are fewer if each has a partition for each of several days.
    """
    encoded = types.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    counts = np.bincount(encoded.indices.drop_null().to_numpy(), minlength=len(names))
    most = max(0, MOST_PARTITIONS // days - 1)
    frequent = np.argsort(-counts, kind="stable")[:most].tolist()
    partitions: list[str | None] = [None] * len(names)
    for number in frequent:
        # an empty text would be null in the log, and is null here in every format
        if names[number] and hive_folder(TYPE.name, names[number]) is not None:
            partitions[number] = names[number]
    return pa.array(partitions, pa.string()).take(encoded.indices)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as Delta spells them; an empty text is null by Delta's protocol."""
    texts = column.cast(pa.string())
    if pa.types.is_date32(column.type):
        number = column.cast(pa.int32())
        in_range = pc.and_(pc.greater_equal(number, _FIRST_DAY), pc.less_equal(number, _LAST_DAY))
        # A text for which no folder name exists, so that the record is refused.
        return pc.if_else(in_range, texts, HIVE_NULL)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _largest(codes: Codes) -> set[int]:
    """Return the numbers of the partitions with the most rows, up to the limit."""
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
    """Write rows of a table; return one fact per file, with all records counted in the first."""
    if DATE.name in table.partition_by:
        body = body.append_column(pa.field(DATE.name, DATE.type), days(times))
    files = write_files(body, table, order, offsets=offsets, schema_ids=schema_ids)
    counts = [records] + [0] * (len(files) - 1)
    return [FileStaged(table.name, n, file) for n, file in zip(counts, files, strict=True)]


def write_files(
    body: pa.Table,
    table: TablePlan,
    order: StageOrder,
    *,
    offsets: pa.ChunkedArray | None = None,
    schema_ids: pa.Array | pa.ChunkedArray | None = None,
) -> list[StagedFile]:
    """Write one file per partition of a Delta table, or per label of a plain Parquet table."""

    def written(rows: pa.Table, folder: str, values: Values, where: pa.Array | None) -> StagedFile:
        at, ids = offsets, schema_ids
        if where is not None:
            at, ids = (None if column is None else column.take(where) for column in (at, ids))
        bounds = {} if at is None else pc.min_max(at).as_py()
        in_log = TABLE_FORMATS[table.format].partitions_in_log
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
    combined, codes = combinations(_texts(_column(body, name)) for name in table.partition_by)
    folders = _folders(combined, codes, table)
    values = dict(zip(folders, combined, strict=True))
    stored = _stored(body, table)
    if len(values) == 1:
        # Most batches have one day: then nothing is copied.
        return [written(stored, f"{folders[0]}/", combined[0], None)]
    numbers = {folder: number for number, folder in enumerate(values)}
    codes = np.array([numbers[folder] for folder in folders], dtype=np.int64)[codes]
    places = zip(values.items(), map(pa.array, positions(codes, len(values))), strict=True)
    return [
        written(stored.take(at), f"{folder}/", partition, at) for (folder, partition), at in places
    ]


def delta_folder(table: TablePlan, values: Values) -> str | None:
    """Return the folder of a Delta table's partition; None if a value cannot be a folder name."""
    parts = [hive_folder(n, v) for n, v in zip(table.partition_by, values, strict=True)]
    folders = [folder for folder in parts if folder is not None]
    return "/".join(folders) if len(folders) == len(parts) else None


def _folders(combined: list[Values], codes: Codes, table: TablePlan) -> list[str]:
    if TABLE_FORMATS[table.format].partitions_in_log:
        return [delta_folder(table, values) or _unnamed(values) for values in combined]
    labels = list(label_columns(table.partition_by).values())
    other = "/".join(f"{label}={OTHER_LABEL}" for label in labels)
    kept = _largest(codes)
    return [
        "/".join(label_folder(label, v) for label, v in zip(labels, values, strict=True))
        if number in kept
        else other
        for number, values in enumerate(combined)
    ]


def _column(body: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, or nulls if no schema of this batch has it any more."""
    if name in body.column_names:
        return body[name]
    return pa.chunked_array([pa.nulls(body.num_rows, pa.string())])


def _stored(body: pa.Table, table: TablePlan) -> pa.Table:
    """Return the columns for the files: Delta keeps partition values in the log instead."""
    if not TABLE_FORMATS[table.format].partitions_in_log:
        return body
    stored = body.select([n for n in body.column_names if n not in table.partition_by])
    if not stored.num_columns:
        # Rows without columns cannot be written, so a column of nulls is added.
        first = next(c for c in table.columns if c.name not in table.partition_by)
        stored = pa.table({first.name: pa.nulls(body.num_rows, first.type)})
    return stored


def _unnamed(values: Values) -> str:
    """Return a folder for values without a folder name, in a table that must take all records.

    The table was partitioned by another writer; most readers take the values from the log.
    """
    return f"partition-{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"


# The refusal of records by their rows: the rows as they would be written, and the remaining part.

Flags = npt.NDArray[np.bool_]

COORDINATES = ("topic", "partition", "offset")


def columns_as_written(
    parts: Sequence[DecodedPart],
    table: TablePlan,
    names: Collection[str],
    plan: TaskPlan,
    order: StageOrder,
) -> dict[str, pa.ChunkedArray]:
    """Return some columns of a table for all rows of these parts."""
    raw = raw_records_of(parts)
    values = dict(metadata_columns(raw, schema_ids_of(parts), plan.output.metadata, order))
    if DATE.name in table.partition_by and DATE.name in names:
        values[DATE.name] = days(raw.column("timestamp"))
    data_columns = [c for c in table.columns if c.name in names and c.name not in values]
    if data_columns:
        schema = pa.schema([pa.field(c.name, c.type) for c in data_columns])
        rows = pa.Table.from_batches([align(p.batch, p.fills, schema) for p in parts], schema)
        values |= {name: rows[name] for name in rows.column_names}
    return {
        name: v if isinstance(v, pa.ChunkedArray) else pa.chunked_array([v])
        for name, v in values.items()
        if name in names
    }


def raw_records_of(parts: Iterable[DecodedPart]) -> pa.Table:
    """Return the raw record of each row of these parts."""
    tables = [part.raw for part in parts]
    place = tables[0].schema.get_field_index("value")
    types = {table.schema.field(place).type for table in tables}
    if len(types) > 1:
        # rows of one record share its value where items of an array became rows
        tables = [
            table.set_column(place, "value", table.column(place).dictionary_encode())
            for table in tables
        ]
    return pa.concat_tables(tables)


def schema_ids_of(parts: Iterable[DecodedPart]) -> pa.Int64Array:
    """Return the schema id of each row of these parts."""
    ids, rows = zip(*((p.route.schema_id, p.batch.num_rows) for p in parts), strict=True)
    return pa.array(np.repeat(np.array(ids, dtype=np.int64), rows))


def without_records(part: DecodedPart, bad: Flags) -> tuple[DecodedPart, npt.NDArray[np.int64]]:
    """Remove all records with a bad row; return the part and the first bad row of each record.

    A record is removed with all its rows.
    """
    _, records = combinations(part.raw.column(name) for name in COORDINATES)
    refused, first = np.unique(records[bad], return_index=True)
    mask = pa.array(~np.isin(records, refused))
    rest = replace(
        part,
        batch=part.batch.filter(mask),
        raw=part.raw.filter(mask),
        records=part.records - len(refused),
    )
    return rest, np.flatnonzero(bad)[first]


# Records whose partition cannot be written are found before writing, and dead-lettered whole.

_NO_FOLDER = f"a partition's value is longer than {LONGEST_FOLDER} bytes or has no spelling"
_TOO_MANY = (
    f"the record's partition is beyond the {MOST_PARTITIONS:,} largest of the table in one task"
)


def within_limits(
    parts: list[DecodedPart], plan: TaskPlan, order: StageOrder
) -> tuple[list[DecodedPart], list[pa.RecordBatch]]:
    """Remove records whose partition cannot be written; return parts and dead-letter rows."""
    table = plan.output.tables.get(parts[0].route.table) if parts else None
    if table is None or not table.partition_by:
        return parts, []
    # Where files hold the values, folders only have labels, so every value can be written.
    if not TABLE_FORMATS[table.format].partitions_in_log:
        return parts, []
    filled = [part for part in parts if part.batch.num_rows]
    if not filled:
        return parts, []
    columns = columns_as_written(filled, table, table.partition_by, plan, order)
    combined, codes = combinations(_texts(columns[name]) for name in table.partition_by)
    nameless = {n for n, values in enumerate(combined) if delta_folder(table, values) is None}
    beyond = set(range(len(combined))) - _largest(codes) - nameless
    if not nameless and not beyond:
        return parts, []
    why = dict.fromkeys(nameless, _NO_FOLDER) | dict.fromkeys(beyond, _TOO_MANY)
    reasons = np.array([why.get(number, "") for number in range(len(combined))])
    ends = np.cumsum([part.batch.num_rows for part in filled])
    kept: list[DecodedPart] = [part for part in parts if not part.batch.num_rows]
    dead: list[pa.RecordBatch] = []
    for part, reason in zip(filled, np.split(reasons[codes], ends[:-1]), strict=True):
        rest, rows = without_records(part, reason != "")
        kept.append(rest)
        if len(rows):
            code = ErrorCode.PARTITION_REFUSED
            letters = [part.letter(row, code, str(reason[row]), "write") for row in rows.tolist()]
            dead.append(letters_batch(part.raw, letters, order))
    return kept, dead
