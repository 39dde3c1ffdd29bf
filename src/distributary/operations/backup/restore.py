"""Restore a backup's restore point into an empty place.

A document in the lake first names the restore point. As long as it exists, a run refuses, and a
second `restore` continues. Tables are restored first, then the documents beside them, then the
checkpoints. The first document is removed last.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from distributary.delta.log import load
from distributary.delta.log_reading import BrokenLogError
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model import layout
from distributary.observe.cards import RESTORE, Registration
from distributary.operations.backup.points import (
    Point,
    StoredTable,
    point_ids,
    read_documents,
    read_point,
)
from distributary.operations.backup.state import FileSize, each
from distributary.operations.backup.take import (
    OnTable,
    copy_files,
    log_files,
    table_files,
    table_threads,
)
from distributary.store.base import Store, at, reaching

_CARD = "/pipeline.json"
_LIFE = "life.json"


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore, or of its dry run."""

    point: Point
    checkpoints: Mapping[str, str]
    files: int
    bytes: int
    copied_files: int
    continued: bool
    """Whether this restore continues an interrupted one."""
    seconds: float


def choose_point(source: str, id: str | None = None) -> Point:
    """Read the newest restore point of a backup, or a given one."""
    backup = at(source)
    ids = point_ids(backup)
    if not ids or (id is not None and id not in ids):
        raise DistributaryError(
            "there is no such restore point"
            if ids
            else "there is no finished backup in this place",
            code=ErrorCode.BACKUP_INVALID,
            where=source,
            evidence=f"restore points: {', '.join(ids[-5:]) or 'none'}",
            next_step="`distributary restore BACKUP --list` names them"
            if ids
            else "check the address; start an interrupted backup again to finish it",
        )
    return read_point(backup, id or ids[-1])


def restore(
    source: str,
    point: Point,
    lake: str,
    checkpoints: Mapping[str, str],
    *,
    files: Mapping[str, str] | None = None,
    dry_run: bool = False,
    on_table: OnTable = lambda table, done, total: None,
) -> Restored:
    """Restore a restore point as a lake, with its pipelines' checkpoints.

    `checkpoints` and `files` come from pipeline files, by the names of their pipelines. Raises
    RESTORE_REFUSED, BACKUP_INVALID.
    """
    began = time.monotonic()
    places = _places(point, lake, checkpoints)
    with reaching(lake):
        continued = _refuse_taken(point, source, lake, places)
    work = _Restoring(at(source), point, lake, places, dict(files or {}), dry_run=dry_run)
    work.run(on_table)
    return Restored(
        point=point,
        checkpoints=places,
        files=work.files,
        bytes=work.bytes,
        copied_files=work.copied,
        continued=continued,
        seconds=time.monotonic() - began,
    )


def _places(point: Point, lake: str, named: Mapping[str, str]) -> dict[str, str]:
    """Return the address for the checkpoint of each pipeline."""
    places: dict[str, str] = {}
    for name, inside in point.checkpoints.items():
        if name in named:
            places[name] = named[name]
        elif inside:
            places[name] = layout.join(lake, inside)
        else:
            raise ConfigError(
                f"the place of the checkpoint of pipeline {name} is unknown",
                code=ErrorCode.RESTORE_REFUSED,
                where=lake,
                evidence="it was not in the lake when the backup was taken",
                next_step="name the file of this pipeline in the command as well",
            )
    return places


def _refuse_taken(point: Point, source: str, lake: str, places: Mapping[str, str]) -> bool:
    """Refuse a place that is not empty; return True if an earlier restore has begun there."""
    home = at(layout.join(lake, layout.HOME))
    try:
        begun = json.loads(home.read(RESTORE))
        before = (begun["point"], begun["source"])
    except FileNotFoundError:
        before = None
    except (ValueError, KeyError, TypeError):
        before = ("a document that cannot be read", "")
    if before == (point.id, at(source).address):
        return True
    taken = [home.address] if home.exists() else []
    folders = [layout.join(lake, table.state.folder) for table in point.tables]
    taken += [place for place in (*folders, *places.values()) if at(place).exists()]
    if not taken and before is None:
        return False
    raise DistributaryError(
        "a backup can be restored into an empty place only",
        code=ErrorCode.RESTORE_REFUSED,
        where=lake,
        evidence=f"begun earlier: {before[0]}" if before else f"there is {', '.join(taken[:3])}",
        next_step="name another lake in the pipeline file or with --lake, or move the existing "
        "files away; an interrupted restore continues with the same backup and the same --at",
    )


class _Restoring:
    """One restore."""

    def __init__(
        self,
        backup: Store,
        point: Point,
        lake: str,
        places: Mapping[str, str],
        named: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> None:
        self.backup, self.point, self.lake, self.places = backup, point, lake, places
        self.named, self.dry_run = named, dry_run
        self.files = self.bytes = self.copied = 0
        self._counting = threading.Lock()

    def run(self, on_table: OnTable) -> None:
        """Restore everything, in an order that makes an interruption visible."""
        documents = read_documents(self.backup, self.point)
        home = at(layout.join(self.lake, layout.HOME))
        with reaching(self.lake):
            if not self.dry_run:
                self._announce(home)
            done = itertools.count(1)

            def put_back(table: StoredTable) -> None:
                self._table(table)
                on_table(table.state.folder, next(done), len(self.point.tables))

            threads = table_threads(self.lake, self.backup.address)
            each(put_back, self.point.tables, threads=threads)
            for batch in self.point.parked:
                stored = f"parked/{layout.folder_name(batch.pipeline)}/{batch.place}"
                parking = layout.parking(self.lake, batch.pipeline, self.places[batch.pipeline])
                to = at(f"{parking}/{batch.place}")
                self._copy(self.backup.below(stored), list(batch.files), to)
            if not self.dry_run:
                self._documents(documents)
                home.remove(RESTORE)

    def _announce(self, home: Store) -> None:
        progress = {
            "point": self.point.id,
            "source": self.backup.address,
            "begun_at": datetime.now(UTC).isoformat(),
        }
        home.write(RESTORE, json.dumps(progress).encode())

    def _table(self, table: StoredTable) -> None:
        stored, state = self.backup.below(table.stored), table.state
        to = at(layout.join(self.lake, state.folder))
        try:
            self._copy(stored, list(state.files), to)
            if state.version >= 0:
                snapshot = load(stored, version=state.version)
                if snapshot is None or snapshot.version != state.version:
                    raise FileNotFoundError(f"version {state.version}")
                self._copy(stored, table_files(snapshot), to)
                self._copy(stored, log_files(stored, state.version), to)
        except (FileNotFoundError, BrokenLogError) as error:
            raise DistributaryError(
                f"the backup lacks a part of table {state.folder}",
                code=ErrorCode.BACKUP_INVALID,
                where=stored.address,
                evidence=str(error),
                next_step="put the file back into the backup, or choose another restore point "
                "with --at; the restored files are kept, but not used",
            ) from error

    def _copy(self, stored: Store, files: list[FileSize], to: Store) -> None:
        if not files:
            return
        size = to.sizes()
        lacking = [file for file in files if size(file.path) != file.size]
        held = stored.sizes()
        for file in lacking:
            if held(file.path) != file.size:
                raise FileNotFoundError(f"{file.path} has {held(file.path)} bytes of {file.size}")
        if lacking and not self.dry_run:
            copy_files(stored, lacking, to=to)
        with self._counting:
            self.files += len(files)
            self.bytes += sum(file.size for file in files)
            self.copied += len(lacking)

    def _documents(self, documents: Mapping[str, bytes]) -> None:
        """Write the documents beside tables, then the checkpoints; each life last."""
        homes = {layout.folder_name(name): name for name in self.places}
        lives: list[tuple[Store, bytes]] = []
        writes: list[tuple[Store, str, bytes]] = []
        for name, data in documents.items():
            kind, _, rest = name.partition("/")
            if kind == "lake":
                text = self._card(data) if rest.endswith(_CARD) else data
                writes.append((at(self.lake), rest, text))
                continue
            folder, _, path = rest.partition("/")
            pipeline = homes[folder]
            if kind == "parked":
                place = layout.parking(self.lake, pipeline, self.places[pipeline])
                writes.append((at(place), path, data))
            elif path == _LIFE:
                lives.append((at(self.places[pipeline]), data))
            else:
                writes.append((at(self.places[pipeline]), path, data))
        each(lambda write: write[0].write(write[1], write[2]), writes)
        for store, data in lives:
            store.write(_LIFE, data)

    def _card(self, data: bytes) -> bytes:
        """Return a pipeline's card with its new checkpoint and file."""
        card = Registration.from_json(data)
        if card.name not in self.places:
            return data
        here = replace(
            card,
            checkpoint=at(self.places[card.name]).address,
            file=self.named.get(card.name, card.file),
        )
        return here.to_json().encode()
