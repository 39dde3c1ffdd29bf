"""The seam between a decided batch and a table: one behaviour, several implementations.

Nothing here names a table format: an implementation may commit to Delta Lake, to plain Parquet
folders or to any format that can take files which already exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from distributary.model.manifest import Mark, TableEntry
from distributary.model.table import Column


class Outcome(StrEnum):
    """What a publisher did with an entry."""

    PUBLISHED = "published"
    SKIPPED = "skipped"
    """The mark was there already: an earlier try had committed."""
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Published:
    """The result for one table."""

    table: str
    outcome: Outcome
    version: int | None = None
    error: str = ""
    may_pass: bool = False
    """Of one that could not be written: the next try may do better."""


@dataclass(frozen=True, slots=True)
class CommittedMark:
    """What a table's own log says about an application's newest commit."""

    batch: int
    source_hash: str | None
    """Of the batch that was asked for, or None when the log no longer tells."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table looks like."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()


class Publisher(Protocol):
    """Commits staged files to tables. Thread-safe: tables are published in parallel."""

    def shape(self, path: str) -> TableShape | None:
        """The table's columns now, and its partitioning; None where there is no table."""
        ...

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id` at the table's newest version, if any.

        `source_hash` is that of the commit that carries `mark.batch`, looked up in the history
        when the newest mark is at or past it.
        """
        ...

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Evolve the columns if the entry says so, then add the files in one marked commit.

        A table whose mark is at or past `mark.batch` is skipped. Existence and size of each file
        are checked before the commit (StagedFileError). An unknown outcome (the commit may or may
        not have landed) is settled by re-reading the table's log. Raises PublishError.
        """
        ...


# Two publishers behind one: a lake of one format, with some tables of another.


class MixedPublisher:
    """Asks the publisher that belongs to a table's folder."""

    def __init__(self, usual: Publisher, *, special: Mapping[str, Publisher]) -> None:
        """`special` gives the folders, by their exact paths, that are not for `usual`."""
        self._usual = usual
        self._special = dict(special)

    def shape(self, path: str) -> TableShape | None:
        """The table's columns now, and its partitioning; None where there is no table."""
        return self._of(path).shape(path)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        return self._of(path).committed(path, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Commit the entry's files."""
        return self._of(entry.table.path).publish(entry, mark)

    def _of(self, path: str) -> Publisher:
        return self._special.get(path, self._usual)
