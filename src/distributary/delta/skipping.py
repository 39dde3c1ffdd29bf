"""Which files of a table can hold rows with given keys, by the bounds that its log keeps of them.

Whoever wrote a file may have said nothing of it, or something less exact: bounds of texts are cut,
those of times rounded, those of decimals turned into binary fractions. A row must never be missed:
when in doubt, a file can hold it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.log import DataFile

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLACK_US = 1000
"""Some writers cut the bounds of times to milliseconds."""
_SLACK_SHARE = Decimal("1e-9")
"""Of a decimal: some writers make binary fractions of their bounds."""
_EXACT = 2**53
"""Beyond it some writers round the bounds of decimals, or write the largest number they know."""
_WHOLE_TEXT = 31
"""Characters: some writers cut the bounds of longer texts."""
_UNSURE = "[\\x{E000}-\\x{10FFFF}]"
"""Characters that have another place in the order of UTF-16 than in that of UTF-8."""


def microseconds(text: object) -> int | None:
    """A time as a log's statistics spell it, since 1970; None where they do not tell."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the bounds of a type are compared with its values."""

    stored: pa.DataType | None
    """What values are cast to first; None: nothing."""
    low: Callable[[Any], Any]
    """A bound as the log has it, in the form of the values; None where it does not tell."""
    high: Callable[[Any], Any]


def _kind(type_: pa.DataType) -> _Kind | None:
    """None for types whose bounds nobody can be sure of: NaN has no place among others."""
    if pa.types.is_integer(type_):
        return _Kind(None, _integer, _integer)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return _Kind(None, _text, _text)
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return _Kind(pa.int64(), lambda b: _time(b, -SLACK_US), lambda b: _time(b, SLACK_US))
    if pa.types.is_date32(type_):
        return _Kind(pa.int32(), _day, _day)
    if pa.types.is_decimal(type_):
        return _Kind(None, lambda b: _decimal(b, -1), lambda b: _decimal(b, 1))
    return None


def _integer(bound: Any) -> int | None:
    return bound if type(bound) is int else None


def _text(bound: Any) -> str | None:
    # half a character of UTF-16 has no place in any order
    halves = isinstance(bound, str) and any("\ud800" <= sign <= "\udfff" for sign in bound)
    return bound if isinstance(bound, str) and not halves else None


def _time(bound: Any, slack: int) -> int | None:
    moment = microseconds(bound)
    return None if moment is None else moment + slack


def _day(bound: Any) -> int | None:
    try:
        return (date.fromisoformat(bound) - _EPOCH.date()).days
    except (TypeError, ValueError):
        return None


def _decimal(bound: Any, side: int) -> Decimal | None:
    if type(bound) not in (int, float) or not abs(bound) < _EXACT:
        return None
    if type(bound) is int:
        return Decimal(bound)
    exact = Decimal(repr(bound))
    return exact + side * abs(exact) * _SLACK_SHARE


def _said(told: dict[str, Any], what: str, column: str) -> Any:
    columns = told.get(what)
    return columns.get(column) if isinstance(columns, dict) else None


class _Values:
    """The values of one column of the keys, in order, and which keys have which."""

    def __init__(self, name: str, column: pa.ChunkedArray, kind: _Kind) -> None:
        self.name, self._kind = name, kind
        column = column.cast(kind.stored) if kind.stored is not None else column
        order: Ints = pc.sort_indices(column).to_numpy().astype(np.int64)
        filled = len(column) - column.null_count
        self._values = column.combine_chunks().take(pa.array(order[:filled]))
        self.codes: Ints = np.full(len(column), -1)
        """For each key the place of its value in the order of values; -1 for null."""
        self.codes[order[:filled]] = np.arange(filled)
        self.order: Ints = np.concatenate([order[filled:], order[:filled]])
        """The keys by their codes."""
        self.unsure: Flags = np.zeros(len(self.codes), np.bool_)
        """Which keys have a value that no bound tells anything about."""
        if kind.high is _text:
            odd = pc.match_substring_regex(column, _UNSURE).fill_null(False)
            self.unsure = odd.to_numpy(zero_copy_only=False)

    def between(self, told: dict[str, Any]) -> tuple[int, int] | None:
        """The codes of the values within a file's bounds; None where these do not tell."""
        low = self._kind.low(_said(told, "minValues", self.name))
        high = self._kind.high(_said(told, "maxValues", self.name))
        if low is None or high is None or low > high:
            return None
        places = range(len(self._values))
        first = bisect_left(places, low, key=self._value)
        if isinstance(high, str) and len(high) > _WHOLE_TEXT:
            cut = high[:_WHOLE_TEXT]
            return first, bisect_right(places, cut, key=lambda at: self._value(at)[:_WHOLE_TEXT])
        return first, bisect_right(places, high, key=self._value)

    def _value(self, place: int) -> Any:
        # the few that are looked at, not all of them
        return self._values[place].as_py()

    def may_be_null(self, told: dict[str, Any]) -> bool:
        """Whether a file may have a null here."""
        return bool(_said(told, "nullCount", self.name) != 0)


class Keys:
    """Keys that are looked for among the files of a table, or that are to be put there."""

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        """The keys are those of all rows, in the columns of these names."""
        kinds = [(name, _kind(rows.schema.field(name).type)) for name in names]
        self._columns = [_Values(n, rows.column(n), kind) for n, kind in kinds if kind is not None]
        self._count = rows.num_rows
        if self._columns:
            self._order = self._columns[0].order
            self._sorted = self._columns[0].codes[self._order]

    def may_be_in(self, file: DataFile) -> bool:
        """Whether a file can hold a row with one of the keys."""
        if not self._columns or not self._count:
            return bool(self._count)
        told = file.told()
        found = self._first(told)
        for column in self._columns[1:]:
            if not len(found):
                return False
            ends = column.between(told)
            if ends is not None:
                codes = column.codes[found]
                met = (codes >= ends[0]) & (codes < ends[1])
                met |= column.unsure[found]
                met |= (codes < 0) & column.may_be_null(told)
                found = found[met]
        return len(found) > 0

    def within(self, file: DataFile) -> Ints:
        """The keys that are within a file's bounds, by their numbers: none, if it has no bounds."""
        told = file.told()
        if not self._columns or any(column.between(told) is None for column in self._columns):
            return np.zeros(0, np.int64)
        first, *others = self._columns
        found = self._slice(*(first.between(told) or (0, 0)))
        for column in others:
            low, high = column.between(told) or (0, 0)
            codes = column.codes[found]
            found = found[(codes >= low) & (codes < high)]
        return found

    def _first(self, told: dict[str, Any]) -> Ints:
        """The keys that a file can hold by its bounds of the first column."""
        column = self._columns[0]
        ends = column.between(told)
        if ends is None:
            return self._order
        parts = [self._slice(*ends), np.flatnonzero(column.unsure)]
        if column.may_be_null(told):
            parts.append(self._slice(-1, 0))
        return np.concatenate(parts)

    def _slice(self, low: int, high: int) -> Ints:
        start, end = np.searchsorted(self._sorted, [low, high])
        return self._order[start:end]
