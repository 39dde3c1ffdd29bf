"""Registration of tables in a catalog, in a thread beside the batches, which never wait for it.

At the start of a run and from time to time, the thread lists the catalog and compares all entries
with the tables; after a batch, it compares new and changed tables only. So the next run registers
the tables that a killed process left out. Failures are retried with growing pauses, and stored in
the lake for `status`.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from distributary.catalog.base import (
    CatalogEntry,
    Found,
    TableCatalog,
    entry_of,
    location_of,
    taken,
)
from distributary.catalog.catalogs import open_catalog
from distributary.config.catalog import CatalogConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.mirrors import MirroredTable, forget_mirrors
from distributary.engine.planning.table_book import format_for, table_folder
from distributary.engine.progress.removal import Removal
from distributary.errors import (
    CatalogError,
    CatalogUnavailableError,
    DistributaryError,
)
from distributary.model import layout
from distributary.model.table import Role, TablePlan
from distributary.observe.cards import CatalogState, Unregistered, write_catalog_state
from distributary.observe.events import (
    BatchSettled,
    CatalogUpdated,
    Event,
    EventBus,
    Idle,
    TableResumed,
)
from distributary.observe.ledger.ledger import Ledger
from distributary.spark.in_process import real
from distributary.store.base import same_place
from distributary.threads import join_while_moving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distributary.engine.pipeline import Pipeline

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 900.0
"""The seconds after which all entries are compared again, because they may have been removed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_PATIENCE_SECONDS = 60.0
"""Seconds that the end of a run waits for a catalog without progress."""
_LAST_PAUSE = 0.5
_LAST_TRIES = 3
_SHOWN = 20
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A table that should be registered."""

    name: str
    path: str
    format: str


class Registrar:
    """Registers the tables of a run in the background: the catalog never delays the caller."""

    def __init__(
        self,
        config: PipelineConfig,
        settings: CatalogConfig,
        opened: Callable[[], TableCatalog],
        bus: EventBus,
        *,
        known: Callable[[], Iterable[_Wanted]],
        mask: Callable[[str], str] = str,
    ) -> None:
        """Create a registrar; its thread calls `opened` for the catalog, `known` for tables."""
        self._config, self._settings, self._opened = config, settings, opened
        self._bus, self._known, self._mask = bus, known, mask
        self._store = layout.pipeline(config.lake.address, config.name)
        self._lock = threading.Condition()
        self._new: dict[str, _Wanted] = {}
        """Requests that the thread has not taken yet."""
        self._plans: dict[str, TablePlan] = {}
        """The last plan of each table; used by the caller's thread only."""
        self._ending = False
        self._progress = 0
        self._state = CatalogState(settings.type, ".".join(settings.names), datetime.now(UTC))
        self._registered_state: CatalogState | None = None
        # the rest is used by the registrar's thread only
        self._catalog: TableCatalog | None = None
        self._wanted: dict[str, _Wanted] = {}
        self._todo: dict[str, _Wanted] = {}
        self._found: dict[str, Found] | None = None
        self._compared = -math.inf
        """The time of the last comparison of all tables."""
        self._failed: dict[str, Unregistered] = {}
        self._detach = bus.subscribe(self._hear)
        self._thread = threading.Thread(target=self._work, name="catalog", daemon=True)
        self._thread.start()

    @property
    def state(self) -> CatalogState:
        """Return the state of the catalog."""
        with self._lock:
            return self._state

    def want(self, plans: Iterable[TablePlan]) -> None:
        """Request entries for tables with these columns; return at once."""
        new = {}
        for plan in plans:
            # not for logs that are not kept
            if self._config.hides_logs and plan.role is Role.LOG:
                continue
            before = self._plans.get(plan.name)
            self._plans[plan.name] = plan
            if before is None or (self._settings.keeps_columns and not _alike(before, plan)):
                new[plan.name] = _Wanted(plan.name, plan.path, plan.format)
        self._wish(new)

    def _wish(self, new: Mapping[str, _Wanted]) -> None:
        if new:
            with self._lock:
                self._new |= new
                self._lock.notify_all()

    def close(self, *, patience: float = _PATIENCE_SECONDS) -> None:
        """Wait for running registrations while they make progress, and end; report the rest."""
        with self._lock:
            self._ending = True
            self._lock.notify_all()
        join_while_moving(self._thread, self._steps_done, patience=patience)
        if self._thread.is_alive():
            self._give_up()
        self._detach()
        self._tell()

    def _give_up(self) -> None:
        """Report the tables for which a catalog that hangs has given no answer."""
        error = CatalogUnavailableError(
            "the catalog gave no answer before the end of the run",
            next_step="the next run registers the tables",
        )
        with self._lock:
            # the thread hangs: these are the tables of its last round, and those of later requests
            waiting = len(self._new) + len(self._todo)
            if not waiting:
                return
            now, state = datetime.now(UTC), self._state
            problem = Unregistered("", str(error.code), error.what, error.next_step, since=now)
            problems = state.problems or (problem,)
            self._state = replace(state, at=now, waiting=waiting, problems=problems)
            state = self._state
        write_catalog_state(self._store, state)

    def _steps_done(self) -> int:
        with self._lock:
            return self._progress

    def _hear(self, event: Event) -> None:
        # listeners are called by the thread that runs the batches only
        if isinstance(event, BatchSettled | Idle):
            self._tell()
        elif isinstance(event, TableResumed) and not event.parked:
            # the tables may not have existed when their batch was settled
            path = table_folder(self._config, event.table)
            kind = format_for(self._config, Role.EACH)
            self._wish({event.table: _Wanted(event.table, path, kind)})

    def _tell(self) -> None:
        state = self.state
        before, self._registered_state = self._registered_state, state
        same = before is not None and before.summary == state.summary
        if not same and (state.registered or state.waiting or state.error):
            self._bus.publish(
                CatalogUpdated(
                    pipeline=self._config.name,
                    catalog=state.place,
                    registered=state.registered,
                    waiting=state.waiting,
                    code=state.code,
                    error=state.error,
                )
            )

    # The thread.

    def _work(self) -> None:
        failures = 0
        try:
            self._begin()
            while self._take(failures):
                failures = 0 if self._round() else failures + 1
                self._note()
                if self._ending and failures >= _LAST_TRIES:
                    return
        except Exception as error:
            # any error: batches continue, and the error must be reported
            _log.warning("tables are no longer registered in the catalog", exc_info=True)
            self._failed[""] = self._problem("", _unexpected(error))
            self._note()
        finally:
            if self._catalog is not None:
                self._catalog.close()

    def _begin(self) -> None:
        try:
            self._todo |= {each.name: each for each in self._known()}
            self._step()
        except DistributaryError as error:
            # the ledger cannot be read, which the batches will report
            _log.warning("tables of earlier runs are not registered now: %s", error.what)

    def _take(self, failures: int) -> bool:
        """Wait for work; return False at the end, when nothing is left to do."""
        longer = _FIRST_PAUSE * 2 ** min(failures - 1, 10) if failures else 0.0
        pause = _LAST_PAUSE if self._ending and failures else min(_LONGEST_PAUSE, longer)
        until = time.monotonic() + pause
        with self._lock:
            while True:
                self._todo |= self._new
                self._new = {}
                now = time.monotonic()
                if self._ending:
                    until = min(until, now + _LAST_PAUSE)
                outdated = bool(self._wanted) and now - self._compared > _LOOK_AGAIN_SECONDS
                if (self._todo or (outdated and not self._ending)) and now >= until:
                    return True
                if "" not in self._failed and self._todo.keys() - self._failed.keys():
                    # failing tables must not delay new ones
                    return True
                if self._ending and not self._todo:
                    return False
                wait = until - now if self._todo else _LOOK_AGAIN_SECONDS / 10
                self._lock.wait(max(0.01, wait))

    def _round(self) -> bool:
        """Register all requested tables; return True if none is left."""
        self._wanted |= self._todo
        try:
            catalog = self._catalog = self._catalog or self._opened()
            outdated = time.monotonic() - self._compared > _LOOK_AGAIN_SECONDS
            if self._found is None or outdated:
                catalog.prepare()
                self._step()
                self._found = catalog.entries()
                self._step()
            if outdated:
                self._todo = dict(self._wanted)
                self._compared = time.monotonic()
            self._failed.pop("", None)
        except DistributaryError as error:
            self._failed[""] = self._problem("", error)
            return False
        work = partial(self._one, catalog, self._found)
        with ThreadPoolExecutor(catalog.parallel, "catalog") as pool:
            errors = dict(zip(self._todo, pool.map(work, self._todo.values()), strict=True))
        for name, failure in errors.items():
            if failure is None:
                self._failed.pop(name, None)
                del self._todo[name]
            else:
                self._failed[name] = self._problem(name, failure)
        if self._todo:
            # another program may have changed the entry
            self._found = None
        return not self._todo

    def _one(
        self, catalog: TableCatalog, found: dict[str, Found], wanted: _Wanted
    ) -> DistributaryError | None:
        try:
            self._register(catalog, found, wanted)
        except DistributaryError as error:
            return error
        except Exception as error:
            return _unexpected(error)
        finally:
            self._step()
        return None

    def _step(self) -> None:
        """Record progress for the caller that waits for the end."""
        with self._lock:
            self._progress += 1

    def _register(self, catalog: TableCatalog, found: dict[str, Found], wanted: _Wanted) -> None:
        there = found.get(wanted.name.lower())
        entry = self._entry(wanted)
        if entry is None:
            # the table was removed meanwhile, together with its entry
            self._wanted.pop(wanted.name, None)
            return
        if there is None:
            catalog.create(entry)
        elif not same_place(there.location, entry.location):
            raise taken(wanted.name, entry, there)
        elif self._settings.keeps_columns and there.fingerprint != entry.fingerprint:
            catalog.update(entry)
        found[wanted.name.lower()] = Found(entry.location, entry.fingerprint)

    def _entry(self, wanted: _Wanted) -> CatalogEntry | None:
        if self._settings.keeps_columns:
            return entry_of(wanted.name, wanted.path, self._settings)
        location = location_of(wanted.path, self._settings.scheme)
        return CatalogEntry(wanted.name, location, format=wanted.format)

    def _problem(self, name: str, error: DistributaryError) -> Unregistered:
        before = self._failed.get(name)
        text = self._mask(f"{error.what}: {error.evidence}" if error.evidence else error.what)
        return Unregistered(
            table=name,
            code=str(error.code),
            error=text,
            next_step=self._mask(error.next_step),
            since=datetime.now(UTC) if before is None else before.since,
            attempts=1 if before is None else before.attempts + 1,
        )

    def _note(self) -> None:
        """Store the state in the lake, and send it as an event."""
        waiting = set(self._wanted) & (set(self._todo) | set(self._failed))
        problems = sorted(self._failed.values(), key=lambda each: (each.since, each.table))
        state = replace(
            self._state,
            at=datetime.now(UTC),
            registered=len(self._wanted) - len(waiting),
            waiting=len(waiting),
            problems=tuple(problems[:_SHOWN]),
        )
        with self._lock:
            changed = state.summary != self._state.summary
            self._state = state
        if changed or problems:
            write_catalog_state(self._store, state)


def _alike(one: TablePlan, other: TablePlan) -> bool:
    return one.columns == other.columns and one.comment == other.comment


def _unexpected(error: Exception) -> CatalogError:
    return CatalogError(
        "an unexpected error occurred while a table was registered",
        evidence=f"{type(error).__name__}: {error}"[:300],
        next_step="it is tried again; --debug shows where",
    )


def start_registrar(
    config: PipelineConfig,
    spark: SparkSession,
    bus: EventBus,
    *,
    ledger: Callable[[], Ledger],
    mask: Callable[[str], str],
) -> Registrar | None:
    """Start to register existing and future tables; return None without a catalog."""
    if config.lake.registered_in is None:
        return None

    def known() -> Iterable[_Wanted]:
        for table in ledger().tables(config.name, schema_ids=False):
            if not (config.hides_logs and table.role == Role.LOG):
                path = layout.place(config.lake.address, table.path)
                yield _Wanted(table.table, path, format_for(config, table.role))

    return Registrar(
        config,
        config.lake.registered_in,
        lambda: open_catalog(config, lambda: real(spark)),
        bus,
        known=known,
        mask=mask,
    )


# `reset` and `clean` remove entries before tables, so that no entry lacks its table.


def unregister(pipeline: Pipeline, removals: Iterable[Removal]) -> list[str]:
    """Remove the entries of tables that will be removed; return their names.

    Only an entry that leads to the table's own folder is ours. Raises CatalogError, before
    anything is removed, if the catalog cannot be asked.
    """
    tables = {each.table: each.path for each in removals if each.kind == "table"}
    config = pipeline.config
    if config.lake.iceberg is not None and tables:
        here = ((name, layout.place(pipeline.lake, path)) for name, path in tables.items())
        forget_mirrors(config, [MirroredTable(name, path) for name, path in here])
    settings = config.lake.registered_in
    if settings is None or not tables or not _outlives_session(config):
        return []
    catalog = open_catalog(config, pipeline.session)
    try:
        found = catalog.entries()
        gone = [
            name
            for name, path in tables.items()
            if (entry := found.get(name.lower())) is not None
            and same_place(entry.location, location_of(path, settings.scheme))
        ]
        for name in gone:
            catalog.drop(name)
        return gone
    except CatalogError as error:
        error.next_step = (
            "bring the catalog back and try again; or take lake.catalog out of the file, "
            "and the entries stay"
        )
        raise
    finally:
        catalog.close()


def schema_of(config: PipelineConfig) -> str:
    """Return the name of the schema with the pipeline's tables; empty without a lasting one."""
    settings = config.lake.registered_in
    return "" if settings is None or not _outlives_session(config) else ".".join(settings.names)


def drop_schema(pipeline: Pipeline) -> str:
    """Drop the schema of a pipeline's tables; return why it stays, or an empty text."""
    catalog = open_catalog(pipeline.config, pipeline.session)
    try:
        return catalog.drop_schema()
    finally:
        catalog.close()


def _outlives_session(config: PipelineConfig) -> bool:
    """Return whether entries stay after the end of the session that made them."""
    catalog = config.lake.registered_in
    if catalog is None:
        return False
    own: Mapping[str, str] = config.spark.options
    metastore = own.get("spark.sql.catalogImplementation") == "hive"
    has_catalog_name = len(catalog.names) > 1
    return catalog.is_lasting or has_catalog_name or config.spark.remote is not None or metastore


def check_catalog(config: PipelineConfig) -> tuple[str, bool]:
    """Return a description of the catalog without Spark, and whether entries outlive a session.

    Raises CatalogError if the catalog cannot be asked. Nothing is changed.
    """
    settings = config.lake.registered_in
    place = "" if settings is None else ".".join(settings.names)
    if settings is not None and not settings.by_session:
        catalog = open_catalog(config, _no_session)
        try:
            return f"{settings.type} has {len(catalog.entries()):,} tables in {place}", True
        finally:
            catalog.close()
    if settings is not None and settings.addresses:
        _reach_one(settings)
        return f"a metastore answers at {settings.metastores}, {place} is checked by a run", True
    if _outlives_session(config):
        return f"{place} is checked by a run, with Spark", True
    return f"{place} is forgotten with each Spark session", False


def _no_session() -> SparkSession:
    raise CatalogError("this catalog needs no session")


def _reach_one(settings: CatalogConfig) -> None:
    """Raise CatalogUnavailableError unless one metastore can be reached; one is enough."""
    failures = []
    for host, port in settings.addresses:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except OSError as error:
            failures.append(f"{host}:{port} {error.strerror or type(error).__name__}")
        else:
            return
    raise CatalogUnavailableError(
        "the Hive metastore cannot be connected to",
        where=settings.metastores,
        evidence="; ".join(failures)[:300],
        next_step="start it, or correct lake.catalog.uri",
    )
