"""SQL over the tables of a lake without a JVM: DuckDB reads the files that a statement needs.

A statement can only read. It is parsed first, and refused unless it is one `SELECT` whose tables
are those of the lake: no file, no setting, no extension, no other table function. The engine is
locked down as well, so that each barrier works without the other.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.config.base import nearest
from distributary.config.rules.expressions import SHUT
from distributary.delta.tables import reaching_table, refuse_damaged
from distributary.errors import ConfigError, DistributaryError, ErrorCode, LakeUnavailableError
from distributary.model import layout
from distributary.model.cut import CutPoint, CutTable
from distributary.model.names import quoted
from distributary.model.table_format import TABLE_FORMATS
from distributary.observe.cuts import AsOf, Cuts
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.log_format import plain
from distributary.observe.status.health import open_listed
from distributary.publish.formats.readable import ReadableTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})
"""Table functions without outside access; `arrow_scan` would read addresses in memory."""
_PATIENCE_SECONDS = 2.0
"""The time for an interrupted engine to stop."""
_BATCH_ROWS = 2048
_LONGEST_EVIDENCE = 400
_LONGEST_SQL = 100_000
# the beginnings of the engine's messages, as its own exception or through Arrow
_TOO_MUCH = ("Out of Memory Error", "INTERRUPT Error")
_UNREADABLE = ("reading the stream registered as", "IO Error", "FATAL Error")
_SCALES = 0
"""Sums of whole numbers are decimals without a fraction."""


Overdue = Callable[[DistributaryError], None]
"""Called in a thread of its own if the engine does not stop."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of one answer."""

    seconds: float = 60.0
    memory: int = 2 << 30
    """The memory of the engine in bytes; it never writes to a disk."""
    rows: int | None = 1000
    """The largest number of rows; None for all."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of an answer."""

    name: str
    type: str


@dataclass(slots=True)
class QueryResult:
    """The rows of an answer, as they arrive."""

    columns: tuple[ResultColumn, ...]
    _batches: pa.RecordBatchReader
    _most: int | None
    more: bool = False
    """Whether rows were left out, valid after all others were read."""

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as Python values."""
        given = 0
        for batch in self._taken():
            columns = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                if given == self._most:
                    self.more = True
                    return
                given += 1
                yield row

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        taken = list(self._taken())
        rows = pa.Table.from_batches(taken, schema=self._batches.schema)
        self.more = self._most is not None and len(rows) > self._most
        return rows.slice(0, self._most)

    def write(self, path: Path) -> int:
        """Write the rows to a Parquet file, which appears whole; return their number.

        Raises ConfigError if the file cannot be written, or a column has no type in Parquet.
        """
        draft, rows = path.with_name(f".{path.name}.{os.getpid()}"), 0
        try:
            with pq.ParquetWriter(draft, self._batches.schema, compression="zstd") as file:
                for batch in self._taken():
                    left = len(batch) if self._most is None else self._most - rows
                    self.more = left < len(batch)
                    file.write_batch(batch.slice(0, left))
                    rows += min(left, len(batch))
                    if self.more:
                        break
            draft.replace(path)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                "the rows cannot be written to a Parquet file",
                where=str(path),
                evidence=_first_line(error),
                next_step="name a file in a folder that you may write to; cast columns of a type "
                "that Parquet lacks, such as an interval, to text",
            ) from error
        finally:
            draft.unlink(missing_ok=True)
        return rows

    def _taken(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of the engine, with its errors translated."""
        while True:
            try:
                batch = self._batches.read_next_batch()
            except StopIteration:
                return
            except (OSError, MemoryError, pa.ArrowException) as error:
                raise _failed(error) from None
            yield batch


class Questions:
    """Executes statements on one cut of a lake, and caches the places of its tables.

    Without `as_of` each statement reads the newest cut. `pipeline` is the pipeline that a batch
    number counts in. `chosen` is a cut that is known already.
    """

    def __init__(
        self,
        lake: str,
        *,
        as_of: AsOf = None,
        pipeline: str | None = None,
        chosen: tuple[Cuts, CutPoint] | None = None,
    ) -> None:
        self._lake = lake
        self._places: dict[str, tuple[str, str]] | None = None
        self._as_of = as_of
        self._pipeline = pipeline
        self._fixed = as_of is not None or chosen is not None
        self._cuts = chosen
        self._read_at: dict[str, CutTable] = {}
        """The tables that were opened last."""

    @property
    def places(self) -> Mapping[str, tuple[str, str]]:
        """Return name and folder of each table, by its name in lower case."""
        if self._places is None:
            tables = Ledger(self._lake).places()
            self._places = {
                name.casefold(): (name, layout.place(self._lake, path)) for name, path in tables
            }
        return self._places

    @contextmanager
    def ask(
        self,
        sql: str,
        bounds: QueryLimits = QueryLimits(),  # noqa: B008
        overdue: Overdue | None = None,
    ) -> Iterator[QueryResult]:
        """Execute one statement; the engine is closed when the block ends.

        `overdue` is called with the error if the engine does not stop in time.
        """
        read: dict[str, ReadableTable] = {}
        with (
            self._naming_damage(read),
            _engine(bounds) as engine,
            _within(engine, bounds.seconds, overdue),
        ):
            named = tables_of(engine, sql)
            self._refuse_unknown(named)
            read |= self._opened(named & self.places.keys())
            for name, readable in read.items():
                _register(engine, self.places[name][0], readable)
            if _SHOWS_ALL in named:
                # a list of names opens no table
                for name in self.places.keys() - named:
                    engine.execute(f"CREATE VIEW {quoted(self.places[name][0])} AS SELECT NULL")
            engine.execute("SET lock_configuration = true")
            reader = engine.sql(sql).to_arrow_reader(_BATCH_ROWS)
            yield QueryResult(_fields(reader.schema), reader, bounds.rows)

    def open(self, name: str) -> ReadableTable:
        """Open a table of the lake, by its name in lower case, at its version of the cut."""
        return self._opened([name])[name]

    def _cut(self) -> tuple[Cuts, CutPoint]:
        """Return the cut to read: always the same one, or the one that is the newest now."""
        if self._cuts is None or not self._fixed:
            cuts = Cuts(self._lake)
            self._cuts = cuts, cuts.find(self._as_of, pipeline=self._pipeline)
        return self._cuts

    def _opened(self, names: Collection[str]) -> dict[str, ReadableTable]:
        """Open tables at their versions of one cut."""
        if not names:
            return {}
        cuts, point = self._cut()
        found = {one.table.casefold(): one for one in cuts.tables(point, names)}
        self._read_at = found
        opened: dict[str, ReadableTable] = {}
        for name in sorted(names):
            table = found.get(name)
            if table is None and self._fixed:
                table = cuts.table(point, name)
            opened[name] = self._at(cuts, point, name, table)
        return opened

    def _at(self, cuts: Cuts, point: CutPoint, name: str, table: CutTable | None) -> ReadableTable:
        title, path = self.places[name]
        if table is None:
            return open_listed(title, path)
        if table.version is None and point.at is not None:
            raise DistributaryError(
                f"table {title} cannot be read at an older cut",
                code=ErrorCode.CUT_LOST,
                where=path,
                evidence=f"{TABLE_FORMATS[table.format].label} is read at its newest state",
                next_step="read it without --as-of",
            )
        try:
            return open_listed(title, path, version=table.version)
        except DistributaryError as error:
            cuts.refuse_lost(point, table, cause=error)
            raise

    def refuse_lost(self, name: str, *, cause: Exception) -> None:
        """Raise DistributaryError if a table that was opened has lost its version of the cut."""
        table = self._read_at.get(name)
        if self._cuts is not None and table is not None:
            cuts, point = self._cuts
            cuts.refuse_lost(point, table, cause=cause)

    @contextmanager
    def _naming_damage(self, read: Mapping[str, ReadableTable]) -> Iterator[None]:
        """Raise the right error if the engine failed because of a file of these tables.

        A file may be damaged, or be gone because it was only part of an older version.
        """
        try:
            yield
        except LakeUnavailableError as error:
            for name, readable in read.items():
                self.refuse_lost(name, cause=error)
                refuse_damaged(readable.path, cause=error)
            raise

    def _refuse_unknown(self, named: frozenset[str]) -> None:
        for name in sorted(named - self.places.keys() - {_SHOWS_ALL}):
            raise ConfigError(
                "there is no such table",
                code=ErrorCode.NOT_FOUND,
                where=self._lake,
                evidence=repr(name[:100]),
                next_step=f"did you mean {close}?"
                if (close := nearest(name, self.places))
                else "distributary tables",
            )


def _register(engine: DuckDBPyConnection, name: str, readable: ReadableTable) -> None:
    files = readable.files
    engine.register(name, _Stream(readable) if files is None else files)


@dataclass(frozen=True, slots=True)
class _Stream:
    """A table that only its format's own engine can read, as a stream for DuckDB.

    Every scan reads it again. All columns are read, and no row is cached.
    """

    table: ReadableTable

    def __arrow_c_schema__(self) -> object:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with reaching_table(self.table.path):
            rows = self.table.batches(self.table.schema.names)
        return rows.__arrow_c_stream__(requested_schema)


# The newest rows of a table.

_ORDERS = (
    ("_batch", "_timestamp", "_offset"),
    ("_source_ts",),
    ("_valid_from",),
    ("last_seen", "batch", "offset"),
)
"""Columns that order rows by age: of records, current rows, histories, dead letters."""


def newest(readable: ReadableTable, count: int) -> pa.Table:
    """Return `count` rows, the newest first; without ordering columns, the last written ones.

    Files are read from the newest on, until no other file can have a newer row.
    """
    names = set(readable.schema.names)
    order = next((some for some in _ORDERS if some[0] in names), ())
    keys = [(name, "descending") for name in order if name in names]
    rows = readable.schema.empty_table()
    if not count:
        return rows
    with reaching_table(readable.path):
        for batches, most in _by_age(readable, keys[0][0] if keys else None):
            full = len(rows) == count
            if full and (most is None or most < rows.column(keys[0][0])[-1].as_py()):
                break
            for batch in batches:
                both = pa.concat_tables([rows, pa.Table.from_batches([batch]).cast(rows.schema)])
                first = pc.select_k_unstable(both, count, keys) if keys else range(count)
                rows = both.take(first) if keys else both.slice(0, len(first))
    return rows


def _by_age(
    readable: ReadableTable, key: str | None
) -> Iterator[tuple[Iterable[pa.RecordBatch], Any]]:
    """Yield the rows of each file with its greatest key, the greatest first."""
    files = readable.files
    if files is None:
        yield readable.batches(readable.schema.names), None
        return
    for fragment, most in readable.newest_files(files, key):
        yield (
            fragment.scanner(schema=files.schema, columns=readable.schema.names).to_batches(),
            most,
        )


# The tables of a statement, found by the engine's own parser.

_SHOWS_ALL = "\0all"
"""Stands for a statement that lists all tables."""


def tables_of(engine: DuckDBPyConnection, sql: str) -> frozenset[str]:
    """Return the tables that a statement reads, in lower case. Raises if it does more than read."""
    if len(sql) > _LONGEST_SQL:
        raise _refused(f"it has {len(sql):,} characters")
    if "\0" in sql:
        raise _refused("it has a zero byte")
    # the engine is blocked until the answer is read to its end
    ((text,),) = engine.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    if tree.get("error"):
        # `EXPLAIN` and `PIVOT`, `COPY` and `SET` alike
        raise _refused(str(tree.get("error_message", "")))
    statements = tree["statements"]
    if len(statements) != 1:
        raise _refused(f"{len(statements)} statements")
    try:
        return frozenset(_names(statements[0], frozenset()))
    except RecursionError:
        raise _refused("it is nested too deeply") from None


def _names(node: Any, local: frozenset[str]) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _names(item, local)
        return
    if not isinstance(node, dict):
        return
    # a statement's own subqueries hide tables of the same name
    local |= {str(part["key"]).casefold() for part in _parts(node)}
    match node.get("type"):
        case "BASE_TABLE":
            name = str(node.get("table_name", "")).casefold()
            if node.get("catalog_name") or str(node.get("schema_name") or "main") != "main":
                raise _refused(f"{name!r} with a schema before it: tables have plain names")
            if name not in local:
                yield name
        case "TABLE_FUNCTION":
            function = str((node.get("function") or {}).get("function_name", "")).casefold()
            if function not in ROWS:
                raise _refused(f"the function {function!r} in the place of a table")
        case "SHOW_REF" if node.get("query") is None:
            yield _SHOWS_ALL
    for value in node.values():
        yield from _names(value, local)


def _parts(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = node.get("cte_map")
    return known.get("map", []) if isinstance(known, dict) else []


def _refused(evidence: str) -> ConfigError:
    return ConfigError(
        "the statement cannot be executed",
        code=ErrorCode.QUERY_INVALID,
        where="SQL",
        # with similar names, without the statement itself
        evidence=" ".join(evidence.partition("\nLINE ")[0].split())[:_LONGEST_EVIDENCE],
        next_step="write one SELECT over tables that `distributary tables` lists",
    )


# The engine.


@contextmanager
def _engine(bounds: QueryLimits) -> Iterator[DuckDBPyConnection]:
    """Open an empty database that reads only registered tables, and stays locked."""
    import duckdb

    settings = SHUT | {"memory_limit": f"{bounds.memory}B", "temp_directory": ""}
    engine = duckdb.connect(":memory:", config=settings)
    try:
        # timestamps are in UTC everywhere in the lake
        engine.execute("SET TimeZone = 'UTC'")
        yield engine
    except (duckdb.Error, MemoryError) as error:
        raise _failed(error) from None
    finally:
        engine.close()


@contextmanager
def _within(engine: DuckDBPyConnection, seconds: float, overdue: Overdue | None) -> Iterator[None]:
    """Interrupt the engine when the time is over, repeatedly if it does not react.

    The engine checks for an interrupt between two chunks of rows. A function that takes minutes for
    one value, such as `levenshtein` of long texts, is not stopped by it: only ending the process
    helps.
    """
    done = threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        until = time.monotonic() + _PATIENCE_SECONDS
        while not done.wait(0.1):
            engine.interrupt()
            if overdue is not None and time.monotonic() > until:
                overdue(_stopped("it took longer than its timeout, and the engine does not stop"))
                return

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _failed(error: Exception) -> DistributaryError:
    """Return the engine's failure as our error: limits exceeded, a missing file, or wrong SQL."""
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in _TOO_MUCH):
        late = _TOO_MUCH[1] in text
        return _stopped("it took longer than its timeout" if late else _first_line(error))
    if any(sign in text for sign in _UNREADABLE):
        return LakeUnavailableError(
            "the tables cannot be read",
            evidence=_first_line(error),
            next_step="`distributary verify --all` names missing files",
        )
    return _refused(text)


def _stopped(evidence: str) -> DistributaryError:
    return DistributaryError(
        "the result exceeds its limits",
        code=ErrorCode.QUERY_STOPPED,
        where="SQL",
        evidence=evidence,
        next_step="select fewer rows or columns, or raise --timeout or --memory",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_LONGEST_EVIDENCE]


def _fields(schema: pa.Schema) -> tuple[ResultColumn, ...]:
    """Return the columns with distinct names, as a document needs them."""
    taken: set[str] = set()
    fields = []
    for field in schema:
        name, number = field.name, 1
        while name in taken:
            name, number = f"{field.name}_{number}", number + 1
        taken.add(name)
        fields.append(ResultColumn(name, str(field.type)))
    return tuple(fields)


def json_value(value: Any) -> Any:
    """Return a value for JSON; whole numbers of any size stay numbers."""
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == _SCALES:
        return int(value)
    return plain(value)
