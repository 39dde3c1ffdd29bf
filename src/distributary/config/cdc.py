"""The settings of change data."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from distributary.config.base import Conflict, Duration, Section, Text, Texts
from distributary.config.database import SlotsUrl
from distributary.model.rules.expectation import any_fits

Carrier = Literal["files", "messages"]
"""The carrier of change events: files that another system writes, or one event per record."""
CARRIERS: Mapping[str, tuple[Carrier, ...]] = {
    "datastream": ("files",),
    "debezium": ("messages",),
    "maxwell": ("messages", "files"),
    "canal": ("messages",),
    "dms": ("files",),
}
"""The carrier of each format of change events."""


_SECTIONS = ("dms",)
"""Formats with settings of their own, in a section of their name."""


class DmsOptions(NamedTuple):
    """The settings of AWS DMS, as its decoder takes them."""

    keys: tuple[tuple[str, tuple[str, ...]], ...]
    """Columns of the key, by pattern of `schema.table`."""
    timestamp: str
    sequence: str


class DmsConfig(Section):
    """Settings for files of AWS DMS: facts about tables that the files do not contain."""

    keys: Mapping[Text, Texts] = Field(
        default_factory=dict, examples=[{"shop.orders": ["id"], "shop.*": ["id"]}]
    )
    """Columns of the primary key, by `schema.table` with the wildcards `*` and `?`. The first
    pattern that fits counts; a table without a key has a log only."""
    timestamp: Text | None = Field(default=None, examples=["dms_timestamp"])
    """Column with the time of the change (`TimestampColumnName` of the endpoint)."""
    sequence: Text | None = Field(default=None, examples=["transact_id"])
    """Column with a whole number that orders the changes, such as `AR_H_CHANGE_SEQ`. Without it the
    names of the files and the rows in them give the order."""

    @property
    def options(self) -> DmsOptions:
        """Return the settings in a form that decoders can be cached by."""
        keys = tuple((pattern, tuple(columns)) for pattern, columns in self.keys.items())
        return DmsOptions(keys, self.timestamp or "", self.sequence or "")


class TransactionsConfig(Section):
    """Settings by which the batches of a stream of Kafka end with whole transactions."""

    whole: Literal["stated", "always", "never"] = "stated"
    """stated: where Debezium writes the ends of transactions to a topic that is read
    (`provide.transaction.metadata`), each batch has whole transactions. always: also by
    PostgreSQL's transaction numbers and by GTIDs, where a transaction ends when a later one begins.
    never: a batch may end within a transaction."""
    wait: Duration = Field(default=timedelta(minutes=1), examples=["1m"])
    """How long the events of a transaction are held back if its end does not come."""
    max_records: int = Field(default=1_000_000, ge=1)
    """The size to which a batch grows for one large transaction. A larger one is cut, with a
    warning."""


class MergeConfig(Protocol):
    """The settings by which tables are merged from a log, whatever its records are."""

    @property
    def log(self) -> bool:
        """Return whether the log is kept."""

    @property
    def deletes(self) -> Literal["hard", "soft"]:
        """Return what becomes of a deleted row."""

    @property
    def deletes_as(self) -> Literal["rewrite", "vectors"]:
        """Return how rows leave a large file."""

    @property
    def evolution(self) -> Literal["mergeSchema", "overwriteSchema", "none"]:
        """Return what becomes of the table when its log gets columns."""

    @property
    def keep_tombstones(self) -> timedelta:
        """Return how long deleted rows are remembered."""

    @property
    def history(self) -> bool:
        """Return whether versions of rows are kept."""

    def begins_versions(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table whose changes begin versions; none if each record does."""


def _fits(pattern: str, table: str) -> bool:
    return any_fits((pattern,), [table])


class Cdc(Section):
    """Settings that turn change events into a log of changes and a table of current rows."""

    format: Literal["datastream", "debezium", "maxwell", "canal", "dms"]
    """Format of the change events."""
    source_type: Text | None = Field(default=None, examples=["postgresql"])
    """Kind of database (mysql, postgresql, oracle, sqlserver), where the events do not name it."""
    source_url: SlotsUrl | None = Field(
        default=None, examples=["postgresql://reader:${env:SHOP_PASSWORD}@db.example.com/shop"]
    )
    """Address of the source database, if it is PostgreSQL. A run asks it every 30 seconds how much
    log its replication slots hold back; any user may ask. The password may also stand in the
    variable PGPASSWORD."""
    dms: DmsConfig | None = None
    """Settings for files of AWS DMS."""
    transactions: TransactionsConfig = Field(default_factory=TransactionsConfig)
    """How batches end with the transactions of the source."""
    log: bool = True
    """Keep every event unchanged in `<table>_log`. `rebuild` and `verify` need it."""
    deletes: Literal["hard", "soft"] = "hard"
    """hard: a deleted row is removed; soft: the row stays and is marked as deleted."""
    deletes_as: Literal["rewrite", "vectors"] = "rewrite"
    """How a deleted or changed row is removed from a large file of the table of current rows.
    rewrite: the file is written again without the row; vectors: a deletion vector, a small file
    beside it, marks the row. Readers of the table must then support deletion vectors."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """before_cdc: a backfilled row loses against any change of the same row; by_timestamp: the
    later of the two wins, so that a new backfill can repair lost rows."""
    evolution: Literal["mergeSchema", "overwriteSchema", "none"] = "mergeSchema"
    """What to do when the columns of a source table change. mergeSchema: add new columns;
    overwriteSchema: keep the new columns only; none: leave the table unchanged."""
    keep_tombstones: Duration = Field(default=timedelta(days=7), examples=["7d"])
    """How long deleted rows are remembered, so that a late, older change does not bring a row
    back."""
    tombstones: Literal["skip", "delete"] = "skip"
    """Meaning of a Kafka message with a key and no value. delete: the row with this key was
    deleted. Use it for flattened Debezium events, which by default report deletes in no other way;
    tables are then named after the topic. skip: the message is ignored. After events with an
    envelope the message is always ignored."""
    history: bool = False
    """Also keep every version of a row in `<table>_history`, with the times between which it was
    valid."""

    history_columns: Mapping[Text, Annotated[Texts, Field(min_length=1)]] = Field(
        default_factory=dict, examples=[{"shop_customer": ["tier", "country"]}]
    )
    """Columns of the history that begin a version, by tables with the wildcards * and ?: an event
    that changes none of them belongs to the current version. The first pattern that fits a table
    counts; in other tables each event begins a version."""

    def begins_versions(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table whose changes begin versions; none if each event does."""
        found = (names for pattern, names in self.history_columns.items() if _fits(pattern, table))
        return next(found, ())

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that belong to another format, or that need a missing setting."""
        if self.history_columns and not self.history:
            yield ("history_columns",), "needs history: true"
        if self.history_columns and not self.log:
            yield ("history_columns",), "needs log: true: late events are put in place from the log"
        for name in _SECTIONS:
            if name != self.format and getattr(self, name) is not None:
                yield (name,), f"has no effect here: it is for format: {name}"

    @property
    def options(self) -> Hashable:
        """Return the settings that only this format has; None without any."""
        section = getattr(self, self.format) if self.format in _SECTIONS else None
        return None if section is None else section.options
