"""The publisher of Iceberg tables, with pyiceberg: columns, files and mark in one commit.

A table's folder is its location: staged files stay where they are. Beside them is a folder
`metadata`; the catalog names the file in it that is the table's current metadata. Data files carry
no field ids, so each table has a name mapping, by which readers find the columns.

A commit names the snapshot that it follows, so of two commits after the same snapshot only one
lands. The batch's mark is in the snapshot's summary and, because snapshots expire, also in the
table's properties.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from distributary.config.lake import LakeConfig
from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    UnsupportedTypeError,
    columns_of,
    fields_of,
    merge_fields,
)
from distributary.delta.commit import APP, BATCH, SOURCE, check_partitioning, check_staged, facts
from distributary.delta.damage import TAG
from distributary.delta.log import in_table
from distributary.delta.tables import OvertakenError, committing, until_not_overtaken
from distributary.errors import LakeUnavailableError, PublishError
from distributary.model import layout
from distributary.model.manifest import Mark, StagedFile, TableEntry, compact, parsed
from distributary.model.table import Column, commented_schema
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.publish.parquet_publisher import holds_delta
from distributary.retries import attempts_on
from distributary.store.base import at, refuse_links
from distributary.store.disk import sync

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream
    from requests import Session

NAME = "distributary"
"""The name of the catalog; other readers need it for an SQL catalog, which keeps several catalogs
apart by name."""
_MARK = f"{BATCH}."
"""The prefix of the properties that hold each application's newest batch."""
_COLUMNS = "distributary.columns"
"""The property that holds the metadata of columns which Iceberg has no place for."""
_MAPPING = "schema.name-mapping.default"
_CREATED = {
    "format-version": "2",
    # Every commit writes the whole metadata again, so old metadata files are deleted.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_ANSWER_SECONDS = 60.0
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


# The catalog, and durable writing of the files that it names.


def open_catalog(lake: LakeConfig) -> Catalog:
    """Open the catalog that the pipeline file names, or the lake's own catalog."""
    settings = lake.iceberg_catalog
    properties = {"warehouse": settings.warehouse or lake.address}
    if settings.type == "rest":
        properties["py-catalog-impl"] = f"{__name__}.{PatientRestCatalog.__name__}"
    else:
        properties["type"] = "sql"
    if settings.uri is not None:
        properties["uri"] = settings.uri.get_secret_value()
    elif settings.type != "rest":
        home = layout.iceberg_catalog(lake.address)
        refuse_links(home)
        os.makedirs(os.path.dirname(home), exist_ok=True)
        # Other processes may be writing to the catalog: wait for them.
        properties["uri"] = f"sqlite:///{quote(home)}?timeout=60"
    if settings.token is not None:
        properties["token"] = settings.token.get_secret_value()
    return load_catalog(NAME, **properties, **{"py-io-impl": f"{__name__}.{SyncedFiles.__name__}"})


class PatientRestCatalog(RestCatalog):
    """A REST catalog with a timeout: pyiceberg itself would wait forever for an answer."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # Every request of the session goes through this method.
        session.request = partial(session.request, timeout=_ANSWER_SECONDS)  # type: ignore[method-assign]
        return session


class SyncedFiles(PyArrowFileIO):
    """File access that syncs metadata files to disk, so that a crash loses none of them."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a new file, which is synced when it is closed."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        kind = _SyncedFile if scheme == "file" else PyArrowFile
        return kind(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = self.location.removeprefix("file://")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.BufferedWriter):
    def __init__(self, path: str, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._folder = os.path.dirname(path)

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            sync(self._folder)


def open_iceberg(path: str) -> IcebergTable | None:
    """Open a table for reading, from the lake alone; None if there is no table.

    The lake's own catalog names the table's metadata. With a catalog elsewhere, the newest metadata
    file is used. An overtaken writer may have left that file; the next commit corrects this.
    """
    folder = f"{path}/metadata"
    locations: list[str] = []
    home = layout.iceberg_catalog(os.path.dirname(path))
    refuse_links(home)
    if os.path.isfile(home):
        with closing(sqlite3.connect(home, timeout=60)) as catalog, suppress(sqlite3.Error):
            rows = catalog.execute("select metadata_location from iceberg_tables").fetchall()
            locations = [place for (place,) in rows if os.path.dirname(place or "") == folder]
    if not locations:
        with suppress(FileNotFoundError, NotADirectoryError):
            names = [name for name in os.listdir(folder) if name.endswith(".metadata.json")]
            locations = sorted(f"{folder}/{name}" for name in names)
    if not locations:
        return None
    with committing(path, doing="read a table"):
        return IcebergTable(path, StaticTable.from_metadata(locations[-1]))


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """One table, by its newest metadata."""

    folder: str
    table: StaticTable

    @property
    def version(self) -> int:
        """Return a number that grows with each commit."""
        return version_of(self.table.metadata)

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        return newest_batch(self.table.metadata, app_id)

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and row count of the kept commits of pipelines."""
        kept = summaries(self.table.metadata)
        return [(f[APP], int(f[BATCH]), int(f.get("added-records", 0))) for f in kept]

    def files(self) -> dict[str, DataFile] | None:
        """Return the live files by their paths in the folder.

        None if the table has delete files.
        """
        with committing(self.folder, doing="read a table"):
            tasks = list(self.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            return None
        below = f"{self.folder}/"
        files = {}
        for task in tasks:
            path = task.file.file_path.removeprefix("file://").removeprefix(below)
            files[in_table(self.folder, path)] = task.file
        return files

    def checksums(self) -> dict[str, str]:
        """Return the checksums of files by their paths, from the kept snapshots."""
        tags = [parsed(facts[TAG]) for facts in summaries(self.table.metadata) if TAG in facts]
        return {path: crc for sums in tags for path, crc in sums.items()}

    def schema(self) -> pa.Schema:
        """Return the columns, with their comments as metadata."""
        return commented_schema(columns_in(self.table.metadata))

    def dataset(self) -> ds.Dataset:
        """Return the rows as a dataset; a column that a file lacks is null.

        Raises LakeUnavailableError for a table with deleted rows.
        """
        files = self.files()
        if files is None:
            raise LakeUnavailableError(
                "an Iceberg table with deleted rows cannot be read here",
                where=self.folder,
                evidence="the table has delete files",
                next_step="read the table with an Iceberg engine, or let it rewrite the files",
            )
        within = pafs.SubTreeFileSystem(self.folder, pafs.LocalFileSystem())
        return ds.dataset(list(files), schema=self.schema(), format="parquet", filesystem=within)


# The columns, version and marks in a table's metadata.


def columns_in(metadata: TableMetadata) -> tuple[Column, ...]:
    """Return the columns of a table."""
    return columns_of(_fields(metadata))


def version_of(metadata: TableMetadata) -> int:
    """Return a number that grows with each commit; 0 for Iceberg's format version 1."""
    return int(getattr(metadata, "last_sequence_number", 0))


def newest_batch(metadata: TableMetadata, app_id: str) -> int | None:
    """Return the newest batch that an application has committed to a table.

    None if there is none.
    """
    batches = [str(metadata.properties.get(f"{_MARK}{app_id}", ""))]
    batches += [facts[BATCH] for facts in summaries(metadata) if facts[APP] == app_id]
    return max((int(batch) for batch in batches if batch.isdecimal()), default=None)


def summaries(metadata: TableMetadata) -> list[Mapping[str, str]]:
    """Return the summaries of the kept snapshots that pipelines committed."""
    kept = [s.summary.additional_properties for s in metadata.snapshots if s.summary]
    return [facts for facts in kept if APP in facts and BATCH in facts]


def _source(metadata: TableMetadata, mark: Mark) -> str | None:
    wanted = (mark.app_id, str(mark.batch))
    matches = (facts for facts in summaries(metadata) if (facts[APP], facts[BATCH]) == wanted)
    return next((facts.get(SOURCE) for facts in matches), None)


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
            return CommittedMark(newest, _source(current.metadata, mark))

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
        transaction.set_properties({f"{_MARK}{mark.app_id}": str(mark.batch)})
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
        """Return the table if it has this snapshot: the answer to a commit may have been lost."""
        with suppress(Exception):
            current = self.load()
            if current is not None and current.metadata.snapshot_by_id(snapshot) is not None:
                return current
        return None

    def _new(self, entry: TableEntry) -> Transaction:
        fields = fields_of(entry.table.columns)
        schema = Schema(*_grown(StructType(), fields, count(1), "").fields)
        described = {"comment": entry.table.comment, _COLUMNS: _kept(fields)}
        try:
            transaction: Transaction = self.catalog.create_table_transaction(
                self.name, schema, location=self.path, properties=_CREATED | described
            )
        except TableAlreadyExistsError as error:
            # another process has created it since it was loaded
            raise OvertakenError(str(error)) from error
        # The catalog assigns field ids itself.
        mapping = _mapping(transaction.table_metadata.schema(), None)
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
        merged = merge_fields(_fields(before), fields_of(entry.table.columns))
        mapping = before.name_mapping()
        if merged.changed:
            ids = count(before.last_column_id + 1)
            transaction.grow(_grown(before.schema().as_struct(), merged.fields, ids, ""))
            transaction.set_properties({_COLUMNS: _kept(merged.fields)})
        if merged.changed or mapping is None:
            now = _mapping(transaction.table_metadata.schema(), mapping)
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


# Conversion of columns between Delta's JSON form, which is merged, and Iceberg types with ids.

_PRIMITIVES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_NAMES = {str(kind): name for name, kind in _PRIMITIVES.items()}
_WIDER = {("integer", "long"), ("float", "double")}


def _fields(metadata: TableMetadata) -> list[Field]:
    kept: Any = {}
    with suppress(ValueError):
        kept = json.loads(metadata.properties.get(_COLUMNS) or "{}")
    fields = _struct_fields(metadata.schema().as_struct())
    return [{**f, "metadata": {**kept.get(f["name"], {}), **f["metadata"]}} for f in fields]


def _kept(fields: Sequence[Field]) -> str:
    """Return as JSON the metadata of columns that Iceberg cannot hold: numbers and aliases."""
    metadata = {
        f["name"]: {key: value for key, value in f["metadata"].items() if key != "comment"}
        for f in fields
    }
    return json.dumps({name: value for name, value in metadata.items() if value})


def _struct_fields(struct: StructType) -> list[Field]:
    return [
        {
            "name": field.name,
            "type": _spelled(field.field_type),
            "nullable": True,
            "metadata": {"comment": field.doc} if field.doc else {},
        }
        for field in struct.fields
    ]


def _spelled(kind: IcebergType) -> Any:
    match kind:
        case StructType():
            return {"type": "struct", "fields": _struct_fields(kind)}
        case ListType():
            element = _spelled(kind.element_type)
            return {"type": "array", "elementType": element, "containsNull": True}
        case MapType():
            key, value = _spelled(kind.key_type), _spelled(kind.value_type)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
    if str(kind) not in _NAMES:
        raise UnsupportedTypeError(f"the table has a column of the type {kind}")
    return _NAMES[str(kind)]


def _grown(have: StructType, fields: Sequence[Field], ids: Iterator[int], path: str) -> StructType:
    """Return the columns of a table after a commit; existing columns keep their ids."""
    existing = {field.name: field for field in have.fields}
    grown = []
    for field in fields:
        name, old = field["name"], existing.get(field["name"])
        number = next(ids) if old is None else old.field_id
        kind = _type(None if old is None else old.field_type, field["type"], ids, f"{path}{name}")
        doc = field["metadata"].get("comment") or None
        if old is None:
            grown.append(NestedField(number, name, kind, required=False, doc=doc))
        else:
            grown.append(old.model_copy(update={"field_type": kind}))
    return StructType(*grown)


def _type(have: IcebergType | None, spelled: Any, ids: Iterator[int], path: str) -> IcebergType:
    """Return the type of a column; a type becomes wider only where Iceberg allows it."""
    if isinstance(spelled, str):
        return _primitive(have, spelled, path)
    if spelled["type"] == "struct":
        struct = have if isinstance(have, StructType) else StructType()
        return _grown(struct, spelled["fields"], ids, f"{path}.")
    if spelled["type"] == "array":
        old = have if isinstance(have, ListType) else None
        number = old.element_id if old else next(ids)
        element = _type(old and old.element_type, spelled["elementType"], ids, f"{path}.element")
        return ListType(number, element, element_required=bool(old and old.element_required))
    before = have if isinstance(have, MapType) else None
    numbers = (before.key_id, before.value_id) if before else (next(ids), next(ids))
    key = _type(before and before.key_type, spelled["keyType"], ids, f"{path}.key")
    if before and key != before.key_type:
        raise ColumnConflictError(f"{path}.key", _spelled(before.key_type), spelled["keyType"])
    value = _type(before and before.value_type, spelled["valueType"], ids, f"{path}.value")
    required = bool(before and before.value_required)
    return MapType(numbers[0], key, numbers[1], value, value_required=required)


def _primitive(have: IcebergType | None, spelled: str, path: str) -> IcebergType:
    if spelled.startswith("decimal("):
        precision, scale = spelled.removeprefix("decimal(").removesuffix(")").split(",")
        kind: IcebergType = DecimalType(int(precision), int(scale))
    else:
        # Iceberg has no types for integers of one or two bytes.
        kind = _PRIMITIVES.get(spelled, _PRIMITIVES["integer"])
    if have is None or have == kind:
        return kind
    if isinstance(have, DecimalType) and isinstance(kind, DecimalType):
        if have.scale == kind.scale and have.precision <= kind.precision:
            return kind
    if (_spelled(have), spelled) not in _WIDER:
        raise ColumnConflictError(path, _spelled(have), spelled)
    return kind


def _mapping(schema: Schema, before: NameMapping | None) -> str:
    """Return the name mapping after a commit: the names that columns have in files."""
    return NameMapping(_level(schema.fields, before.root if before else ())).model_dump_json()


def _level(fields: Sequence[NestedField], before: Sequence[MappedField]) -> list[MappedField]:
    """Return the name mapping of one level; renamed and dropped columns keep their old names.

    Otherwise readers would take older files' values under an old name for values of a new column.
    """
    mapped = {field.field_id: field for field in before}
    level = []
    for field in fields:
        old = mapped.pop(field.field_id, None)
        # A mapped field without fields inside is false, so compare with None.
        former, below = ((), ()) if old is None else (old.names, old.fields)
        names = list(dict.fromkeys([*former, field.name]))
        inner = _level(_inner(field.field_type), below)
        level.append(MappedField(**{"field-id": field.field_id}, names=names, fields=inner))
    level += mapped.values()
    taken: set[str] = set()
    for entry in level:
        for name in entry.names:
            if name in taken:
                raise ColumnConflictError(
                    name, "a renamed or dropped column of that name", "a new one"
                )
            taken.add(name)
    return level


def _inner(kind: IcebergType) -> Sequence[NestedField]:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
    return ()
