"""The simulated database: makes its changes round by round and knows what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from distributary.simulate.cdc.catalog import shapes
from distributary.simulate.cdc.changes import Backfill, Unit
from distributary.simulate.cdc.plan import CdcPlan, Feature, SourceType
from distributary.simulate.cdc.schedule import ROUND_MILLIS, Schedule
from distributary.simulate.cdc.script import Script
from distributary.simulate.cdc.shapes import Claim, Row
from distributary.simulate.cdc.tables import LiveTable


@dataclass(frozen=True, slots=True)
class ModelRound:
    """Everything that happened in one round."""

    number: int
    start: int
    """The source's time in milliseconds since 1970."""
    reads: list[Unit]
    """The rows that backfills read, which began with the round."""
    changes: list[Unit]
    """In the order of the source's log."""

    @property
    def end(self) -> int:
        """When the next one begins."""
        return self.start + ROUND_MILLIS


class ChangeModel:
    """Tables with rows. `rounds` can be read once; the truth is that of all rounds read so far."""

    def __init__(self, plan: CdcPlan) -> None:
        self.plan = plan
        nulls = plan.has(Feature.NULL_KEYS) and plan.source_type is SourceType.SQLSERVER
        self.tables = tuple(
            LiveTable(shape, born=self._born(number), null_keys=nulls)
            for number, shape in enumerate(shapes(plan))
        )
        self._script = Script(plan)
        self._schedule = Schedule(plan, self._script, self.tables)
        for table in self.tables:
            for _ in range(plan.rows if table.born == 0 else 0):
                table.insert(self._script.dice)

    def rounds(self) -> Iterator[ModelRound]:
        """Round by round, made when it is asked for."""
        for number in range(self.plan.rounds):
            start = self.plan.start_millis + number * ROUND_MILLIS
            reads = self._schedule.reads(number, start)
            yield ModelRound(number, start, reads, self._schedule.changes(number, start))

    def truth(
        self, *, backfill: Backfill = "before_cdc", keyless: bool = False
    ) -> dict[Claim, list[Row]]:
        """What each table holds for whoever has seen every event: typed values, all columns.

        A row is what its last event says: a column that the event does not have is None.

        Args:
            backfill: whether a backfilled row loses against any change, or only against later ones.
            keyless: also tell of tables without a key, of which only a log can be kept.
        """
        return {
            table.shape.claim: [
                {name: row.get(name) for name in table.columns}
                for row in table.winners[backfill].rows()
            ]
            for table in self.told
            if table.shape.key or keyless
        }

    @property
    def told(self) -> list[LiveTable]:
        """The tables of which anything was told by now."""
        return [table for table in self.tables if table.events]

    @property
    def happened(self) -> Counter[str]:
        """How often what happened by now: bursts, changes of key, backfills and so on."""
        return self._script.counts

    def _born(self, number: int) -> int:
        """The last fifth of the tables, if it is asked for, appears in mid-stream."""
        late = max(1, self.plan.tables // 5) if self.plan.has(Feature.NEW_TABLES) else 0
        first_late = max(1, self.plan.tables - late)
        return 0 if number < first_late else 1 + (number - first_late) % (self.plan.rounds - 1)
