"""Delta tables that are changed at random, and what readers of Iceberg see of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import StaticTable

from distributary.delta.column_merge import Field, fields_of, merge_fields
from distributary.delta.commit import Change, commit, write_rows
from distributary.delta.log import Snapshot, load
from distributary.delta.parquet import write_file
from distributary.delta.removal.vacuum import Keepers, vacuum
from distributary.delta.vectors import write_vectors
from distributary.iceberg.mirror import Mirror
from distributary.iceberg.pointer import VersionHint
from distributary.model.table import Column
from distributary.store.base import Store, at

Rows = list[tuple[Any, ...]]


class DeltaTable:
    """A Delta table of which each commit is asked for by name."""

    def __init__(self, folder: Path, *, partition_by: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.store = str(folder), at(folder)
        self.partition_by = tuple(partition_by)
        self.types: dict[str, pa.DataType] = {"a": pa.int32(), "s": pa.string()}
        self.state: Snapshot | None = None
        self.written = 0

    def make(self, count: int) -> None:
        """Create the table with some rows."""
        self._commit(added=self._files(count), fields=self._fields())

    def append(self, count: int) -> None:
        """Add rows in a new file."""
        self._commit(added=self._files(count))

    def remove(self, at_file: int) -> None:
        """Remove a file."""
        if file := self._pick(at_file):
            self._commit(removed=[file])

    def rewrite(self, at_file: int, count: int) -> None:
        """Replace a file by new rows."""
        if file := self._pick(at_file):
            self._commit(removed=[file], added=self._files(count))

    def compact(self) -> None:
        """Put all files without deletion vectors into one; partitions stay as they are."""
        assert self.state is not None
        files = [file for file in self.state.files.values() if file.vector is None]
        if self.partition_by or len(files) < 2:
            return
        rows = pa.concat_tables(self.state.read(file, self.schema) for file in files)
        self._commit(removed=files, added=[write_rows(rows, self.folder)], same_rows=True)

    def delete_rows(self, at_file: int, row: int) -> None:
        """Delete one row of a file by a deletion vector."""
        assert self.state is not None
        file = self._pick(at_file)
        if file is None or not file.written:
            return
        gone = np.union1d(self.state.gone(file), [row % file.written]).astype(np.int64)
        (vector,) = write_vectors(self.store, [gone])
        self._commit(vectors=[(file, vector)])

    def add_column(self) -> None:
        """Add a column; all earlier rows are null there."""
        self.types[f"c{len(self.types)}"] = pa.struct([("x", pa.list_(pa.date32()))])
        self._commit(fields=self._fields())

    def widen(self) -> None:
        """Let the column of whole numbers be wider."""
        self.types["a"] = pa.int64()
        self._commit(fields=self._fields())

    def vacuum(self) -> None:
        """Delete the files that are not part of the newest version."""
        from datetime import timedelta

        vacuum(self.store, lambda _: timedelta(0), Keepers())

    @property
    def schema(self) -> pa.Schema:
        """Return the columns as they are now."""
        return pa.schema(list(self.types.items()))

    def rows(self) -> Rows:
        """Return the rows as Delta's reader has them."""
        state = load(self.store)
        assert state is not None
        tables = []
        for file in state.files.values():
            rows = state.read(file, self.schema)
            for name in self.partition_by:
                text = file.values[name]
                value = None if text is None else int(text)
                column = pa.array([value] * rows.num_rows, self.types[name])
                rows = rows.set_column(rows.schema.get_field_index(name), name, column)
            tables.append(rows)
        return sorted_rows(pa.concat_tables(tables) if tables else self.schema.empty_table())

    def _fields(self) -> list[Field]:
        have = [] if self.state is None else self.state.fields
        columns = [Column(name, type_, f"about {name}") for name, type_ in self.types.items()]
        return merge_fields(have, fields_of(columns)).fields

    def _files(self, count: int) -> list[Any]:
        self.written += 1
        values = {
            "a": [None if at == 1 else at - 1 for at in range(count)],
            "s": [f"{self.written} {at} \u00e9" for at in range(count)],
        }
        arrays = [
            pa.array(values[name], type_)
            if name in values
            else pa.array([{"x": [at, None]} for at in range(count)], type_)
            for name, type_ in self.types.items()
        ]
        rows = pa.table(arrays, schema=self.schema)
        if not self.partition_by:
            return [write_rows(rows, self.folder)]
        staged = []
        for value in sorted({*rows["a"].to_pylist()}, key=str):
            mask = pa.array([one == value for one in rows["a"].to_pylist()])
            part = rows.filter(mask).drop_columns(["a"])
            name = f"a={value}/{uuid.uuid4().hex}.parquet"
            spelled = None if value is None else str(value)
            staged.append(write_file(part, self.folder, name, partition_values={"a": spelled}))
        return staged

    def _pick(self, number: int) -> Any:
        assert self.state is not None
        files = list(self.state.files.values())
        return files[number % len(files)] if files else None

    def _commit(self, **change: Any) -> None:
        made = Change("WRITE", name="t", partition_by=self.partition_by, **change)
        self.state = commit(self.store, self.state, made)


def mirror_of(table: DeltaTable, store: Store | None = None, **settings: Any) -> Mirror:
    """Return the mirror of a table, without a catalog."""
    store = store or table.store
    return Mirror(store, VersionHint(store), **settings)


def iceberg_of(table: DeltaTable) -> StaticTable:
    """Open a mirror by its version hint."""
    return StaticTable.from_metadata(f"{table.folder}/_iceberg")


def iceberg_rows(table: DeltaTable) -> Rows:
    """Return the rows of a mirror as pyiceberg reads them."""
    return sorted_rows(iceberg_of(table).scan().to_arrow())


def sorted_rows(table: pa.Table) -> Rows:
    """Return rows in an order that does not depend on files."""
    names = sorted(table.column_names)
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)
