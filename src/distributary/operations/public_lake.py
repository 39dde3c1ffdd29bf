"""The `Lake` that users import: tables at one cut, for Arrow, Polars, pandas, DuckDB and Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from threading import TIMEOUT_MAX
from types import UnionType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distributary.delta.tables import reaching_table
from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    LakeUnavailableError,
    missing,
)
from distributary.model import layout
from distributary.model.arguments import (
    require,
    require_name,
    require_names,
    require_number,
    require_spark_session,
    wrong_argument,
)
from distributary.model.cut import Cut, CutPoint
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.observe.cuts import AsOf, Cuts, ListedCut
from distributary.observe.deadletters import letter_tables
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.notebook import html_rows, html_table
from distributary.observe.status.status import Status
from distributary.observe.status.status import status as status_of
from distributary.observe.trace import Coordinates, RowOrigin, Trace, trace_offset, trace_row
from distributary.operations.query import QueryLimits, Questions, newest
from distributary.publish.formats.readable import ReadableTable
from distributary.store.base import absolute, introduce, local_path

if TYPE_CHECKING:
    import duckdb
    import polars
    from pyspark.sql import DataFrame, SparkSession

    from distributary.operations.cut_changes import TableChanges

_SHOWN = 100
"""Rows of a table on a page of a notebook."""
_LETTER_COLUMNS = (
    *("error_code", "error_message", "type", "topic", "partition", "offset"),
    *("batch", "last_seen", "status"),
)
"""The columns of a dead letter in a notebook, without the payload, which may be personal."""


class Lake:
    """The tables of a lake, read at the newest cut, or at the one that `at` has chosen.

    Nothing is written, and nothing needs a JVM but `to_spark`.
    """

    def __init__(
        self, path: str | Path, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open the lake in a folder or a bucket: `./lake`, `s3://bucket/lake`.

        `storage_options` are the same as `lake.storage_options` in the pipeline's file. Raises
        ConfigError for a folder in which no pipeline has run.
        """
        require("path", path, str | os.PathLike, "must be the path or the address of a lake")
        if storage_options is not None:
            _require_options(storage_options)
        self.path = absolute(str(path))
        if storage_options is not None:
            introduce(self.path, storage_options)
        home = local_path(layout.join(self.path, layout.HOME))
        if home is not None and not home.is_dir():
            raise ConfigError(
                "no pipeline has ever run in this lake",
                code=ErrorCode.NOT_FOUND,
                where=self.path,
                next_step="check the path, or run a pipeline first",
            )
        self._chosen: tuple[Cuts, CutPoint] | None = None

    def at(self, as_of: AsOf = None, *, pipeline: str | None = None) -> Lake:
        """Return the same lake at one cut: a batch (41, "games:41"), or a time.

        Without one, the newest cut is chosen, and stays the same while batches go on.
        """
        require_name("pipeline", pipeline)
        cuts = Cuts(self.path)
        point = cuts.find(as_of, pipeline=pipeline)
        if point.at is None:
            point = cuts.fixed(point)
        chosen = Lake(self.path)
        chosen._chosen = cuts, point
        return chosen

    def tables(self) -> list[str]:
        """Return the names of the tables; at a chosen cut, of the tables that it has."""
        if self._chosen is not None:
            cuts, point = self._chosen
            return [table.table for table in cuts.cut(point).tables]
        return [name for name, _ in Ledger(self.path).places()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def __contains__(self, name: object) -> bool:
        return name in self.tables()

    def __getitem__(self, name: str) -> LakeTable:
        """Return a table by its name, or by the type of its records."""
        require("name", name, str, "must be the name of a table or a type")
        questions = self._questions()
        known = {title: title for title, _ in questions.places.values()}
        if name not in known:
            known |= {t.type: t.table for t in Ledger(self.path).tables(schema_ids=False) if t.type}
        if name not in known:
            raise missing("there is no such table or type", name, known)
        return LakeTable(known[name], questions)

    def _questions(self) -> Questions:
        return Questions(self.path, chosen=self._chosen)

    def query(
        self, sql: str, *, seconds: float = 60.0, memory: int = 2 << 30, rows: int | None = None
    ) -> pa.Table:
        """Return the rows of one SELECT over the tables, by their names, as an Arrow table.

        The SQL is DuckDB's. All tables are read at one cut. Raises ConfigError for a statement that
        cannot be executed, and DistributaryError for one that takes too long or too much memory.
        """
        require("sql", sql, str, "must be a SELECT as a text")
        require("seconds", seconds, Real, "must be a number of seconds")
        if not 0 < seconds <= TIMEOUT_MAX:
            raise wrong_argument("seconds", seconds, "must be a number of seconds above 0")
        require_number("memory", memory, least=1)
        if rows is not None:
            require_number("rows", rows)
        with self._questions().ask(sql, QueryLimits(seconds, memory, rows)) as answer:
            return answer.table()

    def cut(self) -> Cut:
        """Return the cut with the version of every table: `as_dict` is `cut.json`."""
        if self._chosen is not None:
            cuts, point = self._chosen
        else:
            cuts = Cuts(self.path)
            point = cuts.find()
        return cuts.with_snapshots(cuts.cut(point))

    def cuts(self, last: int = 20, *, pipeline: str | None = None) -> tuple[ListedCut, ...]:
        """Return the newest cuts, the newest first."""
        require_number("last", last)
        require_name("pipeline", pipeline)
        return Cuts(self.path).listed(last, pipeline=pipeline)

    def changes_since(
        self, as_of: AsOf, *, pipeline: str | None = None, tables: Sequence[str] | None = None
    ) -> dict[str, TableChanges]:
        """Return the changes of each table since a cut, up to the newest or the chosen one.

        `rows` of each reads the changed rows, with `_change_type`; `counts()` counts them.
        """
        from distributary.operations.cut_changes import changes_between

        require_name("pipeline", pipeline)
        require_names("tables", tables)
        cuts = Cuts(self.path) if self._chosen is None else self._chosen[0]
        until = cuts.find() if self._chosen is None else self._chosen[1]
        return changes_between(cuts, cuts.find(as_of, pipeline=pipeline), until, tables)

    def status(self, pipeline: str | None = None) -> Status:
        """Return what `distributary status` shows of the pipelines of the lake."""
        from distributary.engine.progress.claim import liveness

        require_name("pipeline", pipeline)
        return status_of(self.path, pipeline=pipeline, liveness=liveness)

    def dead_letters(self, *, pipeline: str | None = None, **wanted: Any) -> LetterRows:
        """Return dead letters in the order of the source.

        Further arguments select them: `reason`, `type`, `since`, `until`, `topic`, `partition`,
        `offsets`, `id`, `status` (`open` when left out, None for all), `limit`, `columns`.
        """
        require_name("pipeline", pipeline)
        _require_selection(wanted)
        found = letter_tables(self.path, pipeline=pipeline)
        parts = [letters.select(pipeline=name, **wanted) for name, letters in found.items()]
        return LetterRows(pa.concat_tables(parts) if parts else pa.table({}))

    def trace(self, where: str, /, **key: Any) -> Trace | tuple[RowOrigin, ...]:
        """Return where a record went (`topic/partition/offset`), or where rows came from.

        Rows are found by a table and the value of one of its columns: `trace("orders", id=7)`.
        """
        require("where", where, str, "must be topic/partition/offset, or the name of a table")
        if key:
            if len(key) != 1:
                raise ConfigError(
                    "a row is traced by the value of one column",
                    evidence=", ".join(key),
                    next_step="name the column that is the key: trace('orders', id=7)",
                )
            ((column, value),) = key.items()
            return trace_row(self.path, where, column, value)
        source = Coordinates.parse(where)
        if source is None:
            raise ConfigError(
                "this is not the name of a record",
                evidence=repr(where)[:100],
                next_step="write topic/partition/offset, or a table with column=value",
            )
        return trace_offset(self.path, source)

    def __repr__(self) -> str:
        return f"Lake({self.path!r}){self._suffix()}"

    def _suffix(self) -> str:
        return "" if self._chosen is None else f" at {self._chosen[1].describe()}"

    def _repr_html_(self) -> str:
        """Return the list of tables for a notebook."""
        names = set(self.tables())
        known = [t for t in Ledger(self.path).tables(schema_ids=False) if t.table in names]
        rows = [
            (t.table, t.role, t.type, "" if t.rows is None else f"{t.rows:,}", str(t.columns))
            for t in known[:_SHOWN]
        ]
        more = f"{len(known) - _SHOWN:,} more tables" if len(known) > _SHOWN else ""
        title = f"lake {self.path}{self._suffix()}"
        return html_table(title, ("table", "role", "type", "rows written", "columns"), rows, more)


class LakeTable:
    """A table of a lake at its version of one cut."""

    def __init__(self, name: str, questions: Questions) -> None:
        self.name = name
        self._questions = questions
        self._opened: ReadableTable | None = None

    @property
    def _table(self) -> ReadableTable:
        """Open the table once, so that all readings of the object see the same version."""
        if self._opened is None:
            self._opened = self._questions.open(self.name.casefold())
        return self._opened

    @property
    def path(self) -> str:
        """Return the address of the table's folder."""
        return self._table.path

    @property
    def version(self) -> int:
        """Return the version of the table that is read."""
        return self._table.version

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self._table.schema

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows, or some of their columns, as an Arrow table."""
        chosen = self._columns(columns)
        with self._reading():
            return self._table.batches(chosen).read_all()

    def to_polars(self, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """Read the rows, or some of their columns, as a frame of Polars."""
        module = _package("polars", "to_polars")
        frame: polars.DataFrame = module.from_arrow(self.to_arrow(columns))
        return frame

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Read the rows, or some of their columns, as a frame of pandas."""
        _package("pandas", "to_pandas")
        return self.to_arrow(columns).to_pandas()

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a relation of DuckDB, which reads only what a query on it needs.

        It belongs to the given connection, or else to DuckDB's default connection.
        """
        module = _package("duckdb", "to_duckdb")
        if connection is not None and not hasattr(connection, "from_arrow"):
            raise wrong_argument("connection", connection, "must be a connection of DuckDB")
        files = self._table.files
        rows = self.to_arrow() if files is None else files
        try:
            reader = module if connection is None else connection
            relation: duckdb.DuckDBPyRelation = reader.from_arrow(rows)
        except module.ConnectionException as error:
            raise wrong_argument("connection", connection, f"cannot be used: {error}") from error
        return relation

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a frame of a Spark session that has Delta's extension and catalog."""
        require_spark_session("spark", spark)
        reader = spark.read.format("delta").option("versionAsOf", self.version)
        try:
            return reader.load(self.path)
        except Exception as error:
            if "DATA_SOURCE_NOT_FOUND" not in str(error):
                raise
            raise DistributaryError(
                "this Spark session cannot read Delta tables",
                code=ErrorCode.CONNECTORS_MISSING,
                where="to_spark",
                evidence=str(error).partition("\n")[0][:300],
                next_step="start Spark with Delta's package (`spark.jars.packages`), its extension "
                "io.delta.sql.DeltaSparkSessionExtension and its catalog",
            ) from error

    def head(self, count: int = 10) -> pa.Table:
        """Return the newest rows, the newest first."""
        require_number("count", count)
        with self._reading():
            return newest(self._table, count)

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        require_names("columns", columns)
        names = self.schema.names
        for name in () if columns is None else columns:
            if name not in names:
                raise missing(f"no such column in {self.name}", name, names)
        return names if columns is None else list(columns)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise CUT_LOST if the files of the version are gone."""
        table = self._table
        try:
            with reaching_table(table.path):
                yield
        except LakeUnavailableError as error:
            self._questions.refuse_lost(self.name.casefold(), cause=error)
            raise

    def __repr__(self) -> str:
        return f"LakeTable({self.name!r}, version={self.version})"

    def _repr_html_(self) -> str:
        """Return the newest rows for a notebook."""
        title = f"{self.name}, version {self.version}: the newest rows"
        return html_rows(title, self.schema.names, self.head().to_pylist())


class LetterRows:
    """Dead letters of a lake that were selected."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """Return the number of dead letters."""
        return int(self._rows.num_rows)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def to_arrow(self) -> pa.Table:
        """Return the dead letters as an Arrow table."""
        return self._rows

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the dead letters as dictionaries."""
        rows: list[dict[str, Any]] = self._rows.to_pylist()
        return rows

    def to_polars(self) -> polars.DataFrame:
        """Return the dead letters as a frame of Polars."""
        frame: polars.DataFrame = _package("polars", "to_polars").from_arrow(self._rows)
        return frame

    def to_pandas(self) -> Any:
        """Return the dead letters as a frame of pandas."""
        _package("pandas", "to_pandas")
        return self._rows.to_pandas()

    def __repr__(self) -> str:
        return f"LetterRows({self.num_rows:,} dead letters)"

    def _repr_html_(self) -> str:
        """Return reasons, places and messages for a notebook, without the payloads."""
        names = [name for name in _LETTER_COLUMNS if name in self._rows.column_names]
        rows = self._rows.select(names).slice(0, _SHOWN).to_pylist()
        rest = self.num_rows - len(rows)
        more = f"{rest:,} more dead letters" if rest else ""
        return html_rows(f"{self.num_rows:,} dead letters", names, rows, more)


_SELECTION: Mapping[str, tuple[type | UnionType, str]] = {
    **dict.fromkeys(("reason", "type", "topic", "id", "status"), (str | None, "must be a text")),
    **dict.fromkeys(("since", "until"), (datetime | None, "must be a datetime")),
    **dict.fromkeys(("partition", "limit"), (Integral | None, "must be a whole number")),
    "offsets": (
        Integral | tuple | None,
        "must be an offset, or the first and the last of a range",
    ),
    "columns": (object, ""),
}
"""The conditions for dead letters, with their types and the words for a wrong one."""


def _require_options(options: object) -> None:
    """Raise ConfigError for storage options that are no mapping of texts."""
    require("storage_options", options, Mapping, "must be a mapping")
    for name, value in dict(options).items():  # type: ignore[call-overload]
        if not isinstance(name, str) or not isinstance(value, str):
            # without the value, which may be a secret
            raise wrong_argument("storage_options", name, "must have texts only")


def _require_selection(wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError for conditions that dead letters do not have."""
    for name, value in wanted.items():
        if name not in _SELECTION:
            raise missing("dead letters are not selected by this", name, _SELECTION)
        kind, what = _SELECTION[name]
        require(name, value, kind, what)
    if isinstance(offsets := wanted.get("offsets"), tuple) and not (
        len(offsets) == 2 and all(isinstance(each, Integral) for each in offsets)
    ):
        raise wrong_argument("offsets", offsets, _SELECTION["offsets"][1])
    if (limit := wanted.get("limit")) is not None:
        require_number("limit", limit)
    columns = wanted.get("columns")
    require_names("columns", columns)
    for name in () if columns is None else columns:
        if name not in DEAD_LETTER_SCHEMA.names:
            raise missing("no such column of dead letters", name, DEAD_LETTER_SCHEMA.names)


def _package(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DistributaryError(
            f"{method} needs the package {name}",
            code=ErrorCode.EXTRA_MISSING,
            where=f"Lake: {method}",
            evidence=str(error)[:200],
            next_step=f"pip install {name}",
        ) from error
