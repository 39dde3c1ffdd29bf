"""The interface between a decided batch and a table: one behaviour, several implementations.

Nothing here names a table format: an implementation may commit to Delta Lake, to plain Parquet
folders or to any format that can take existing files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column


class Outcome(StrEnum):
    """The outcome of publishing an entry."""

    PUBLISHED = "published"
    SKIPPED = "skipped"
    """The mark was there already: an earlier attempt had committed."""
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Published:
    """The result for one table."""

    table: str
    outcome: Outcome
    version: int | None = None
    error: str = ""
    may_pass: bool = False
    """True if the table could not be written and the next attempt may succeed."""


@dataclass(frozen=True, slots=True)
class CommittedMark:
    """An application's newest commit, according to the table's log."""

    batch: int
    source_hash: str | None
    """The source fingerprint of the batch in question; None if the log no longer has it."""


@dataclass(frozen=True, slots=True)
class Held:
    """The state of a table for a lane."""

    exists: bool
    version: int = -1
    mark: int | None = None
    """The newest batch of the lane."""
    tells_marks: bool = True
    """False if a missing mark proves nothing."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns and partition columns of a table."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()


class Publisher(Protocol):
    """A publisher, which commits staged files to tables. Thread-safe: tables commit in parallel."""

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        ...

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id` at the table's newest version, if any.

        `source_hash` is the fingerprint of the commit that carries `mark.batch`. It is looked up in
        the history when the newest mark is at or past that batch.
        """
        ...

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Evolve the columns if the entry needs it, then add the files in one marked commit.

        A table whose mark is at or past `mark.batch` is skipped. Existence and size of each file
        are checked before the commit (StagedFileError). If the outcome of the commit is unknown,
        the table's log is read again. Raises PublishError.
        """
        ...


@runtime_checkable
class PreparingPublisher(Publisher, Protocol):
    """A publisher that commits many tables faster if it may write all their commits first."""

    def prepare(self, entries: Sequence[TableEntry], mark: Mark) -> frozenset[str]:
        """Write the commits of these entries under other names; return the tables' names."""
        ...

    def finish(self, *, threads: int) -> None:
        """Make the published commits durable, and remove the prepared ones."""
        ...


# Two publishers behind one: a lake of one format with some tables of another.


class MixedPublisher:
    """A publisher that delegates to the publisher of each table's folder."""

    def __init__(self, usual: Publisher, *, special: Mapping[str, Publisher]) -> None:
        """Use `usual` for all folders except those in `special`, which are given by exact path."""
        self._usual = usual
        self._special = dict(special)

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        return self._of(path).current_columns(path)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """Return the newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        return self._of(path).committed(path, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Commit the entry's files."""
        return self._of(entry.table.path).publish(entry, mark)

    def _of(self, path: str) -> Publisher:
        return self._special.get(path, self._usual)
