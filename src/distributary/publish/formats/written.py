"""A table opened for its commits and files, as `verify` compares them with the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A data file as the commits of its table name it."""

    path: str
    size: int
    checksum: str | None
    held: str
    """Rows and batches in it, as far as the table shows without it."""


def rows_held(rows: object, batches: tuple[object, object]) -> str:
    """Format the content of a file: `10 rows of batches 3 to 5`."""
    low, high = batches
    parts = [f"{rows:,} rows"] if isinstance(rows, int) else []
    if low is not None:
        parts.append(f"batch {low}" if low == high else f"batches {low} to {high}")
    return " of ".join(parts) or "rows that its log does not count"


@dataclass(frozen=True, slots=True)
class LogCommit:
    """A commit as the log of its table describes it."""

    version: int
    operation: str
    """The operation: `DELETE`, `WRITE (Overwrite)`."""
    at: datetime | None
    engine: str
    app_id: str
    """The pipeline, life and lane of the commit; empty for a commit of another program."""
    batch: int
    rows: int | None
    """The change in the number of rows; None if the files do not count them."""
    blank: bool
    """Whether the file of the commit is empty."""
    counted: bool = False
    """Whether the table counts the rows that it has removed."""

    def describe(self) -> str:
        """Format it: `DELETE at version 12, 2026-11-15 12:00 UTC, by delta-rs: 40 rows fewer`."""
        when = f", {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        who = f", by {self.engine}" if self.engine else ""
        what = "an unknown number of rows"
        if self.rows is not None:
            what = f"{abs(self.rows):,} rows {'fewer' if self.rows < 0 else 'more'}"
        return f"{self.operation or 'a commit'} at version {self.version}{when}{who}: {what}"


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The commits of a log that are still there, the oldest first."""

    commits: tuple[LogCommit, ...] = ()
    complete: bool = False
    """Whether it begins with the table itself."""


class WrittenFiles(Protocol):
    """The commits and files of a table, for every format."""

    def version(self) -> int:
        """Return the newest version."""
        ...

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        ...

    def rows(self) -> tuple[int | None, str]:
        """Return the number of rows; or None, and why it is not known."""
        ...

    def files(self) -> tuple[int, list[str], list[str]]:
        """Return the number of files, those that are gone, and those of another size."""
        ...

    def contents(self) -> list[KnownFile]:
        """Return the files in the table's own folder."""
        ...

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Yield files whose deletion vectors cannot be read, and why."""
        ...

    def log_damage(self) -> tuple[str, str] | None:
        """Return a file of the log that does not say what other files of the log say, and how."""
        ...

    def past(self) -> TableHistory | None:
        """Return what every commit did that the log still has; None if the log does not tell."""
        ...

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and rows of the commits of pipelines."""
        ...


def compared_sizes(
    logged: Mapping[str, int | None], size_of: Callable[[str], int | None]
) -> tuple[list[str], list[str]]:
    """Return the files that are gone, and those of another size than the log has, if it has one."""
    found = {path: size_of(path) for path in logged}
    gone = [path for path, size in found.items() if size is None]
    changed = [p for p, size in logged.items() if None not in (size, found[p]) and found[p] != size]
    return gone, changed
