"""The protocol of a database whose changes a lake keeps.

A comparison needs a consistent snapshot and a place in the database's log. A change that the
snapshot shows may stand in the log before a change that it does not show: transactions commit in
another order than they write. So a snapshot has two places. All changes before the lower one are in
it, no change from the higher one on, and what is in between is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Protocol

import pyarrow as pa

from distributary.config.database import Address
from distributary.errors import (
    ConfigError,
    ErrorCode,
    SetupError,
    SourceError,
    SourceUnavailableError,
    missing,
)
from distributary.model.change import Slot

Position = tuple[int, int, int]
"""A place in a database's log: a, b, c of `_seq`."""


class ValueType(StrEnum):
    """The kinds of values of a database; each comes as one Arrow type."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    """As text."""
    TEXT = "text"
    JSON = "json"
    """As text."""
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """The time on a clock of no zone."""
    INSTANT = "instant"
    """A moment, in UTC."""
    TIME = "time"
    """Microseconds since midnight, which may be negative or more than a day."""
    BITS = "bits"
    """As text of 0 and 1."""
    OTHER = "other"
    """As text that is compared only with text."""
    UNKNOWN = "unknown"
    """Not read at all."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a database's table."""

    name: str
    type: ValueType
    digits: int | None = None
    """Digits behind the point, of decimals and of times."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of a database, as the database describes it."""

    database: str
    schema: str
    """Empty where the database has no schemas."""
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    """The columns of its primary key, in the key's order; empty: it has none."""

    @property
    def title(self) -> str:
        """Return the name for people."""
        return ".".join(filter(None, (self.database, self.schema, self.name)))


@dataclass(frozen=True, slots=True)
class Moment:
    """A consistent snapshot in the order of its database's log."""

    low: Position
    """Every change before it is in the snapshot."""
    high: Position
    """No change from here on is in the snapshot."""
    at_us: int
    """The database's time, in microseconds since 1970."""
    text: str
    """The lower place as the database writes it."""


class Database(Protocol):
    """A connection to a database, which reads one snapshot after the other."""

    address: str
    """The address of the database, without a password."""

    def describe(self, names: Sequence[str]) -> SourceTable:
        """Return the table with these names: database, schema, table. Raises ConfigError."""

    def open(self, patience: float) -> Moment:
        """Begin a consistent snapshot, and end the previous one."""

    def read(
        self,
        table: SourceTable,
        *,
        after: Mapping[str, object] | None = None,
        most: int | None = None,
        part: float | None = None,
    ) -> Iterator[pa.Table]:
        """Read rows of the snapshot in columns of `ARROW`, piece by piece.

        `most` rows come in the order of the key, those after a row with other values of it; `part`
        is the share of all rows that is chosen by chance.
        """

    def count(self, table: SourceTable) -> int:
        """Return how many rows the snapshot has."""

    def slots(self) -> list[Slot]:
        """Return the replication slots; empty where the database has none."""

    def close(self) -> None:
        """End the snapshot and the connection."""


ARROW: Mapping[ValueType, pa.DataType] = {
    ValueType.INTEGER: pa.int64(),
    ValueType.BOOLEAN: pa.bool_(),
    ValueType.FLOAT: pa.float32(),
    ValueType.DOUBLE: pa.float64(),
    ValueType.DECIMAL: pa.string(),
    ValueType.TEXT: pa.string(),
    ValueType.JSON: pa.string(),
    ValueType.BYTES: pa.binary(),
    ValueType.DATE: pa.date32(),
    ValueType.TIMESTAMP: pa.timestamp("us"),
    ValueType.INSTANT: pa.timestamp("us", "UTC"),
    ValueType.TIME: pa.int64(),
    ValueType.BITS: pa.string(),
    ValueType.OTHER: pa.string(),
}
"""The Arrow type in which values of each kind are read."""


# The modules of the supported databases, by kind.


_MODULES: Mapping[str, str] = {
    "postgresql": "distributary.changes.source.postgres_database",
    "mysql": "distributary.changes.source.mysql_database",
    "mariadb": "distributary.changes.source.mysql_database",
}
"""The module with a function `connect`, by the scheme of an address."""


def connect(address: Address) -> Database:
    """Connect to a database. Raises SetupError where its driver is not installed."""
    try:
        module = import_module(_MODULES[address.scheme])
    except ImportError as error:
        raise SetupError(
            "the driver of this database is not installed",
            code=ErrorCode.EXTRA_MISSING,
            where=address.shown,
            evidence=str(error),
            next_step="pip install 'distributary[source]'",
        ) from None
    opened: Callable[[Address], Database] = module.connect
    return opened(address)


@contextmanager
def failing(address: Address, errors: type[Exception]) -> Iterator[None]:
    """Turn a driver's errors into DistributaryErrors, which do not show the password."""
    try:
        yield
    except errors as error:
        text = " ".join(str(error).split())[:500]
        if address.password:
            text = text.replace(address.password, "***")
        lost = any(word in text.lower() for word in ("connect", "server has gone", "terminat"))
        made = SourceUnavailableError if lost else SourceError
        raise made(
            "the source database did not answer" if lost else "the source database refused",
            where=address.shown,
            evidence=text,
            next_step="check the address, the user's rights, and whether the server runs",
        ) from None


def not_there(title: str, known: Sequence[str], address: str) -> ConfigError:
    """Return the error for a table that the database does not have."""
    return missing("the source has no such table", title, known, where=address, command="name it")


def waiting(patience: float, *, pause: float = 0.1) -> Iterator[None]:
    """Yield repeatedly until the time is over."""
    deadline = time.monotonic() + patience
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        yield
