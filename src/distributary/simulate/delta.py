"""Messages into a Delta table, without Spark: what `source: delta` reads in place of Kafka."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from distributary.errors import ConfigError, LakeUnavailableError
from distributary.simulate.base import MESSAGES, Message

_ROWS_PER_BATCH = 10_000


class DeltaSink:
    """Appends messages to a Delta table in a local folder; each write is one commit.

    The rows keep their order: file after file in the commit, row after row in the file. Headers
    are left out: the table has no column for them.

    Args:
        path: the table's folder; made by the first write.
        records_per_file: a write of more messages than this makes several files.
        value_column: the column that holds the messages.
        type_column: the column that holds the readable type names; None for no such column.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        records_per_file: int = 50_000,
        value_column: str = "wrapper",
        type_column: str | None = "game_name",
    ) -> None:
        if "://" in str(path) or records_per_file < 1:
            raise ConfigError(
                "a simulated table needs a local folder and at least one record per file",
                where="path, records_per_file",
                # an address may hold a password: only its scheme is shown
                evidence=f"{str(path).partition('://')[0][:200]}, {records_per_file}",
                next_step="give the path of a folder on this machine",
            )
        self._path = Path(path)
        self._records_per_file = records_per_file
        self._keep = [f.name for f in MESSAGES if f.name != "type" or type_column is not None]
        names = {"type": type_column, "value": value_column}
        self.schema = pa.schema(
            [MESSAGES.field(n).with_name(names.get(n) or n) for n in self._keep]
        )

    def write(self, messages: Iterable[Message]) -> int:
        """Append messages."""
        return self.write_arrow(_batches(messages))

    def write_arrow(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Append batches of schema `MESSAGES`."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            exists = DeltaTable.is_deltatable(str(self._path))
            if exists:
                self._check(DeltaTable(self._path))
            adds, rows = [], 0
            for number, table in enumerate(_files(batches, self._records_per_file)):
                adds.append(self._write_file(table.select(self._keep), number))
                rows += len(table)
            if adds:
                self._commit(adds, exists=exists)
        except (OSError, DeltaError) as error:
            raise LakeUnavailableError(
                "the simulated messages could not be written",
                where=str(self._path),
                evidence=f"{type(error).__name__}: {error}",
                next_step="check that the folder can be written and that the disk is not full",
            ) from error
        return rows

    def _check(self, table: DeltaTable) -> None:
        found = pa.schema(table.schema().to_arrow())
        wanted = [(f.name, f.type) for f in self.schema]
        if [(f.name, _plain(f.type)) for f in found] != wanted:
            raise ConfigError(
                "the folder holds a Delta table with other columns",
                where=str(self._path),
                evidence=f"columns {', '.join(found.names)}",
                next_step=f"choose another folder, or a table of {', '.join(self.schema.names)}",
            )

    def _write_file(self, table: pa.Table, number: int) -> AddAction:
        table = table.rename_columns(self.schema.names)
        name = f"part-{number:05d}-{uuid.uuid4()}.snappy.parquet"
        pq.write_table(table, self._path / name)
        return AddAction(
            path=name,
            size=(self._path / name).stat().st_size,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=_stats(table),
        )

    def _commit(self, adds: list[AddAction], *, exists: bool) -> None:
        schema = Schema.from_arrow(self.schema)
        if exists:
            table = DeltaTable(self._path)
            table.create_write_transaction([*adds], mode="append", schema=schema)
        else:
            create_table_with_add_actions(str(self._path), schema, adds)


def _batches(messages: Iterable[Message]) -> Iterator[pa.RecordBatch]:
    source = iter(messages)
    while some := list(islice(source, _ROWS_PER_BATCH)):
        times = pa.array([m.timestamp for m in some], pa.timestamp("ms", "UTC"))
        columns = [
            pa.array([m.type for m in some], pa.string()),
            pa.array([m.value for m in some], pa.binary()),
            times.cast(MESSAGES.field("produced_at").type),
            pa.array([m.key for m in some], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _files(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The batches cut anew, into tables of so many rows and a last one with the rest."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        rest = batch
        while sum(map(len, waiting)) + len(rest) >= rows:
            fits = rows - sum(map(len, waiting))
            yield pa.Table.from_batches([*waiting, rest.slice(0, fits)], MESSAGES)
            waiting, rest = [], rest.slice(fits)
        if len(rest):
            waiting.append(rest)
    if waiting:
        yield pa.Table.from_batches(waiting, MESSAGES)


def _stats(table: pa.Table) -> str:
    span = pc.min_max(table["produced_at"]).as_py()
    moments = {k: v.isoformat(timespec="milliseconds")[:-6] + "Z" for k, v in span.items()}
    return json.dumps(
        {
            "numRecords": len(table),
            "minValues": {"produced_at": moments["min"]},
            "maxValues": {"produced_at": moments["max"]},
            "nullCount": {name: table[name].null_count for name in table.column_names},
        }
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without the wider or viewed layouts in which a reader may hand it out."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
