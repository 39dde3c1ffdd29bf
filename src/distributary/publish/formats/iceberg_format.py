"""Iceberg tables: Delta tables with a mirror, and those of an earlier version, which had no log.

A table of an earlier version gets its Delta log when its pipeline runs the next time. Until then it
is refused by name.
"""

from __future__ import annotations

from typing import NoReturn

from distributary.errors import LakeUnavailableError
from distributary.iceberg.earlier_tables import is_earlier
from distributary.publish.base import Held
from distributary.publish.formats.delta_format import DeltaFormat
from distributary.store.base import Store


class IcebergFormat(DeltaFormat):
    """Apache Iceberg, over the files of Delta tables."""

    def is_at(self, path: str) -> bool:
        """Return whether a folder has Iceberg's metadata and no Delta log."""
        return is_earlier(path)

    def open(self, path: str, version: int | None = None) -> None:
        """Refuse a table of an earlier version; None if there is none."""
        if is_earlier(path):
            refuse_earlier(path)

    def written(self, path: str) -> None:
        """Refuse a table of an earlier version; None if there is none."""
        if is_earlier(path):
            refuse_earlier(path)

    def held(self, store: Store, app_id: str) -> Held | None:
        """Return that the table of an earlier version exists; None if there is none."""
        return Held(True, tells_marks=False) if is_earlier(store.address) else None

    def has_commit(self, store: Store, app_id: str, batch: int, version: int) -> None:
        """Return None: no file of its own shows a commit."""


ENTRY = IcebergFormat()


def refuse_earlier(path: str) -> NoReturn:
    """Raise LakeUnavailableError for a table of an earlier version."""
    raise LakeUnavailableError(
        "an Iceberg table of an earlier version has no Delta log yet",
        where=path,
        evidence="its folder has metadata, and no _delta_log",
        next_step="run its pipeline, with `tables.format: iceberg`: the run gives it one",
    )
