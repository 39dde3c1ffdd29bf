"""The publisher of Iceberg tables, with pyiceberg: columns, files and mark in one commit.

A table's folder is its location: staged files stay where they are. Beside them is a folder
`metadata`; the catalog names the file in it that is the table's current metadata. Data files carry
no field ids, so each table has a name mapping, by which readers find the columns.

A commit names the snapshot that it follows, so of two commits after the same snapshot only one
lands. The batch's mark is in the snapshot's summary and, because snapshots expire, also in the
table's properties.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, IntegerType, LongType, StructType, TimestamptzType

from distributary.config.lake import LakeConfig
from distributary.delta.column_merge import ColumnConflictError, fields_of, merge_fields
from distributary.delta.commit import check_partitioning, check_staged, facts
from distributary.delta.damage import TAG
from distributary.delta.tables import OvertakenError, committing, until_not_overtaken
from distributary.errors import PublishError
from distributary.model.manifest import Mark, StagedFile, TableEntry, compact
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.publish.iceberg_table import (
    MARK,
    newest_batch,
    open_catalog,
    source_of_mark,
    version_of,
)
from distributary.publish.iceberg_types import (
    COLUMNS_PROPERTY,
    columns_in,
    grown_columns,
    iceberg_fields,
    kept_metadata,
    name_mapping,
)
from distributary.publish.parquet_publisher import holds_delta
from distributary.retries import attempts_on
from distributary.store.base import at

_MAPPING = "schema.name-mapping.default"
_CREATED = {
    "format-version": "2",
    # Every commit writes the whole metadata again, so old metadata files are deleted.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class IcebergPublisher:
    """A publisher that adds staged files to Iceberg tables, with one commit per table and batch."""

    def __init__(self, lake: LakeConfig) -> None:
        self._lake = lake
        self._namespace = lake.iceberg_catalog.namespace
        self._catalog: Catalog | None = None
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns.

        Partitioned tables are refused when a batch is committed.
        """
        with self._open(path, doing="read the columns of a table") as table:
            current = table.load()
            return None if current is None else TableColumns(columns_in(current.metadata))

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table") as table:
            current = table.load()
            newest = None if current is None else newest_batch(current.metadata, mark.app_id)
            if current is None or newest is None:
                return None
            return CommittedMark(newest, source_of_mark(current.metadata, mark))

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Add the files of an entry, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table") as table:
            if table.seen is not None:
                # The known state may be outdated: a commit on it fails then, and the table is
                # loaded again.
                with suppress(OvertakenError, PublishError, ColumnConflictError):
                    return table.publish(entry, mark)
            return until_not_overtaken(lambda: table.load_and_publish(entry, mark))

    def drop(self, paths: Sequence[str]) -> list[str]:
        """Drop the tables of these folders from the catalog and return their names.

        Their files stay.
        """
        gone = []
        for path in paths:
            with self._open(path, doing="drop a table from its catalog") as table:
                if table.is_ours():
                    table.catalog.drop_table(table.name)
                    table.seen = None
                    gone.append(table.name[-1])
        return gone

    @contextmanager
    def _open(self, path: str, *, doing: str) -> Iterator[_Table]:
        with committing(path, doing=doing):
            table = self._table(path)
            with table.lock:
                try:
                    yield table
                except Exception:
                    table.seen = None
                    raise

    def _ready(self) -> Catalog:
        catalog = open_catalog(self._lake)
        catalog.create_namespace_if_not_exists(self._namespace)
        return catalog

    def _table(self, path: str) -> _Table:
        with self._lock:
            if self._catalog is None:
                # Of two processes that create the catalog at the same time, one gets an error.
                again = attempts_on(Exception, most=4, pause=0.05, longest=1.0, jitter=0.1)
                self._catalog = again(self._ready)
            if path not in self._tables:
                self._tables[path] = _Table(self._catalog, self._namespace, path)
            return self._tables[path]


class _Table:
    """One table in the state after our last commit, if no other writer has committed since."""

    def __init__(self, catalog: Catalog, namespace: str, path: str) -> None:
        self.lock = threading.Lock()
        self.catalog, self.path = catalog, path
        self.name = (namespace, path.rstrip("/").rpartition("/")[2])
        self.seen: Table | None = None

    def load(self) -> Table | None:
        """Load the table as it is now; None if there is no table. Raises PublishError."""
        self.seen = None
        try:
            current = self.catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if current.location().removeprefix("file://").rstrip("/") != self.path.rstrip("/"):
            raise PublishError(
                f"the name {'.'.join(self.name)} belongs to another table in the catalog",
                where=self.path,
                evidence=f"that table is in {current.location()}",
                next_step="if the file names the wrong catalog, name the right one; if the catalog "
                "was replaced, put the newest copy of it back; otherwise give lake.iceberg another "
                "namespace, or the tables another prefix",
                reason="format",
            )
        self.seen = current
        return current

    def is_ours(self) -> bool:
        """Return whether the catalog has the table of this folder, even if its files are gone."""
        try:
            return self.load() is not None
        except FileNotFoundError:
            return True
        except PublishError:
            return False

    def load_and_publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Attempt to publish on the table's current state. Raises OvertakenError."""
        self.load()
        return self.publish(entry, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Attempt to publish on the known state of the table. Raises OvertakenError."""
        seen, name = self.seen, entry.table.name
        if seen is not None:
            newest = newest_batch(seen.metadata, mark.app_id)
            if newest is not None and newest >= mark.batch:
                return Published(name, Outcome.SKIPPED, version_of(seen.metadata))
        self._check(entry)
        transaction = self._new(entry) if seen is None else self._next(seen, entry)
        sums = {file.path: file.checksum for file in entry.files if file.checksum}
        summary = {**facts(mark), **({TAG: compact(sums)} if sums else {})}
        with transaction.update_snapshot(snapshot_properties=summary).merge_append() as append:
            for file in entry.files:
                append.append_data_file(self._data_file(file, transaction.table_metadata))
        transaction.set_properties({f"{MARK}{mark.app_id}": str(mark.batch)})
        try:
            committed = transaction.commit_transaction()
        except Exception as error:
            after = self._landed(append.snapshot_id)
            if after is None and isinstance(error, CommitFailedException | TableAlreadyExistsError):
                raise OvertakenError(str(error)) from error
            if after is None:
                raise
            committed = after
        # A table that was just created is loaded when it is needed again.
        self.seen = committed if seen is not None else None
        return Published(name, Outcome.PUBLISHED, version_of(committed.metadata))

    def _check(self, entry: TableEntry) -> None:
        if self.seen is None:
            _refuse_others(entry)
        else:
            # Partitioned tables take no files of ours: staged files do not carry their partition
            # values.
            by = [field.name for field in self.seen.spec().fields]
            check_partitioning(replace(entry, table=replace(entry.table, partition_by=())), by)
            for field in self.seen.schema().fields:
                if field.required:
                    raise ColumnConflictError(field.name, "a required column", "one with nulls")
        check_partitioning(entry, ())
        check_staged(entry, at(self.path).size)

    def _landed(self, snapshot: int) -> Table | None:
        """Return the table if it has this snapshot: the commit's answer may be lost."""
        with suppress(Exception):
            current = self.load()
            if current is not None and current.metadata.snapshot_by_id(snapshot) is not None:
                return current
        return None

    def _new(self, entry: TableEntry) -> Transaction:
        fields = fields_of(entry.table.columns)
        schema = Schema(*grown_columns(StructType(), fields, count(1)).fields)
        described = {"comment": entry.table.comment, COLUMNS_PROPERTY: kept_metadata(fields)}
        try:
            transaction: Transaction = self.catalog.create_table_transaction(
                self.name, schema, location=self.path, properties=_CREATED | described
            )
        except TableAlreadyExistsError as error:
            # another process has created it since it was loaded
            raise OvertakenError(str(error)) from error
        # The catalog assigns field ids itself.
        mapping = name_mapping(transaction.table_metadata.schema(), None)
        return transaction.set_properties({_MAPPING: mapping})

    def _next(self, seen: Table, entry: TableEntry) -> Transaction:
        """Begin a transaction on the table that is not retried when it is overtaken.

        A retry of pyiceberg would append the same files after any other commit, even after one of
        this very batch.
        """
        before = seen.metadata
        once = {**before.properties, "commit.retry.num-retries": "0"}
        metadata = before.model_copy(update={"properties": once})
        table = Table(seen.name(), metadata, seen.metadata_location, seen.io, seen.catalog)
        transaction = _Growing(table)
        merged = merge_fields(iceberg_fields(before), fields_of(entry.table.columns))
        mapping = before.name_mapping()
        if merged.changed:
            ids = count(before.last_column_id + 1)
            transaction.grow(grown_columns(before.schema().as_struct(), merged.fields, ids))
            transaction.set_properties({COLUMNS_PROPERTY: kept_metadata(merged.fields)})
        if merged.changed or mapping is None:
            now = name_mapping(transaction.table_metadata.schema(), mapping)
            transaction.set_properties({_MAPPING: now})
        return transaction

    def _data_file(self, file: StagedFile, metadata: TableMetadata) -> DataFile:
        """Return the manifest entry of a file, with the bounds that the stage knows exactly."""
        statistics = json.loads(file.stats) if file.stats else {}
        lowest, highest, nulls, rows = {}, {}, {}, {}
        for field in metadata.schema().fields:
            low, high = (
                _bound(field.field_type, statistics.get(side, {}).get(field.name))
                for side in ("minValues", "maxValues")
            )
            if low is None or high is None:
                continue
            number = field.field_id
            lowest[number], highest[number] = low, high
            rows[number], nulls[number] = file.rows, statistics["nullCount"][field.name]
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.path}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=file.rows,
            file_size_in_bytes=file.size,
            value_counts=rows or None,
            null_value_counts=nulls or None,
            lower_bounds=lowest or None,
            upper_bounds=highest or None,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
        )


class _Growing(Transaction):
    def grow(self, columns: StructType) -> None:
        """Set the table's columns; `update_schema` cannot add columns with a dot in the name."""
        before = self.table_metadata
        number = 1 + max(schema.schema_id for schema in before.schemas)
        self._apply(
            (
                AddSchemaUpdate(schema_=Schema(*columns.fields, schema_id=number)),
                SetCurrentSchemaUpdate(schema_id=-1),
            ),
            (
                AssertCurrentSchemaId(current_schema_id=before.current_schema_id),
                AssertLastAssignedFieldId(last_assigned_field_id=before.last_column_id),
            ),
        )


def _refuse_others(entry: TableEntry) -> None:
    if os.path.lexists(f"{entry.table.path}/_delta_log"):
        raise holds_delta(entry)


def _bound(kind: IcebergType, value: Any) -> bytes | None:
    match kind:
        case IntegerType() | LongType() if type(value) is int:
            return to_bytes(kind, value)
        case TimestamptzType() if isinstance(value, str):
            return to_bytes(kind, (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND)
    return None
