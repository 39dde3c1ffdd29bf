"""Keeps the Iceberg mirrors of a pipeline's tables up to date, beside the batches.

A thread of its own takes a round at the interval that the settings name: of each table that batches
have changed since, all commits become one snapshot. When a run begins, and now and then, all tables
are looked at, because maintenance changes tables without a batch. What fails is tried again in the
next round and is written down in the lake for `status`.

The lake also keeps a document that says since when files may still be needed by mirrors, so that
files that a mirror names are not deleted; it is the same kind of document that keeps cuts readable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.column_merge import ColumnConflictError, UnsupportedTypeError
from distributary.delta.removal.holds import KeptCuts, write_kept
from distributary.delta.tables import committing, reaching_table
from distributary.engine.planning.table_book import format_for
from distributary.errors import DistributaryError, PublishError, clean
from distributary.iceberg.earlier_tables import EarlierTable, is_earlier
from distributary.iceberg.mirror import Mirror, Synced, UnmirroredError
from distributary.model import layout
from distributary.model.table import Role, TablePlan
from distributary.model.table_format import TABLE_FORMATS
from distributary.observe.cards import (
    MirrorState,
    Unregistered,
    read_mirror_state,
    write_mirror_state,
)
from distributary.observe.ledger.ledger import Ledger
from distributary.publish.formats.iceberg_format import refuse_earlier
from distributary.store.base import at
from distributary.threads import join_while_moving

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 900.0
"""The pause between two rounds over all tables, even tables without a new batch."""
_PATIENCE_SECONDS = 60.0
"""The longest time for which the end of a run waits for a round without progress."""
_DISK_THREADS, _OTHER_THREADS = 4, 16
_SHOWN = 20
_DOCUMENT = "/iceberg"
"""The ending of the name of the document that keeps files for mirrors."""

Outcome = Synced | DistributaryError | None


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A Delta table that has a mirror."""

    name: str
    path: str


def mirrored_tables(config: PipelineConfig, ledger: Ledger) -> list[MirroredTable]:
    """Return the tables of a pipeline that have, or should have, a mirror."""
    return [
        MirroredTable(table.table, layout.place(config.lake.address, table.path))
        for table in ledger.tables(config.name, schema_ids=False)
        if _is_mirrored(config, table.table, table.role)
    ]


def _is_mirrored(config: PipelineConfig, name: str, role: str) -> bool:
    iceberg = config.lake.iceberg
    if iceberg is None or role == Role.DEAD_LETTERS or not iceberg.mirrors(name):
        return False
    hidden = role == Role.LOG and config.hides_logs
    return not hidden and TABLE_FORMATS[format_for(config, role)].mirrored


def sync_mirror(
    catalog: MirrorCatalog, lake: LakeConfig, table: MirroredTable, *, again: bool = False
) -> Outcome:
    """Bring one mirror up to date; return the error if that fails, None if there is no table."""
    try:
        with committing(table.path, doing="mirror a table in Iceberg"):
            store = at(table.path)
            pointer = catalog.pointer(table.name, store)
            if is_earlier(table.path):
                EarlierTable.of(store, pointer).first_change()
                refuse_earlier(table.path)
            mirror = Mirror(store, pointer, keep=lake.iceberg_catalog.keep)
            try:
                return mirror.sync(again=again)
            except (UnmirroredError, ColumnConflictError, UnsupportedTypeError) as error:
                raise PublishError(
                    "Iceberg cannot represent a table",
                    where=table.path,
                    evidence=clean(str(error)),
                    next_step="leave the table out of lake.iceberg.tables; or have all its files "
                    "written again with the new columns, and then `distributary iceberg sync FILE "
                    f"{table.name} --again`",
                    reason="columns",
                ) from error
    except DistributaryError as error:
        return error


@dataclass(slots=True)
class MirrorRounds:
    """The rounds of one process, and their results."""

    config: PipelineConfig
    mask: Callable[[str], str] = str
    step: Callable[[MirroredTable, Outcome], None] = lambda table, outcome: None
    """Called after each table, by the thread that took it."""
    _catalog: MirrorCatalog = field(init=False)
    _tables: dict[str, MirroredTable] = field(default_factory=dict)
    _current: dict[str, datetime] = field(default_factory=dict)
    """The beginning of the last round that brought the mirror of a table up to date, by table."""
    _failed: dict[str, Unregistered] = field(default_factory=dict)
    _floor: datetime | None = None
    """The progress that an earlier process stored, for mirrors that this run has not checked
    yet."""

    def __post_init__(self) -> None:
        """Continue from the state that an earlier process has stored."""
        lake = self.config.lake
        self._catalog = MirrorCatalog(lake)
        before = read_mirror_state(lake.address, self.config.name)
        self._floor = None if before is None else before.current_until
        for problem in () if before is None else before.problems:
            self._failed[problem.table] = problem

    def round(self, tables: Iterable[MirroredTable], *, again: bool = False) -> dict[str, Outcome]:
        """Bring the mirrors of these tables up to date and return the result of each."""
        began = datetime.now(UTC)
        todo = {table.name: table for table in tables}
        self._tables |= todo
        lake = self.config.lake
        # a file of SQLite is no server: more threads only wait for each other
        local = lake.is_local and lake.iceberg_catalog.uri is None
        with ThreadPoolExecutor(_DISK_THREADS if local else _OTHER_THREADS, "iceberg") as pool:

            def one(table: MirroredTable) -> Outcome:
                outcome = sync_mirror(self._catalog, self.config.lake, table, again=again)
                self.step(table, outcome)
                return outcome

            outcomes = dict(zip(todo, pool.map(one, todo.values()), strict=True))
        for name, outcome in outcomes.items():
            if isinstance(outcome, DistributaryError):
                self._failed[name] = self._problem(name, outcome)
                _log.warning("the Iceberg mirror of %s is behind: %s", name, outcome.what)
            else:
                self._failed.pop(name, None)
                self._current[name] = began
            if isinstance(outcome, Synced) and outcome.again:
                _log.warning("the Iceberg mirror of %s was made again: %s", name, outcome.again)
        return outcomes

    def failed(self) -> list[MirroredTable]:
        """Return the tables whose mirrors are behind."""
        return [self._tables[name] for name in self._failed if name in self._tables]

    def note(self, outcomes: dict[str, Outcome]) -> MirrorState:
        """Store the state of the mirrors, for `status` and for processes that delete files."""
        lake, name = self.config.lake, self.config.name
        self._failed = {key: each for key, each in self._failed.items() if key in self._tables}
        known = [self._current.get(table, self._floor) for table in self._tables]
        moments = [moment for moment in known if moment is not None]
        until = min(moments) if moments and len(moments) == len(known) else self._floor
        problems = sorted(self._failed.values(), key=lambda each: (each.since, each.table))
        state = MirrorState(
            type=self._catalog.type,
            at=datetime.now(UTC),
            tables=len(self._tables),
            behind=len(self._failed),
            current_until=until,
            made_again=sum(isinstance(o, Synced) and bool(o.again) for o in outcomes.values()),
            problems=tuple(problems[:_SHOWN]),
        )
        write_mirror_state(lake.address, name, state)
        if until is not None:
            keep_files(lake.address, name, until - lake.iceberg_catalog.keep)
        return state

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def _problem(self, name: str, error: DistributaryError) -> Unregistered:
        before = self._failed.get(name)
        text = self.mask(f"{error.what}: {error.evidence}" if error.evidence else error.what)
        return Unregistered(
            table=name,
            code=str(error.code),
            error=text,
            next_step=self.mask(error.next_step),
            since=datetime.now(UTC) if before is None else before.since,
            attempts=1 if before is None else before.attempts + 1,
        )


def keep_files(lake: str, pipeline: str, since: datetime | None) -> None:
    """Write down since when removed files may be needed by mirrors; None: no longer."""
    with reaching_table(layout.cuts(lake)):
        write_kept(lake, f"{pipeline}{_DOCUMENT}", KeptCuts(last_since=since))


class Mirrors:
    """The mirrors of a run: brought up to date in the background, and once more when it ends."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        known: Callable[[], Iterable[MirroredTable]],
        mask: Callable[[str], str] = str,
    ) -> None:
        """`known` returns the tables of earlier runs, to the thread."""
        self._config, self._known = config, known
        self._rounds = MirrorRounds(config, mask, self._step)
        self._every = config.lake.iceberg_catalog.every.total_seconds()
        self._lock = threading.Condition()
        self._moved: dict[str, MirroredTable] = {}
        self._ending = False
        self._progress = 0
        self._looked = float("-inf")
        self._thread = threading.Thread(target=self._work, name="iceberg", daemon=True)
        self._thread.start()

    def want(self, plans: Sequence[TablePlan]) -> None:
        """Note that batches have changed these tables; returns at once."""
        moved = {
            plan.name: MirroredTable(plan.name, plan.path)
            for plan in plans
            if _is_mirrored(self._config, plan.name, plan.role)
        }
        with self._lock:
            self._moved |= moved

    def close(self, *, patience: float = _PATIENCE_SECONDS) -> None:
        """Take the last round and end; give up when it makes no progress."""
        with self._lock:
            self._ending = True
            self._lock.notify_all()
        join_while_moving(self._thread, self._steps_done, patience=patience)

    def _steps_done(self) -> int:
        with self._lock:
            return self._progress

    def _step(self, table: MirroredTable, outcome: Outcome) -> None:
        with self._lock:
            self._progress += 1

    def _work(self) -> None:
        try:
            last = False
            while not last:
                with self._lock:
                    last = self._ending
                began = time.monotonic()
                try:
                    self._round()
                except DistributaryError as error:
                    _log.warning("no Iceberg mirror was brought up to date: %s", error.what)
                with self._lock:
                    left = self._every - (time.monotonic() - began)
                    if not self._ending:
                        self._lock.wait(max(left, 0.01))
        except Exception:
            # Whatever it is: the data goes on, and `status` shows how old the mirrors are.
            _log.warning("Iceberg mirrors are no longer brought up to date", exc_info=True)
        finally:
            self._rounds.close()

    def _round(self) -> None:
        with self._lock:
            todo, self._moved = self._moved, {}
            self._progress += 1
        now = time.monotonic()
        if now - self._looked > _LOOK_AGAIN_SECONDS:
            todo = {table.name: table for table in self._known()} | todo
            self._looked = now
        todo |= {table.name: table for table in self._rounds.failed()}
        try:
            outcomes = self._rounds.round(todo.values())
        except BaseException:
            with self._lock:
                self._moved = todo | self._moved
            raise
        if outcomes:
            self._rounds.note(outcomes)


def start_mirrors(
    config: PipelineConfig, *, ledger: Callable[[], Ledger], mask: Callable[[str], str]
) -> Mirrors | None:
    """Start to keep the mirrors of a pipeline; None if its tables have none.

    Raises ConfigError if the catalog needs a package that is not installed.
    """
    format_ = TABLE_FORMATS[config.tables.format]
    if config.lake.iceberg is None or not format_.mirrored:
        if read_mirror_state(config.lake.address, config.name) is not None:
            keep_files(config.lake.address, config.name, None)
        return None
    MirrorCatalog(config.lake).check()
    return Mirrors(config, known=lambda: mirrored_tables(config, ledger()), mask=mask)


def forget_mirrors(config: PipelineConfig, tables: Iterable[MirroredTable]) -> None:
    """Take the mirrors of tables that will be removed out of their catalog."""
    catalog = MirrorCatalog(config.lake)
    try:
        for table in tables:
            if _is_mirrored(config, table.name, Role.EACH) and catalog.type != "none":
                catalog.pointer(table.name, at(table.path)).forget()
    finally:
        catalog.close()
    keep_files(config.lake.address, config.name, None)
