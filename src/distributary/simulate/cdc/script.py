"""What happens to the rows: one thing after the other, each as the events that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.changes import Change, Op, Unit
from distributary.simulate.cdc.log import open_log
from distributary.simulate.cdc.plan import CdcPlan, SourceType
from distributary.simulate.cdc.shapes import Key, Row
from distributary.simulate.cdc.tables import LiveTable

_IN_SECONDS = (SourceType.MYSQL, SourceType.ORACLE)
_BURST = 6


class Script:
    """Changes rows and says so; every event is remembered by its table as well.

    What it is told to do takes at most `budget` events and leaves out what is too much.
    """

    def __init__(self, plan: CdcPlan) -> None:
        self.dice = Dice(plan.seed, "changes")
        self.log = open_log(plan)
        self.now = plan.start_millis
        self.counts: Counter[str] = Counter()
        self._tick = 1_000 if plan.source_type in _IN_SECONDS else 1
        self._backfills = 0

    def insert(self, table: LiveTable) -> list[Unit]:
        """A new row."""
        serial = table.insert(self.dice)
        return [self._told(table, Op.INSERT, serial, table.rows[serial])]

    def update(self, table: LiveTable, serial: int, *, late: bool = False) -> list[Unit]:
        """Another content for a row."""
        before = table.update(serial, self.dice)
        return [self._told(table, Op.UPDATE, serial, table.rows[serial], before, late=late)]

    def delete(self, table: LiveTable, serial: int) -> list[Unit]:
        """One row less."""
        row = table.remove(serial)
        return [self._told(table, Op.DELETE, serial, row, row)]

    def move(self, table: LiveTable, serial: int) -> list[Unit]:
        """Another key for a row."""
        return self._moved(table, serial, table.free_key(self.dice))

    def burst(self, table: LiveTable, budget: int, *, moves: bool, rolls: bool) -> list[Unit]:
        """One row again and again, in one instant.

        Args:
            table: where.
            budget: the most events.
            moves: whether its key may change, there and back.
            rolls: whether the log goes on in another file meanwhile.
        """
        serial, made = self._some_row(table)
        scripts = [self._updates, self._rebirth]
        if moves and table.shape.key:
            scripts.append(self._there_and_back)
        chosen = self.dice.pick(scripts) if table.shape.key else self._updates
        for number, units in enumerate(chosen(table, serial)):
            made += units
            if rolls and number == 1:
                self.log.roll_over()
                self.counts["rollovers"] += 1
            if sum(map(len, made)) + 2 > budget:
                break
        self.counts["bursts"] += 1
        return made

    def farewell(self, table: LiveTable) -> list[Unit]:
        """A row changes, and is deleted; the change will arrive after the delete."""
        serial, made = self._some_row(table)
        made += self.update(table, serial, late=True)
        made += self.delete(table, serial)
        self.counts["late_updates"] += 1
        return made

    def backfill(self, table: LiveTable, *, states: int) -> list[Unit]:
        """All rows of a table, as they are now; `states` is the time that they tell."""
        place = self.log.snapshot(self._backfills)
        self._backfills += 1
        self.counts["backfills"] += 1
        shape, began = table.shape, self._rounded(self.now)
        made: list[Unit] = []
        for serial, row in table.rows.items():
            read = {name: row.get(name) for name in shape.names}
            change = Change(shape, Op.READ, read, None, serial, self._rounded(states), began, place)
            table.put(change)
            made.append((change,))
        return made

    def _some_row(self, table: LiveTable) -> tuple[int, list[Unit]]:
        serial = table.any_row(self.dice)
        if serial is not None:
            return serial, []
        made = self.insert(table)
        return made[0][0].serial, made

    def _updates(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        for _ in range(_BURST):
            yield self.update(table, serial)

    def _rebirth(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        """Deleted, and inserted again under the same key."""
        yield self.update(table, serial)
        key = table.shape.key_of(table.rows[serial])
        yield self.delete(table, serial)
        again = table.insert(self.dice, key=key)
        yield [self._told(table, Op.INSERT, again, table.rows[again])]
        yield self.update(table, again)

    def _there_and_back(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        home = table.shape.key_of(table.rows[serial])
        yield self.move(table, serial)
        yield self.update(table, serial)
        yield self._moved(table, serial, home)
        yield self.update(table, serial)

    def _moved(self, table: LiveTable, serial: int, key: Key) -> list[Unit]:
        before = table.move(serial, key)
        self.counts["key_changes"] += 1
        old = self._told(table, Op.KEY_DELETE, serial, before, before)
        return [old + self._told(table, Op.KEY_INSERT, serial, table.rows[serial], before, old=old)]

    def _told(
        self,
        table: LiveTable,
        op: Op,
        serial: int,
        row: Row,
        before: Row | None = None,
        *,
        late: bool = False,
        old: Unit = (),
    ) -> Unit:
        # MySQL logs both halves of a change of key as one
        shared = old and table.shape.source_type is SourceType.MYSQL
        position = old[0].position if shared else self.log.next()
        ts = self._rounded(self.now)
        # a row that is as old as its table has no value in a column that came later
        row = {name: row.get(name) for name in table.shape.names}
        change = Change(table.shape, op, row, before, serial, ts, ts, position, late)
        table.put(change)
        return (change,)

    def _rounded(self, millis: int) -> int:
        return millis // self._tick * self._tick
