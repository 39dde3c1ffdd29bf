"""What the log of a Delta table says, as a source needs it: files in the order of commits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from distributary.config.problems import printable
from distributary.errors import ErrorCode, SourceError, SourceUnavailableError

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""How a path begins that is not one within the table's folder."""
_UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    rows: int
    modified_us: int


class DeltaLog:
    """Reads a table's log: whole versions through deltalake, single commits by itself."""

    def __init__(
        self, path: str, *, value: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.path = path.rstrip("/")
        self._value = value
        self._storage_options = dict(storage_options or {})
        uri = self.path if "://" in self.path else Path(self.path).resolve().as_uri()
        self._filesystem, self._root = fs.FileSystem.from_uri(uri)
        self._rows: dict[str, int] = {}
        self._commits: dict[int, tuple[AddedFile, ...]] = {}
        self._snapshots: dict[int, tuple[AddedFile, ...]] = {}
        self._newest = -1
        self._identity = ""
        self._newest_file: tuple[object, ...] = ()
        """What the newest commit's file looked like when the table was read."""

    def known(self) -> tuple[int, str]:
        """The newest version, and the id that the table was given when it was made.

        As of when the newest version was asked for last.
        """
        if self._newest < 0:
            self.newest_version()
        return self._newest, self._identity

    def table(self, version: int | None = None) -> DeltaTable:
        """The table, if it is there and this source can read it."""
        try:
            table = DeltaTable(
                self.path, version=version, storage_options=self._storage_options or None
            )
        except TableNotFoundError as error:
            raise SourceUnavailableError(
                "the source table does not exist",
                where=self.path,
                next_step="create it (for a trial: `distributary produce games --to delta`), "
                "or correct source.path",
            ) from error
        except (DeltaError, OSError) as error:
            raise SourceUnavailableError(
                "the source table cannot be read", where=self.path, evidence=str(error)[:300]
            ) from error
        self._refuse_unreadable(table)
        return table

    def newest_version(self) -> int:
        """The table's version now; cheap where nothing has happened, for it is asked often."""
        if self._newest >= 0:
            paths = [self._commit_path(self._newest + more) for more in (0, 1)]
            newest, following = self._filesystem.get_file_info(paths)
            if following.type == fs.FileType.NotFound and _seen(newest) == self._newest_file:
                return self._newest
        table = self.table()
        identity = str(table.metadata().id)
        if identity != self._identity or int(table.version()) <= self._newest:
            # versions of another table, or of a copy, are other versions
            self._commits.clear()
            self._snapshots.clear()
        self._newest, self._identity = int(table.version()), identity
        info = self._filesystem.get_file_info(self._commit_path(self._newest))
        self._newest_file = _seen(info)
        return self._newest

    def snapshot(self, version: int) -> tuple[AddedFile, ...]:
        """All files of a version, the oldest first."""
        known = self._snapshots.get(version)
        if known is None:
            actions = pa.table(self.table(version).get_add_actions(flatten=True)).to_pylist()
            actions.sort(key=lambda a: (int(a["modification_time"]), a["path"]))
            known = tuple(
                self._added(a["path"], a.get("num_records"), int(a["modification_time"]))
                for a in actions
            )
            self._snapshots = {version: known}
        return known

    def commit(self, version: int) -> tuple[AddedFile, ...]:
        """The files of new records that one commit added, in the commit's order."""
        known = self._commits.get(version)
        if known is None:
            known = self._read_commit(version)
            if len(self._commits) > 1000:
                self._commits.clear()
            self._commits[version] = known
        return known

    def count(self) -> int:
        """Rows of the table now."""
        return int(self.table().count())

    def _read_commit(self, version: int) -> tuple[AddedFile, ...]:
        path = self._commit_path(version)
        try:
            with self._filesystem.open_input_stream(path) as stream:
                lines = stream.read().decode().splitlines()
        except FileNotFoundError as error:
            raise SourceError(
                f"version {version} of the source table is no longer in its log",
                code=ErrorCode.SOURCE_DATA_LOST,
                where=path,
                next_step="the pipeline was away for longer than the log's retention: "
                "`reset` it and read the table again from the start",
            ) from error
        actions = [json.loads(line) for line in lines if line.strip()]
        self._refuse_changes(version, actions)
        adds = [action["add"] for action in actions if "add" in action]
        return tuple(
            self._added(
                add["path"],
                json.loads(add.get("stats") or "{}").get("numRecords"),
                int(add["modificationTime"]),
            )
            for add in adds
            if add.get("dataChange", True)
        )

    def _refuse_changes(self, version: int, actions: list[dict[str, dict[str, object]]]) -> None:
        removed = [a["remove"] for a in actions if "remove" in a]
        if any(action.get("dataChange", True) for action in removed):
            raise SourceError(
                f"version {version} of the source table deletes or changes records",
                where=self.path,
                evidence=f"the commit removes {len(removed)} files",
                next_step="a source must be append-only; to read the table as it is now, "
                "`reset` the pipeline",
            )

    def _added(self, path: str, rows: int | None, modified_ms: int) -> AddedFile:
        name = unquote(path)
        if ".." in name.split("/") or _ELSEWHERE.match(name):
            raise SourceError(
                "the log of the source table names a file outside of the table's folder",
                where=self.path,
                evidence=printable(path),
                next_step="find out who wrote this commit; a table whose files are elsewhere, such "
                "as a shallow clone, is read where its files are",
            )
        full = f"{self._root}/{name}"
        if rows is None:
            rows = self._rows.get(full)
        if rows is None:
            rows = int(pq.read_metadata(full, filesystem=self._filesystem).num_rows)
            self._rows[full] = rows
        return AddedFile(full, rows, modified_ms * 1000)

    def _commit_path(self, version: int) -> str:
        return f"{self._root}/_delta_log/{version:020d}.json"

    def _refuse_unreadable(self, table: DeltaTable) -> None:
        names = {f.name for f in table.schema().fields}
        if self._value not in names:
            raise SourceError(
                f"the source table has no column {self._value!r}",
                where=self.path,
                evidence=f"its columns are {', '.join(sorted(names))}",
                next_step="set source.value to the column that holds the message",
            )
        features = set(table.protocol().reader_features or ()) & _UNREADABLE_FEATURES
        if features:
            raise SourceError(
                f"the source table uses {', '.join(sorted(features))}, which this source "
                "does not read",
                where=self.path,
                next_step="point source.path at an append-only table without these features",
            )


def _seen(file: fs.FileInfo) -> tuple[object, ...]:
    return file.type, file.size, file.mtime_ns
