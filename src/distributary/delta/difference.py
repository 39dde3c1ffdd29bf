"""The rows that were added to a table or removed since a version, by the table's log.

Commits say which files they add and remove, and which of them only move rows. What is read is what
was written since that version, not the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from distributary.delta.log import DataFile, Snapshot, data_file, file_key
from distributary.delta.log_reading import Action, actions_in, read_commit
from distributary.delta.vectors import Vector


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a data file: all that its vector leaves, or just those of one vector."""

    file: DataFile
    only: Vector | None = None
    """The vector that names the rows, if it is not all that `file.vector` leaves."""


@dataclass(frozen=True, slots=True)
class TableDifference:
    """What commits did to the rows of a table."""

    came: tuple[FileRows, ...]
    left: tuple[FileRows, ...]
    commits: int
    """The number of commits that changed rows."""


def difference(snapshot: Snapshot, since: int) -> TableDifference | None:
    """Return what commits after version `since` did; None if the log no longer has them."""
    came: dict[str, FileRows] = {}
    left: list[FileRows] = []
    commits = 0
    for version in range(since + 1, snapshot.version + 1):
        try:
            data = read_commit(snapshot.store, version)
        except FileNotFoundError:
            return None
        actions = actions_in(data, last=version == snapshot.version)
        commits += _apply(actions, came, left)
    return TableDifference(tuple(came.values()), tuple(left), commits)


def _apply(actions: Sequence[Action], came: dict[str, FileRows], left: list[FileRows]) -> bool:
    """Take in the actions of one commit; return whether it changed rows."""
    added = [data_file(a["add"]) for a in actions if _changes(a.get("add"))]
    removed = [_removed(a["remove"]) for a in actions if _changes(a.get("remove"))]
    again = {file.path: file for file in added}
    for file in removed:
        known = came.pop(file_key(file.path, file.vector), None)
        new = again.get(file.path)
        if known is not None:
            continue
        if new is None or new.vector is None:
            left.append(FileRows(file))
            continue
        # the same file with another vector: only the rows in which they differ
        left.append(FileRows(file, new.vector))
        if file.vector is not None:
            came[f"back {file_key(new.path, new.vector)}"] = FileRows(new, file.vector)
        del again[file.path]
    came.update((file_key(file.path, file.vector), FileRows(file)) for file in again.values())
    return bool(added or removed)


def _changes(action: Action | None) -> bool:
    return action is not None and bool(action.get("dataChange", True))


def _removed(action: Action) -> DataFile:
    return DataFile(
        path=unquote(action["path"]),
        spelled=action["path"],
        size=int(action.get("size") or 0),
        values=action.get("partitionValues") or {},
        vector=Vector.parse(action.get("deletionVector")),
    )


def read_rows(snapshot: Snapshot, rows: FileRows, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read rows of a file with the columns of `schema`, also those that partition the table.

    Raises FileNotFoundError if the file is gone.
    """
    apart = set(snapshot.partition_columns)
    inside = pa.schema([field for field in schema if field.name not in apart])
    for piece in _pieces(snapshot, rows, inside):
        yield with_partition_values(snapshot, rows.file, piece, schema).select(schema.names)


def with_partition_values(
    snapshot: Snapshot, file: DataFile, rows: pa.Table, schema: pa.Schema
) -> pa.Table:
    """Return rows of a file, with the columns of `schema` that the log has for the whole file."""
    for name in snapshot.partition_columns:
        if name in schema.names:
            field = schema.field(name)
            value = pa.scalar(file.values.get(name), pa.string()).cast(field.type)
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
    return rows


def _pieces(snapshot: Snapshot, rows: FileRows, schema: pa.Schema) -> Iterator[pa.Table]:
    if rows.only is None:
        yield from snapshot.pieces(rows.file, schema)
        return
    # of the rows that this vector leaves, those that the other one names
    here = snapshot.gone(rows.file)
    named = snapshot.gone(replace(rows.file, vector=rows.only))
    wanted = np.setdiff1d(named, here)
    if len(wanted):
        whole = snapshot.read(replace(rows.file, vector=None), schema, checked=False)
        yield whole.take(pa.array(wanted))
