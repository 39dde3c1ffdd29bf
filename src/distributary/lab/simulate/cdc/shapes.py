"""A table of the source as it is at one moment: its names, its key, its columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar

from distributary.lab.simulate.base import Plan, chosen, some_start
from distributary.lab.simulate.dice import roll, sample, seed_for

# What the change-data simulator is asked to send.


class SourceType(StrEnum):
    """The database whose rows change."""

    MYSQL = "mysql"
    POSTGRESQL = "postgresql"
    ORACLE = "oracle"
    SQLSERVER = "sqlserver"


class CdcFormat(StrEnum):
    """How events are written: three kinds of Datastream file, or messages of Debezium."""

    AVRO = "avro"
    JSON = "json"
    JSON_ARRAY = "json-array"
    DEBEZIUM = "debezium"

    @property
    def is_json_file(self) -> bool:
        """Whether values are limited to what JSON readers keep exactly."""
        return self in (CdcFormat.JSON, CdcFormat.JSON_ARRAY)


class Feature(StrEnum):
    """Something that happens in real streams and makes them harder to follow."""

    KEY_CHANGES = "key_changes"
    """The key of a row changes."""
    BURSTS = "bursts"
    """Many changes of one row in one instant: only the position in the log orders them."""
    LOCK_WAITS = "lock_waits"
    """MySQL: updates that waited for a lock come later in the log, with earlier times."""
    LOG_ROLLOVER = "log_rollover"
    """MySQL: in the middle of a burst, bin.1000000 follows bin.999999."""
    LATE_UPDATES = "late_updates"
    """A row is changed and deleted; the change arrives after the delete."""
    STALE_BACKFILLS = "stale_backfills"
    """Tables are read again; their rows are older than the time that they state."""
    NEW_COLUMNS = "new_columns"
    DROPPED_COLUMNS = "dropped_columns"
    NEW_TABLES = "new_tables"
    """Some of the tables appear in mid-stream."""
    ODD_NAMES = "odd_names"
    """Reserved words, spaces, hyphens; a name that two databases have."""
    NULL_KEYS = "null_keys"
    """SQL Server: null in a column of the key, which a unique index allows."""
    KEY_CASE = "key_case"
    """SQL Server: key columns are stated in other letters than the row has."""
    DUPLICATES = "duplicates"
    """Events come again, byte by byte, in another file."""
    REUSED_UUIDS = "reused_uuids"
    """Another event has the id of an earlier one."""
    OUT_OF_ORDER = "out_of_order"
    """Later events lie in the file that is listed, or written, first."""
    LATE_FILES = "late_files"
    """Files appear in the folder of a minute that is long over."""
    NOISE = "noise"
    """Empty files, schema files and markers lie between the others."""
    NO_SUFFIX = "no_suffix"
    """Some names of files do not say what is in them."""
    TIME_STYLES = "time_styles"
    """JSON: the times of an event come in all the ways that were ever seen."""
    UNAVAILABLE_VALUES = "unavailable_values"
    """Debezium and PostgreSQL: long texts that did not change are left out."""


CALM = frozenset({Feature.KEY_CHANGES, Feature.BURSTS})
"""What every stream has."""

CHAOS = frozenset(Feature)
"""Everything at once."""

_NEED_ROUNDS = frozenset(
    {Feature.NEW_COLUMNS, Feature.DROPPED_COLUMNS, Feature.NEW_TABLES, Feature.STALE_BACKFILLS}
)
_ROUNDS_NEEDED = 3


@dataclass(frozen=True, kw_only=True)
class CdcPlan(Plan):
    """Exactly `events` changes, after every table's `rows` were read once.

    What is sent again counts in addition. A change of key is two events.
    """

    refusal = "these changes cannot be simulated"

    tables: int = 2
    events: int = 1_000
    """Changes in all tables together; what is read by a backfill comes in addition."""
    rows: int = 20
    """Rows that a table has before the stream begins: they come by a backfill only."""
    rounds: int = 5
    """Parts in which the stream is sent; a round is two minutes of the source's time."""
    seed: int = 999
    source_type: SourceType = SourceType.MYSQL
    format: CdcFormat = CdcFormat.AVRO
    gzip: bool = False
    """JSON files only."""
    bare_methods: bool = False
    """Read methods are `cdc` and `backfill`: nothing says which database it was."""
    features: frozenset[Feature] = CALM
    start: datetime | None = None
    """When the stream begins; without it, some minute of 2024 that depends on the seed."""
    file_events: int = 500
    """A file is full with so many events."""
    topic_prefix: str = "shop"
    """Debezium: what all names of topics begin with."""
    with_schema: bool = False
    """Debezium: each message carries its schema."""

    def __post_init__(self) -> None:
        self._need(self.tables >= 1, "tables", "at least 1")
        self._need(self.events >= 0, "events", "0 or more")
        self._need(self.rows >= 0, "rows", "0 or more")
        self._need(self.file_events >= 2, "file_events", "at least 2")
        least = _ROUNDS_NEEDED if self.features & _NEED_ROUNDS else 1
        self._need(self.rounds >= least, "rounds", f"at least {least}")
        self._need(not self.gzip or self.format.is_json_file, "gzip", "it with json only")
        aware = self.start is None or self.start.tzinfo is not None
        self._need(aware and self.start_millis > 0, "start", "a time with a zone, after 1970")
        self._need(bool(self.topic_prefix), "topic_prefix", "a name")

    def has(self, feature: Feature) -> bool:
        """Whether this happens in the stream."""
        return feature in self.features

    @property
    def is_debezium(self) -> bool:
        """Whether it is a stream of messages, not of files."""
        return self.format is CdcFormat.DEBEZIUM

    @property
    def start_millis(self) -> int:
        """When the stream begins, in milliseconds since 1970: always a full minute."""
        return int((self.start or some_start(self.seed)).timestamp()) // 60 * 60_000

    def events_in(self, number: int) -> int:
        """How many changes a round has; rounds count from 0."""
        first, last = (self.events * r // self.rounds for r in (number, number + 1))
        return last - first


def parse_features(names: Iterable[str]) -> frozenset[Feature]:
    """Features by the names a person types; an unknown one is a ConfigError."""
    return frozenset(chosen(names, Feature, what="feature of a stream of changes", where="--with"))


# Kinds of column, and what becomes of each on its way through a stream.


class Carried(StrEnum):
    """What a stream says about a value; Datastream calls these unified types."""

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


class Kind(StrEnum):
    """What a database calls a column, more or less."""

    carried: Carried
    """What most streams say about it."""

    def __new__(cls, name: str, carried: Carried) -> Self:
        """A kind by its name."""
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
    """Without a zone."""
    TIMESTAMP = "timestamp", Carried.TIMESTAMP_TZ
    TIME = "time", Carried.TIME
    JSON = "json", Carried.JSON
    BINARY = "binary", Carried.BYTES


# the real files know no dates of MySQL, and its bytes as text in hexadecimal only
_IN_FILES = {
    SourceType.MYSQL: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.TIMESTAMP,
        Kind.DATETIME: Carried.TIMESTAMP,
        Kind.TIMESTAMP: Carried.TIMESTAMP,
        Kind.TIME: Carried.TIME_INTERVAL,
        Kind.BINARY: Carried.STRING,
    },
    SourceType.POSTGRESQL: {Kind.DATETIME: Carried.TIMESTAMP},
    SourceType.ORACLE: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.DATETIME,
        Kind.DATETIME: Carried.TIMESTAMP,
        Kind.TIME: Carried.STRING,
        Kind.JSON: Carried.STRING,
        Kind.BINARY: Carried.STRING,
    },
    SourceType.SQLSERVER: {Kind.NUMBER: Carried.DECIMAL, Kind.JSON: Carried.STRING},
}

_IN_MESSAGES = {
    SourceType.MYSQL: {Kind.NUMBER: Carried.DECIMAL},
    SourceType.POSTGRESQL: {},
    SourceType.ORACLE: {
        Kind.BOOL: Carried.INTEGER,
        Kind.DATE: Carried.DATETIME,
        Kind.TIME: Carried.STRING,
        Kind.JSON: Carried.STRING,
    },
    SourceType.SQLSERVER: {Kind.NUMBER: Carried.DECIMAL, Kind.JSON: Carried.STRING},
}


def carried_as(kind: Kind, source_type: SourceType, format: CdcFormat) -> Carried:
    """What a stream of this format says about such a column of this database."""
    special = _IN_MESSAGES if format is CdcFormat.DEBEZIUM else _IN_FILES
    return special[source_type].get(kind, kind.carried)


def carry(value: Any, carried: Carried) -> Any:
    """A value of the database as the Python value that a faithful reader of the stream has."""
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
    """A carried value as JSON that is the same wherever it was read from.

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
    """A day as the number of days since 1970."""
    return (value - EPOCH.date()).days


def micros(value: timedelta) -> int:
    """A span of time in microseconds."""
    return value // timedelta(microseconds=1)


def since_midnight(value: time) -> int:
    """A time of day in microseconds."""
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def interval_text(value: timedelta) -> str:
    """`-838:59:59.000000`: hours may be more than a day has, and below zero."""
    count = abs(micros(value))
    minutes, rest = divmod(count // 1_000_000, 60)
    sign = "-" if value < timedelta() else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{rest:02}.{count % 1_000_000:06}"


Row = dict[str, Any]
"""Carried values by the names of their columns."""

Key = tuple[Any, ...]
"""The values of the key's columns; null is equal to null."""

_DATABASE = {
    SourceType.POSTGRESQL: "shop",
    SourceType.ORACLE: "XE",
    SourceType.SQLSERVER: "shop",
}


class Claim(NamedTuple):
    """A table's names as the stream tells them; empty is what it does not tell."""

    database: str
    schema: str
    table: str

    @property
    def text(self) -> str:
        """`["shop","","orders"]`."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class CdcColumn:
    """One column."""

    name: str
    kind: Kind
    carried: Carried
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    nulls: float = 0.1
    """How many of its values are null, if they may be."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One table between two changes of its columns."""

    source_type: SourceType
    format: CdcFormat
    namespace: str
    """MySQL's database, or the schema in all others."""
    table: str
    key: tuple[str, ...]
    """The names of the key's columns as the rows have them; empty: no key."""
    stated_key: tuple[str, ...]
    """The same names as the events state them."""
    columns: tuple[CdcColumn, ...]

    @property
    def database(self) -> str:
        """The database's name."""
        return _DATABASE.get(self.source_type, self.namespace)

    @property
    def schema(self) -> str:
        """The schema's name; MySQL has none."""
        return "" if self.source_type is SourceType.MYSQL else self.namespace

    @property
    def claim(self) -> Claim:
        """The names that the stream tells: files from PostgreSQL do not name the database."""
        told = self.format is CdcFormat.DEBEZIUM or self.source_type is not SourceType.POSTGRESQL
        return Claim(self.database if told else "", self.schema, self.table)

    @property
    def object(self) -> str:
        """The name of its folder."""
        return f"{self.namespace}_{self.table}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> CdcColumn:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def key_of(self, row: Row) -> Key:
        """The key of a row."""
        return tuple(row[name] for name in self.key)

    def with_columns(self, columns: Iterable[CdcColumn]) -> Shape:
        """The table after it got or lost a column."""
        return replace(self, columns=tuple(columns))


def avro_name(name: str) -> str:
    """A name as Avro allows it."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{safe}" if safe[:1].isdigit() else safe


# Throws of repeatable dice, one after the other: the same seed and purpose, the same throws.

T = TypeVar("T")

_GRAIN = 1 << 32


class Dice:
    """Each purpose has dice of its own, so that a new kind of draw does not shift the others."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._seed = seed_for(seed, purpose)
        self._thrown = 0

    def bits(self) -> int:
        """64 even bits."""
        self._thrown += 1
        return roll(self._seed, self._thrown)

    def below(self, limit: int) -> int:
        """A number from 0 up to the limit, which itself never comes."""
        if limit <= _GRAIN:
            return self.bits() % limit
        return (self.bits() << 64 | self.bits()) % limit

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of all cases."""
        return self.bits() % _GRAIN < share * _GRAIN

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], share: float, *, least: int = 1) -> list[T]:
        """About this share of them in a random order, and at least so many if there are."""
        count = min(len(items), max(least, round(share * len(items))))
        return [items[i] for i in sample(self.bits(), len(items), count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of them in a random order."""
        return self.some(items, 1.0)
