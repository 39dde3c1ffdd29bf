"""One table's transaction log, as far as committing files needs it: one shape, two ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from distributary.errors import PublishError, StagedFileError
from distributary.model.manifest import TableEntry
from distributary.publish.base import Mark
from distributary.publish.columns import Field, MergedFields


class TableLog(Protocol):
    """What the log says as of the last `refresh`. Not thread-safe: its owner holds a lock."""

    def refresh(self, app_id: str | None = None) -> None:
        """Catch up with the newest version; after this `mark` knows `app_id`."""
        ...

    def forget(self) -> None:
        """Trust nothing seen so far: the next `refresh` starts anew."""
        ...

    def version(self) -> int:
        """The newest version, or -1 where there is no table."""
        ...

    def mark(self, app_id: str) -> int | None:
        """The newest batch that the application has committed."""
        ...

    def fields(self) -> Sequence[Field] | None:
        """The columns, or None where there is no table."""
        ...

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        ...

    def source_of(self, mark: Mark) -> str | None:
        """The source fingerprint of the commit that carries this batch, if the log still tells."""
        ...

    def size_of(self, file: str) -> int | None:
        """The size of a file in the table's folder, or None if there is no such file."""
        ...

    def commit(self, entry: TableEntry, mark: Mark, merged: MergedFields) -> int:
        """Add the entry's files to the very version that `refresh` saw; return the new version.

        Raises OvertakenError if anybody committed anything in between. After any other exception
        it is unknown whether the commit has landed.
        """
        ...


def check_partitioning(entry: TableEntry, actual: Sequence[str]) -> None:
    """Files are cut by the table's partition columns: for other ones they would be read wrong."""
    if tuple(actual) != entry.table.partition_by:
        raise PublishError(
            f"table {entry.table.name} is partitioned in another way than the batch was staged for",
            where=entry.table.path,
            evidence=f"table: {', '.join(actual) or 'not at all'}; "
            f"batch: {', '.join(entry.table.partition_by) or 'not at all'}",
            next_step="somebody made or replaced the table meanwhile: put the old one back and "
            "resume it, or restart the pipeline, which then follows the table",
            reason="partitions",
        )


def check_staged(entry: TableEntry, size_of: Callable[[str], int | None]) -> None:
    """Each file must be there as it was staged: a VACUUM may have come by."""
    for file in entry.files:
        parts = PurePosixPath(file.path)
        inside = not parts.is_absolute() and ".." not in parts.parts
        size = size_of(file.path) if inside else None
        if size == file.size:
            continue
        if not inside:
            found = "its name points out of the table's folder"
        else:
            found = "no such file" if size is None else f"{size:,} bytes"
        raise StagedFileError(
            f"a staged file of table {entry.table.name} is not what was staged",
            where=f"{entry.table.path}/{file.path}",
            evidence=f"staged {file.size:,} bytes; found: {found}",
            next_step="find out who removes young files from this folder (a VACUUM with a short "
            "retention?); the records are still at the source: stage the batch again",
            table=entry.table.name,
        )
