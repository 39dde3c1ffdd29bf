"""What Spark's own view of files and Delta tables tells the driver, without a Spark job each."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import SparkSession

from distributary.publish.columns import Field, fields_in
from distributary.publish.commit_file import Commit, commit_path, parse_commit

ENABLE_WIDENING = "delta.enableTypeWidening"


class SparkTables:
    """Files and tables as the session's configuration reaches them: any store that Spark reads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def state(self, path: str) -> TableState:
        """The newest version of a table."""
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog
        return TableState(log.forTableWithSnapshot(self._session, path).productElement(1))

    def describe(self, path: str, comment: str) -> None:
        """Give a table its comment."""
        self._spark.sql(f"COMMENT ON TABLE {_table(path)} IS {_literal(comment)}")

    def enable_widening(self, path: str) -> None:
        """Let the types of a table's columns become wider."""
        self._spark.sql(
            f"ALTER TABLE {_table(path)} SET TBLPROPERTIES ('{ENABLE_WIDENING}' = 'true')"
        )

    def commit(self, path: str, version: int) -> Commit | None:
        """One commit of a table's log, or None if it is not (or no longer) there."""
        text = self.read(commit_path(path, version))
        return None if text is None else parse_commit(text)

    def size(self, path: str) -> int | None:
        """The size of a file, or None if there is no such file."""
        place = self._place(path)
        files = place.getFileSystem(self._conf)
        if not files.exists(place):
            return None
        status = files.getFileStatus(place)
        return int(status.getLen()) if status.isFile() else None

    def read(self, path: str) -> str | None:
        """The text of a file, or None if there is no such file."""
        if self.size(path) is None:
            return None
        place = self._place(path)
        stream = place.getFileSystem(self._conf).open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        place = self._place(path)
        place.getFileSystem(self._conf).delete(place, False)

    @property
    def _jvm(self) -> JVMView:
        return self._spark._jvm  # noqa: SLF001 - there is no public way to Hadoop's file systems

    @property
    def _session(self) -> JavaObject:
        return self._spark._jsparkSession  # noqa: SLF001 - likewise to Delta's log

    @property
    def _conf(self) -> JavaObject:
        return self._session.sessionState().newHadoopConf()

    def _place(self, path: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(path)


class TableState:
    """One version of a table."""

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


def _table(path: str) -> str:
    escaped = path.replace("`", "``")
    return f"delta.`{escaped}`"


def _literal(text: str) -> str:
    """A string in SQL, where quotes, backslashes and `${...}` all mean something."""
    plain = (c if c.isascii() and (c.isalnum() or c == " ") else _escaped(c) for c in text)
    return f"'{''.join(plain)}'"


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
