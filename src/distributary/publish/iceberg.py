"""Adds staged files to Iceberg tables, by pyiceberg: columns, files and mark in one commit.

A table's folder is its location: staged files stay where they are, and beside them is a folder
`metadata`, of which a catalog says which file in it is the table. Files carry no field ids, so each
table has a name mapping, by which readers find the columns in them.

A commit names the snapshot that it follows, so of two that follow the same one only one lands. Its
mark is in the snapshot's summary and, because snapshots expire, among the table's properties too.
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

from distributary.config.lake import Lake
from distributary.delta.columns import (
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
from distributary.publish.base import CommittedMark, Outcome, Published, TableShape
from distributary.publish.parquet import holds_delta
from distributary.retries import attempts_on
from distributary.store.base import at, refuse_links
from distributary.store.disk import sync

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream
    from requests import Session

NAME = "distributary"
"""Of the catalog, where it keeps several apart: other readers need it for an SQL catalog."""
_MARK = f"{BATCH}."
"""A property for each application, with its newest batch."""
_COLUMNS = "distributary.columns"
"""What is kept of columns besides their types and comments."""
_MAPPING = "schema.name-mapping.default"
_CREATED = {
    "format-version": "2",
    # every commit writes the whole metadata again
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_ANSWER_SECONDS = 60.0
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


# The catalog, and files that are there before it names them.


def open_catalog(lake: Lake) -> Catalog:
    """The catalog that the pipeline file names, or the lake's own."""
    settings = lake.iceberg_catalog
    given = {"warehouse": settings.warehouse or lake.address}
    if settings.type == "rest":
        given["py-catalog-impl"] = f"{__name__}.{PatientRestCatalog.__name__}"
    else:
        given["type"] = settings.type
    if settings.uri is not None:
        given["uri"] = settings.uri.get_secret_value()
    elif settings.type == "sql":
        home = layout.iceberg_catalog(lake.address)
        refuse_links(home)
        os.makedirs(os.path.dirname(home), exist_ok=True)
        # others may be writing: wait for them
        given["uri"] = f"sqlite:///{quote(home)}?timeout=60"
    if settings.token is not None:
        given["token"] = settings.token.get_secret_value()
    return load_catalog(NAME, **given, **{"py-io-impl": f"{__name__}.{SyncedFiles.__name__}"})


class PatientRestCatalog(RestCatalog):
    """A catalog that does not answer is away: pyiceberg itself would wait for ever."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # each request goes through this one
        session.request = partial(session.request, timeout=_ANSWER_SECONDS)  # type: ignore[method-assign]
        return session


class SyncedFiles(PyArrowFileIO):
    """Files of metadata that survive a crash of the machine: a catalog outlives what it names."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write."""
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
    """A table to read from, without asking anybody but the lake; None where there is none.

    The lake's own catalog knows which metadata is the table's. Of one elsewhere the newest file is
    taken; a writer that was overtaken may have left it, which the next commit makes up for.
    """
    folder = f"{path}/metadata"
    found: list[str] = []
    home = layout.iceberg_catalog(os.path.dirname(path))
    refuse_links(home)
    if os.path.isfile(home):
        with closing(sqlite3.connect(home, timeout=60)) as catalog, suppress(sqlite3.Error):
            known = catalog.execute("select metadata_location from iceberg_tables").fetchall()
            found = [place for (place,) in known if os.path.dirname(place or "") == folder]
    if not found:
        with suppress(FileNotFoundError, NotADirectoryError):
            names = [name for name in os.listdir(folder) if name.endswith(".metadata.json")]
            found = sorted(f"{folder}/{name}" for name in names)
    if not found:
        return None
    with committing(path, doing="read a table"):
        return IcebergTable(path, StaticTable.from_metadata(found[-1]))


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The folder of one table, as its newest metadata has it."""

    folder: str
    table: StaticTable

    @property
    def version(self) -> int:
        """A number that grows with each commit."""
        return version_of(self.table.metadata)

    def mark(self, app_id: str) -> int | None:
        """The newest batch of an application."""
        return newest_batch(self.table.metadata, app_id)

    def commits(self) -> list[tuple[str, int, int]]:
        """Application, batch and rows of the commits of pipelines that are still kept."""
        known = summaries(self.table.metadata)
        return [(f[APP], int(f[BATCH]), int(f.get("added-records", 0))) for f in known]

    def files(self) -> dict[str, DataFile] | None:
        """The live files by their paths in the folder; None where rows of them are deleted."""
        with committing(self.folder, doing="read a table"):
            tasks = list(self.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            return None
        below = f"{self.folder}/"
        found = {}
        for task in tasks:
            path = task.file.file_path.removeprefix("file://").removeprefix(below)
            found[in_table(self.folder, path)] = task.file
        return found

    def checksums(self) -> dict[str, str]:
        """The checksums of files, by their paths, from the snapshots that are still kept."""
        told = [parsed(facts[TAG]) for facts in summaries(self.table.metadata) if TAG in facts]
        return {path: found for sums in told for path, found in sums.items()}

    def schema(self) -> pa.Schema:
        """The columns, with their comments as metadata."""
        return commented_schema(columns_in(self.table.metadata))

    def dataset(self) -> ds.Dataset:
        """The rows; a column that a file lacks is null. Raises LakeUnavailableError."""
        files = self.files()
        if files is None:
            raise LakeUnavailableError(
                "a table cannot be looked into in which somebody has deleted rows",
                where=self.folder,
                evidence="it has delete files",
                next_step="read it with an engine for Iceberg, or have one rewrite its files",
            )
        within = pafs.SubTreeFileSystem(self.folder, pafs.LocalFileSystem())
        return ds.dataset(list(files), schema=self.schema(), format="parquet", filesystem=within)


# What a table says of itself.


def columns_in(metadata: TableMetadata) -> tuple[Column, ...]:
    """The columns of a table."""
    return columns_of(_fields(metadata))


def version_of(metadata: TableMetadata) -> int:
    """A number that grows with each commit; a table of Iceberg's first version has none."""
    return int(getattr(metadata, "last_sequence_number", 0))


def newest_batch(metadata: TableMetadata, app_id: str) -> int | None:
    """The newest batch of an application that a table has."""
    told = [str(metadata.properties.get(f"{_MARK}{app_id}", ""))]
    told += [facts[BATCH] for facts in summaries(metadata) if facts[APP] == app_id]
    return max((int(batch) for batch in told if batch.isdecimal()), default=None)


def summaries(metadata: TableMetadata) -> list[Mapping[str, str]]:
    """What the snapshots of pipelines say, as far as they are still kept."""
    known = [each.summary.additional_properties for each in metadata.snapshots if each.summary]
    return [facts for facts in known if APP in facts and BATCH in facts]


def _source(metadata: TableMetadata, mark: Mark) -> str | None:
    wanted = (mark.app_id, str(mark.batch))
    found = (facts for facts in summaries(metadata) if (facts[APP], facts[BATCH]) == wanted)
    return next((facts.get(SOURCE) for facts in found), None)


class IcebergPublisher:
    """Adds staged files to Iceberg tables, one commit per table and batch."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._namespace = lake.iceberg_catalog.namespace
        self._catalog: Catalog | None = None
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def shape(self, path: str) -> TableShape | None:
        """The table's columns now; one that is partitioned takes no files of ours."""
        with self._open(path, doing="read the columns of a table") as table:
            found = table.load()
            return None if found is None else TableShape(columns_in(found.metadata))

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table") as table:
            found = table.load()
            newest = None if found is None else newest_batch(found.metadata, mark.app_id)
            if found is None or newest is None:
                return None
            return CommittedMark(newest, _source(found.metadata, mark))

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Add the files of an entry, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table") as table:
            if table.seen is not None:
                # what is known may be old, which a commit finds out, but only a look tells more
                with suppress(OvertakenError, PublishError, ColumnConflictError):
                    return table.publish(entry, mark)
            return until_not_overtaken(lambda: table.load_and_publish(entry, mark))

    def drop(self, paths: Sequence[str]) -> list[str]:
        """Take tables out of the catalog whose folders these are; their files stay."""
        gone = []
        for path in paths:
            with self._open(path, doing="take a table out of its catalog") as table:
                if table.is_ours():
                    table.catalog.drop_table(table.name)
                    table.seen = None
                    gone.append(table.name[-1])
        return gone

    @contextmanager
    def _open(self, path: str, *, doing: str) -> Iterator[_Table]:
        with committing(path, doing=doing):
            table = self._known(path)
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

    def _known(self, path: str) -> _Table:
        with self._lock:
            if self._catalog is None:
                # of two that make the catalog at the same time, one is told that it is there
                again = attempts_on(Exception, most=4, pause=0.05, longest=1.0, jitter=0.1)
                self._catalog = again(self._ready)
            if path not in self._tables:
                self._tables[path] = _Table(self._catalog, self._namespace, path)
            return self._tables[path]


class _Table:
    """One table, as it was after our last commit: nobody else may have come since."""

    def __init__(self, catalog: Catalog, namespace: str, path: str) -> None:
        self.lock = threading.Lock()
        self.catalog, self.path = catalog, path
        self.name = (namespace, path.rstrip("/").rpartition("/")[2])
        self.seen: Table | None = None

    def load(self) -> Table | None:
        """The table as it is now, or None where there is none. Raises PublishError."""
        self.seen = None
        try:
            found = self.catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if found.location().removeprefix("file://").rstrip("/") != self.path.rstrip("/"):
            raise PublishError(
                f"the catalog has another table of the name {'.'.join(self.name)}",
                where=self.path,
                evidence=f"it is in {found.location()}",
                next_step="if this is not the catalog of this lake, put that one back; else give "
                "lake.iceberg another namespace, or the tables another prefix",
                reason="format",
            )
        self.seen = found
        return found

    def is_ours(self) -> bool:
        """Whether the catalog has the table of this folder, be it there or not."""
        try:
            return self.load() is not None
        except FileNotFoundError:
            return True
        except PublishError:
            return False

    def load_and_publish(self, entry: TableEntry, mark: Mark) -> Published:
        """One try, on the table as it is now. Raises OvertakenError."""
        self.load()
        return self.publish(entry, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """One try, on the table as it was seen. Raises OvertakenError."""
        seen, name = self.seen, entry.table.name
        if seen is not None:
            newest = newest_batch(seen.metadata, mark.app_id)
            if newest is not None and newest >= mark.batch:
                return Published(name, Outcome.SKIPPED, version_of(seen.metadata))
        self._check(entry)
        transaction = self._new(entry) if seen is None else self._next(seen, entry)
        sums = {file.path: file.checksum for file in entry.files if file.checksum}
        told = {**facts(mark), **({TAG: compact(sums)} if sums else {})}
        with transaction.update_snapshot(snapshot_properties=told).merge_append() as append:
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
        # one that was just made is loaded when it is needed again
        self.seen = committed if seen is not None else None
        return Published(name, Outcome.PUBLISHED, version_of(committed.metadata))

    def _check(self, entry: TableEntry) -> None:
        if self.seen is None:
            _refuse_others(entry)
        else:
            # even if the batch were cut in the same way: where it belongs is not in its files
            by = [field.name for field in self.seen.spec().fields]
            check_partitioning(replace(entry, table=replace(entry.table, partition_by=())), by)
            for field in self.seen.schema().fields:
                if field.required:
                    raise ColumnConflictError(field.name, "a required column", "one with nulls")
        check_partitioning(entry, ())
        check_staged(entry, at(self.path).size)

    def _landed(self, snapshot: int) -> Table | None:
        """The table, if it has this snapshot: the answer to a commit may have been lost."""
        with suppress(Exception):
            found = self.load()
            if found is not None and found.metadata.snapshot_by_id(snapshot) is not None:
                return found
        return None

    def _new(self, entry: TableEntry) -> Transaction:
        fields = fields_of(entry.table.columns)
        schema = Schema(*_grown(StructType(), fields, count(1), "").fields)
        described = {"comment": entry.table.comment, _COLUMNS: _kept(fields)}
        transaction: Transaction = self.catalog.create_table_transaction(
            self.name, schema, location=self.path, properties=_CREATED | described
        )
        # it gives ids of its own
        mapping = _mapping(transaction.table_metadata.schema(), None)
        return transaction.set_properties({_MAPPING: mapping})

    def _next(self, seen: Table, entry: TableEntry) -> Transaction:
        """A transaction on the table that is not tried again by itself when it is overtaken.

        pyiceberg would put the same files behind whatever came first, be it this very batch.
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
        """A file as a manifest names it, with the bounds that the stage knows exactly."""
        told = json.loads(file.stats) if file.stats else {}
        lowest, highest, nulls, rows = {}, {}, {}, {}
        for field in metadata.schema().fields:
            low, high = (
                _bound(field.field_type, told.get(side, {}).get(field.name))
                for side in ("minValues", "maxValues")
            )
            if low is None or high is None:
                continue
            number = field.field_id
            lowest[number], highest[number] = low, high
            rows[number], nulls[number] = file.rows, told["nullCount"][field.name]
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
        """Give the table these columns. Those of `update_schema` cannot have a dot in a name."""
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


# Columns: Delta's spelling, which is what is merged, as types of Iceberg with their ids, and back.

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
    """What has no place in a schema of Iceberg: numbers and aliases."""
    known = {
        f["name"]: {key: value for key, value in f["metadata"].items() if key != "comment"}
        for f in fields
    }
    return json.dumps({name: value for name, value in known.items() if value})


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
    """The columns of a table after a commit; those that it has keep their ids."""
    known = {field.name: field for field in have.fields}
    grown = []
    for field in fields:
        name, old = field["name"], known.get(field["name"])
        number = next(ids) if old is None else old.field_id
        kind = _type(None if old is None else old.field_type, field["type"], ids, f"{path}{name}")
        doc = field["metadata"].get("comment") or None
        if old is None:
            grown.append(NestedField(number, name, kind, required=False, doc=doc))
        else:
            grown.append(old.model_copy(update={"field_type": kind}))
    return StructType(*grown)


def _type(have: IcebergType | None, spelled: Any, ids: Iterator[int], path: str) -> IcebergType:
    """The type of a column, wider than the one it has only where Iceberg allows it."""
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
        # whole numbers of one or two bytes are no types of their own
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
    """Which names the columns have in files, after a commit."""
    return NameMapping(_level(schema.fields, before.root if before else ())).model_dump_json()


def _level(fields: Sequence[NestedField], before: Sequence[MappedField]) -> list[MappedField]:
    """The columns of one level; names that somebody has changed stay theirs, and of dropped ones.

    Else readers would take what older files have under such a name for values of a new column.
    """
    known = {each.field_id: each for each in before}
    level = []
    for field in fields:
        old = known.pop(field.field_id, None)
        # one without fields inside counts as false
        former, below = ((), ()) if old is None else (old.names, old.fields)
        names = list(dict.fromkeys([*former, field.name]))
        inner = _level(_inner(field.field_type), below)
        level.append(MappedField(**{"field-id": field.field_id}, names=names, fields=inner))
    level += known.values()
    taken: set[str] = set()
    for each in level:
        for name in each.names:
            if name in taken:
                raise ColumnConflictError(name, "renamed or dropped that column", "a new one")
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
