"""What is asked of a maintenance, and what it tells of each table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from distributary.config.maintain import LEAST_RETENTION, Expire, Maintain
from distributary.observe.ledger import Expired
from distributary.upkeep.choose import Sizes
from distributary.upkeep.compact import Compacted
from distributary.upkeep.letters import ExpiredLetters
from distributary.upkeep.log_care import LogCare
from distributary.upkeep.state import TableState
from distributary.upkeep.vacuum import Vacuumed, retention_of


class Step(StrEnum):
    """One kind of care."""

    OPTIMIZE = "optimize"
    CHECKPOINT = "checkpoint"
    VACUUM = "vacuum"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be done, and how."""

    steps: frozenset[Step]
    sizes: Sizes
    checkpoint_every: int
    retention: timedelta
    expire: Expire
    skip: tuple[str, ...] = ()
    given_retention: timedelta | None = None
    """What was said for this one time: it goes before what a table says."""
    force: bool = False
    """Files may be deleted that readers might still look at."""
    dry_run: bool = False

    @classmethod
    def of(
        cls,
        settings: Maintain,
        *,
        steps: Collection[Step] = (),
        retention: timedelta | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Wishes:
        """By a pipeline file; with `steps`, these and no others."""
        return cls(
            steps=frozenset(steps or map(Step, settings.steps)),
            sizes=Sizes(settings.optimize.target_size, settings.optimize.min_files),
            checkpoint_every=settings.checkpoint.every,
            retention=settings.vacuum.retention,
            expire=settings.expire,
            skip=settings.skip,
            given_retention=retention,
            force=force,
            dry_run=dry_run,
        )

    def keep(self, state: TableState | None = None) -> timedelta:
        """How long files of a table are kept that are no longer part of it."""
        if self.given_retention is not None:
            wanted = self.given_retention
        else:
            wanted = self.retention if state is None else retention_of(state, self.retention)
        return wanted if self.force else max(wanted, LEAST_RETENTION)

    def passes_over(self, table: str) -> bool:
        """Whether the file says to leave a table alone."""
        return any(fnmatchcase(table, pattern) for pattern in self.skip)


@dataclass(frozen=True, slots=True)
class Job:
    """A table that is looked after."""

    table: str
    role: str
    pipeline: str
    folder: str
    checkpoint: str = ""
    """Where its pipeline's progress is."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was done to one table, or would be."""

    table: str
    role: str
    pipeline: str
    path: str
    optimize: Compacted | None = None
    checkpoint: LogCare | None = None
    vacuum: Vacuumed | None = None
    expire: ExpiredLetters | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that were left out, and why."""
    error: Mapping[str, Any] | None = None
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(
            (self.optimize and self.optimize.files_after < self.optimize.files_before)
            or (self.checkpoint and (self.checkpoint.checkpoint is not None))
            or (self.checkpoint and self.checkpoint.removed)
            or (self.vacuum and (self.vacuum.removed or self.vacuum.orphans))
            or (self.expire and self.expire.letters)
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Over all tables."""

    tables: int
    changed: int
    failed: int
    files_before: int
    """Of the tables that were compacted."""
    files_after: int
    bytes_before: int
    bytes_after: int
    checkpoints: int
    log_files: int
    files_deleted: int
    bytes_deleted: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a maintenance did to a lake, or would do."""

    lake: str
    tables: tuple[TableReport, ...]
    ledger: Expired | None = None
    """Rows of detail that became sums."""
    leftovers: int = 0
    """Files beside the checkpoints that killed processes had left."""
    notes: tuple[str, ...] = ()
    error: Mapping[str, Any] | None = None
    """What went wrong beside the tables."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything went wrong."""
        return self.error is not None or any(table.error for table in self.tables)

    def totals(self) -> Totals:
        """Over all tables."""
        compacted = [t.optimize for t in self.tables if t.optimize]
        logs = [t.checkpoint for t in self.tables if t.checkpoint]
        vacuumed = [t.vacuum for t in self.tables if t.vacuum]
        return Totals(
            tables=len(self.tables),
            changed=sum(t.changed for t in self.tables),
            failed=sum(t.error is not None for t in self.tables),
            files_before=sum(c.files_before for c in compacted),
            files_after=sum(c.files_after for c in compacted),
            bytes_before=sum(c.bytes_before for c in compacted),
            bytes_after=sum(c.bytes_after for c in compacted),
            checkpoints=sum(log.checkpoint is not None for log in logs),
            log_files=sum(log.removed for log in logs),
            files_deleted=sum(v.removed + v.orphans for v in vacuumed),
            bytes_deleted=sum(v.bytes for v in vacuumed),
            dead_letters=sum(t.expire.letters for t in self.tables if t.expire),
        )
