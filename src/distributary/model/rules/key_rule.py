"""The rule by which the records of a table become rows by key, as tasks use it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from distributary.model.rules.expectation import Rule

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
    horizon: timedelta = timedelta(0)
    """The length of the windows in which a key is unique; zero if it is unique for all time."""
    by_file: bool = False
    """Whether records come in files: then the number of the file decides before the row in it."""

    @property
    def signature(self) -> str:
        """Return the settings that rows of one log must share, for the comment of `_seq`."""
        chosen = "first" if self.keeps_first else "newest"
        order = ", ".join((*self.order, *(("file", "row") if self.by_file else ("offset",))))
        within = f" in each {self.horizon // timedelta(milliseconds=1)} ms" if self.horizon else ""
        return f"the {chosen} record of {', '.join(self.key)}{within} by {order}"
