"""Publishes through Delta's Spark writer: slower, and good for every feature a table can have.

The staged files are read back and written again as the table's own files, then removed.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from distributary.errors import DistributaryError, PublishError
from distributary.model.manifest import StagedFile, TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Mark, Outcome, Published
from distributary.publish.columns import (
    Field,
    columns_of,
    cut_to,
    fields_of,
    merge_fields,
    schema_string,
)
from distributary.publish.commit_file import Commit
from distributary.publish.failures import as_publish_error
from distributary.publish.log import check_partitioning, check_staged
from distributary.publish.provenance import facts, facts_in, source_in
from distributary.publish.races import OvertakenError, until_not_overtaken
from distributary.publish.spark_tables import SparkTables, TableState

_log = logging.getLogger(__name__)

ATTEMPT = "distributary.attempt"
"""Tells a commit of this call from one that another process made for the same batch."""

_UNREACHABLE = re.compile(
    r"^\s*(?:Caused by: |: )?"
    r"(?:java\.(?:io|net|nio)|org\.apache\.hadoop)[\w.$]*(?:Exception|Error)",
    re.MULTILINE,
)
_RACE = re.compile(r"io\.delta\.exceptions\.\w+|\[DELTA_CONCURRENT_\w+")
"""What Delta throws when another commit came in between."""


class SparkPublisher:
    """Appends staged files to Delta tables with Spark, one write per table and batch."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tables = SparkTables(spark)
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """The table's columns now, or None where there is no table."""
        with self._open(path, doing="read the columns of a table"):
            state = self._tables.state(path)
            return columns_of(state.fields()) if state.exists else None

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """The columns that the table is partitioned by; none where there is no table."""
        with self._open(path, doing="read the partitioning of a table"):
            state = self._tables.state(path)
            return state.partition_columns() if state.exists else ()

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        with self._open(path, doing="read the marks of a table"):
            newest = self._tables.state(path).mark(mark.app_id)
            if newest is None:
                return None
            found = self._find(path, mark) if newest >= mark.batch else None
            return CommittedMark(newest, source_in(found[1].info, mark) if found else None)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Append the rows of an entry's files, with its columns, in one marked commit."""
        with self._open(entry.table.path, doing="commit to a table"):
            return until_not_overtaken(lambda: self._attempt(entry, mark))

    def _attempt(self, entry: TableEntry, mark: Mark) -> Published:
        state = self._tables.state(entry.table.path)
        if _has(state, mark):
            return Published(entry.table.name, Outcome.SKIPPED, state.version)
        if state.exists:
            check_partitioning(entry, state.partition_columns())
        attempt = uuid.uuid4().hex
        try:
            check_staged(entry, lambda name: self._tables.size(f"{entry.table.path}/{name}"))
            self._write(entry, mark, state, attempt=attempt)
        except Exception as error:
            # it may have landed, here or in another process: the log decides
            settled = self._settle(entry, mark, attempt=attempt)
            if settled is None and _RACE.search(str(error)):
                raise OvertakenError(str(error)) from error
            if settled is None:
                raise
            return settled
        settled = self._settle(entry, mark, attempt=attempt)
        return settled or Published(entry.table.name, Outcome.PUBLISHED)

    def _write(self, entry: TableEntry, mark: Mark, state: TableState, *, attempt: str) -> None:
        table = entry.table
        wanted = fields_of(table.columns)
        merged = merge_fields(state.fields() if state.exists else (), wanted)
        if merged.widened and not state.can_widen():
            self._tables.enable_widening(table.path)
        told = {**facts(mark), ATTEMPT: attempt}
        (
            self._rows(entry, cut_to(merged.fields, wanted))
            .write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option("txnAppId", mark.app_id)
            .option("txnVersion", mark.batch)
            .option("userMetadata", json.dumps(told))
            .partitionBy(*table.partition_by)
            .save(table.path)
        )
        if not state.exists and table.comment:
            # the writer has no way to give a new table its comment
            self._tables.describe(table.path, table.comment)

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
            paths = [_no_glob(f"{entry.table.path}/{f.path}") for f in files]
            frame = self._spark.read.schema(stored).parquet(*paths)
            for name, value in values:
                frame = frame.withColumn(name, F.lit(value).cast(schema[name].dataType))
            frames.append(frame.select([F.col(_quoted(f.name)) for f in schema]))
        return reduce(DataFrame.unionByName, frames)

    def _settle(self, entry: TableEntry, mark: Mark, *, attempt: str) -> Published | None:
        """What became of the batch, or None if the table does not have it or cannot be asked."""
        try:
            found = self._find(entry.table.path, mark)
        except (PySparkException, Py4JError):
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
                self._tables.remove(f"{entry.table.path}/{file.path}")
            except Py4JError:
                # the commit has landed, and a VACUUM will take what is left
                _log.warning("a staged file is left in the folder of table %s", entry.table.name)

    def _find(self, path: str, mark: Mark) -> tuple[int, Commit] | None:
        """Walk back from the newest commit to the one that carries the batch."""
        for version in range(self._tables.state(path).version, -1, -1):
            commit = self._tables.commit(path, version)
            if commit is None:
                return None
            batch = commit.marks.get(mark.app_id)
            if batch is not None and batch <= mark.batch:
                return (version, commit) if batch == mark.batch else None
        return None

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


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _no_glob(path: str) -> str:
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
