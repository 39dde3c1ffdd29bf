"""Servers that take over, one after the other, while a pipeline is killed; lake against database.

Each step changes rows, does something to the server or its connector, changes more rows, kills a
run, and compares every row of the lake with the database after the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distributary.engine.kill_points import KillPoint
from distributary_lab.services.services import Services
from tests.servers.databases import KEYS, Database, MariaDBDatabase, PostgresDatabase
from tests.servers.lake import Lake
from tests.services.debezium import Debezium

KINDS = {"mariadb": MariaDBDatabase, "postgres": PostgresDatabase}


@dataclass(frozen=True)
class Size:
    """How much is written."""

    rows: int = 300
    """Rows of the larger table in the beginning."""
    changes: int = 400
    """Rows that each half of a step changes, about."""
    writers: int = 4
    batch: int = 250_000
    steps: int | None = None
    """The first steps only."""


@dataclass(frozen=True)
class Report:
    """What became of one step."""

    step: str
    rows: int
    events: int
    """In the logs, since the beginning."""
    differences: Sequence[str]
    answers: int
    """How often an operator had to say what the source was."""


class Play:
    """One database, its lake, and the steps that are done to it."""

    def __init__(
        self,
        kind: str,
        services: Services,
        debezium: Debezium,
        root: Path,
        stack: ExitStack,
        size: Size,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.size = size
        self.database: Database = KINDS[kind](root / "servers", debezium, stack)
        self.lake = Lake(services, self.database, root, batch=size.batch)
        self._seed = itertools.count(1)
        self._moments = itertools.cycle(KillPoint)

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield what is done, by name."""
        database, debezium = self.database, self.database.debezium
        yield "snapshot and changes", lambda: database.follow()
        yield "column added", database.add_column
        older = debezium.offsets(database.name)
        yield "older offset", lambda: self._go_back(older)
        older = debezium.offsets(database.name)
        yield "replica promoted", database.promote
        if isinstance(database, MariaDBDatabase):
            # of the server before: the new one has these transactions elsewhere in its log
            yield "older offset of the server before", lambda: self._go_back(older)
        changes = self.size.changes
        yield (
            "dump restored, new snapshot",
            lambda: database.restore(snapshot=True, changes=changes),
        )
        yield "dump restored, changes only", lambda: database.restore(snapshot=False)
        if isinstance(database, MariaDBDatabase):
            yield "reset master", database.reset_log

    def play(self) -> Iterator[Report]:
        """Do one step after the other, and report each."""
        self.database.create(self.size.rows)
        steps = itertools.islice(self.steps(), self.size.steps)
        for number, (name, act) in enumerate(steps):
            if number:
                self._write()
                self.lake.arrived()
            act()
            self._write()
            self.lake.killed_run(next(self._moments))
            self._write()
            self.lake.arrived()
            self.lake.run()
            # two judges that share no code
            yield self._report(name, [*self.lake.differences(), *self.lake.by_source()])

    def _report(self, step: str, differences: Sequence[str]) -> Report:
        rows = sum(self.database.count(table) for table in KEYS)
        return Report(step, rows, self.lake.events(), differences, len(self.lake.answered))

    def _write(self) -> None:
        size = self.size
        self.database.write(size.changes, seed=next(self._seed), writers=size.writers)

    def _go_back(self, offsets: Sequence[dict[str, object]]) -> None:
        self.database.debezium.set_offsets(self.database.name, offsets)
        self.database.debezium.resume(self.database.name)
