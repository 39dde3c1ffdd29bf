"""When what happens: some things must, once in a round, and chance decides about all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distributary.simulate.cdc.changes import Unit
from distributary.simulate.cdc.plan import CdcPlan, Feature, SourceType
from distributary.simulate.cdc.script import Script
from distributary.simulate.cdc.tables import LiveTable

ROUND_MILLIS = 120_000
"""How long a round is in the source's time."""

_FIRST_INSERTS = 3
_MOST_AT_ONCE = 4
"""So many events must be left for anything that makes several."""
_READ_AGAIN = 0.1

Action = Callable[[int], list[Unit]]
"""Makes events, at most so many; none where nothing can be done."""


class Schedule:
    """Lets the script happen to the tables that have appeared."""

    def __init__(self, plan: CdcPlan, script: Script, tables: Sequence[LiveTable]) -> None:
        self._plan = plan
        self._script = script
        self._tables = tables
        self._dice = script.dice
        self._there: list[LiveTable] = []
        self._columns_added = 0
        chances: list[tuple[int, Action]] = [
            (26, self._insert),
            (50, self._update),
            (14, self._delete),
            (5 if plan.has(Feature.KEY_CHANGES) else 0, self._move),
            (3 if plan.has(Feature.BURSTS) else 0, self._burst),
            (2 if plan.has(Feature.LATE_UPDATES) else 0, self._farewell),
        ]
        self._anything = [action for weight, action in chances for _ in range(weight)]

    def reads(self, number: int, start: int) -> list[Unit]:
        """What backfills read that begin with a round: in the first one, all there is."""
        self._script.now = start
        stale = self._plan.has(Feature.STALE_BACKFILLS)
        read = [table for table in self._tables if table.born == 0]
        if number:
            read = self._dice.some(self._there, _READ_AGAIN) if stale else []
        # it tells the time of its writing, and changes since its reading are older than that
        states = start + ROUND_MILLIS - 1_000 if stale else start
        return [unit for table in read for unit in self._script.backfill(table, states=states)]

    def changes(self, number: int, start: int) -> list[Unit]:
        """What happens in a round, in the order of the log."""
        self._there = [table for table in self._tables if table.born <= number]
        budget = self._plan.events_in(number)
        due = self._dice.shuffled(self._due(number))
        turns = [budget * (k + 1) // (len(due) + 1) for k in range(len(due))]
        made: list[Unit] = []
        used = 0
        while used < budget:
            # never beyond the round, and never back
            self._script.now = start + (ROUND_MILLIS - 1_000) * used // budget
            self._script.log.begin()
            action = self._dice.pick(self._anything)
            if turns and used >= turns[0]:
                turns.pop(0)
                action = due.pop()
            units = action(budget - used) or self._insert(budget - used)
            used += sum(map(len, units))
            made += units
        return made

    def _due(self, number: int) -> list[Action]:
        has = self._plan.has
        due: list[Action] = [self._burst] if has(Feature.BURSTS) else []
        due += [self._move] if has(Feature.KEY_CHANGES) else []
        due += [self._farewell] if has(Feature.LATE_UPDATES) else []
        if has(Feature.LOG_ROLLOVER) and number == self._plan.rounds // 2:
            due.append(self._rollover)
        if number == 0:
            return due
        several = max(1, len(self._there) // 10)
        due += [self._add_column] * (several if has(Feature.NEW_COLUMNS) else 0)
        due += [self._drop_column] * (several if has(Feature.DROPPED_COLUMNS) else 0)
        return due + [self._first_rows(table) for table in self._there if table.born == number]

    def _insert(self, budget: int) -> list[Unit]:
        return self._script.insert(self._dice.pick(self._there))

    def _update(self, budget: int) -> list[Unit]:
        table = self._dice.pick(self._there)
        serial = table.any_row(self._dice)
        return [] if serial is None else self._script.update(table, serial)

    def _delete(self, budget: int) -> list[Unit]:
        table = self._dice.pick(self._there)
        serial = table.any_row(self._dice)
        return [] if serial is None else self._script.delete(table, serial)

    def _move(self, budget: int) -> list[Unit]:
        table = self._with_key()
        serial = table.any_row(self._dice) if table else None
        if table is None or serial is None or budget < _MOST_AT_ONCE:
            return []
        return self._script.move(table, serial)

    def _burst(self, budget: int) -> list[Unit]:
        if budget < _MOST_AT_ONCE:
            return []
        table, moves = self._dice.pick(self._there), self._plan.has(Feature.KEY_CHANGES)
        return self._script.burst(table, budget, moves=moves, rolls=False)

    def _rollover(self, budget: int) -> list[Unit]:
        table = self._with_key()
        if table is None or budget < _MOST_AT_ONCE:
            return []
        rolls = self._plan.source_type is SourceType.MYSQL
        return self._script.burst(table, budget, moves=False, rolls=rolls)

    def _farewell(self, budget: int) -> list[Unit]:
        table = self._with_key()
        return [] if table is None or budget < _MOST_AT_ONCE else self._script.farewell(table)

    def _add_column(self, budget: int) -> list[Unit]:
        table = self._dice.pick(self._there)
        self._columns_added += 1
        table.add_column(self._columns_added)
        return self._script.insert(table)

    def _drop_column(self, budget: int) -> list[Unit]:
        for table in self._dice.shuffled(self._there):
            if table.drop_column(self._dice):
                return self._script.insert(table)
        return []

    def _first_rows(self, table: LiveTable) -> Action:
        def insert(budget: int) -> list[Unit]:
            many = min(budget, _FIRST_INSERTS)
            return [unit for _ in range(many) for unit in self._script.insert(table)]

        return insert

    def _with_key(self) -> LiveTable | None:
        keyed = [table for table in self._there if table.shape.key]
        return self._dice.pick(keyed) if keyed else None
