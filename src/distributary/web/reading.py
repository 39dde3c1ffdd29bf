"""The facts of one lake, read again only when the lake has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from distributary.config.lake import local_path
from distributary.config.load import Loaded, load
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters
from distributary.observe.delta import StorageOptions
from distributary.observe.health import TableHealth, assess, losses_of
from distributary.observe.ledger import Ledger
from distributary.observe.pipelines import Registration, registrations
from distributary.observe.rows import TableSummary
from distributary.observe.status import PipelineStatus, Status, status
from distributary.observe.trust import DECODING, load_trusted
from distributary.publish.marks import Loss
from distributary.run.claim import liveness
from distributary.web.answers import not_found
from distributary.web.memo import Memo
from distributary.web.versions import Version, Versions

SHOWN = 8
"""Tables of a pipeline that are named where all pipelines are shown."""
_STATE_SECONDS = 0.9
"""How long it is believed that a process is alive: many pages ask at the same time."""

_Value = TypeVar("_Value")


class Reading:
    """Everything that the page shows. Thread-safe; nothing here changes the lake."""

    def __init__(
        self, lake: str, *, options: StorageOptions | None = None, file: str | None = None
    ) -> None:
        self.lake = lake
        self.options = options
        self._file = file
        self.ledger = Ledger(lake, storage_options=options)
        self._memo = Memo()
        self._versions = Versions(options)
        self._lock = threading.Lock()
        self._states: tuple[float, tuple[tuple[str, str, int], ...]] = (0.0, ())

    def require(self) -> None:
        """A clear word where the lake is gone."""
        folder = local_path(self.lake)
        if folder is not None and not folder.is_dir():
            raise DistributaryError(
                "the lake is not there (any more)",
                code=ErrorCode.LAKE_UNAVAILABLE,
                where=self.lake,
                next_step="bring the folder back, or start `distributary ui --lake` with another",
            )

    @property
    def writable(self) -> bool:
        """Whether anything can be mended here at all."""
        folder = local_path(self.lake)
        return folder is None or os.access(folder, os.W_OK)

    def version(self, ledger_table: str) -> Version:
        """The version of one of the ledger's tables."""
        return self._versions.of(layout.ledger_table(self.lake, ledger_table))

    def remember(self, key: object, *tables: str, make: Callable[[], _Value]) -> _Value:
        """A value that holds as long as these tables of the ledger stay as they are."""
        self.require()
        return self._memo.get(("ledger", key), tuple(map(self.version, tables)), make)

    def for_table(self, path: str, key: object, make: Callable[[], _Value]) -> _Value:
        """A value that holds as long as a table of the lake stays as it is."""
        self.require()
        if self._versions.of(path) < (0, 0):
            # no Delta table: nothing tells whether it has changed
            return make()
        return self._memo.get(("table", path, key), self._versions.of(path), make)

    def stamp(self) -> str:
        """Another text whenever anything has changed that the page may show."""
        ledger = [self.version(name) for name in layout.LEDGER_TABLES]
        letters = [self._versions.of(path) for path in self._letter_paths()]
        return repr((ledger, letters, self._now(), sorted(self._losses().items())))

    def cards(self) -> tuple[Registration, ...]:
        """What the pipelines say of themselves."""
        return registrations(self.lake, storage_options=self.options)

    def settings(self, pipeline: str) -> Loaded:
        """What a pipeline decodes with, by the file that was given or one that is trusted."""
        given = None if self._file is None else load(self._file, needs=DECODING)
        if given is not None and given.config.name == pipeline:
            return given
        for card in self.cards():
            if card.name == pipeline:
                option = "distributary ui --file"
                return load_trusted(card, self.lake, needs=DECODING, option=option)
        raise not_found("there is no such pipeline", pipeline, next_step="distributary status")

    def status(self) -> Status:
        """How all pipelines stand."""
        self.require()
        states = self._now()
        known = {checkpoint: state for checkpoint, state, _ in states}
        version = (
            *(self.version(name) for name in ("batches", "tables")),
            *(self._versions.of(path) for path in self._letter_paths()),
            states,
            tuple(sorted(self._losses().items())),
        )
        return self._memo.get(
            "status",
            version,
            lambda: status(
                self.lake,
                liveness=lambda checkpoint: known.get(checkpoint) or liveness(checkpoint),
                tz=UTC,
                shown=SHOWN,
                storage_options=self.options,
            ),
        )

    def pipeline(self, name: str) -> PipelineStatus:
        """How one pipeline stands."""
        for each in self.status().pipelines:
            if each.name == name:
                return each
        raise not_found("there is no such pipeline", name, next_step="distributary status")

    def tables(self) -> tuple[TableSummary, ...]:
        """Every table of the lake."""
        return self.remember("tables", "tables", make=self.ledger.tables)

    def health(self) -> tuple[TableHealth, ...]:
        """Every table, and how it does."""

        def make() -> tuple[TableHealth, ...]:
            ends = {each.name: each.as_of for each in self.status().pipelines}
            now = datetime.now(UTC)
            return tuple(
                assess(t, as_of=ends.get(t.pipeline) or now, loss=losses.get(t.table))
                for t in self.tables()
            )

        losses = self._losses()
        return self.remember(("health", *sorted(losses.items())), "tables", "batches", make=make)

    def table(self, name: str) -> TableSummary:
        """One table: only names that the ledger knows, so that none becomes a path."""
        for each in self.tables():
            if each.table == name:
                return each
        raise not_found("there is no such table", name, next_step="distributary tables")

    def path_of(self, table: TableSummary) -> str:
        """Where a table is, also in a lake that was moved."""
        return layout.place(self.lake, table.path)

    def letters(self, pipeline: str | None = None) -> dict[str, DeadLetters]:
        """The dead letters of each pipeline."""
        return {
            table.pipeline: DeadLetters(self.path_of(table), storage_options=self.options)
            for table in self.tables()
            if table.role == Role.DEAD_LETTERS and pipeline in (None, table.pipeline)
        }

    def for_letters(self, key: object, make: Callable[[], _Value]) -> _Value:
        """A value that holds as long as no dead letter is added or marked."""
        self.require()
        version = tuple(self._versions.of(path) for path in self._letter_paths())
        return self._memo.get(("letters", key), version, make)

    def _losses(self) -> dict[str, Loss]:
        """Tables that are gone or behind: no version of the ledger tells of that."""
        if self.version("tables") < (0, 0):
            return {}
        return losses_of(self.lake, self.tables())

    def _letter_paths(self) -> list[str]:
        if self.version("tables") < (0, 0):
            return []
        return sorted({letters.path for letters in self.letters().values()})

    def _now(self) -> tuple[tuple[str, str, int], ...]:
        """Checkpoints, whether somebody runs on them, and when their last failure was."""
        with self._lock:
            at, known = self._states
            if at and time.monotonic() - at < _STATE_SECONDS:
                return known
        found = tuple(
            (card.checkpoint, liveness(card.checkpoint), _failed_at(card.checkpoint))
            for card in self.cards()
        )
        with self._lock:
            self._states = (time.monotonic(), found)
        return found


def _failed_at(checkpoint: str) -> int:
    try:
        return (Path(checkpoint) / "failure.json").stat().st_mtime_ns
    except OSError:
        return 0
