"""Stands where a publisher does, where the tables are Spark's own and none of ours."""

from __future__ import annotations

from distributary.errors import PublishError
from distributary.model.manifest import TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Mark, Published


class UntouchedTables:
    """A lake without tables, to which nothing is committed."""

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """There is no table."""
        return None

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """There is no table."""
        return ()

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """There is no table."""
        return None

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Always refused: Spark writes the tables of a declarative pipeline."""
        raise PublishError("tables of a declarative pipeline are written by Spark")
