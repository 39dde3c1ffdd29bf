"""SQL over the tables of a lake, without a JVM: DuckDB reads the files that a statement needs.

A statement can only read. It is parsed first, and refused unless it is one `SELECT` whose tables
are those of the lake: no file, no setting, no extension, no other function that gives rows. The
engine is shut as well, so that each fence holds without the other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.base import nearest
from distributary.config.expectations import SHUT
from distributary.delta.tables import reaching, refuse_damaged
from distributary.errors import ConfigError, DistributaryError, ErrorCode, LakeUnavailableError
from distributary.model import layout
from distributary.observe.health import Readable, newest_files, open_listed
from distributary.observe.ledger import Ledger
from distributary.observe.log_format import plain

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})
"""Functions that give rows and reach nothing outside; `arrow_scan` takes addresses in memory."""
_PATIENCE_SECONDS = 2.0
"""For an engine that was interrupted."""
_BATCH_ROWS = 2048
_LONGEST_EVIDENCE = 400
_LONGEST_SQL = 100_000
# how the engine begins to say it, as an exception of its own or through Arrow
_TOO_MUCH = ("Out of Memory Error", "INTERRUPT Error")
_UNREADABLE = ("reading the stream registered as", "IO Error", "FATAL Error")
_SCALES = 0
"""Sums of whole numbers are decimals without a fraction."""


Overdue = Callable[[DistributaryError], None]
"""What to do about an engine that does not stop; called in a thread of its own."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one answer may cost."""

    seconds: float = 60.0
    memory: int = 2 << 30
    """Bytes of the engine; what it cannot hold is not written to a disk."""
    rows: int | None = 1000
    """None: all of them."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of an answer."""

    name: str
    type: str


@dataclass(slots=True)
class Answer:
    """The rows of an answer, as they come."""

    columns: tuple[Field, ...]
    _batches: pa.RecordBatchReader
    _most: int | None
    more: bool = False
    """Whether rows were left out, once all others have been taken."""

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Values of Python, row by row."""
        given = 0
        for batch in self._taken():
            columns = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                if given == self._most:
                    self.more = True
                    return
                given += 1
                yield row

    def _taken(self) -> Iterator[pa.RecordBatch]:
        """Batches as the engine makes them; what it says on the way comes as Arrow's own errors."""
        while True:
            try:
                batch = self._batches.read_next_batch()
            except StopIteration:
                return
            except (OSError, MemoryError, pa.ArrowException) as error:
                raise _failed(error) from None
            yield batch


class Questions:
    """Answers questions about one lake; what it has learned of the tables' places is kept."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._places: dict[str, tuple[str, str]] | None = None

    @property
    def places(self) -> Mapping[str, tuple[str, str]]:
        """Name and folder of each table, by its name in lower case."""
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
        bounds: Bounds = Bounds(),  # noqa: B008
        overdue: Overdue | None = None,
    ) -> Iterator[Answer]:
        """The answer to one statement; the engine is gone when the block ends.

        `overdue` is called with the error where the engine goes on after its time is over.
        """
        read: list[str] = []
        with (
            _naming_damage(read),
            _engine(bounds) as engine,
            _within(engine, bounds.seconds, overdue),
        ):
            named = tables_of(engine, sql)
            self._refuse_unknown(named)
            for name in sorted(named & self.places.keys()):
                read.append(self.places[name][1])
                self._register(engine, name)
            if _SHOWS_ALL in named:
                # a list of names opens none of the tables
                for name in self.places.keys() - named:
                    engine.execute(f"CREATE VIEW {quoted(self.places[name][0])} AS SELECT NULL")
            engine.execute("SET lock_configuration = true")
            found = engine.sql(sql).to_arrow_reader(_BATCH_ROWS)
            yield Answer(_fields(found.schema), found, bounds.rows)

    def open(self, name: str) -> Readable:
        """A table of the lake at its newest version."""
        table, path = self.places[name]
        return open_listed(table, path)

    def _register(self, engine: DuckDBPyConnection, name: str) -> None:
        found = self.open(name)
        files = found.files
        if files is not None:
            engine.register(self.places[name][0], files)
            return
        engine.register(self.places[name][0], _Stream(found))

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


@dataclass(frozen=True, slots=True)
class _Stream:
    """A table that only the format's own engine can read, for DuckDB: again for each time.

    All columns are read, and no row is kept.
    """

    table: Readable

    def __arrow_c_schema__(self) -> object:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with reaching(self.table.path):
            rows = self.table.batches(self.table.schema.names)
        return rows.__arrow_c_stream__(requested_schema)


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


# The newest rows of a table.

_ORDERS = (
    ("_batch", "_timestamp", "_offset"),
    ("_source_ts",),
    ("_valid_from",),
    ("last_seen", "batch", "offset"),
)
"""Columns that say which rows are new: of records, current rows, histories, dead letters."""


def newest(found: Readable, count: int) -> pa.Table:
    """So many rows, the newest first; of a table whose columns do not say it, those written last.

    Files are read from the newest on, until none of the others can have a newer row.
    """
    names = set(found.schema.names)
    order = next((some for some in _ORDERS if some[0] in names), ())
    keys = [(name, "descending") for name in order if name in names]
    rows = found.schema.empty_table()
    with reaching(found.path):
        for batches, most in _by_age(found, keys[0][0] if keys else None):
            full = len(rows) == count
            if full and (most is None or most < rows.column(keys[0][0])[-1].as_py()):
                break
            for batch in batches:
                both = pa.concat_tables([rows, pa.Table.from_batches([batch]).cast(rows.schema)])
                first = pc.select_k_unstable(both, count, keys) if keys else range(count)
                rows = both.take(first) if keys else both.slice(0, len(first))
    return rows


def _by_age(found: Readable, key: str | None) -> Iterator[tuple[Iterable[pa.RecordBatch], Any]]:
    """The rows of each file and the greatest value of the key in it, the greatest first."""
    files = found.files
    if files is None:
        yield found.batches(found.schema.names), None
        return
    for each, most in newest_files(found, files, key):
        yield each.scanner(schema=files.schema, columns=found.schema.names).to_batches(), most


# What a statement names, by the engine's own parser.

_SHOWS_ALL = "\0all"
"""Stands among the names for a statement that lists the tables."""


def tables_of(engine: DuckDBPyConnection, sql: str) -> frozenset[str]:
    """The tables that a statement reads, in lower case. Raises where it does more than read."""
    if len(sql) > _LONGEST_SQL:
        raise _refused(f"it has {len(sql):,} characters")
    if "\0" in sql:
        raise _refused("it has a zero byte")
    # the engine does nothing else while an answer is not taken to its end
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
        for each in node:
            yield from _names(each, local)
        return
    if not isinstance(node, dict):
        return
    # what a statement calls its own parts hides tables of the same name
    local |= {str(each["key"]).casefold() for each in _parts(node)}
    match node.get("type"):
        case "BASE_TABLE":
            name = str(node.get("table_name", "")).casefold()
            if node.get("catalog_name") or str(node.get("schema_name") or "main") != "main":
                raise _refused(f"{name!r} with a schema before it: tables go by their names alone")
            if name not in local:
                yield name
        case "TABLE_FUNCTION":
            function = str((node.get("function") or {}).get("function_name", "")).casefold()
            if function not in ROWS:
                raise _refused(f"the function {function!r} in the place of a table")
        case "SHOW_REF" if node.get("query") is None:
            yield _SHOWS_ALL
    for each in node.values():
        yield from _names(each, local)


def _parts(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = node.get("cte_map")
    return known.get("map", []) if isinstance(known, dict) else []


def _refused(evidence: str) -> ConfigError:
    return ConfigError(
        "the statement cannot be asked",
        code=ErrorCode.QUERY_INVALID,
        where="SQL",
        # with the names that come close, without the statement once more
        evidence=" ".join(evidence.partition("\nLINE ")[0].split())[:_LONGEST_EVIDENCE],
        next_step="ask one SELECT of the tables that `distributary tables` names",
    )


# The engine.


@contextmanager
def _engine(bounds: Bounds) -> Iterator[DuckDBPyConnection]:
    """An empty database that reads nothing but what it is given, and stays shut."""
    import duckdb

    settings = SHUT | {"memory_limit": f"{bounds.memory}B", "temp_directory": ""}
    engine = duckdb.connect(":memory:", config=settings)
    try:
        # moments are counted in UTC everywhere in the lake
        engine.execute("SET TimeZone = 'UTC'")
        yield engine
    except (duckdb.Error, MemoryError) as error:
        raise _failed(error) from None
    finally:
        engine.close()


@contextmanager
def _naming_damage(folders: Sequence[str]) -> Iterator[None]:
    """Raise DamagedFileError where the engine failed because a file of these tables is damaged."""
    try:
        yield
    except LakeUnavailableError as error:
        for folder in folders:
            refuse_damaged(folder, cause=error)
        raise


@contextmanager
def _within(engine: DuckDBPyConnection, seconds: float, overdue: Overdue | None) -> Iterator[None]:
    """Interrupts the engine when the time is over, and again where it has not noticed.

    The engine looks for an interrupt between two chunks of rows. A function that takes minutes for
    one value, as `levenshtein` of long texts, is not stopped by it: only its process can be ended.
    """
    done = threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        until = time.monotonic() + _PATIENCE_SECONDS
        while not done.wait(0.1):
            engine.interrupt()
            if overdue is not None and time.monotonic() > until:
                overdue(_stopped("its time is over, and the engine does not stop"))
                return

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _failed(error: Exception) -> DistributaryError:
    """What the engine says, in our words: too much was asked, a file is gone, or it is wrong."""
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in _TOO_MUCH):
        return _stopped("its time is over" if _TOO_MUCH[1] in text else _first_line(error))
    if any(sign in text for sign in _UNREADABLE):
        return LakeUnavailableError(
            "the tables cannot be read",
            evidence=_first_line(error),
            next_step="`distributary verify --all` names files that are gone",
        )
    return _refused(text)


def _stopped(evidence: str) -> DistributaryError:
    return DistributaryError(
        "the answer would cost more than it may",
        code=ErrorCode.QUERY_STOPPED,
        where="SQL",
        evidence=evidence,
        next_step="ask for less, or raise --timeout or --memory",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_LONGEST_EVIDENCE]


def _fields(schema: pa.Schema) -> tuple[Field, ...]:
    """Columns by names that differ: those of a document must."""
    taken: set[str] = set()
    found = []
    for field in schema:
        name, number = field.name, 1
        while name in taken:
            name, number = f"{field.name}_{number}", number + 1
        taken.add(name)
        found.append(Field(name, str(field.type)))
    return tuple(found)


def json_value(value: Any) -> Any:
    """A value as JSON has it; whole numbers of any size stay numbers."""
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == _SCALES:
        return int(value)
    return plain(value)
