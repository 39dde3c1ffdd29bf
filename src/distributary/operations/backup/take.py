"""Take a backup: find a consistent state of a lake, and copy the files that the backup lacks."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from distributary.delta.log import LARGE_FILE, Snapshot, in_table, load
from distributary.delta.log_reading import (
    LOG,
    BrokenLogError,
    LogNames,
    commit_name,
    log_names,
    with_sidecars,
)
from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.table_format import TABLE_FORMATS
from distributary.operations.backup.find import find_once
from distributary.operations.backup.points import (
    Point,
    StoredTable,
    packed_documents,
    point_ids,
    write_point,
)
from distributary.operations.backup.state import (
    THREADS,
    BackedUpTable,
    FileSize,
    LakeState,
    MovedError,
    each,
    inside_lake,
    retried,
)
from distributary.store.base import Store, at, is_remote, reaching, same_place

OnTable = Callable[[str, int, int], None]
"""Called with the name of a copied table, the number of copied tables, and their total."""
_FEW_THREADS = 4
_LINEAGES = 1000
"""The largest number of folders of one table in a backup."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a backup, or of its dry run."""

    point: Point
    seconds: float
    retries: int
    """The number of attempts that a change of the lake made invalid."""


@dataclass(slots=True)
class _Totals:
    """The size of a state, and the part of it that was copied."""

    files: int = 0
    bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0


def take_backup(
    lake: str,
    to: str,
    checkpoints: Mapping[str, str],
    *,
    dry_run: bool = False,
    on_table: OnTable = lambda table, done, total: None,
) -> Taken:
    """Back up a lake with its pipelines' progress, while they run.

    `checkpoints` are the addresses in pipeline files. Raises BACKUP_REFUSED.
    """
    began, tries = time.monotonic(), 0
    backup = at(to)
    _refuse_inside(lake, backup, checkpoints)
    copied_before = _Totals()
    try:
        for attempt in retried():
            with attempt:
                tries += 1
                point = _try(lake, backup, checkpoints, copied_before, dry_run, on_table)
    except MovedError as error:
        raise DistributaryError(
            "no consistent state of the lake was found",
            code=ErrorCode.BACKUP_REFUSED,
            where=lake,
            evidence=f"{error}, after {tries} tries",
            next_step="take the backup again; if no pipeline of this lake runs, run one once: it "
            "reports the problem, or repairs it",
        ) from error
    return Taken(point, time.monotonic() - began, tries - 1)


def _refuse_inside(lake: str, backup: Store, checkpoints: Mapping[str, str]) -> None:
    for place in (lake, *checkpoints.values()):
        inside = f"{backup.address}/".startswith(layout.join(place, ""))
        if inside or same_place(place, backup.address):
            raise DistributaryError(
                "a backup inside of its own lake would be lost with the lake",
                code=ErrorCode.BACKUP_REFUSED,
                where=backup.address,
                evidence=f"it is in {place}",
                next_step="name a folder or an address outside of the lake",
            )


def _try(
    lake: str,
    backup: Store,
    checkpoints: Mapping[str, str],
    before: _Totals,
    dry_run: bool,
    on_table: OnTable,
) -> Point:
    state = find_once(lake, checkpoints)
    totals = replace(before, files=0, bytes=0)
    copy = _Copy(state, backup, totals, dry_run=dry_run)
    try:
        tables = copy.all(on_table)
    finally:
        before.copied_files, before.copied_bytes = totals.copied_files, totals.copied_bytes
    documents = packed_documents(state.documents)
    point = Point(
        id=_id(backup, state),
        taken_at=state.taken_at,
        lake=lake,
        pipelines=state.pipelines,
        checkpoints={p.name: inside_lake(lake, p.checkpoint) for p in state.pipelines},
        tables=tuple(tables),
        parked=state.parked,
        documents=len(state.documents),
        sha256=hashlib.sha256(documents).hexdigest(),
        totals={
            "files": totals.files,
            "bytes": totals.bytes,
            "copied_files": totals.copied_files,
            "copied_bytes": totals.copied_bytes,
        },
    )
    if not dry_run:
        write_point(backup, point, documents)
    return point


def _id(backup: Store, state: LakeState) -> str:
    """Return a name for the restore point that sorts behind all existing ones."""
    mine = datetime.fromisoformat(state.taken_at).strftime("%Y%m%dT%H%M%S.%fZ")
    newest = max(point_ids(backup), default="")
    if mine > newest:
        return mine
    raise DistributaryError(
        "the backup has a restore point that is newer than the current time",
        code=ErrorCode.BACKUP_REFUSED,
        where=backup.address,
        evidence=f"{newest}; now it is {mine}",
        next_step="correct the clock of this machine, or back up to another place",
    )


class _Copy:
    """The copying of one state."""

    def __init__(self, state: LakeState, backup: Store, totals: _Totals, *, dry_run: bool) -> None:
        self.state, self.backup, self.totals, self.dry_run = state, backup, totals, dry_run
        self._counting = threading.Lock()

    def all(self, on_table: OnTable) -> list[StoredTable]:
        """Copy the files that the backup lacks; those that are removed soonest come first."""
        with reaching(self.backup.address):
            for batch in self.state.parked:
                to = f"parked/{layout.folder_name(batch.pipeline)}/{batch.place}"
                self._files(at(batch.source), batch.files, to=self.backup.below(to))
            tables = sorted(self.state.tables, key=_urgency)
            stored = list(map(StoredTable, tables, each(self._folder, tables)))
            for one in stored:
                if not TABLE_FORMATS[one.state.format].no_live_backup:
                    to_table = self.backup.below(one.stored)
                    self._files(self._source(one.state), one.state.files, to=to_table)
            done = itertools.count(1)

            def copy(one: StoredTable) -> None:
                self._table(one.state, self.backup.below(one.stored))
                on_table(one.state.folder, next(done), len(stored))

            each(copy, stored, threads=table_threads(self.state.lake, self.backup.address))
        return sorted(stored, key=lambda one: one.state.folder)

    def _table(self, table: BackedUpTable, to: Store) -> None:
        if TABLE_FORMATS[table.format].no_live_backup:
            self._files(self._source(table), table.files, to=to)
        elif table.version >= 0:
            self._delta(table, to)

    def _source(self, table: BackedUpTable) -> Store:
        return at(layout.join(self.state.lake, table.folder))

    def _folder(self, table: BackedUpTable) -> str:
        """Return the folder of a table in the backup whose log has the same commits."""
        for number in range(1, _LINEAGES):
            folder = f"lake/{table.folder}" + (f"~{number}" if number > 1 else "")
            if table.version < 0 or self._continues(table, self.backup.below(folder)):
                return folder
        raise AssertionError("too many folders of one table")

    def _continues(self, table: BackedUpTable, stored: Store) -> bool:
        """Return whether no commit of the table would replace another one in the backup."""
        there, here = log_names(stored).commits, log_names(self._source(table)).commits
        both = there.keys() & here.keys()
        if not both:
            return not there or max(there) < min(here, default=0)
        # a log only grows: if one commit is the same, all before it are
        name = commit_name(max(both))
        return stored.read(name) == self._read(table, name)

    def _read(self, table: BackedUpTable, name: str) -> bytes:
        with _still_there(table.folder):
            return self._source(table).read(name)

    def _delta(self, table: BackedUpTable, to: Store) -> None:
        """Copy the files of a version, then its log, so that the log never names missing files."""
        source = self._source(table)
        with _still_there(table.folder):
            snapshot = load(source, version=table.version)
            if snapshot is None or snapshot.version != table.version:
                raise MovedError(f"version {table.version} of table {table.folder} is gone")
            self._files(source, table_files(snapshot), to=to)
            self._files(source, log_files(source, table.version), to=to)

    def _files(self, source: Store, files: Iterable[FileSize], *, to: Store) -> None:
        wanted = list(files)
        size = to.sizes() if wanted else None
        lacking = [file for file in wanted if size and size(file.path) != file.size]
        if lacking and not self.dry_run:
            with _still_there(source.address):
                copy_files(source, lacking, to=to)
        with self._counting:
            self.totals.files += len(wanted)
            self.totals.bytes += sum(file.size for file in wanted)
            self.totals.copied_files += len(lacking)
            self.totals.copied_bytes += sum(file.size for file in lacking)


def _urgency(table: BackedUpTable) -> int:
    """Return the order of a table: tables whose old files are removed soonest come first."""
    hidden = (f"{layout.HOME}/changes/", f"{layout.HOME}/ledger/", f"{layout.HOME}/")
    return next((n for n, start in enumerate(hidden) if table.folder.startswith(start)), 9)


@contextmanager
def _still_there(where: str) -> Iterator[None]:
    """Raise MovedError for a file that was deleted since the state was found."""
    try:
        yield
    except FileNotFoundError as error:
        raise MovedError(f"a file of {where} is gone: {error}") from error
    except BrokenLogError as error:
        raise MovedError(f"{where}: {error}") from error


def table_threads(*places: str) -> int:
    """Return the number of tables to copy in parallel: a bucket answers many requests at once."""
    return _FEW_THREADS if any(map(is_remote, places)) else 1


def copy_files(source: Store, files: Sequence[FileSize], *, to: Store) -> None:
    """Copy files and check their sizes. Raises FileNotFoundError."""

    def copy(file: FileSize) -> None:
        source.copy(file.path, to=to)
        size = to.size(file.path) if to.asks_for_free else file.size
        if size != file.size:
            raise FileNotFoundError(f"{file.path} has {size} bytes instead of {file.size}")

    # a file is held in memory on its way to or from a bucket
    large = any(file.size > LARGE_FILE for file in files)
    each(copy, files, threads=_FEW_THREADS if large else THREADS)


def table_files(snapshot: Snapshot) -> list[FileSize]:
    """Return the files of a version: data, and deletion vectors."""
    sizes: dict[str, int] = {}
    vectors: set[str] = set()
    for file in snapshot.files.values():
        sizes[in_table(snapshot.folder, file.path)] = file.size
        if file.vector is not None and file.vector.path is not None:
            vectors.add(in_table(snapshot.folder, file.vector.path))
    for path in vectors:
        size = snapshot.store.size(path)
        if size is None:
            raise FileNotFoundError(path)
        sizes[path] = size
    return [FileSize(path, size) for path, size in sizes.items()]


def log_files(source: Store, version: int) -> list[FileSize]:
    """Return the files of a log up to a version, its newest checkpoint first."""
    names: LogNames = log_names(source).until(version)
    checkpoint = names.checkpoints.get(names.checkpoint, ())
    files = [*with_sidecars(source, checkpoint), *names.commits.values()]
    return [FileSize(info.name, info.size) for info in files if info.name.startswith(f"{LOG}/")]
