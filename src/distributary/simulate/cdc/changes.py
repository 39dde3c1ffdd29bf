"""What happened to one row, and which of all the things that happened to it counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from distributary.simulate.cdc.log import Position
from distributary.simulate.cdc.shapes import Key, Row, Shape

Backfill = Literal["before_cdc", "by_timestamp"]
"""Whether what was read loses against any change, or only against what is later."""


class Op(StrEnum):
    """What happened."""

    READ = "read"
    """Nothing: a backfill found the row."""
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    KEY_DELETE = "key_delete"
    """The first half of a change of key: the row is gone from its old key."""
    KEY_INSERT = "key_insert"
    """The second half: it is there under its new key."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of the source."""

    shape: Shape
    op: Op
    row: Row
    """As it is now or, when it is gone, as it was."""
    before: Row | None
    """As it was before."""
    serial: int
    """Which row of its table it is, whatever its key is called."""
    ts: int
    """The source's time in milliseconds since 1970, as exact as this database tells it."""
    filed: int
    """The time by which it is filed: when it happened, or when its backfill began."""
    position: Position
    late: bool = False
    """It must arrive after what happened to the row later."""

    @property
    def deleted(self) -> bool:
        """Whether the row is gone from its key."""
        return self.op in (Op.DELETE, Op.KEY_DELETE)

    @property
    def key(self) -> Key:
        """The key of its row, or what stands for it in a table without one."""
        return self.shape.key_of(self.row) if self.shape.key else (self.serial,)

    def order(self, backfill: Backfill) -> tuple[int, ...]:
        """Its place in the order of the source."""
        changed = backfill == "before_cdc" and self.op is not Op.READ
        return (int(changed), self.ts, *self.position.numbers, int(self.op is not Op.KEY_DELETE))


Unit = tuple[Change, ...]
"""Events that no file separates: one, or the two halves of a change of key."""


class Winners:
    """For every key of one table, the last event in the order of the source."""

    def __init__(self, backfill: Backfill) -> None:
        self._backfill: Backfill = backfill
        self._last: dict[Key, tuple[tuple[int, ...], Change]] = {}

    def put(self, change: Change) -> None:
        """Take an event; they may come in any order."""
        key, order = change.key, change.order(self._backfill)
        known = self._last.get(key)
        if known is None or order > known[0]:
            self._last[key] = (order, change)

    def rows(self) -> Iterator[Row]:
        """What is left."""
        return (change.row for _, change in self._last.values() if not change.deleted)
