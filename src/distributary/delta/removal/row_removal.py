"""Removal of rows from a table, exactly: whole files by their statistics, others written again.

A selection says which rows go. It depends on nothing but the rows, so that a removal that was
killed is continued by doing it again: rows that are gone are not found. The commit counts the rows
that it removes (`REMOVED` in `delta/compact.py`), by which `verify` still proves the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.column_merge import UnsupportedTypeError, columns_of
from distributary.delta.compact import FileExchange, Swap, exchange, refusal, rewritten, shares
from distributary.delta.difference import FileRows, read_rows, with_partition_values
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.skipping import SLACK_US, microseconds


class RowSelection(Protocol):
    """Rows of a table that are removed."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that decide."""
        ...

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return whether all rows of a file go, or none; None if its rows must be read."""
        ...

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that go, without nulls."""
        ...


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A file with rows to remove."""

    file: DataFile
    gone: int
    rows: int
    """The rows of the file that are part of the table."""

    @property
    def whole(self) -> bool:
        """Return whether no row of the file stays."""
        return self.gone == self.rows

    @property
    def bytes(self) -> int:
        """Return the share of the file's bytes that its removed rows have."""
        return self.file.size if self.whole else self.file.size * self.gone // max(self.rows, 1)


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """The rows that were removed from a table, or that would be removed."""

    rows: int = 0
    whole_files: int = 0
    """Files that went without being written again."""
    rewritten_files: int = 0
    bytes: int = 0
    """The bytes of the removed rows, by their share of the rows of their files."""
    version: int | None = None
    left: int = 0
    """Rows in files that another writer has changed in the meantime."""


def matches_in(state: Snapshot, selection: RowSelection) -> list[FileMatch]:
    """Return the files with rows to remove. Raises OSError and DamagedFileError."""
    schema = _read_schema(state, selection.columns)
    found = []
    for file in state.files.values():
        decided = selection.by_statistics(state, file)
        if decided is False:
            continue
        if decided and file.rows is not None:
            found.append(FileMatch(file, file.rows, file.rows))
            continue
        gone = rows = 0
        for piece in read_rows(state, FileRows(file), schema):
            rows += piece.num_rows
            gone += int(pc.sum(selection.gone(piece)).as_py() or 0)
        if gone:
            found.append(FileMatch(file, gone, rows))
    return found


def rows_in(state: Snapshot, selection: RowSelection, columns: Sequence[str]) -> pa.Table:
    """Return some columns of the selected rows. Raises OSError and DamagedFileError."""
    needed = dict.fromkeys([*selection.columns, *columns])
    schema = _read_schema(state, tuple(needed))
    parts = []
    for file in state.files.values():
        if selection.by_statistics(state, file) is False:
            continue
        for piece in read_rows(state, FileRows(file), schema):
            chosen = piece.filter(selection.gone(piece))
            if chosen.num_rows:
                parts.append(chosen.select(list(columns)))
    return pa.concat_tables(parts) if parts else schema.empty_table().select(list(columns))


def removal_refusal(state: Snapshot) -> str:
    """Return the reason why rows of a table cannot be removed; empty if they can."""
    if state.property("delta.appendOnly") == "true":
        return "rows may only be added: delta.appendOnly"
    return refusal(state)


def remove_rows(
    state: Snapshot,
    selection: RowSelection,
    *,
    ready: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> tuple[Snapshot, RemovedRows]:
    """Remove the selected rows of a table.

    Raises BusyError, OvertakenError, OSError, and UnsupportedTypeError for a table from which we
    cannot remove rows (`removal_refusal`).
    """
    matches = matches_in(state, selection)
    total = sum(match.gone for match in matches)
    if dry_run or not matches:
        return state, _summed(matches, total, None)
    refused = removal_refusal(state)
    if refused:
        raise UnsupportedTypeError(refused)

    schema = _read_schema(state, selection.columns)

    def keep(file: DataFile, rows: pa.Table) -> pa.Table:
        whole = with_partition_values(state, file, rows, schema)
        return rows.filter(pc.invert(selection.gone(whole)))

    by_path = {match.file.path: match for match in matches}
    now, done = state, list[FileMatch]()
    for portion in shares([(match.file,) for match in matches]):
        partly = [group for group in portion if not by_path[group[0].path].whole]
        swaps = [Swap(group, None) for group in portion if by_path[group[0].path].whole]
        swaps += rewritten(now, partly, ready, keep=keep)
        now, swapped = exchange(now, swaps, FileExchange("DELETE", True, ready))
        done += [by_path[file.path] for swap in swapped for file in swap.removed]
    return now, _summed(done, total, now.version if done else None)


def _summed(matches: Sequence[FileMatch], total: int, version: int | None) -> RemovedRows:
    gone = sum(match.gone for match in matches)
    return RemovedRows(
        rows=gone,
        whole_files=sum(match.whole for match in matches),
        rewritten_files=sum(not match.whole for match in matches),
        bytes=sum(match.bytes for match in matches),
        version=version,
        left=total - gone,
    )


def _read_schema(state: Snapshot, names: Sequence[str]) -> pa.Schema:
    """Return the columns to read of a table's files."""
    types = {column.name: column.type for column in columns_of(state.fields)}
    return pa.schema([pa.field(name, types[name]) for name in names])


# Rows of a certain age.


@dataclass(frozen=True, slots=True)
class OlderRows:
    """The rows whose time or day in a column is before a moment; rows without a value stay."""

    column: str
    before: datetime

    @classmethod
    def of(cls, state: Snapshot, column: str, before: datetime) -> OlderRows | str:
        """Return the rows of a table before a moment, or the reason why its column cannot say."""
        types = {known.name: known.type for known in columns_of(state.fields)}
        if column not in types:
            return f"the table has no column {column}"
        type_ = types[column]
        if pa.types.is_date32(type_):
            return cls(column, before.replace(hour=0, minute=0, second=0, microsecond=0))
        if column in state.partition_columns:
            return f"{column} partitions the table, and is not a day: name another column"
        if pa.types.is_timestamp(type_) and type_.unit == "us":
            return cls(column, before)
        return f"{column} is {type_}, and not a time or a day"

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column."""
        return (self.column,)

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return whether all rows of a file are older, or none, by its bounds."""
        before = int(self.before.timestamp() * 1_000_000)
        if self.column in state.partition_columns:
            day = _time(file.values.get(self.column))
            return day is not None and day < before
        low, high = (_time(bound) for bound in file.bounds(self.column))
        if low is None or high is None:
            return None
        if low - SLACK_US >= before:
            return False
        filled = (file.statistics().get("nullCount") or {}).get(self.column) == 0
        return True if filled and high + SLACK_US < before else None

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that are older."""
        values = rows.column(self.column)
        moment: Any = self.before
        if pa.types.is_date32(values.type):
            moment = self.before.date()
        elif values.type.tz is None:
            moment = self.before.replace(tzinfo=None)
        return pc.fill_null(pc.less(values, pa.scalar(moment, values.type)), False)


def _time(bound: object) -> int | None:
    """Return a bound of a time or a day in microseconds since 1970; None for anything else."""
    if isinstance(bound, str) and len(bound) == len("2026-01-31"):
        try:
            day = date.fromisoformat(bound)
        except ValueError:
            return None
        return microseconds(datetime(day.year, day.month, day.day, tzinfo=UTC).isoformat())
    return microseconds(bound)
