"""Finding the rows of one source record: in the files of a batch, or in a whole table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from distributary.observe import layout
from distributary.observe.delta import StorageOptions
from distributary.observe.matching import text
from distributary.observe.readable import open_readable

COORDINATES = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
_ROWS_SHOWN = 100
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_FILE = "__filename"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a record was read."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Coordinates | None:
        """The inverse of `str`; None for what is no TOPIC/PARTITION/OFFSET."""
        topic, *numbers = text.rsplit("/", 2)
        if len(numbers) != 2 or not topic or not all(n.isdecimal() for n in numbers):
            return None
        partition, offset = map(int, numbers)
        fits = partition <= _INT32 and offset <= _INT64
        return cls(topic, partition, offset) if fits else None

    def condition(self) -> pc.Expression:
        """Rows of this record; a table may have been told to keep only some of the columns."""
        topic, partition, offset = text("_topic"), pc.field("_partition"), pc.field("_offset")
        return (
            (offset == self.offset)
            & ((partition == self.partition) | partition.is_null())
            & ((topic == self.topic) | topic.is_null())
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A row that the record became."""

    table: str
    role: str
    file: str | None
    """In the table's folder; None where the table's format does not tell."""
    row: int | None
    """Number of the row in the file, from 0."""
    values: Mapping[str, Any] = field(default_factory=dict)
    parked: bool = False
    """The file waits: the row is not in the table yet."""


def files_holding(
    files: pa_fs.FileSystem, paths: Iterable[str], wanted: Coordinates
) -> tuple[set[str], set[str]]:
    """Of many files of many tables: those with rows of the record, and those that are gone."""
    listed = list(paths)
    there = [info.type == pa_fs.FileType.File for info in files.get_file_info(listed)]
    present = [path for path, is_there in zip(listed, there, strict=True) if is_there]
    gone = {path for path, is_there in zip(listed, there, strict=True) if not is_there}
    if not present:
        return set(), gone
    # one scan for all of them: columns that a file lacks read as null
    everything = ds.dataset(present, schema=COORDINATES, format="parquet", filesystem=files)
    hits = everything.scanner(columns=[_FILE], filter=wanted.condition()).to_table()
    return set(hits[_FILE].to_pylist()), gone


def places_in_table(
    lake: str,
    folder: str,
    wanted: Coordinates,
    *,
    table: str,
    role: str,
    only: Iterable[str] | None = None,
    storage_options: StorageOptions | None = None,
) -> tuple[Place, ...] | None:
    """The record's rows in a table's live files, or only in some of these.

    None: a file asked for is not live any more (it was compacted, say): look at all of them.
    """
    found = open_readable(layout.join(lake, folder), storage_options)
    if found is None or "_offset" not in found.schema.names:
        return ()
    condition = _known(found.schema, wanted)
    live = found.files
    if live is None:
        rows = found.rows(where=condition, limit=_ROWS_SHOWN)
        return tuple(Place(table, role, None, None, row) for row in rows.to_pylist())
    if only is None:
        fragments = list(live.get_fragments(filter=condition))
    else:
        names = set(only)
        fragments = [f for f in live.get_fragments() if f.path in names]
        if len(fragments) < len(names):
            return None
    places = (_places(f, live.schema, condition, table=table, role=role) for f in fragments)
    return tuple(chain.from_iterable(places))[:_ROWS_SHOWN]


def places_in_file(
    files: pa_fs.FileSystem,
    path: str,
    wanted: Coordinates,
    *,
    table: str,
    role: str,
    parked: bool = False,
) -> tuple[Place, ...]:
    """The record's rows in one file of which no table format knows (yet)."""
    alone = ds.dataset([path], format="parquet", filesystem=files)
    (fragment,) = alone.get_fragments()
    condition = _known(alone.schema, wanted)
    found = _places(fragment, alone.schema, condition, table=table, role=role, parked=parked)
    return tuple(found)[:_ROWS_SHOWN]


def _places(
    fragment: ds.Fragment,
    schema: pa.Schema,
    condition: pc.Expression,
    *,
    table: str,
    role: str,
    parked: bool = False,
) -> list[Place]:
    values = fragment.to_table(schema=schema, filter=condition).to_pylist()
    if not values:
        return []
    kept = [name for name in COORDINATES.names if name in schema.names]
    rows = fragment.to_table(schema=schema, columns=kept)
    numbered = rows.append_column("_row", pa.array(range(len(rows)), pa.int64()))
    numbers = numbered.filter(condition)["_row"].to_pylist()
    return [
        Place(table, role, fragment.path, number, row, parked)
        for number, row in zip(numbers, values, strict=True)
    ]


def _known(schema: pa.Schema, wanted: Coordinates) -> pc.Expression:
    """The condition on those coordinates that the table keeps."""
    condition = pc.field("_offset") == wanted.offset
    if "_partition" in schema.names:
        condition = condition & (pc.field("_partition") == wanted.partition)
    if "_topic" in schema.names:
        condition = condition & (text("_topic") == wanted.topic)
    return condition
