"""The plan of a change-data stream, its column types, table shapes and random draws."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar

from distributary_lab.simulate.base import SimulationPlan, chosen, some_start
from distributary_lab.simulate.dice import roll, sample, seed_for

# The plan: what the simulator sends.


class SourceType(StrEnum):
    """The database whose rows change."""

    MYSQL = "mysql"
    POSTGRESQL = "postgresql"
    ORACLE = "oracle"
    SQLSERVER = "sqlserver"


class CdcFormat(StrEnum):
    """The format of events: three kinds of Datastream files, or Debezium messages."""

    AVRO = "avro"
    JSON = "json"
    JSON_ARRAY = "json-array"
    DEBEZIUM = "debezium"

    @property
    def is_json_file(self) -> bool:
        """Return true when values are limited to those that JSON readers keep exactly."""
        return self in (CdcFormat.JSON, CdcFormat.JSON_ARRAY)


class Feature(StrEnum):
    """A property of real streams that makes them harder to follow."""

    KEY_CHANGES = "key_changes"
    """The key of a row changes."""
    BURSTS = "bursts"
    """Many changes of one row in one instant: only the position in the log orders them."""
    LOCK_WAITS = "lock_waits"
    """MySQL: updates that waited for a lock are later in the log, with earlier times."""
    LOG_ROLLOVER = "log_rollover"
    """MySQL: in the middle of a burst, bin.1000000 follows bin.999999."""
    LATE_UPDATES = "late_updates"
    """A row is changed and deleted; the change arrives after the delete."""
    STALE_BACKFILLS = "stale_backfills"
    """Tables are read again; their rows are older than the time they state."""
    NEW_COLUMNS = "new_columns"
    DROPPED_COLUMNS = "dropped_columns"
    NEW_TABLES = "new_tables"
    """Some of the tables appear in mid-stream."""
    ODD_NAMES = "odd_names"
    """Reserved words, spaces, hyphens; a name that two databases have."""
    NULL_KEYS = "null_keys"
    """SQL Server: null in a column of the key, which a unique index allows."""
    KEY_CASE = "key_case"
    """SQL Server: events state key columns in another case than the rows."""
    DUPLICATES = "duplicates"
    """Events are sent again, byte by byte, in another file."""
    REUSED_UUIDS = "reused_uuids"
    """Another event has the id of an earlier one."""
    OUT_OF_ORDER = "out_of_order"
    """Later events are in the file that is listed, or written, first."""
    LATE_FILES = "late_files"
    """Files appear in the folder of a minute that is long past."""
    NOISE = "noise"
    """Empty files, schema files and markers are between the others."""
    NO_SUFFIX = "no_suffix"
    """Some file names have no suffix."""
    TIME_STYLES = "time_styles"
    """JSON: the times of an event come in all formats seen in practice."""
    UNAVAILABLE_VALUES = "unavailable_values"
    """Debezium and PostgreSQL: unchanged long texts are left out."""


CALM = frozenset({Feature.KEY_CHANGES, Feature.BURSTS})
"""The features of every stream."""

CHAOS = frozenset(Feature)
"""All features at once."""

_NEED_ROUNDS = frozenset(
    {Feature.NEW_COLUMNS, Feature.DROPPED_COLUMNS, Feature.NEW_TABLES, Feature.STALE_BACKFILLS}
)
_ROUNDS_NEEDED = 3


@dataclass(frozen=True, kw_only=True)
class CdcPlan(SimulationPlan):
    """Exactly `events` changes, after a backfill of `rows` rows in every table.

    Duplicates are counted in addition. A change of key is two events.
    """

    refusal = "these changes cannot be simulated"

    tables: int = 2
    events: int = 1_000
    """Number of changes in all tables together; backfilled rows come in addition."""
    rows: int = 20
    """Rows of a table before the stream begins, which only a backfill brings."""
    rounds: int = 5
    """Number of parts of the stream; a round is two minutes of the source's time."""
    seed: int = 999
    source_type: SourceType = SourceType.MYSQL
    format: CdcFormat = CdcFormat.AVRO
    gzip: bool = False
    """Compress the files; JSON only."""
    bare_methods: bool = False
    """Use the read methods `cdc` and `backfill`, which do not name the database."""
    features: frozenset[Feature] = CALM
    start: datetime | None = None
    """Time at which the stream begins; a minute of 2024 that depends on the seed when left out."""
    file_events: int = 500
    """The largest number of events in a file."""
    topic_prefix: str = "shop"
    """Debezium: prefix of all topics."""
    with_schema: bool = False
    """Debezium: write the schema into each message."""

    def __post_init__(self) -> None:
        self._need(self.tables >= 1, "tables", "at least 1")
        self._need(self.events >= 0, "events", "0 or more")
        self._need(self.rows >= 0, "rows", "0 or more")
        self._need(self.file_events >= 2, "file_events", "at least 2")
        least = _ROUNDS_NEEDED if self.features & _NEED_ROUNDS else 1
        self._need(self.rounds >= least, "rounds", f"at least {least}")
        self._need(not self.gzip or self.format.is_json_file, "gzip", "gzip with json only")
        aware = self.start is None or self.start.tzinfo is not None
        self._need(aware and self.start_millis > 0, "start", "a time with a zone, after 1970")
        self._need(bool(self.topic_prefix), "topic_prefix", "a name")

    def has(self, feature: Feature) -> bool:
        """Return true when the stream has this feature."""
        return feature in self.features

    @property
    def is_debezium(self) -> bool:
        """Return true for a stream of messages, not of files."""
        return self.format is CdcFormat.DEBEZIUM

    @property
    def start_millis(self) -> int:
        """Return the start of the stream in milliseconds since 1970, always a full minute."""
        return int((self.start or some_start(self.seed)).timestamp()) // 60 * 60_000

    def events_in(self, number: int) -> int:
        """Return the number of changes in a round; rounds are numbered from 0."""
        first, last = (self.events * r // self.rounds for r in (number, number + 1))
        return last - first


def parse_features(names: Iterable[str]) -> frozenset[Feature]:
    """Parse names of features; raise ConfigError for an unknown one."""
    return frozenset(chosen(names, Feature, what="feature of a stream of changes", where="--with"))


# Column types of databases, and the types that streams carry them as.


class Carried(StrEnum):
    """The type of a value in the stream; Datastream calls these unified types."""

    INTEGER = "integer"
    LONG = "long"
    NUMBER = "number"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BOOLEAN = "boolean"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIMESTAMP_TZ = "timestamp_tz"
    TIME = "time"
    TIME_INTERVAL = "time_interval"
    JSON = "json"
    BYTES = "bytes"


class ColumnKind(StrEnum):
    """The type of a column in the database, roughly."""

    carried: Carried
    """The type in most streams."""

    def __new__(cls, name: str, carried: Carried) -> Self:
        """Create a kind with its name and its type in streams."""
        kind = str.__new__(cls, name)
        kind._value_, kind.carried = name, carried
        return kind

    INT = "int", Carried.INTEGER
    BIGINT = "bigint", Carried.LONG
    NUMBER = "number", Carried.NUMBER
    """A number of any size: without a precision, or unsigned with 64 bits."""
    DECIMAL = "decimal", Carried.DECIMAL
    FLOAT = "float", Carried.FLOAT
    DOUBLE = "double", Carried.DOUBLE
    TEXT = "text", Carried.STRING
    LONG_TEXT = "long_text", Carried.STRING
    ENUM = "enum", Carried.STRING
    UUID = "uuid", Carried.STRING
    BOOL = "bool", Carried.BOOLEAN
    DATE = "date", Carried.DATE
    DATETIME = "datetime", Carried.DATETIME
    """A time without a zone."""
    TIMESTAMP = "timestamp", Carried.TIMESTAMP_TZ
    TIME = "time", Carried.TIME
    JSON = "json", Carried.JSON
    BINARY = "binary", Carried.BYTES


# real files carry dates of MySQL as timestamps, and its bytes as hexadecimal text
_IN_FILES = {
    SourceType.MYSQL: {
        ColumnKind.BOOL: Carried.INTEGER,
        ColumnKind.DATE: Carried.TIMESTAMP,
        ColumnKind.DATETIME: Carried.TIMESTAMP,
        ColumnKind.TIMESTAMP: Carried.TIMESTAMP,
        ColumnKind.TIME: Carried.TIME_INTERVAL,
        ColumnKind.BINARY: Carried.STRING,
    },
    SourceType.POSTGRESQL: {ColumnKind.DATETIME: Carried.TIMESTAMP},
    SourceType.ORACLE: {
        ColumnKind.BOOL: Carried.INTEGER,
        ColumnKind.DATE: Carried.DATETIME,
        ColumnKind.DATETIME: Carried.TIMESTAMP,
        ColumnKind.TIME: Carried.STRING,
        ColumnKind.JSON: Carried.STRING,
        ColumnKind.BINARY: Carried.STRING,
    },
    SourceType.SQLSERVER: {ColumnKind.NUMBER: Carried.DECIMAL, ColumnKind.JSON: Carried.STRING},
}

_IN_MESSAGES = {
    SourceType.MYSQL: {ColumnKind.NUMBER: Carried.DECIMAL},
    SourceType.POSTGRESQL: {},
    SourceType.ORACLE: {
        ColumnKind.BOOL: Carried.INTEGER,
        ColumnKind.DATE: Carried.DATETIME,
        ColumnKind.TIME: Carried.STRING,
        ColumnKind.JSON: Carried.STRING,
    },
    SourceType.SQLSERVER: {ColumnKind.NUMBER: Carried.DECIMAL, ColumnKind.JSON: Carried.STRING},
}


def carried_as(kind: ColumnKind, source_type: SourceType, format: CdcFormat) -> Carried:
    """Return the type with which a stream carries this column type of this database."""
    special = _IN_MESSAGES if format is CdcFormat.DEBEZIUM else _IN_FILES
    return special[source_type].get(kind, kind.carried)


def carry(value: Any, carried: Carried) -> Any:
    """Convert a value of the database to the Python value that a correct reader gets."""
    match value:
        case bool() if carried is Carried.INTEGER:
            return int(value)
        case datetime():
            return value
        case date() if carried in (Carried.TIMESTAMP, Carried.DATETIME):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case timedelta() if carried is Carried.STRING:
            return interval_text(value)
        case timedelta() if carried is Carried.TIME:
            return (datetime.min + value).time()
        case bytes() if carried is Carried.STRING:
            return value.hex()
        case dict() | list():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        case _:
            return value


def canonical(value: Any) -> Any:
    """Convert a carried value to JSON that is the same for every format.

    Decimals are text, times ISO 8601 (moments in UTC, always with microseconds), bytes hexadecimal.
    """
    match value:
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case time():
            return value.isoformat("microseconds")
        case timedelta():
            return interval_text(value)
        case bytes():
            return value.hex()
        case _:
            return value


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def days(value: date) -> int:
    """Return the number of days since 1970."""
    return (value - EPOCH.date()).days


def micros(value: timedelta) -> int:
    """Return a duration in microseconds."""
    return value // timedelta(microseconds=1)


def since_midnight(value: time) -> int:
    """Return a time of day in microseconds."""
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def interval_text(value: timedelta) -> str:
    """Format a duration as `-838:59:59.000000`, with any number of hours and a sign."""
    count = abs(micros(value))
    minutes, rest = divmod(count // 1_000_000, 60)
    sign = "-" if value < timedelta() else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{rest:02}.{count % 1_000_000:06}"


Row = dict[str, Any]
"""Carried values by column name."""

Key = tuple[Any, ...]
"""The values of the key's columns; null equals null."""

_DATABASE = {
    SourceType.POSTGRESQL: "shop",
    SourceType.ORACLE: "XE",
    SourceType.SQLSERVER: "shop",
}


class TableClaim(NamedTuple):
    """The names of a table in the stream; names that the stream lacks are empty."""

    database: str
    schema: str
    table: str

    @property
    def text(self) -> str:
        """Return the names as JSON: `["shop","","orders"]`."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class CdcColumn:
    """A column of a simulated table."""

    name: str
    kind: ColumnKind
    carried: Carried
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    nulls: float = 0.1
    """Share of null values, if the column is nullable."""


@dataclass(frozen=True, slots=True)
class SourceShape:
    """A table between two changes of its columns."""

    source_type: SourceType
    format: CdcFormat
    namespace: str
    """The database in MySQL, the schema in all others."""
    table: str
    key: tuple[str, ...]
    """Names of the key's columns as in the rows; empty without a key."""
    stated_key: tuple[str, ...]
    """The same names as the events state them."""
    columns: tuple[CdcColumn, ...]

    @property
    def database(self) -> str:
        """Return the name of the database."""
        return _DATABASE.get(self.source_type, self.namespace)

    @property
    def schema(self) -> str:
        """Return the name of the schema; empty for MySQL."""
        return "" if self.source_type is SourceType.MYSQL else self.namespace

    @property
    def claim(self) -> TableClaim:
        """Return the names in the stream: files of PostgreSQL do not name the database."""
        has_database = (
            self.format is CdcFormat.DEBEZIUM or self.source_type is not SourceType.POSTGRESQL
        )
        return TableClaim(self.database if has_database else "", self.schema, self.table)

    @property
    def object(self) -> str:
        """Return the name of the table's folder."""
        return f"{self.namespace}_{self.table}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all columns."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> CdcColumn:
        """Return the column of this name."""
        return next(column for column in self.columns if column.name == name)

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(row[name] for name in self.key)

    def with_columns(self, columns: Iterable[CdcColumn]) -> SourceShape:
        """Return the table with other columns."""
        return replace(self, columns=tuple(columns))


def avro_name(name: str) -> str:
    """Return a name that Avro allows."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{safe}" if safe[:1].isdigit() else safe


# Sequences of repeatable draws: the same for the same seed and purpose.

T = TypeVar("T")

_GRAIN = 1 << 32


class Dice:
    """A sequence of draws for one purpose, so that new kinds of draws do not shift others."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._seed = seed_for(seed, purpose)
        self._thrown = 0

    def bits(self) -> int:
        """Draw 64 uniform bits."""
        self._thrown += 1
        return roll(self._seed, self._thrown)

    def below(self, limit: int) -> int:
        """Draw a number from 0 up to, and without, the limit."""
        if limit <= _GRAIN:
            return self.bits() % limit
        return (self.bits() << 64 | self.bits()) % limit

    def chance(self, share: float) -> bool:
        """Draw true with this probability."""
        return self.bits() % _GRAIN < share * _GRAIN

    def pick(self, items: Sequence[T]) -> T:
        """Draw one of the items."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], share: float, *, least: int = 1) -> list[T]:
        """Draw about this share of the items in random order, and at least `least` if possible."""
        count = min(len(items), max(least, round(share * len(items))))
        return [items[i] for i in sample(self.bits(), len(items), count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in random order."""
        return self.some(items, 1.0)
