"""What the change-data simulator is asked to send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise

from distributary.errors import ConfigError
from distributary.simulate.dice import seed_for

_FIRST_START = datetime(2024, 1, 1, tzinfo=UTC)
_MINUTES_OF_A_YEAR = 365 * 24 * 60


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
class CdcPlan:
    """Exactly `events` changes, after every table's `rows` were read once.

    What is sent again counts in addition. A change of key is two events.
    """

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

    def _need(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                "these changes cannot be simulated",
                where=name,
                evidence=repr(getattr(self, name))[:80],
                next_step=f"use {wanted}",
            )

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
        minutes = seed_for(self.seed, "start") % _MINUTES_OF_A_YEAR
        start = self.start or _FIRST_START + timedelta(minutes=minutes)
        return int(start.timestamp()) // 60 * 60_000

    def events_in(self, number: int) -> int:
        """How many changes a round has; rounds count from 0."""
        ends = [self.events * (r + 1) // self.rounds for r in range(-1, self.rounds)]
        return [last - first for first, last in pairwise(ends)][number]


def parse_features(names: Iterable[str]) -> frozenset[Feature]:
    """Features by the names a person types; an unknown one is a ConfigError."""
    found = set()
    for name in names:
        if name not in set(Feature):
            near = get_close_matches(name, list(Feature), n=1)
            raise ConfigError(
                "there is no such feature of a stream of changes",
                where="--with",
                evidence=repr(name)[:80],
                next_step=f"did you mean {near[0]}?" if near else f"one of: {', '.join(Feature)}",
            )
        found.add(Feature(name))
    return frozenset(found)
