"""A table of the lake, of any format, opened for its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from distributary.delta.tables import dataset, reaching_table, read_rows, scanner
from distributary.evolve.types import sql_name


@dataclass(frozen=True, slots=True)
class ReadableTable(ABC):
    """A table at its newest version."""

    path: str
    version: int
    schema: pa.Schema
    """The columns, with their comments as metadata."""

    @property
    @abstractmethod
    def files(self) -> ds.Dataset | None:
        """Return the files as a dataset; None if only the format's own engine can read them."""

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Return name, type, nullability and comment of each column."""
        return [
            {
                "name": field.name,
                "type": sql_name(field.type),
                "nullable": field.nullable,
                "comment": (field.metadata or {}).get(b"comment", b"").decode("utf-8", "replace"),
            }
            for field in self.schema
        ]

    @abstractmethod
    def rows(self, *, where: pc.Expression, limit: int) -> pa.Table:
        """Read rows that satisfy `where`, an expression and never a text."""

    @abstractmethod
    def some_rows(self, columns: Sequence[str], limit: int) -> pa.Table:
        """Read any rows, some of their columns."""

    @abstractmethod
    def batches(self, columns: list[str]) -> pa.RecordBatchReader:
        """Return a reader of some columns of all rows."""

    def newest_files(
        self, files: ds.Dataset, key: str | None = None
    ) -> list[tuple[ds.Fragment, Any]]:
        """Return the files, the newest first, each with the greatest value of a column in it.

        The value is None where the table does not tell it of every file.
        """
        return [(fragment, None) for fragment in reversed(list(files.get_fragments()))]


@dataclass(frozen=True, slots=True)
class ReadableDelta(ReadableTable):
    """A Delta table."""

    table: DeltaTable

    @property
    def files(self) -> ds.Dataset | None:
        """Return the files as a dataset; None if only deltalake's engine can read them."""
        return dataset(self.table)

    def rows(self, *, where: pc.Expression, limit: int) -> pa.Table:
        """Read rows that satisfy `where`, an expression and never a text."""
        return read_rows(self.table, where=where, limit=limit)

    def some_rows(self, columns: Sequence[str], limit: int) -> pa.Table:
        """Read any rows, some of their columns."""
        return read_rows(self.table, columns=columns, limit=limit)

    def batches(self, columns: list[str]) -> pa.RecordBatchReader:
        """Return a reader of some columns of all rows."""
        return scanner(self.table, columns).to_reader()

    def newest_files(
        self, files: ds.Dataset, key: str | None = None
    ) -> list[tuple[ds.Fragment, Any]]:
        """Return the files, the newest first, each with the greatest value of a column in it.

        The greatest values decide, if the log has one for every file, else the times of writing.
        """
        actions = pa.table(self.table.get_add_actions(flatten=True))
        column = f"max.{key}"
        most = actions[column] if column in actions.column_names else pa.nulls(len(actions))
        times = actions["modification_time"].cast(pa.int64()).to_pylist()
        # a log holds addresses, not file names
        paths = [unquote(path) for path in actions["path"].to_pylist()]
        ages = dict(zip(paths, zip(most.to_pylist(), times, strict=True), strict=True))
        aged = [(each, *ages.get(each.path, (None, 0))) for each in files.get_fragments()]
        known = all(greatest is not None for _, greatest, _ in aged)
        aged.sort(key=lambda one: one[1:] if known else one[2:], reverse=True)
        return [(each, greatest if known else None) for each, greatest, _ in aged]


@dataclass(frozen=True, slots=True)
class ReadableFiles(ReadableTable):
    """A table whose rows are those of its files."""

    source: ds.Dataset

    @property
    def files(self) -> ds.Dataset:
        """Return the files as a dataset."""
        return self.source

    def rows(self, *, where: pc.Expression, limit: int) -> pa.Table:
        """Read rows that satisfy `where`, an expression and never a text."""
        with reaching_table(self.path):
            return self.source.scanner(filter=where).head(limit)

    def some_rows(self, columns: Sequence[str], limit: int) -> pa.Table:
        """Read any rows, some of their columns."""
        return self.source.scanner(columns=list(columns)).head(limit)

    def batches(self, columns: list[str]) -> pa.RecordBatchReader:
        """Return a reader of some columns of all rows."""
        return self.source.scanner(columns=columns).to_reader()
