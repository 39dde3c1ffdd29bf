"""Two publishers behind one: a lake of one format, with some tables of another."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.model.manifest import TableEntry
from distributary.model.table import Column
from distributary.publish.base import CommittedMark, Mark, Published, Publisher


class MixedPublisher:
    """Asks the publisher that belongs to a table's folder."""

    def __init__(self, usual: Publisher, *, special: Mapping[str, Publisher]) -> None:
        """`special` gives the folders, by their exact paths, that are not for `usual`."""
        self._usual = usual
        self._special = dict(special)

    def columns(self, path: str) -> tuple[Column, ...] | None:
        """The table's columns now, or None where there is no table."""
        return self._of(path).columns(path)

    def partition_columns(self, path: str) -> tuple[str, ...]:
        """The columns that the table is partitioned by; none where there is no table."""
        return self._of(path).partition_columns(path)

    def committed(self, path: str, mark: Mark) -> CommittedMark | None:
        """The newest mark of `mark.app_id`, and the source of the commit of `mark.batch`."""
        return self._of(path).committed(path, mark)

    def publish(self, entry: TableEntry, mark: Mark) -> Published:
        """Commit the entry's files."""
        return self._of(entry.table.path).publish(entry, mark)

    def _of(self, path: str) -> Publisher:
        return self._special.get(path, self._usual)
