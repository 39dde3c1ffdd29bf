"""Publishes through Delta's Spark writer: slower, and good for every feature a table can have.

The staged files are read back and written again as the table's own files, then removed. A table
that a catalog of the session has under its name is written by that name, so that the catalog takes
part in the commit; Delta refuses commits by path to tables that only a catalog may commit to.
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

from distributary.delta.columns import (
    Field,
    columns_of,
    cut_to,
    fields_in,
    fields_of,
    merge_fields,
    schema_string,
)
from distributary.delta.commit import check_partitioning, check_staged, facts, facts_in, source_in
from distributary.delta.log import Commit, Snapshot, commits_back
from distributary.delta.tables import OvertakenError, as_publish_error, until_not_overtaken
from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.names import literal_sql, quote_sql
from distributary.model.table import TablePlan
from distributary.publish.base import CommittedMark, Outcome, Published, TableShape
from distributary.store.base import at, same_place

ENABLE_WIDENING = "delta.enableTypeWidening"


class TableState:
    """One version of a table, as Delta's own code in the JVM sees it."""

    def __init__(self, snapshot: JavaObject) -> None:
        self._snapshot = snapshot
        self.version = int(snapshot.version())
        """-1 where there is no table."""

    @property
    def exists(self) -> bool:
        """False where there is no table."""
        return self.version >= 0

    def mark(self, app_id: str) -> int | None:
        """The newest batch that the application has committed."""
        if not self.exists:
            return None
        found: Any = self._snapshot.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None

    def fields(self) -> list[Field]:
        """The columns."""
        return fields_in(str(self._snapshot.metadata().schemaString()))

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        names: Any = self._snapshot.metadata().partitionColumns()
        return tuple(str(names.apply(i)) for i in range(names.size()))

    def can_widen(self) -> bool:
        """True if the types of its columns may become wider."""
        found: Any = self._snapshot.metadata().configuration().get(ENABLE_WIDENING)
        return bool(found.isDefined() and found.get() == "true")


_log = logging.getLogger(__name__)

ATTEMPT = "distributary.attempt"
"""Tells a commit of this call from one that another process made for the same batch."""

_UNREACHABLE = re.compile(
    r"^\s*(?:Caused by: |: )?"
    r"(?:java\.(?:io|net|nio)|org\.apache\.hadoop)[\w.$]*(?:Exception|Error)",
    re.MULTILINE,
)
RACE = re.compile(r"io\.delta\.exceptions\.\w+|\[DELTA_CONCURRENT_\w+")
"""What Delta throws when another commit came in between."""


class SparkPublisher:
    """Appends staged files to Delta tables with Spark, one write per table and batch."""

    def __init__(self, spark: SparkSession, *, schema: Sequence[str] = ()) -> None:
        """`schema` is where the session's catalog has the tables, if it has them."""
        self._spark = spark
        self._schema = tuple(schema)
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def shape(self, path: str) -> TableShape | None:
        """The table's columns now, and its partitioning; None where there is no table."""
        with self._open(path, doing="read the columns of a table"):
            state = self._state(path)
            if not state.exists:
                return None
            return TableShape(columns_of(state.fields()), state.partition_columns())

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table"):
            newest = self._state(path).mark(mark.app_id)
            if newest is None:
                return None
            found = self._find(path, mark) if newest >= mark.batch else None
            return CommittedMark(newest, source_in(found[1].info, mark) if found else None)

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
            # it may have landed, here or in another process: the log decides
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
        told = {**facts(mark), ATTEMPT: attempt}
        options = {
            "mergeSchema": "true",
            "txnAppId": mark.app_id,
            "txnVersion": str(mark.batch),
            "userMetadata": json.dumps(told),
        }
        rows = self._rows(entry, cut_to(merged.fields, wanted))
        if name is not None:
            # fails where the table has gone since, and makes no other one
            rows.writeTo(name).options(**options).append()
            return
        writer = rows.write.format("delta").mode("append").options(**options)
        writer.partitionBy(*table.partition_by).save(table.path)
        if not state.exists and table.comment:
            # the writer has no way to give a new table its comment
            self._spark.sql(f"COMMENT ON TABLE {place} IS {literal_sql(table.comment)}")

    def _name_of(self, table: TablePlan) -> str | None:
        """How the catalog calls a table; None where it has none of that name, or one elsewhere.

        Asked for each batch: somebody may have given the name to another table.
        """
        if not self._schema:
            return None
        name = ".".join(map(quote_sql, (*self._schema, table.name)))
        return name if same_place(self._location(name), table.path) else None

    def _rows(self, entry: TableEntry, fields: list[Field]) -> DataFrame:
        """The staged rows; a column that a file lacks is null, a narrower one is widened."""
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
        """What became of the batch, or None if the table does not have it or cannot be asked."""
        try:
            found = self._find(entry.table.path, mark)
        except (PySparkException, Py4JError, OSError):
            return None
        if found is None:
            return None
        version, commit = found
        if facts_in(commit.info).get(ATTEMPT) != attempt:
            # not written by this call, so not known to leave the staged files free
            return Published(entry.table.name, Outcome.SKIPPED, version)
        self._remove_staged(entry)
        return Published(entry.table.name, Outcome.PUBLISHED, version)

    def _remove_staged(self, entry: TableEntry) -> None:
        for file in entry.files:
            try:
                at(entry.table.path).remove(file.path)
            except OSError:
                # the commit has landed, and a VACUUM will take what is left
                _log.warning("a staged file is left in the folder of table %s", entry.table.name)

    def _find(self, path: str, mark: Mark) -> tuple[int, Commit] | None:
        """Walk back from the newest commit to the one that carries the batch."""
        newest = self._state(path).version
        for back, commit in enumerate(commits_back(Snapshot(at(path), newest))):
            batch = commit.marks.get(mark.app_id)
            if batch is not None and batch <= mark.batch:
                return (newest - back, commit) if batch == mark.batch else None
        return None

    def _state(self, path: str) -> TableState:
        """The newest version of a table, without a Spark job."""
        jvm: JVMView = self._spark._jvm  # noqa: SLF001 - there is no public way to Delta's log
        session: JavaObject = self._spark._jsparkSession  # noqa: SLF001 - likewise
        found = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(session, path)
        return TableState(found.productElement(1))

    def _location(self, table: str) -> str | None:
        """Where a table of this name is, as SQL takes it; None where there is none."""
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        except (PySparkException, Py4JError):
            return None
        # the last one: a column may have any name
        found = [row["data_type"] for row in rows if row["col_name"] == "Location"]
        return str(found[-1]) if found else None

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
    """A path for Spark's readers, to which some characters mean more than themselves."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
