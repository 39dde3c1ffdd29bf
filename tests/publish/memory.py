"""A publisher that keeps its tables in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from distributary.errors import PublishError, StagedFileError
from distributary.model.manifest import Mark, StagedFile, TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Outcome, Published, TableColumns


@dataclass(slots=True)
class MemoryTable:
    """What a table format would keep in its log."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    files: list[StagedFile] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    hashes: dict[tuple[str, int], str] = field(default_factory=dict)
    version: int = -1


class MemoryPublisher:
    """Commits to dictionaries; tables named in `failing` refuse every commit."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self.failing: set[str] = set()
        self._lock = threading.Lock()

    def current_columns(self, path: str) -> TableColumns | None:
        """The table's columns and partitioning, or None where there is no table."""
        table = self.tables.get(path)
        return TableColumns(table.columns, table.partition_by) if table else None

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of the application."""
        table = self.tables.get(path)
        if table is None or mark.app_id not in table.marks:
            return None
        return CommittedMark(table.marks[mark.app_id], table.hashes.get((mark.app_id, mark.batch)))

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Add the entry's files, unless the mark is there already."""
        name, path = entry.table.name, entry.table.path
        if name in self.failing:
            raise PublishError("told to fail", where=name)
        with self._lock:
            table = self.tables.get(path)
            if table is not None and table.marks.get(mark.app_id, -1) >= mark.batch:
                return Published(name, Outcome.SKIPPED, table.version)
            for file in entry.files:
                staged = Path(path) / file.path
                if not staged.exists() or staged.stat().st_size != file.size:
                    raise StagedFileError("a staged file is gone or changed", where=str(staged))
            new = MemoryTable(entry.table.columns, entry.table.partition_by)
            table = self.tables.setdefault(path, new)
            table.columns = entry.table.columns
            table.files += entry.files
            table.marks[mark.app_id] = mark.batch
            table.hashes[(mark.app_id, mark.batch)] = mark.source_hash
            table.version += 1
            return Published(name, Outcome.PUBLISHED, table.version)
