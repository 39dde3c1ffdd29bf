"""`demo cdc`: a database changes while a pipeline follows it, embedded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from distributary.cli.actions.demo import Result, play_demo
from distributary.cli.actions.demo_changes_result import gather_changes
from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.feed import Feed
from distributary.cli.verb import Invocation
from distributary.cli.words import counted
from distributary.config.tables import Tables
from distributary.run.change_tables import log_of, source_table
from distributary.run.chaos import Moment
from distributary.simulate.cdc import (
    CHAOS,
    CdcPlan,
    ChangeModel,
    Feature,
    FileStream,
    write_round,
)

_EACH = "{database}_{table}"
_DEAD_LETTERS = "dead_letters"
_ROUNDS = 7
"""One more than there are moments at which it can be killed."""
_ROUND = timedelta(minutes=2)
_STORY = frozenset(
    {
        Feature.KEY_CHANGES,
        Feature.BURSTS,
        Feature.LATE_UPDATES,
        Feature.STALE_BACKFILLS,
        Feature.NEW_COLUMNS,
        Feature.NEW_TABLES,
        Feature.DUPLICATES,
        Feature.OUT_OF_ORDER,
        Feature.LATE_FILES,
    }
)
"""What happens in any case; with --chaos it is everything."""


@dataclass(frozen=True, slots=True)
class ChangesScene:
    """What the database is like."""

    plan: CdcPlan

    subject = "cdc"
    topic = "datastream"
    kafka = False

    @property
    def title(self) -> str:
        """What will be sent."""
        plan = self.plan
        return (
            f"{counted(plan.tables, 'table')}, {counted(plan.events, 'change')} in "
            f"{counted(plan.rounds, 'round')}; rows are read, inserted, updated and deleted, "
            "columns and tables appear"
        )

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it may make."""
        known = Tables(each=_EACH)
        reserved = frozenset({_DEAD_LETTERS})
        claims = [table.shape.claim for table in ChangeModel(self.plan).tables]
        found = [source_table(known, claim.text, reserved=reserved) for claim in claims]
        names = [each.wanted.proposals[0].first for each in found]
        return (_DEAD_LETTERS, *(table for name in names for table in (name, log_of(name))))


def changes_scene(*, tables: int, events: int, seed: int, chaos: bool) -> ChangesScene:
    """A database that began to change some minutes ago, so that its changes are new."""
    start = datetime.now(UTC) - _ROUNDS * _ROUND
    features = CHAOS if chaos else _STORY
    return ChangesScene(
        CdcPlan(
            tables=tables,
            events=events,
            rounds=_ROUNDS,
            seed=seed,
            features=features,
            start=start,
        )
    )


class ChangeFeed:
    """Files of changes, round by round."""

    def __init__(self, plan: CdcPlan, folder: Path) -> None:
        self.stream = FileStream(plan)
        self._rounds = self.stream.rounds()
        self._folder = folder
        self._events = 0

    def next(self) -> bool:
        """Write one more round; False when there is none."""
        each = next(self._rounds, None)
        if each is None:
            return False
        # what is read meanwhile is counted as sent
        self._events += sum(len(file.events) for file in each.files)
        write_round(each, self._folder)
        return True

    @property
    def messages(self) -> int:
        """How many events were sent so far, those that came again counted again."""
        return self._events


class ChangesPlay:
    """Shows what became of the changes."""

    moments = tuple(Moment)

    def __init__(self, scene: ChangesScene) -> None:
        self._plan = scene.plan
        self._feed: ChangeFeed | None = None
        self.title = scene.title

    @contextmanager
    def open(self, call: Invocation, folder: DemoFolder) -> Iterator[Feed]:
        """Nothing has to run for it."""
        folder.write_file()
        folder.source.mkdir(exist_ok=True)
        self._feed = ChangeFeed(self._plan, folder.source)
        yield self._feed

    def gather(self, folder: DemoFolder, *, seconds: float) -> Result:
        """The tables against their logs, and against the database."""
        stream = self._feed.stream if self._feed else FileStream(self._plan)
        return gather_changes(folder, stream, seconds=seconds)


def run_changes_demo(call: Invocation, scene: ChangesScene, *, path: Path, chaos: bool) -> int:
    """Make the lake and show it; 1 if it is not what the database holds."""
    return play_demo(call, ChangesPlay(scene), DemoFolder(path, scene), chaos=chaos)
