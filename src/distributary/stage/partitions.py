"""The rows of one table by the values of its partition columns: one file for each combination.

Only partitioned tables come here. The values are whatever the records hold, so the number of files
is bounded: what a table cannot take becomes dead letters, which can be sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
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
from distributary.model.plan import Catalog, StageOrder
from distributary.model.table import Column, TablePlan
from distributary.stage.exchange import positions
from distributary.stage.files import (
    DATE,
    Letter,
    file_fact,
    file_name,
    letters_batch,
    metadata_columns,
)

if TYPE_CHECKING:
    from distributary.stage.parts import Part


Codes = npt.NDArray[np.int64]
Values = tuple[str | None, ...]

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


@dataclass(frozen=True, slots=True)
class Partitions:
    """The combinations of values among some rows, and for each row the number of its own."""

    values: list[Values]
    codes: Codes

    @classmethod
    def of(cls, keys: Sequence[pa.ChunkedArray]) -> Partitions:
        """By the partition columns of the rows."""
        codes = np.zeros(len(keys[0]), dtype=np.int64)
        values: list[Values] = [()]
        for key in keys:
            encoded = _texts(key).combine_chunks().dictionary_encode(null_encoding="encode")
            texts: list[str | None] = encoded.dictionary.to_pylist()
            mixed = codes * max(1, len(texts)) + encoded.indices.to_numpy(zero_copy_only=False)
            distinct, codes = np.unique(mixed, return_inverse=True)
            pairs = (divmod(int(code), len(texts)) for code in distinct)
            values = [(*values[before], texts[own]) for before, own in pairs]
        return cls(values, codes)

    def largest(self) -> set[int]:
        """The numbers of those that have the most rows, as many as may be written."""
        sizes = np.bincount(self.codes, minlength=len(self.values))
        return {int(number) for number in np.argsort(-sizes, kind="stable")[:MOST_PARTITIONS]}


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as Delta spells them; an empty text is null, as Delta's protocol has it."""
    texts = column.cast(pa.string())
    if pa.types.is_date32(column.type):
        number = column.cast(pa.int32())
        known = pc.and_(pc.greater_equal(number, _FIRST_DAY), pc.less_equal(number, _LAST_DAY))
        # a text that has no folder
        return pc.if_else(known, texts, HIVE_NULL)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def with_date(body: pa.Table, times: pa.ChunkedArray, table: TablePlan) -> pa.Table:
    """The rows with the day of their records, if the table is partitioned by it."""
    if DATE.name not in table.partition_by:
        return body
    return body.append_column(pa.field(DATE.name, DATE.type), days(times))


def partition_facts(
    body: pa.Table,
    table: TablePlan,
    order: StageOrder,
    *,
    records: int,
    offsets: pa.ChunkedArray | None = None,
    schema_ids: pa.Array | pa.ChunkedArray | None = None,
) -> list[tuple[str, str]]:
    """Write the rows; one fact a file, of which the first tells the records of all."""
    files = write_partitions(body, table, order, offsets=offsets, schema_ids=schema_ids)
    counts = [records] + [0] * (len(files) - 1)
    return [file_fact(table.name, n, file) for n, file in zip(counts, files, strict=True)]


def write_partitions(
    body: pa.Table,
    table: TablePlan,
    order: StageOrder,
    *,
    offsets: pa.ChunkedArray | None = None,
    schema_ids: pa.Array | pa.ChunkedArray | None = None,
) -> list[StagedFile]:
    """One file for each partition of a Delta table, or for each label of a plain one."""
    parts = Partitions.of([_column(body, name) for name in table.partition_by])
    folders = _folders(parts, table)
    values = dict(zip(folders, parts.values, strict=True))
    numbers = {folder: number for number, folder in enumerate(values)}
    codes = np.array([numbers[folder] for folder in folders], dtype=np.int64)[parts.codes]
    stored = _stored(body, table)
    written = []
    for (folder, own), where in zip(values.items(), positions(codes, len(values)), strict=True):
        bounds = _taken(offsets, where)
        written.append(
            write_file(
                # most batches are of one day: nothing is copied then
                stored if len(values) == 1 else stored.take(pa.array(where)),
                table.path,
                table.staged(f"{folder}/{file_name(order)}"),
                partition_values=_values(table, own),
                first_offset=int(bounds.min()) if len(bounds) else -1,
                last_offset=int(bounds.max()) if len(bounds) else -1,
                schema_ids=_ids(schema_ids, where),
            )
        )
    return written


def delta_folder(table: TablePlan, values: Values) -> str | None:
    """The folder of a partition of a Delta table; None where one of the values has no folder."""
    found = [hive_folder(n, v) for n, v in zip(table.partition_by, values, strict=True)]
    folders = [folder for folder in found if folder is not None]
    return "/".join(folders) if len(folders) == len(found) else None


def _folders(parts: Partitions, table: TablePlan) -> list[str]:
    if table.format == "delta":
        return [delta_folder(table, v) or _unnamed(v) for v in parts.values]
    labels = list(label_columns(table.partition_by).values())
    other = "/".join(f"{label}={OTHER_LABEL}" for label in labels)
    kept = parts.largest()
    return [
        "/".join(label_folder(label, v) for label, v in zip(labels, values, strict=True))
        if number in kept
        else other
        for number, values in enumerate(parts.values)
    ]


def _column(body: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or nulls: no schema of this batch may have it any more."""
    if name in body.column_names:
        return body[name]
    return pa.chunked_array([pa.nulls(body.num_rows, pa.string())])


def _values(table: TablePlan, values: Values) -> dict[str, str | None] | None:
    if table.format != "delta":
        return None
    return dict(zip(table.partition_by, values, strict=True))


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


def _taken(values: pa.ChunkedArray | None, where: Codes) -> Codes:
    return np.empty(0, np.int64) if values is None else np.asarray(values)[where]


def _ids(values: pa.Array | pa.ChunkedArray | None, where: Codes) -> list[int]:
    if values is None:
        return []
    found: list[int] = values.take(pa.array(where)).unique().drop_null().to_pylist()
    return found


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
