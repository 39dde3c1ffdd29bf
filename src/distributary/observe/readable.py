"""A table of the lake to look into, of whichever format it is."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from distributary.model.manifest import app_id
from distributary.observe.delta import (
    StorageOptions,
    arrow_schema,
    dataset,
    only_below,
    open_table,
    reaching,
    read_rows,
    scanner,
)
from distributary.observe.rows import TableRow
from distributary.publish.parquet_table import open_parquet
from distributary.stores.known import local_folder, stay_inside


@dataclass(frozen=True, slots=True)
class Readable:
    """A table at its newest version."""

    path: str
    version: int
    schema: pa.Schema
    """The columns, with their comments as metadata."""
    source: DeltaTable | ds.Dataset

    @property
    def files(self) -> ds.Dataset | None:
        """By their paths in the folder; None where only the format's own engine can read them."""
        return dataset(self.source) if isinstance(self.source, DeltaTable) else self.source

    def rows(self, *, where: pc.Expression, limit: int) -> pa.Table:
        """Rows that satisfy `where`, an expression and never a text."""
        if isinstance(self.source, DeltaTable):
            return read_rows(self.source, where=where, limit=limit)
        with reaching(self.path):
            return self.source.scanner(filter=where).head(limit)

    def batches(self, columns: list[str]) -> pa.RecordBatchReader:
        """Some columns of all rows, bit by bit."""
        if isinstance(self.source, DeltaTable):
            return scanner(self.source, columns).to_reader()
        return self.source.scanner(columns=columns).to_reader()


def open_readable(path: str, storage_options: StorageOptions | None = None) -> Readable | None:
    """The table in a folder, or None where there is none."""
    folder = local_folder(path)
    if folder:
        stay_inside(os.path.dirname(folder), folder)
    found = open_parquet(path)
    if found is not None:
        table, record = found
        fields = [pa.field(c.name, c.type, metadata=_comment(c.comment)) for c in record.columns]
        rows = table.dataset(record)
        only_below(table.folder, rows.files)
        return Readable(path, table.log().version, pa.schema(fields), rows)
    delta = open_table(path, storage_options)
    if delta is None:
        return None
    return Readable(path, delta.version(), arrow_schema(delta), delta)


def files_of(path: str, row: TableRow) -> tuple[str, ...]:
    """The files in which a batch is in a table, as far as anybody knows.

    The ledger names files as they were staged, and for a Delta table they stay what they are.
    """
    found = open_parquet(path)
    if found is None:
        return row.files
    log = found[0].log()
    version = log.version_of(app_id(row.pipeline, row.life, row.lane), row.batch)
    if version is None:
        return ()
    return tuple(file["path"] for file in found[0].commit(version, log).get("files", ()))


def _comment(text: str) -> dict[str, str] | None:
    return {"comment": text} if text else None
