"""The simulated database: its tables, column values, log positions and rows."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ruamel.yaml import YAML

from distributary_lab.simulate.cdc.shapes import (
    EPOCH,
    Carried,
    CdcColumn,
    CdcFormat,
    CdcPlan,
    ColumnKind,
    Dice,
    Feature,
    Key,
    Row,
    SourceShape,
    SourceType,
    carried_as,
    carry,
)
from distributary_lab.simulate.dice import roll

# Tables of the simulated database.

# by source: the namespace of most tables, a second one, and the second one under odd names
_NAMESPACES = {
    SourceType.MYSQL: ("shop", "archive", "ea-main"),
    SourceType.POSTGRESQL: ("public", "archive", "ea-main"),
    SourceType.ORACLE: ("SHOP", "ARCHIVE", "ea-main"),
    SourceType.SQLSERVER: ("dbo", "archive", "ea-main"),
}
_OFTEN_NULL = 0.85
_NUMBER_DIGITS = 20


class Template(NamedTuple):
    """An entry of `tables.yaml`: a table before its columns get the types of a database."""

    name: str
    key: str
    rest: str
    odd: str = ""
    place: str = "main"


@cache
def _templates() -> list[Template]:
    text = Path(__file__).with_name("tables.yaml").read_text("utf-8")
    return [Template(**entry) for entry in YAML(typ="safe", pure=True).load(text)]


_ADDED = ("int", "text", "decimal(10,2)", "timestamp", "bool", "date", "json", "bigint", "double")


def shapes(plan: CdcPlan) -> Iterator[SourceShape]:
    """Yield the tables of a plan; a larger plan has the same tables, and more."""
    for number in range(plan.tables):
        repetition, index = divmod(number, len(_templates()))
        yield _shape(_templates()[index], plan, repetition)


def added_column(shape: SourceShape, number: int) -> CdcColumn:
    """Return a column that is added to a table later."""
    text = f"added_{number} {_ADDED[number % len(_ADDED)]}?"
    return _column(text, shape.source_type, shape.format)


def _shape(template: Template, plan: CdcPlan, repetition: int) -> SourceShape:
    """Build a table from its template; `repetition` counts earlier uses of the template."""
    odd, source = plan.has(Feature.ODD_NAMES), plan.source_type
    main, other, strange = _NAMESPACES[source]
    name = template.odd if odd and template.odd else template.name
    keys = [_column(text, source, plan.format) for text in _split(template.key)]
    rest = [_column(text, source, plan.format, odd=odd) for text in _split(template.rest)]
    names = tuple(column.name for column in keys)
    in_capitals = plan.has(Feature.KEY_CASE) and source is SourceType.SQLSERVER
    return SourceShape(
        source_type=source,
        format=plan.format,
        namespace=main if template.place == "main" else strange if odd else other,
        table=_cased(f"{name}_{repetition + 1}" if repetition else name, source),
        key=names,
        stated_key=tuple(name.upper() for name in names) if in_capitals else names,
        columns=(*keys, *rest),
    )


def _split(text: str) -> list[str]:
    return text.split(", ") if text else []


def _column(
    text: str, source_type: SourceType, format: CdcFormat, *, odd: bool = False
) -> CdcColumn:
    """Parse the text of a column, such as `price decimal(10,2)?`."""
    name, _, type = text.rpartition(" ")
    # names in Avro files have no spaces
    if not odd or format is CdcFormat.AVRO:
        name = name.replace(" ", "_")
    word, _, digits = type.rstrip("?)").partition("(")
    if digits == "wide":
        digits = "14,4" if format.is_json_file else "30,10"
    precision, _, scale = digits.partition(",")
    kind = ColumnKind[word.upper()]
    return CdcColumn(
        name=_cased(name, source_type),
        kind=kind,
        carried=carried_as(kind, source_type, format),
        nullable=text.endswith("?"),
        precision=_NUMBER_DIGITS if kind is ColumnKind.NUMBER else int(precision or 0),
        scale=int(scale or 0),
        nulls=_OFTEN_NULL if text.endswith("??") else 0.1,
    )


def _cased(name: str, source_type: SourceType) -> str:
    """Return the name in capitals for Oracle, unless it needs quotes."""
    plain = name.replace("_", "a").isalnum()
    return name.upper() if source_type is SourceType.ORACLE and plain else name


# Values of columns: ordinary ones, and sometimes one at the limit of its type.

_FIRST_DAY = date(1950, 1, 1)
_DAYS = 40_000
_KEY_DAY = date(2015, 1, 1)
_EDGE = 0.04
_EXACT_DIGITS = 15
"""The number of digits that a decimal keeps as a double, which JSON readers convert it to."""
_ZONES = (timedelta(), timedelta(hours=1), timedelta(hours=5, minutes=30), timedelta(hours=12))
_LONGEST_TIME = timedelta(hours=838, minutes=59, seconds=59)

_WORDS = (
    "table chair lamp Müsli café crème jalapeño 🌶 茶 桜通り Łucja Żak Ольга नीला "
    'O\'Brien "quoted" back\\slash per%cent semi;colon naïve ΣΊΣΥΦΟΣ עברית'
).split()
_STRANGE = (
    "",
    " ",
    "line\nbreak",
    "tab\there",
    "\u2028",
    "null",
    "NULL",
    "--",
    "👩‍👩‍👧‍👦",
    "\u200f",
)
_STATES = ("new", "paid", "packed", "shipped", "returned")
_TAGS: tuple[Any, ...] = ("vip", "gift", None, "déjà vu", 7, 1.5, True, [], {"deep": {"er": "🎁"}})


def draw(column: CdcColumn, dice: Dice, *, shape: SourceShape) -> Any:
    """Draw a value for a column; None where it may be null."""
    if column.nullable and column.name not in shape.key and dice.chance(column.nulls):
        return None
    value = _value(column, dice, shape.format)
    # Oracle stores an empty text as null
    if value == "" and shape.source_type is SourceType.ORACLE:
        return None if column.nullable else "-"
    return carry(value, column.carried)


def key_value(column: CdcColumn, number: int) -> Any:
    """Return a value for a column of a key, a different one for every number."""
    match column.kind:
        case ColumnKind.BIGINT:
            # beyond 32 bits, and sometimes negative
            value: Any = (number + 1) * 5_000_000_029 * (-1 if number % 5 == 3 else 1)
        case ColumnKind.TEXT:
            value = f"{_WORDS[number % len(_WORDS)]} {number}"
        case ColumnKind.UUID:
            value = str(uuid.UUID(int=roll(1, number) << 64 | number))
        case ColumnKind.DATE:
            value = _KEY_DAY + timedelta(days=number)
        case _:
            value = 1 + number
    return carry(value, column.carried)


def _value(column: CdcColumn, dice: Dice, format: CdcFormat) -> Any:
    edge = dice.chance(_EDGE)
    match column.kind:
        case ColumnKind.INT:
            return dice.pick((-(2**31), 2**31 - 1, 0)) if edge else dice.below(10_000)
        case ColumnKind.BIGINT:
            return dice.pick((-(2**63), 2**63 - 1, 0)) if edge else dice.below(10**12)
        case ColumnKind.NUMBER:
            return Decimal(_draw_digits(20, dice, column.carried, format))
        case ColumnKind.DECIMAL:
            count = _draw_digits(column.precision, dice, column.carried, format)
            return Decimal(dice.pick((-1, 1, 1))) * Decimal(count).scaleb(-column.scale)
        case ColumnKind.FLOAT:
            # quarters are exact in 32 bits, so that readers can compare values
            return (dice.below(80_000) - 20_000) / 4
        case ColumnKind.DOUBLE:
            return dice.pick((0.1, 1e300, -1e-300)) if edge else dice.below(10**9) / 1_000
        case ColumnKind.BOOL:
            return dice.chance(0.5)
        case ColumnKind.BINARY:
            return dice.bits().to_bytes(8, "big") * dice.below(4) + b"\x00\xff"
        case ColumnKind.JSON:
            return _document(dice)
        case ColumnKind.DATE | ColumnKind.DATETIME | ColumnKind.TIMESTAMP | ColumnKind.TIME:
            return _time(column, dice, edge)
        case _:
            return _text(column.kind, dice, edge)


def _draw_digits(precision: int, dice: Dice, carried: Carried, format: CdcFormat) -> int:
    """Draw a whole number with up to `precision` digits, mostly with far fewer."""
    inexact = format.is_json_file and carried is Carried.DECIMAL
    most = min(precision, _EXACT_DIGITS) if inexact else precision
    return dice.below(10 ** (most if dice.chance(0.2) else min(most, 6)))


def _time(column: CdcColumn, dice: Dice, edge: bool) -> Any:
    day = _FIRST_DAY + timedelta(days=dice.below(_DAYS))
    within = timedelta(microseconds=dice.below(86_400_000_000))
    match column.kind:
        case ColumnKind.DATE:
            return day
        case ColumnKind.TIME if edge and column.carried is Carried.TIME_INTERVAL:
            return dice.pick((-_LONGEST_TIME, _LONGEST_TIME, timedelta(hours=-1)))
        case ColumnKind.TIME:
            return within
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) + within
    if edge:
        moment = EPOCH
    if column.carried is Carried.TIMESTAMP_TZ:
        return moment.astimezone(timezone(dice.pick(_ZONES)))
    return moment


def _text(kind: ColumnKind, dice: Dice, edge: bool) -> str:
    if kind is ColumnKind.ENUM:
        return dice.pick(_STATES)
    if kind is ColumnKind.UUID:
        return str(uuid.UUID(int=dice.bits() << 64 | dice.bits()))
    if kind is ColumnKind.LONG_TEXT:
        return f"{dice.pick(_WORDS)} {dice.below(10**6)} " * (40 + dice.below(40))
    if edge:
        return dice.pick(_STRANGE)
    return f"{dice.pick(_WORDS)} {dice.pick(_WORDS)} {dice.below(1_000)}"


def _document(dice: Dice) -> Any:
    """Draw a JSON document, never a bare text or null, which JSON files could not distinguish."""
    if dice.chance(0.15):
        return [dice.below(100), dice.pick(_WORDS), None]
    document: dict[str, Any] = {"id": dice.below(1_000), "name": dice.pick(_WORDS)}
    for number in range(dice.below(3)):
        document[f"tag {number}"] = dice.pick(_TAGS)
    return document


# Positions in the log of the source, in the format of each database.


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the source's log."""

    numbers: tuple[int, int, int]
    """The position as numbers, which sort in the order of the source."""
    event_fields: dict[str, Any]
    """The position in the fields that the source's events have."""


class DatabaseLog(ABC):
    """The log of a database, which only grows."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._transaction = 7_000

    def begin(self) -> None:
        """Begin another transaction."""
        self._transaction += 1 + self._dice.below(5)

    @abstractmethod
    def next(self) -> Position:
        """Return the position of the next change."""

    def snapshot(self, number: int) -> Position:
        """Return the position that rows of a backfill carry; backfills are numbered from 0."""
        return Position((0, 0, 0), {})

    def roll_over(self) -> None:
        """Continue in a new file, where the log has files."""
        return None


class _BinLog(DatabaseLog):
    """MySQL's log: numbered files, and bytes in them. Above 999999, the number has 7 digits."""

    def __init__(self, dice: Dice, *, first_file: int) -> None:
        super().__init__(dice)
        self._file = first_file
        self._byte = 157

    def next(self) -> Position:
        self._byte += 200 + self._dice.below(700)
        fields = {"log_file": f"mysql-bin.{self._file:06}", "log_position": self._byte}
        return Position((self._file, self._byte, 0), fields)

    def snapshot(self, number: int) -> Position:
        fields = {"log_file": None, "log_position": None}
        return Position((0, 0, 0), fields if number % 2 else {"log_file": "", "log_position": 0})

    def roll_over(self) -> None:
        self._file += 1
        self._byte = 157


class _WriteAheadLog(DatabaseLog):
    """PostgreSQL's log: one number, written as two in hexadecimal: `16/2A50F3`."""

    # close to the end of the lower half: as texts, F/FFFFFF00 and 10/1A0 sort wrongly
    _byte = (0x0F << 32) + 0xFFFF_0000

    def next(self) -> Position:
        self._byte += 0x40 + self._dice.below(0x400)
        fields = {"lsn": f"{self._byte >> 32:X}/{self._byte & 0xFFFF_FFFF:X}"}
        return Position((self._byte, 0, 0), fields | {"tx_id": self._transaction})


class _RedoLog(DatabaseLog):
    """Oracle's log: the SCN of a transaction, the record in the redo log, the row in the record."""

    _scn = 1_706_664
    _sequence, _block, _offset, _row = 0x0073, 0x0A4E4C, 0x10, 0

    def begin(self) -> None:
        super().begin()
        self._scn += 1 + self._dice.below(40)

    def next(self) -> Position:
        # the next row is in the same record or in another one
        if self._dice.chance(0.3):
            self._row += 1
        else:
            self._row = 0
            self._offset += 0x10 + self._dice.below(0x800)
            self._block += self._offset >> 16
            self._offset &= 0xFFFF
        place = self._sequence << 48 | self._block << 16 | self._offset
        record = f"0x{self._sequence:06x}.{self._block:08x}.{self._offset:04x}"
        fields = {"scn": self._scn, "ssn": self._row, "rs_id": record}
        tx = {"tx_id": f"{self._transaction:016x}"}
        return Position((self._scn, place, self._row), fields | tx)

    def snapshot(self, number: int) -> Position:
        return Position((self._scn, 0, 0), {"scn": self._scn, "ssn": 0, "rs_id": ""})


class _TransactionLog(DatabaseLog):
    """SQL Server's log: file, block and slot in hexadecimal, `00000025:00000728:0003`."""

    _file, _block, _slot = 0x25, 0x728, 0

    def next(self) -> Position:
        self._slot += 1 + self._dice.below(3)
        if self._slot > 0x20:
            self._slot = 1
            self._block += 8 + self._dice.below(0x100)
        if self._block > 0xFFFF:
            self._file, self._block = self._file + 1, 0x10
        lsn = f"{self._file:08x}:{self._block:08x}:{self._slot:04x}"
        numbers = (self._file, self._block, self._slot)
        return Position(numbers, {"lsn": lsn, "tx_id": str(self._transaction)})


def open_log(plan: CdcPlan) -> DatabaseLog:
    """Open the log of the plan's database."""
    dice = Dice(plan.seed, "log")
    match plan.source_type:
        case SourceType.MYSQL:
            return _BinLog(dice, first_file=999_999 if plan.has(Feature.LOG_ROLLOVER) else 131)
        case SourceType.POSTGRESQL:
            return _WriteAheadLog(dice)
        case SourceType.ORACLE:
            return _RedoLog(dice)
        case SourceType.SQLSERVER:
            return _TransactionLog(dice)


# Changes of rows, and the order that decides which change of a row is the last.

Backfill = Literal["before_cdc", "by_timestamp"]
"""Whether a backfilled row loses against any change, or against later ones only."""


class Op(StrEnum):
    """The kind of an event."""

    READ = "read"
    """A backfill read the row."""
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    KEY_DELETE = "key_delete"
    """The first half of a change of key: the row leaves its old key."""
    KEY_INSERT = "key_insert"
    """The second half: the row appears under its new key."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One event of the source."""

    shape: SourceShape
    op: Op
    row: Row
    """The row after the change or, if it was deleted, before it."""
    before: Row | None
    """The row before the change."""
    serial: int
    """Number of the row in its table, which stays when its key changes."""
    ts: int
    """The source's time in milliseconds since 1970, in the precision of the database."""
    filed: int
    """The time that selects the folder: of the change, or of the start of its backfill."""
    position: Position
    late: bool = False
    """Whether the event must arrive after later changes of the row."""
    committed: int = 0
    """Number of earlier events of the table: the order of commits, which no event carries."""

    @property
    def deleted(self) -> bool:
        """Return true when the row is no longer under its key."""
        return self.op in (Op.DELETE, Op.KEY_DELETE)

    @property
    def key(self) -> Key:
        """Return the key of the row; in a table without a key, its serial number."""
        return self.shape.key_of(self.row) if self.shape.key else (self.serial,)

    def order(self, backfill: Backfill) -> tuple[int, ...]:
        """Return the position of the event in the order of the source."""
        if backfill == "before_cdc" and self.op is not Op.READ:
            return (1, self.committed)
        return (0, self.ts, *self.position.numbers, int(self.op is not Op.KEY_DELETE))


Unit = tuple[SourceChange, ...]
"""Events that are always in the same file: one, or the two halves of a change of key."""


_BACK_FROM_THE_DEAD = 0.25
_SECOND_PARTS = 3
_NULL_KEY_EVERY = 4
_MOST_UPDATED = 3


class LiveTable:
    """A table with its rows, by a serial number that stays when the key of a row changes."""

    def __init__(self, shape: SourceShape, *, born: int, null_keys: bool) -> None:
        self.shape = shape
        self.born = born
        """The round in which the table appears."""
        self.rows: dict[int, Row] = {}
        self.columns: dict[str, CdcColumn] = {c.name: c for c in shape.columns}
        """All columns that the table ever had."""
        self.events = 0
        """Number of events of the table."""
        self.added: list[str] = []
        self.dropped: list[str] = []
        self._last: dict[Backfill, dict[Key, SourceChange]] = {"before_cdc": {}, "by_timestamp": {}}
        self._null_keys = null_keys and any(shape.column(name).nullable for name in shape.key)
        self._by_key: dict[Key, int] = {}
        self._live: list[int] = []
        self._at: dict[int, int] = {}
        self._dead: list[Key] = []
        self._serial = 0
        self._numbers = 0

    def put(self, change: SourceChange) -> None:
        """Record an event: of each key, the last one in the order of the source is kept."""
        self.events += 1
        for backfill, last in self._last.items():
            newest = last.get(change.key)
            if newest is None or change.order(backfill) > newest.order(backfill):
                last[change.key] = change

    def left(self, backfill: Backfill) -> list[Row]:
        """Return the rows that remain after all events."""
        return [change.row for change in self._last[backfill].values() if not change.deleted]

    def any_row(self, dice: Dice) -> int | None:
        """Draw a row; None if the table is empty."""
        return dice.pick(self._live) if self._live else None

    def insert(self, dice: Dice, *, key: Key | None = None) -> int:
        """Insert a row under this key or another free one; return its serial number."""
        row = dict(zip(self.shape.key, key or self.free_key(dice), strict=True))
        free = [column for column in self.shape.columns if column.name not in row]
        row |= {column.name: draw(column, dice, shape=self.shape) for column in free}
        self._serial += 1
        self._place(self._serial, row)
        return self._serial

    def update(self, serial: int, dice: Dice) -> Row:
        """Change some columns of a row outside its key; return the row before."""
        before = self.rows[serial]
        free = [column for column in self.shape.columns if column.name not in self.shape.key]
        chosen = dice.some(free, 0.0, least=1 + dice.below(_MOST_UPDATED))
        changed = {column.name: draw(column, dice, shape=self.shape) for column in chosen}
        # the updated row has the current columns, also when columns came or went since
        self.rows[serial] = {name: before.get(name) for name in self.shape.names} | changed
        return before

    def move(self, serial: int, key: Key) -> Row:
        """Give a row another key; return the row before."""
        before = self.remove(serial)
        chosen = dict(zip(self.shape.key, key, strict=True))
        self._place(serial, {name: before.get(name) for name in self.shape.names} | chosen)
        return before

    def remove(self, serial: int) -> Row:
        """Delete a row and return it."""
        row = self.rows.pop(serial)
        at, last = self._at.pop(serial), self._live.pop()
        if last != serial:
            self._live[at], self._at[last] = last, at
        if self.shape.key:
            key = self.shape.key_of(row)
            del self._by_key[key]
            self._dead.append(key)
        return row

    def free_key(self, dice: Dice) -> Key:
        """Return a key that no row has: a new one, or the key of a deleted row."""
        if self._dead and dice.chance(_BACK_FROM_THE_DEAD):
            key = self._dead.pop(dice.below(len(self._dead)))
            if key not in self._by_key:
                return key
        if not self.shape.key:
            return ()
        return self._new_key()

    def add_column(self, number: int) -> None:
        """Add a column to the table."""
        column = added_column(self.shape, number)
        self.shape = self.shape.with_columns((*self.shape.columns, column))
        self.columns[column.name] = column
        self.added.append(column.name)

    def drop_column(self, dice: Dice) -> bool:
        """Drop a nullable column, if another column remains; return true if one was dropped."""
        free = [c.name for c in self.shape.columns if c.nullable and c.name not in self.shape.key]
        others = len(self.shape.columns) - len(self.shape.key)
        if not free or others < 2:
            return False
        name = dice.pick(free)
        self.shape = self.shape.with_columns(c for c in self.shape.columns if c.name != name)
        self.dropped.append(name)
        return True

    def _place(self, serial: int, row: Row) -> None:
        self.rows[serial] = row
        self._at[serial] = len(self._live)
        self._live.append(serial)
        if self.shape.key:
            self._by_key[self.shape.key_of(row)] = serial

    def _new_key(self) -> Key:
        number, columns = self._numbers, [self.shape.column(name) for name in self.shape.key]
        self._numbers += 1
        if len(columns) == 1:
            return (key_value(columns[0], number),)
        # the first part repeats: only both parts together are unique
        first, second = divmod(number, _SECOND_PARTS)
        key = (key_value(columns[0], first), key_value(columns[1], second))
        if self._null_keys and number % _NULL_KEY_EVERY == 0:
            nulled = tuple(
                None if column.nullable else value
                for column, value in zip(columns, key, strict=True)
            )
            if nulled not in self._by_key:
                return nulled
        return key
