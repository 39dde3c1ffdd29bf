"""The data of one lake, read again only when the lake has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from distributary.config.load import Loaded, load
from distributary.delta.tables import open_table
from distributary.engine.progress.claim import liveness
from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.cache import Cache
from distributary.model.table import Role
from distributary.observe.cards import DECODING, Registration, load_trusted, registrations
from distributary.observe.deadletters import DeadLetters
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableKey, TableSummary
from distributary.observe.status.health import TableHealth, assess, losses_of
from distributary.observe.status.status import (
    Live,
    PipelineStatus,
    Status,
    live_of,
    now_with,
    settled_status,
)
from distributary.publish.parking import Loss
from distributary.store.base import local_path
from distributary.web.answers import not_found, parts_of

# Cached values, computed once for each state of the lake, for all viewers.

_MOST = 200
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Kept:
    version: object = field(default_factory=object)
    value: Any = None
    making: threading.Lock = field(default_factory=threading.Lock)


class Memo:
    """Values by key, each valid for one version. Thread-safe.

    No value is computed twice at once.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._kept: Cache[_Kept] = Cache(most)

    def get(self, key: Hashable, version: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the value for this version, computing it if needed."""
        kept = self._kept.get(key, _Kept)
        with kept.making:
            if kept.version != version:
                kept.value, kept.version = make(), version
            value: _Value = kept.value
        return value


class Lately(Generic[_Value]):
    """Values that are valid for some seconds. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: Cache[tuple[float, _Value]] = Cache(_MOST)

    def get(self, key: str, make: Callable[[], _Value]) -> _Value:
        """Return the recent value, or compute it."""
        known = self._known.find(key)
        if known is not None and time.monotonic() - known[0] < self._seconds:
            return known[1]
        value = make()
        self._known.keep(key, (time.monotonic(), value))
        return value


# Detection of changed tables, without reading them.

_REMOTE_SECONDS = 5.0
"""The time for which the version of a table in an object store is cached: it costs a request."""

Version = tuple[int, int]
"""The number and time of the newest commit: a table may have been created again."""

NONE: Version = (-1, 0)
"""The version of a table that does not exist."""


class NewestTables:
    """The newest versions of Delta tables. Thread-safe."""

    def __init__(self) -> None:
        self._remote: Lately[Version] = Lately(_REMOTE_SECONDS)

    def of(self, path: str) -> Version:
        """Return the version of the table in a folder."""
        folder = local_path(path)
        if folder is not None:
            return _newest(os.path.join(folder, "_delta_log"))
        return self._remote.get(path, lambda: self._ask(path))

    def _ask(self, path: str) -> Version:
        table = open_table(path)
        return NONE if table is None else (table.version(), 0)


def _newest(log: str) -> Version:
    try:
        with os.scandir(log) as entries:
            commits = [e.name for e in entries if e.name.endswith(".json") and len(e.name) == 25]
        newest = max(commits, default="")
        if not newest:
            return NONE
        return int(newest[:20]), os.stat(os.path.join(log, newest)).st_mtime_ns
    except (OSError, ValueError):
        return NONE


SHOWN = 8
"""The number of tables that the overview names for each pipeline."""
_STATE_SECONDS = 0.9
"""The time for which a process's state is cached: many pages ask at the same time."""


class LakeReader:
    """All data that the page shows. Thread-safe; it never changes the lake."""

    def __init__(self, lake: str, *, file: str | None = None) -> None:
        self.lake = lake
        self._file = file
        self.ledger = Ledger(lake)
        self._seen = False
        """Whether the lake has existed before."""
        self._last: Status | None = None
        """The status of the pipelines at the last successful read."""
        self._missed = False
        """Whether the last answer was that status, because the lake could not be read."""
        self._memo = Memo()
        self._versions = NewestTables()
        remote = local_path(lake) is None
        self._states: Lately[dict[str, Live]] = Lately(
            _REMOTE_SECONDS if remote else _STATE_SECONDS
        )

    def require(self) -> None:
        """Raise an error if the lake has disappeared; a lake that never existed is empty."""
        folder = local_path(self.lake)
        if folder is None or folder.is_dir():
            self._seen = True
        elif self._seen:
            raise DistributaryError(
                "the lake no longer exists",
                code=ErrorCode.LAKE_UNAVAILABLE,
                where=self.lake,
                next_step="restore the folder, or start `distributary ui --lake` with another",
            )

    @property
    def writable(self) -> bool:
        """Return whether the lake can be changed from here."""
        folder = local_path(self.lake)
        return folder is None or not folder.is_dir() or os.access(folder, os.W_OK)

    def version(self, ledger_table: str) -> Version:
        """Return the version of one of the ledger's tables."""
        return self._versions.of(layout.ledger_table(self.lake, ledger_table))

    def remember(self, key: object, *tables: str, make: Callable[[], _Value]) -> _Value:
        """Return a value that is valid as long as these tables of the ledger do not change."""
        self.require()
        return self._memo.get(("ledger", key), tuple(map(self.version, tables)), make)

    def for_table(self, path: str, key: object, make: Callable[[], _Value]) -> _Value:
        """Return a value that is valid as long as a table of the lake does not change."""
        self.require()
        if self._versions.of(path) < (0, 0):
            # for a table that is not Delta, changes cannot be detected
            return make()
        return self._memo.get(("table", path, key), self._versions.of(path), make)

    def stamp(self) -> str:
        """Return a text that changes whenever any data of the page may have changed."""
        ledger = [self.version(name) for name in layout.LEDGER_TABLES]
        # a lake that answers again is a change for pages that missed it
        return repr(
            (
                ledger,
                self._letter_versions(),
                self._now(),
                sorted(self._losses().items()),
                self._missed,
            )
        )

    def cards(self) -> tuple[Registration, ...]:
        """Return the cards that the pipelines left in the lake."""
        return registrations(self.lake)

    def settings(self, pipeline: str) -> Loaded:
        """Return a pipeline's settings for decoding, from the given file or a trusted one."""
        given = None if self._file is None else load(self._file, needs=DECODING)
        if given is not None and given.config.name == pipeline:
            return given
        for card in self.cards():
            if card.name == pipeline:
                option = "distributary ui --file"
                return load_trusted(card, self.lake, needs=DECODING, option=option)
        raise not_found("there is no such pipeline", pipeline, next_step="distributary status")

    def status(self) -> Status:
        """Return the status of all pipelines; while the lake does not answer, the last one."""
        try:
            self._last = self._status()
        except DistributaryError as error:
            if error.code is not ErrorCode.LAKE_UNAVAILABLE or self._last is None:
                raise
            self._missed = True
            return _without_lake(self._last, error)
        self._missed = False
        return self._last

    def _status(self) -> Status:
        self.require()
        live, now = self._now(), datetime.now(UTC)
        ledger = (self.version("batches"), self.version("tables"))
        losses = tuple(sorted(self._losses().items()))
        # the ledger is read when it has changed, the state of processes at every request
        settled = self._memo.get(
            "status",
            (*ledger, self._letter_versions(), tuple(live), losses),
            lambda: settled_status(self.lake, shown=SHOWN),
        )
        pipelines = (
            now_with(each, live.get(each.checkpoint, Live()), now=now, tz=UTC)
            for each in settled.pipelines
        )
        return replace(settled, now=now, pipelines=tuple(pipelines))

    def lines(self, checkpoint: str) -> tuple[str, ...]:
        """Return the last log lines of the run of a checkpoint."""
        live = self._now().get(checkpoint)
        return live.pulse.lines if live is not None and live.pulse is not None else ()

    def pipeline(self, name: str) -> PipelineStatus:
        """Return the status of one pipeline."""
        for status in self.status().pipelines:
            if status.name == name:
                return status
        raise not_found("there is no such pipeline", name, next_step="distributary status")

    def tables(self) -> tuple[TableSummary, ...]:
        """Return every table of the lake."""
        return self.remember("tables", "tables", make=self.ledger.tables)

    def health(self) -> tuple[TableHealth, ...]:
        """Return every table with its health."""

        def make() -> tuple[TableHealth, ...]:
            ends = {status.name: status.as_of for status in self.status().pipelines}
            now = datetime.now(UTC)
            return tuple(
                assess(t, as_of=ends.get(t.pipeline) or now, loss=losses.get(t.key))
                for t in self.tables()
            )

        losses = self._losses()
        return self.remember(("health", *sorted(losses.items())), "tables", "batches", make=make)

    def table(self, name: str) -> TableSummary:
        """Return one table by a name of the ledger, so that no request becomes a path."""
        for summary in self.tables():
            if summary.table == name:
                return summary
        raise not_found("there is no such table", name, next_step="distributary tables")

    def table_health(self, name: str) -> TableHealth:
        """Return one table with its health, by a name of the ledger."""
        for health in self.health():
            if health.table.table == name:
                return health
        raise not_found("there is no such table", name, next_step="distributary tables")

    def path_of(self, table: TableSummary) -> str:
        """Return the path of a table, also in a lake that was moved."""
        return layout.place(self.lake, table.path)

    def letters(self, pipeline: str | None = None) -> dict[str, DeadLetters]:
        """Return the dead letters of each pipeline."""
        return {
            table.pipeline: DeadLetters(self.path_of(table))
            for table in self.tables()
            if table.role == Role.DEAD_LETTERS and pipeline in (None, table.pipeline)
        }

    def for_letters(self, key: object, make: Callable[[], _Value]) -> _Value:
        """Return a value that is valid as long as no dead letter is added or marked."""
        self.require()
        return self._memo.get(("letters", key), self._letter_versions(), make)

    def _losses(self) -> dict[TableKey, Loss]:
        """Return missing and outdated tables, which no version of the ledger shows."""
        if self.version("tables") < (0, 0):
            return {}
        return losses_of(self.lake, self.tables())

    def _letter_versions(self) -> tuple[Version, ...]:
        if self.version("tables") < (0, 0):
            return ()
        paths = sorted({letters.path for letters in self.letters().values()})
        return tuple(map(self._versions.of, paths))

    def _now(self) -> dict[str, Live]:
        """Return the state of each pipeline's process, by checkpoint."""
        return self._states.get(
            "",
            lambda: {card.checkpoint: live_of(card.checkpoint, liveness) for card in self.cards()},
        )


def _without_lake(last: Status, error: DistributaryError) -> Status:
    """Return the last status, with the state of processes whose checkpoint is elsewhere."""
    now, lake = datetime.now(UTC), f"{last.lake.rstrip('/')}/"

    def one(known: PipelineStatus) -> PipelineStatus:
        inside = known.checkpoint.startswith(lake)
        live = Live() if inside else live_of(known.checkpoint, liveness)
        return now_with(known, live, now=now, tz=UTC)

    pipelines = tuple(one(status) for status in last.pipelines)
    return replace(last, now=now, pipelines=pipelines, unavailable=parts_of(error))
