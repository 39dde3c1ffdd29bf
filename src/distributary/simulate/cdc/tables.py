"""A table of the simulated database with its rows."""

from __future__ import annotations

from distributary.simulate.cdc.catalog import added_column
from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.changes import Backfill, Change, Winners
from distributary.simulate.cdc.shapes import CdcColumn, Key, Row, Shape
from distributary.simulate.cdc.values import draw, key_value

_BACK_FROM_THE_DEAD = 0.25
_SECOND_PARTS = 3
_NULL_KEY_EVERY = 4
_MOST_UPDATED = 3


class LiveTable:
    """Rows are known by a serial number, which they keep when their key changes.

    Args:
        shape: its columns in the beginning.
        born: the round in which it appears.
        null_keys: whether a column of its key may be null.
    """

    def __init__(self, shape: Shape, *, born: int, null_keys: bool) -> None:
        self.shape = shape
        self.born = born
        self.rows: dict[int, Row] = {}
        self.columns: dict[str, CdcColumn] = {c.name: c for c in shape.columns}
        """All columns that it ever had."""
        self.events = 0
        """How many were told of it."""
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.winners: dict[Backfill, Winners] = {
            "before_cdc": Winners("before_cdc"),
            "by_timestamp": Winners("by_timestamp"),
        }
        self._null_keys = null_keys and any(shape.column(name).nullable for name in shape.key)
        self._by_key: dict[Key, int] = {}
        self._live: list[int] = []
        self._at: dict[int, int] = {}
        self._dead: list[Key] = []
        self._serial = 0
        self._numbers = 0

    def put(self, change: Change) -> None:
        """Remember an event, for the truth."""
        self.events += 1
        for winners in self.winners.values():
            winners.put(change)

    def any_row(self, dice: Dice) -> int | None:
        """Some row; None if there is none."""
        return dice.pick(self._live) if self._live else None

    def insert(self, dice: Dice, *, key: Key | None = None) -> int:
        """A new row, under this key or any other that is free."""
        chosen = dict(zip(self.shape.key, key or self.free_key(dice), strict=True))
        row = {
            column.name: chosen[column.name]
            if column.name in chosen
            else draw(column, dice, shape=self.shape)
            for column in self.shape.columns
        }
        self._serial += 1
        self._place(self._serial, row)
        return self._serial

    def update(self, serial: int, dice: Dice) -> Row:
        """Change some columns of a row that are not in its key; how it was before."""
        before = self.rows[serial]
        free = [column for column in self.shape.columns if column.name not in self.shape.key]
        chosen = dice.some(free, 0.0, least=1 + dice.below(_MOST_UPDATED))
        changed = {column.name: draw(column, dice, shape=self.shape) for column in chosen}
        # a row that was written before a column came or went has the columns of today now
        self.rows[serial] = {name: before.get(name) for name in self.shape.names} | changed
        return before

    def move(self, serial: int, key: Key) -> Row:
        """Give a row another key; how it was before."""
        before = self.remove(serial)
        chosen = dict(zip(self.shape.key, key, strict=True))
        self._place(serial, {name: before.get(name) for name in self.shape.names} | chosen)
        return before

    def remove(self, serial: int) -> Row:
        """Delete a row; how it was."""
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
        """A key that no row has: a new one, or that of a row that was deleted."""
        if self._dead and dice.chance(_BACK_FROM_THE_DEAD):
            again = self._dead.pop(dice.below(len(self._dead)))
            if again not in self._by_key:
                return again
        if not self.shape.key:
            return ()
        return self._new_key()

    def add_column(self, number: int) -> None:
        """From now on there is one more."""
        column = added_column(self.shape, number)
        self.shape = self.shape.with_column(column)
        self.columns[column.name] = column
        self.added.append(column.name)

    def drop_column(self, dice: Dice) -> bool:
        """From now on there is one less, if one can be missed."""
        free = [c.name for c in self.shape.columns if c.nullable and c.name not in self.shape.key]
        others = len(self.shape.columns) - len(self.shape.key)
        if not free or others < 2:
            return False
        name = dice.pick(free)
        self.shape = self.shape.without_column(name)
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
        # the first part comes again: only all parts together are unique
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
