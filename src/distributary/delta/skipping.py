"""The choice of files that can hold rows with given keys, by the bounds in a table's log.

Other writers may leave bounds out or write inexact ones: bounds of texts are cut, bounds of times
rounded, bounds of decimals converted to floating point. No row may be missed: a file is skipped
only if its bounds certainly exclude the keys.
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
"""Tolerance for writers that cut the bounds of times to milliseconds."""
_SLACK_SHARE = Decimal("1e-9")
"""Tolerance, as a part of a decimal, for writers that convert bounds to floating point."""
_EXACT = 2**53
"""The number above which some writers round the bounds of decimals, or cap them."""
_WHOLE_TEXT = 31
"""The length in characters above which some writers cut the bounds of texts."""
_UNSURE = "[\\x{E000}-\\x{10FFFF}]"
"""Characters that sort differently in UTF-16 and in UTF-8."""


def microseconds(text: object) -> int | None:
    """Parse a time in a log's statistics as microseconds since 1970; None if it is no time."""
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
    """The comparison of a type's bounds with its values."""

    stored: pa.DataType | None
    """The type that values are cast to before comparison; None for no cast."""
    low: Callable[[Any], Any]
    """A function that converts a lower bound from the log to the form of the values, or to None."""
    high: Callable[[Any], Any]


def _kind(type_: pa.DataType) -> _Kind | None:
    """Return the comparison for a type.

    None for a type without reliable bounds, as floating point.
    """
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
    # A lone surrogate of UTF-16 has no place in any order.
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


def _statistic(statistics: dict[str, Any], kind: str, column: str) -> Any:
    columns = statistics.get(kind)
    return columns.get(column) if isinstance(columns, dict) else None


class _Values:
    """The sorted values of one column of the keys, and the position of each key's value."""

    def __init__(self, name: str, column: pa.ChunkedArray, kind: _Kind) -> None:
        self.name, self._kind = name, kind
        column = column.cast(kind.stored) if kind.stored is not None else column
        order: Ints = pc.sort_indices(column).to_numpy().astype(np.int64)
        filled = len(column) - column.null_count
        self._values = column.combine_chunks().take(pa.array(order[:filled]))
        self.codes: Ints = np.full(len(column), -1)
        """For each key, the position of its value among the sorted values; -1 for null."""
        self.codes[order[:filled]] = np.arange(filled)
        self.order: Ints = np.concatenate([order[filled:], order[:filled]])
        """The keys in the order of their codes."""
        self.unsure: Flags = np.zeros(len(self.codes), np.bool_)
        """The keys whose values cannot be compared with bounds."""
        if kind.high is _text:
            odd = pc.match_substring_regex(column, _UNSURE).fill_null(False)
            self.unsure = odd.to_numpy(zero_copy_only=False)

    def between(self, statistics: dict[str, Any]) -> tuple[int, int] | None:
        """Return the range of codes within a file's bounds.

        None if the file has no usable bounds.
        """
        low = self._kind.low(_statistic(statistics, "minValues", self.name))
        high = self._kind.high(_statistic(statistics, "maxValues", self.name))
        if low is None or high is None or low > high:
            return None
        places = range(len(self._values))
        first = bisect_left(places, low, key=self._value)
        if isinstance(high, str) and len(high) > _WHOLE_TEXT:
            cut = high[:_WHOLE_TEXT]
            return first, bisect_right(places, cut, key=lambda at: self._value(at)[:_WHOLE_TEXT])
        return first, bisect_right(places, high, key=self._value)

    def _value(self, place: int) -> Any:
        # Only the few values that the search touches are converted.
        return self._values[place].as_py()

    def may_be_null(self, statistics: dict[str, Any]) -> bool:
        """Return whether a file may hold a null in this column."""
        return bool(_statistic(statistics, "nullCount", self.name) != 0)


class KeyRanges:
    """Keys to look for in the files of a table, or to put there."""

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        """Take the keys of all rows from the columns `names`."""
        kinds = [(name, _kind(rows.schema.field(name).type)) for name in names]
        self._columns = [_Values(n, rows.column(n), kind) for n, kind in kinds if kind is not None]
        self._count = rows.num_rows
        if self._columns:
            self._order = self._columns[0].order
            self._sorted = self._columns[0].codes[self._order]

    def may_be_in(self, file: DataFile) -> bool:
        """Return whether a file can hold a row with one of the keys."""
        if not self._columns or not self._count:
            return bool(self._count)
        statistics = file.statistics()
        possible = self._first(statistics)
        for column in self._columns[1:]:
            if not len(possible):
                return False
            ends = column.between(statistics)
            if ends is not None:
                codes = column.codes[possible]
                met = (codes >= ends[0]) & (codes < ends[1])
                met |= column.unsure[possible]
                met |= (codes < 0) & column.may_be_null(statistics)
                possible = possible[met]
        return len(possible) > 0

    def within(self, file: DataFile) -> Ints:
        """Return the numbers of the keys within a file's bounds.

        Empty if the file has no bounds.
        """
        statistics = file.statistics()
        if not self._columns or any(column.between(statistics) is None for column in self._columns):
            return np.zeros(0, np.int64)
        first, *others = self._columns
        inside = self._slice(*(first.between(statistics) or (0, 0)))
        for column in others:
            low, high = column.between(statistics) or (0, 0)
            codes = column.codes[inside]
            inside = inside[(codes >= low) & (codes < high)]
        return inside

    def _first(self, statistics: dict[str, Any]) -> Ints:
        """Return the keys that a file can hold by its bounds of the first column."""
        column = self._columns[0]
        ends = column.between(statistics)
        if ends is None:
            return self._order
        parts = [self._slice(*ends), np.flatnonzero(column.unsure)]
        if column.may_be_null(statistics):
            parts.append(self._slice(-1, 0))
        return np.concatenate(parts)

    def _slice(self, low: int, high: int) -> Ints:
        start, end = np.searchsorted(self._sorted, [low, high])
        return self._order[start:end]
