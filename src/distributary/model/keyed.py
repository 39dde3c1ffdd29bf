"""The rule by which the records of a table become rows by key, as tasks use it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from distributary.model.expectation import Rule

TIME_OF_RECORD = "_timestamp"
"""The order column that means the timestamp of the record, which no payload has to hold."""
MOST_ORDER_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The key and the order of the records of a table."""

    key: tuple[str, ...]
    order: tuple[str, ...] = ()
    """Columns whose values decide which record is newer; behind them decides the offset."""
    keeps_first: bool = False
    """Whether the first record of a key stays, instead of the newest."""
    delete: Rule | None = None
    """The condition under which a record deletes the row with its key."""
    tombstones: bool = False
    """Whether a record with a key and no value deletes the row with this key."""

    @property
    def signature(self) -> str:
        """Return the settings that rows of one log must share, for the comment of `_seq`."""
        chosen = "first" if self.keeps_first else "newest"
        order = ", ".join((*self.order, "offset"))
        return f"the {chosen} record of {', '.join(self.key)} by {order}"


def order_kind(type_: pa.DataType) -> str:
    """Return the kind of an order column's values; empty if they cannot be put in order.

    Values of two kinds cannot be compared, those of two types of one kind can.
    """
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "whole number"
    if pa.types.is_floating(type_):
        return "floating point"
    if pa.types.is_timestamp(type_):
        return "time"
    if pa.types.is_date32(type_):
        return "date"
    return "text" if pa.types.is_string(type_) else ""
