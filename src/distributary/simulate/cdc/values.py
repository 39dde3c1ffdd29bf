"""Values of columns: ordinary ones, and now and then one at the edge of what its type allows."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.kinds import Carried, Kind, carry
from distributary.simulate.cdc.plan import CdcFormat, SourceType
from distributary.simulate.cdc.shapes import CdcColumn, Shape
from distributary.simulate.dice import roll

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1950, 1, 1)
_DAYS = 40_000
_KEY_DAY = date(2015, 1, 1)
_EDGE = 0.04
_EXACT_DIGITS = 15
"""Every decimal with so many digits survives being a double, as readers of JSON make of it."""
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


def draw(column: CdcColumn, dice: Dice, *, shape: Shape) -> Any:
    """A value for a column; None where it may be null."""
    if column.nullable and column.name not in shape.key and dice.chance(column.nulls):
        return None
    value = _value(column, dice, shape.format)
    # to Oracle, an empty text is null
    if value == "" and shape.source_type is SourceType.ORACLE:
        return None if column.nullable else "-"
    return carry(value, column.carried)


def key_value(column: CdcColumn, number: int) -> Any:
    """A value for a column of a key: another one for every number."""
    match column.kind:
        case Kind.BIGINT:
            # beyond 32 bits, and some of them below zero
            value: Any = (number + 1) * 5_000_000_029 * (-1 if number % 5 == 3 else 1)
        case Kind.TEXT:
            value = f"{_WORDS[number % len(_WORDS)]} {number}"
        case Kind.UUID:
            value = str(uuid.UUID(int=roll(1, number) << 64 | number))
        case Kind.DATE:
            value = _KEY_DAY + timedelta(days=number)
        case _:
            value = 1 + number
    return carry(value, column.carried)


def _value(column: CdcColumn, dice: Dice, format: CdcFormat) -> Any:
    edge = dice.chance(_EDGE)
    match column.kind:
        case Kind.INT:
            return dice.pick((-(2**31), 2**31 - 1, 0)) if edge else dice.below(10_000)
        case Kind.BIGINT:
            return dice.pick((-(2**63), 2**63 - 1, 0)) if edge else dice.below(10**12)
        case Kind.NUMBER:
            return Decimal(_digits(20, dice, column.carried, format))
        case Kind.DECIMAL:
            count = _digits(column.precision, dice, column.carried, format)
            return Decimal(dice.pick((-1, 1, 1))) * Decimal(count).scaleb(-column.scale)
        case Kind.FLOAT:
            # quarters are exact in 32 bits, so that a reader can compare them
            return (dice.below(80_000) - 20_000) / 4
        case Kind.DOUBLE:
            return dice.pick((0.1, 1e300, -1e-300)) if edge else dice.below(10**9) / 1_000
        case Kind.BOOL:
            return dice.chance(0.5)
        case Kind.BINARY:
            return dice.bits().to_bytes(8, "big") * dice.below(4) + b"\x00\xff"
        case Kind.JSON:
            return _document(dice)
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return _time(column, dice, edge)
        case _:
            return _text(column.kind, dice, edge)


def _digits(precision: int, dice: Dice, carried: Carried, format: CdcFormat) -> int:
    """A whole number with so many digits or, mostly, far fewer."""
    inexact = format.is_json_file and carried is Carried.DECIMAL
    most = min(precision, _EXACT_DIGITS) if inexact else precision
    return dice.below(10 ** (most if dice.chance(0.2) else min(most, 6)))


def _time(column: CdcColumn, dice: Dice, edge: bool) -> Any:
    day = _FIRST_DAY + timedelta(days=dice.below(_DAYS))
    within = timedelta(microseconds=dice.below(86_400_000_000))
    match column.kind:
        case Kind.DATE:
            return day
        case Kind.TIME if edge and column.carried is Carried.TIME_INTERVAL:
            return dice.pick((-_LONGEST_TIME, _LONGEST_TIME, timedelta(hours=-1)))
        case Kind.TIME:
            return within
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) + within
    if edge:
        moment = _EPOCH
    if column.carried is Carried.TIMESTAMP_TZ:
        return moment.astimezone(timezone(dice.pick(_ZONES)))
    return moment


def _text(kind: Kind, dice: Dice, edge: bool) -> str:
    if kind is Kind.ENUM:
        return dice.pick(_STATES)
    if kind is Kind.UUID:
        return str(uuid.UUID(int=dice.bits() << 64 | dice.bits()))
    if kind is Kind.LONG_TEXT:
        return f"{dice.pick(_WORDS)} {dice.below(10**6)} " * (40 + dice.below(40))
    if edge:
        return dice.pick(_STRANGE)
    return f"{dice.pick(_WORDS)} {dice.pick(_WORDS)} {dice.below(1_000)}"


def _document(dice: Dice) -> Any:
    """Never a bare text or null: in a JSON file, these could not be told from another column."""
    if dice.chance(0.15):
        return [dice.below(100), dice.pick(_WORDS), None]
    document: dict[str, Any] = {"id": dice.below(1_000), "name": dice.pick(_WORDS)}
    for number in range(dice.below(3)):
        document[f"tag {number}"] = dice.pick(_TAGS)
    return document
