"""The script of a change-data stream: it changes the tables round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from distributary_lab.simulate.cdc.shapes import (
    CdcPlan,
    Dice,
    Feature,
    Key,
    Row,
    SourceType,
    TableClaim,
)
from distributary_lab.simulate.cdc.simulated_database import (
    Backfill,
    LiveTable,
    Op,
    SourceChange,
    Unit,
    open_log,
    shapes,
)

ROUND_MILLIS = 120_000
"""Length of a round in the source's time."""

_IN_SECONDS = (SourceType.MYSQL, SourceType.ORACLE)
_BURST = 6
_FIRST_INSERTS = 3
_MOST_AT_ONCE = 4
"""The number of events that must remain in the budget for actions with several events."""
_READ_AGAIN = 0.1
_WAITS = 0.2
_LONGEST_WAIT = 30_000
"""Longest wait for a lock in milliseconds, shorter than the timeout of MySQL."""

Action = Callable[[int], list[Unit]]
"""A function that makes at most a given number of events; none where it cannot act."""


@dataclass(frozen=True, slots=True)
class ModelRound:
    """All changes of one round."""

    number: int
    start: int
    """Start in the source's time, in milliseconds since 1970."""
    reads: list[Unit]
    """Rows read by backfills, which begin with the round."""
    changes: list[Unit]
    """Changes in the order of the source's log."""

    @property
    def end(self) -> int:
        """Return the start of the next round."""
        return self.start + ROUND_MILLIS


class ChangeModel:
    """The simulated tables. `rounds` can be read once; `truth` covers all rounds read so far.

    Some actions happen in every round; the others are drawn at random.
    """

    def __init__(self, plan: CdcPlan) -> None:
        self.plan = plan
        self.happened: Counter[str] = Counter()
        """Number of bursts, changes of key, backfills and other actions so far."""
        nulls = plan.has(Feature.NULL_KEYS) and plan.source_type is SourceType.SQLSERVER
        self.tables = tuple(
            LiveTable(shape, born=self._born(number), null_keys=nulls)
            for number, shape in enumerate(shapes(plan))
        )
        self._dice = Dice(plan.seed, "changes")
        self._log = open_log(plan)
        self._now = plan.start_millis
        self._tick = 1_000 if plan.source_type in _IN_SECONDS else 1
        self._there: list[LiveTable] = []
        self._columns_added = 0
        chances: list[tuple[int, Action]] = [
            (26, lambda _: self._insert(self._dice.pick(self._there))),
            (50, lambda _: self._with_row(self._update)),
            (14, lambda _: self._with_row(self._delete)),
            (5 if plan.has(Feature.KEY_CHANGES) else 0, self._move_some),
            (3 if plan.has(Feature.BURSTS) else 0, self._burst),
            (2 if plan.has(Feature.LATE_UPDATES) else 0, self._farewell),
        ]
        self._anything = [action for weight, action in chances for _ in range(weight)]
        for table in self.tables:
            for _ in range(plan.rows if table.born == 0 else 0):
                table.insert(self._dice)

    def rounds(self) -> Iterator[ModelRound]:
        """Yield rounds; each is made when it is requested."""
        for number in range(self.plan.rounds):
            start = self.plan.start_millis + number * ROUND_MILLIS
            reads = self._reads(number, start)
            yield ModelRound(number, start, reads, self._changes(number, start))

    def truth(
        self, *, backfill: Backfill = "before_cdc", keyless: bool = False
    ) -> dict[TableClaim, list[Row]]:
        """Return the rows that each table must hold after all events, with typed values.

        A row has the values of its last event: a column that the event lacks is None.

        Args:
            backfill: whether a backfilled row loses against any change, or only against later ones.
            keyless: include tables without a key, which can have a log only.
        """
        return {
            table.shape.claim: [
                {name: row.get(name) for name in table.columns} for row in table.left(backfill)
            ]
            for table in self.seen
            if table.shape.key or keyless
        }

    @property
    def seen(self) -> list[LiveTable]:
        """Return the tables that have any event so far."""
        return [table for table in self.tables if table.events]

    def _born(self, number: int) -> int:
        """Return the round in which a table appears: the last fifth comes later, if requested."""
        late = max(1, self.plan.tables // 5) if self.plan.has(Feature.NEW_TABLES) else 0
        first_late = max(1, self.plan.tables - late)
        return 0 if number < first_late else 1 + (number - first_late) % (self.plan.rounds - 1)

    def _reads(self, number: int, start: int) -> list[Unit]:
        """Return the rows of the backfills that begin with a round: in the first one, all rows."""
        self._now = start
        stale = self.plan.has(Feature.STALE_BACKFILLS)
        read = [table for table in self.tables if table.born == 0]
        if number:
            read = self._dice.some(self._there, _READ_AGAIN) if stale else []
        # a stale backfill states a time after its reading, so changes in between seem older
        states = start + ROUND_MILLIS - 1_000 if stale else start
        return [unit for table in read for unit in self._backfill(table, states)]

    def _backfill(self, table: LiveTable, states: int) -> Iterator[Unit]:
        """Yield all rows of a table in their current state, with the time `states`."""
        place = self._log.snapshot(self.happened["backfills"])
        self.happened["backfills"] += 1
        shape, began = table.shape, self._rounded(self._now)
        for serial, row in table.rows.items():
            read = {name: row.get(name) for name in shape.names}
            change = SourceChange(
                shape, Op.READ, read, None, serial, self._rounded(states), began, place
            )
            table.put(change)
            yield (change,)

    def _changes(self, number: int, start: int) -> list[Unit]:
        """Return the changes of a round, in the order of the log."""
        self._there = [table for table in self.tables if table.born <= number]
        budget = self.plan.events_in(number)
        due = self._dice.shuffled(self._due(number))
        turns = [budget * (k + 1) // (len(due) + 1) for k in range(len(due))]
        changes: list[Unit] = []
        used = 0
        while used < budget:
            # the time stays inside the round and never goes back
            self._now = start + (ROUND_MILLIS - 1_000) * used // budget
            self._log.begin()
            action = self._dice.pick(self._anything)
            if turns and used >= turns[0]:
                turns.pop(0)
                action = due.pop()
            units = action(budget - used) or self._insert(self._dice.pick(self._there))
            used += sum(map(len, units))
            changes += units
        return changes

    def _due(self, number: int) -> list[Action]:
        """Return the actions that must happen in a round."""
        has = self.plan.has
        due: list[Action] = [self._burst] if has(Feature.BURSTS) else []
        due += [self._move_some] if has(Feature.KEY_CHANGES) else []
        due += [self._farewell] if has(Feature.LATE_UPDATES) else []
        if has(Feature.LOG_ROLLOVER) and number == self.plan.rounds // 2:
            due.append(self._rollover)
        if number == 0:
            return due
        several = max(1, len(self._there) // 10)
        due += [self._add_column] * (several if has(Feature.NEW_COLUMNS) else 0)
        due += [self._drop_column] * (several if has(Feature.DROPPED_COLUMNS) else 0)
        return due + [self._first_rows(table) for table in self._there if table.born == number]

    # Actions: each makes at most `budget` events, and none if that is too few.

    def _with_row(self, change: Callable[[LiveTable, int], list[Unit]]) -> list[Unit]:
        table = self._dice.pick(self._there)
        serial = table.any_row(self._dice)
        return [] if serial is None else change(table, serial)

    def _with_key(self) -> LiveTable | None:
        keyed = [table for table in self._there if table.shape.key]
        return self._dice.pick(keyed) if keyed else None

    def _move_some(self, budget: int) -> list[Unit]:
        table = self._with_key()
        serial = table.any_row(self._dice) if table else None
        if table is None or serial is None or budget < _MOST_AT_ONCE:
            return []
        return self._move(table, serial, table.free_key(self._dice))

    def _burst(self, budget: int) -> list[Unit]:
        if budget < _MOST_AT_ONCE:
            return []
        table = self._dice.pick(self._there)
        return self._at_once(table, budget, moves=self.plan.has(Feature.KEY_CHANGES))

    def _rollover(self, budget: int) -> list[Unit]:
        """Make a burst during which the log continues in a new file."""
        table = self._with_key()
        if table is None or budget < _MOST_AT_ONCE:
            return []
        return self._at_once(table, budget, rolls=self.plan.source_type is SourceType.MYSQL)

    def _at_once(
        self, table: LiveTable, budget: int, *, moves: bool = False, rolls: bool = False
    ) -> list[Unit]:
        """Change one row several times in one instant."""
        serial, changes = self._some_row(table)
        scripts = [self._updates, self._rebirth]
        if moves and table.shape.key:
            scripts.append(self._there_and_back)
        script = self._dice.pick(scripts) if table.shape.key else self._updates
        for number, units in enumerate(script(table, serial)):
            changes += units
            if rolls and number == 1:
                self._log.roll_over()
                self.happened["rollovers"] += 1
            if sum(map(len, changes)) + 2 > budget:
                break
        self.happened["bursts"] += 1
        return changes

    def _farewell(self, budget: int) -> list[Unit]:
        """Update and delete a row; the update will arrive after the delete."""
        table = self._with_key()
        if table is None or budget < _MOST_AT_ONCE:
            return []
        serial, changes = self._some_row(table)
        changes += self._update(table, serial, late=True)
        changes += self._delete(table, serial)
        self.happened["late_updates"] += 1
        return changes

    def _add_column(self, budget: int) -> list[Unit]:
        table = self._dice.pick(self._there)
        self._columns_added += 1
        table.add_column(self._columns_added)
        return self._insert(table)

    def _drop_column(self, budget: int) -> list[Unit]:
        for table in self._dice.shuffled(self._there):
            if table.drop_column(self._dice):
                return self._insert(table)
        return []

    def _first_rows(self, table: LiveTable) -> Action:
        return lambda budget: [
            unit for _ in range(min(budget, _FIRST_INSERTS)) for unit in self._insert(table)
        ]

    # Changes of one row, as units of events.

    def _insert(self, table: LiveTable, key: Key | None = None) -> list[Unit]:
        serial = table.insert(self._dice, key=key)
        return [self._record(table, Op.INSERT, serial, table.rows[serial])]

    def _update(self, table: LiveTable, serial: int, *, late: bool = False) -> list[Unit]:
        before = table.update(serial, self._dice)
        return [self._record(table, Op.UPDATE, serial, table.rows[serial], before, late=late)]

    def _delete(self, table: LiveTable, serial: int) -> list[Unit]:
        row = table.remove(serial)
        return [self._record(table, Op.DELETE, serial, row, row)]

    def _move(self, table: LiveTable, serial: int, key: Key) -> list[Unit]:
        before = table.move(serial, key)
        self.happened["key_changes"] += 1
        old = self._record(table, Op.KEY_DELETE, serial, before, before)
        return [
            old + self._record(table, Op.KEY_INSERT, serial, table.rows[serial], before, old=old)
        ]

    def _some_row(self, table: LiveTable) -> tuple[int, list[Unit]]:
        """Return a row and no changes, or insert one if the table is empty."""
        serial = table.any_row(self._dice)
        if serial is not None:
            return serial, []
        inserted = self._insert(table)
        return inserted[0][0].serial, inserted

    def _updates(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        for _ in range(_BURST):
            yield self._update(table, serial)

    def _rebirth(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        """Delete a row and insert it again under the same key."""
        yield self._update(table, serial)
        key = table.shape.key_of(table.rows[serial])
        yield self._delete(table, serial)
        again = self._insert(table, key)
        yield again
        yield self._update(table, again[0][0].serial)

    def _there_and_back(self, table: LiveTable, serial: int) -> Iterator[list[Unit]]:
        """Change the key of a row and change it back."""
        home = table.shape.key_of(table.rows[serial])
        yield self._move(table, serial, table.free_key(self._dice))
        yield self._update(table, serial)
        yield self._move(table, serial, home)
        yield self._update(table, serial)

    def _record(
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
        # MySQL logs both halves of a change of key at one position
        """Build the event of a change and record it in the table."""
        shared = old and table.shape.source_type is SourceType.MYSQL
        position = old[0].position if shared else self._log.next()
        ts = self._rounded(self._now - self._waited(table, op))
        # a row older than a column has no value for it
        row = {name: row.get(name) for name in table.shape.names}
        change = SourceChange(
            table.shape, op, row, before, serial, ts, ts, position, late, committed=table.events
        )
        table.put(change)
        return (change,)

    def _waited(self, table: LiveTable, op: Op) -> int:
        """Return how long a statement waited for a lock: MySQL states the times of statements."""
        is_mysql = table.shape.source_type is SourceType.MYSQL
        if not (self.plan.has(Feature.LOCK_WAITS) and is_mysql and op is Op.UPDATE):
            return 0
        return self._dice.below(_LONGEST_WAIT) if self._dice.chance(_WAITS) else 0

    def _rounded(self, millis: int) -> int:
        return millis // self._tick * self._tick
