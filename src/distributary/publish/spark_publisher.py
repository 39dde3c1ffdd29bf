"""The publisher that uses Delta's Spark writer: slower, but it supports every table feature.

The staged files are read and written again as the table's own files, then removed. A table that the
session's catalog has is written by its name, so that the catalog takes part in the commit: Delta
refuses commits by path to tables that only a catalog may commit to.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from py4j.java_gateway import JavaObject, JVMView
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from distributary.delta.column_merge import (
    Field,
    columns_of,
    cut_to,
    fields_in,
    fields_of,
    merge_fields,
    schema_string,
)
from distributary.delta.commit import check_partitioning, check_staged, facts, facts_in, source_in
from distributary.delta.log import Snapshot, commits_back
from distributary.delta.log_reading import Commit
from distributary.delta.tables import OvertakenError, as_publish_error, until_not_overtaken
from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.names import literal_sql, quote_sql
from distributary.model.table import TablePlan
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns
from distributary.store.base import at, same_place

ENABLE_WIDENING = "delta.enableTypeWidening"


class TableState:
    """One version of a table, as Delta's own code in the JVM sees it."""

    def __init__(self, snapshot: JavaObject) -> None:
        self._snapshot = snapshot
        self.version = int(snapshot.version())
        """The version; -1 if there is no table."""

    @property
    def exists(self) -> bool:
        """Return whether there is a table."""
        return self.version >= 0

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch that the application has committed; None if there is none."""
        if not self.exists:
            return None
        version: Any = self._snapshot.transactions().get(app_id)
        return int(version.get()) if version.isDefined() else None

    def fields(self) -> list[Field]:
        """Return the columns."""
        return fields_in(str(self._snapshot.metadata().schemaString()))

    def partition_columns(self) -> tuple[str, ...]:
        """Return the names of the partition columns."""
        names: Any = self._snapshot.metadata().partitionColumns()
        return tuple(str(names.apply(i)) for i in range(names.size()))

    def can_widen(self) -> bool:
        """Return whether the types of columns may become wider."""
        setting: Any = self._snapshot.metadata().configuration().get(ENABLE_WIDENING)
        return bool(setting.isDefined() and setting.get() == "true")


_log = logging.getLogger(__name__)

ATTEMPT = "distributary.attempt"
"""The key in a commit's metadata that distinguishes the attempts of several processes for one
batch."""

_UNREACHABLE = re.compile(
    r"^\s*(?:Caused by: |: )?"
    r"(?:java\.(?:io|net|nio)|org\.apache\.hadoop)[\w.$]*(?:Exception|Error)",
    re.MULTILINE,
)
RACE = re.compile(r"io\.delta\.exceptions\.\w+|\[DELTA_CONCURRENT_\w+")
"""The exceptions that Delta throws when another commit came first."""


class SparkPublisher:
    """A publisher that appends staged files with Spark, one write per table and batch."""

    def __init__(self, spark: SparkSession, *, schema: Sequence[str] = ()) -> None:
        """Publish to tables by path, or by name if `schema` of the session's catalog has them."""
        self._spark = spark
        self._schema = tuple(schema)
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        with self._open(path, doing="read the columns of a table"):
            state = self._state(path)
            if not state.exists:
                return None
            return TableColumns(columns_of(state.fields()), state.partition_columns())

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table"):
            newest = self._state(path).mark(mark.app_id)
            if newest is None:
                return None
            match = self._find(path, mark) if newest >= mark.batch else None
            return CommittedMark(newest, source_in(match[1].info, mark) if match else None)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Append the rows of an entry's files, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table"):
            return until_not_overtaken(lambda: self._attempt(entry, mark))

    def _attempt(self, entry: TableEntry, mark: Mark) -> Published:
        state = self._state(entry.table.path)
        if _has(state, mark):
            return Published(entry.table.name, Outcome.SKIPPED, state.version)
        if state.exists:
            check_partitioning(entry, state.partition_columns())
        attempt = uuid.uuid4().hex
        try:
            check_staged(entry, at(entry.table.path).size)
            self._write(entry, mark, state, attempt=attempt)
        except Exception as error:
            # The commit may have landed, here or in another process: read the log.
            settled = self._settle(entry, mark, attempt=attempt)
            if settled is None and RACE.search(str(error)):
                raise OvertakenError(str(error)) from error
            if settled is None:
                raise
            return settled
        settled = self._settle(entry, mark, attempt=attempt)
        return settled or Published(entry.table.name, Outcome.PUBLISHED)

    def _write(self, entry: TableEntry, mark: Mark, state: TableState, *, attempt: str) -> None:
        table, place = entry.table, f"delta.{quote_sql(entry.table.path)}"
        wanted = fields_of(table.columns)
        merged = merge_fields(state.fields() if state.exists else (), wanted)
        name = self._name_of(table) if state.exists else None
        if merged.widened and not state.can_widen():
            widening = f"TBLPROPERTIES ('{ENABLE_WIDENING}' = 'true')"
            self._spark.sql(f"ALTER TABLE {name or place} SET {widening}")
        metadata = {**facts(mark), ATTEMPT: attempt}
        options = {
            "mergeSchema": "true",
            "txnAppId": mark.app_id,
            "txnVersion": str(mark.batch),
            "userMetadata": json.dumps(metadata),
        }
        rows = self._rows(entry, cut_to(merged.fields, wanted))
        if name is not None:
            # This fails if the table has gone since, and creates no other one.
            rows.writeTo(name).options(**options).append()
            return
        writer = rows.write.format("delta").mode("append").options(**options)
        writer.partitionBy(*table.partition_by).save(table.path)
        if not state.exists and table.comment:
            # The writer cannot set the comment of a new table.
            self._spark.sql(f"COMMENT ON TABLE {place} IS {literal_sql(table.comment)}")

    def _name_of(self, table: TablePlan) -> str | None:
        """Return the catalog's name of a table; None if that name is unknown or of another table.

        Called for each batch, because the name may be given to another table at any time.
        """
        if not self._schema:
            return None
        name = ".".join(map(quote_sql, (*self._schema, table.name)))
        return name if same_place(self._location(name), table.path) else None

    def _rows(self, entry: TableEntry, fields: list[Field]) -> DataFrame:
        """Return the staged rows.

        A column that a file lacks is null, a narrow type becomes wide.
        """
        schema = StructType.fromJson(json.loads(schema_string(fields)))
        if not entry.files:
            return self._spark.createDataFrame([], schema)
        stored = StructType([f for f in schema if f.name not in entry.table.partition_by])
        groups: dict[tuple[tuple[str, str | None], ...], list[StagedFile]] = {}
        for file in entry.files:
            groups.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
        frames = []
        for values, files in groups.items():
            paths = [no_glob(f"{entry.table.path}/{f.path}") for f in files]
            frame = self._spark.read.schema(stored).parquet(*paths)
            for name, value in values:
                frame = frame.withColumn(name, F.lit(value).cast(schema[name].dataType))
            frames.append(frame.select([F.col(quote_sql(f.name)) for f in schema]))
        return reduce(DataFrame.unionByName, frames)

    def _settle(self, entry: TableEntry, mark: Mark, *, attempt: str) -> Published | None:
        """Return the outcome of the batch; None if the table lacks it or cannot be read."""
        try:
            match = self._find(entry.table.path, mark)
        except (PySparkException, Py4JError, OSError):
            return None
        if match is None:
            return None
        version, commit = match
        if facts_in(commit.info).get(ATTEMPT) != attempt:
            # Another call wrote this commit, which may still need the staged files.
            return Published(entry.table.name, Outcome.SKIPPED, version)
        self._remove_staged(entry)
        return Published(entry.table.name, Outcome.PUBLISHED, version)

    def _remove_staged(self, entry: TableEntry) -> None:
        for file in entry.files:
            try:
                at(entry.table.path).remove(file.path)
            except OSError:
                # The commit has landed, and a VACUUM will delete the rest.
                _log.warning("a staged file is left in the folder of table %s", entry.table.name)

    def _find(self, path: str, mark: Mark) -> tuple[int, Commit] | None:
        """Find the commit that carries the batch, from the newest commit backwards."""
        newest = self._state(path).version
        for back, commit in enumerate(commits_back(Snapshot(at(path), newest))):
            batch = commit.marks.get(mark.app_id)
            if batch is not None and batch <= mark.batch:
                return (newest - back, commit) if batch == mark.batch else None
        return None

    def _state(self, path: str) -> TableState:
        """Return the newest version of a table, without a Spark job."""
        jvm: JVMView = self._spark._jvm  # noqa: SLF001 - there is no public way to Delta's log
        session: JavaObject = self._spark._jsparkSession  # noqa: SLF001 - likewise
        log_and_snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(
            session, path
        )
        return TableState(log_and_snapshot.productElement(1))

    def _location(self, table: str) -> str | None:
        """Return the location of a table by its SQL name; None if there is no such table."""
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        except (PySparkException, Py4JError):
            return None
        # The last row of that name is the location: a column may be named `Location` too.
        locations = [row["data_type"] for row in rows if row["col_name"] == "Location"]
        return str(locations[-1]) if locations else None

    @contextmanager
    def _open(self, path: str, *, doing: str) -> Iterator[None]:
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            try:
                yield
            except DistributaryError:
                raise
            except Exception as error:
                raise _as_error(error, doing=doing, path=path) from error


def _has(state: TableState, mark: Mark) -> bool:
    newest = state.mark(mark.app_id)
    return newest is not None and newest >= mark.batch


def _as_error(error: Exception, *, doing: str, path: str) -> PublishError:
    if isinstance(error, Py4JError | PySparkException) and _UNREACHABLE.search(str(error)):
        error = OSError(str(error))
    return as_publish_error(error, doing=doing, path=path)


def no_glob(path: str) -> str:
    """Escape a path for Spark's readers, which take some characters for patterns."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
