"""Parking: batches that a table cannot take now wait here, out of reach of any VACUUM.

A parked batch is a folder `<parking>/<table>/<lane>-<batch>-<application>` with a copy of each
staged file and, written last, `entry.json`: without it the batch is not parked. Files stay in the
table's folder too, because a lost answer may mean that they are committed after all. A parked batch
is removed only after the table's log carries the batch. A crash at any moment therefore leaves each
file in at least one of the two places.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from distributary.delta.commit import check_staged, lane_of
from distributary.delta.log_reading import BrokenLogError, commit_name
from distributary.errors import ErrorCode, PublishError
from distributary.model import layout
from distributary.model.manifest import Mark, TableEntry, entry_from_dict, entry_to_dict
from distributary.model.table_format import TABLE_FORMATS
from distributary.publish.base import Held, Outcome, Published, Publisher
from distributary.publish.formats.table_format_entry import ask_table, format_at, format_entry
from distributary.store.base import Store, at, local_folder, reaching, stay_inside
from distributary.store.seal import seal, unseal

ENTRY = "entry.json"
PARKING_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """The files of one batch for one table, which wait to be committed."""

    folder: str
    entry: TableEntry
    mark: Mark
    parked_at: float
    """The time in seconds since 1970."""
    reason: str

    @property
    def table(self) -> str:
        """Return the name of the table."""
        return self.entry.table.name

    @property
    def lane(self) -> str:
        """Return the lane, `stream` or `replay`."""
        return lane_of(self.mark.app_id)


def park(entry: TableEntry, mark: Mark, *, folder: str, reason: str = "") -> None:
    """Copy the staged files of an entry to the parking folder; a second call completes the first.

    Raises StagedFileError if a file is missing or changed, and LakeUnavailableError if the parking
    folder cannot be written.
    """
    with reaching(folder):
        place = at(f"{folder.rstrip('/')}/{entry.table.name}/{_name(mark)}")
        if place.size(ENTRY) is not None:
            return
        table = at(entry.table.path)
        missing = [f for f in entry.files if place.size(f.path) != f.size]
        check_staged(replace(entry, files=tuple(missing)), table.size)
        for file in missing:
            table.copy(file.path, to=place)
        document = {
            "format": PARKING_FORMAT,
            "app_id": mark.app_id,
            "batch": mark.batch,
            "source_hash": mark.source_hash,
            "parked_at": time.time(),
            "reason": reason,
            "entry": entry_to_dict(entry),
        }
        place.write(ENTRY, seal(json.dumps(document).encode()))


def parked(folder: str, *, table: str | None = None, lake: str | None = None) -> list[ParkedBatch]:
    """Return all parked batches, by table, in the order in which they must be published.

    With `lake`, the tables are looked for in that lake, whatever path the entries have: the lake
    may have been moved, or another program may have written the entries.
    """
    with reaching(folder):
        parking = at(folder)
        names = [table] if table is not None else parking.folders()
        places = [at(f"{parking.address}/{n}/{p}") for n in names for p in parking.folders(n)]
        batches = [_read(place, lake) for place in places if place.size(ENTRY) is not None]
    # An application that began to wait earlier goes first; its batches go in the order of their
    # numbers.
    began: dict[tuple[str, str], float] = {}
    for batch in batches:
        queue = (batch.table, batch.mark.app_id)
        began[queue] = min(began.get(queue, batch.parked_at), batch.parked_at)
    return sorted(
        batches, key=lambda b: (b.table, began[b.table, b.mark.app_id], b.mark.app_id, b.mark.batch)
    )


def in_lake(entry: TableEntry, lake: str) -> TableEntry:
    """Return the entry with its table's path in this lake, whatever path was stored."""
    return replace(entry, table=replace(entry.table, path=layout.place(lake, entry.table.path)))


def unpark(batch: ParkedBatch) -> None:
    """Copy the files back to the table's folder, where a commit can name them.

    A file that exists already is replaced: the new file is young, so that no VACUUM deletes it
    before the commit.
    """
    path, lake = batch.entry.table.path, _lake_of(batch.folder)
    if lake:
        stay_inside(lake, *(f"{path}/{file.path}" for file in batch.entry.files))
    with reaching(path):
        place, table = at(batch.folder), at(path)
        check_staged(batch.entry, place.size)
        for file in batch.entry.files:
            place.copy(file.path, to=table)


def forget(batch: ParkedBatch) -> None:
    """Remove a parked batch, after the table's log carries it."""
    with reaching(batch.folder):
        place = at(batch.folder)
        # The entry goes first: without it, the rest of the folder is no parked batch.
        place.remove(ENTRY)
        place.remove_folder()


def resume(
    publisher: Publisher,
    *,
    publish: Callable[[TableEntry, Mark], Published] | None = None,
    folder: str,
    table: str,
    lake: str | None = None,
    is_settled: Callable[[ParkedBatch], bool] = lambda batch: True,
    on_published: Callable[[ParkedBatch, Published], None] = lambda batch, result: None,
) -> list[Published]:
    """Publish the batches parked for a table, in order, up to the first that fails.

    With `publish`, batches are published by that function instead of the publisher's method.

    Only the owner of the pipeline's checkpoint may call this. A batch that is not settled stays
    parked, because its settlement would count its records a second time. If something stays parked,
    the last result has the outcome `parked`. After a crash the next call continues, so
    `on_published` is called before a batch is removed, and may be called twice for one batch.
    """
    results: list[Published] = []
    for batch in parked(folder, table=table, lake=lake):
        if not is_settled(batch):
            return [*results, Published(table, Outcome.PARKED, error=_UNSETTLED[batch.lane])]
        try:
            unpark(batch)
            result = (publish or publisher.publish)(batch.entry, batch.mark)
            if result.outcome is Outcome.SKIPPED:
                _require_proof(publisher, batch)
            on_published(batch, result)
            forget(batch)
        except PublishError as error:
            reason = f"{error.code}: {error.evidence or error.what}"
            return [*results, Published(table, Outcome.PARKED, error=reason)]
        results.append(result)
    with reaching(folder):
        _sweep(folder, table)
    return results


_UNSETTLED = {
    "stream": "the batch is not finished: the next run finishes it, and tries the table again",
    "replay": "the batch is not finished: run `distributary dlq replay` again",
    "reads": "the batch is not finished: run `distributary verify --source --heal` again",
}


def _sweep(folder: str, table: str) -> None:
    """Remove the remains of batches that a crash left parked or removed only in part.

    Only the stream's batches are removed, because its owner calls this: a replay may be parking a
    batch here at this moment.
    """
    parking = at(folder)
    for name in parking.folders(table):
        place = f"{table}/{name}"
        if name.startswith("stream-") and parking.size(f"{place}/{ENTRY}") is None:
            parking.remove_folder(place)
    local = local_folder(folder)
    if local is not None:
        # A folder with another parked batch stays.
        with suppress(OSError):
            os.rmdir(f"{local}/{table}")


def _require_proof(publisher: Publisher, batch: ParkedBatch) -> None:
    """Raise PublishError unless the table has the batch's own commit: a later mark is no proof."""
    committed = publisher.committed(batch.entry.table.path, batch.mark)
    if committed is None or committed.source_hash != batch.mark.source_hash:
        raise PublishError(
            f"table {batch.table} has later batches, but no commit of batch {batch.mark.batch}",
            code=ErrorCode.CHECKPOINT_DIVERGED,
            where=batch.folder,
            evidence=f"newest mark: {f'batch {committed.batch}' if committed else 'none'}",
            next_step="the files of this batch are kept: add them to the table by hand, then "
            "remove the folder of the parked batch",
        )


def _read(place: Store, lake: str | None) -> ParkedBatch:
    where = f"{place.address}/{ENTRY}"
    next_step = "restore the file from a backup: the records are in the files beside it"
    try:
        text = unseal(place.read(ENTRY), where=where, next_step=next_step)
        data: dict[str, Any] = json.loads(text)
        entry, home = entry_from_dict(data["entry"]), lake or _lake_of(place.address)
        words = (data["app_id"], data["source_hash"], data["reason"])
        if not all(isinstance(word, str) for word in words) or type(data["batch"]) is not int:
            raise TypeError("a field has the wrong type")
        data["parked_at"] = float(data["parked_at"])
        return ParkedBatch(
            folder=place.address,
            entry=in_lake(entry, home) if home else entry,
            mark=Mark(data["app_id"], data["batch"], data["source_hash"]),
            parked_at=data["parked_at"],
            reason=data["reason"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PublishError(
            "a parked batch cannot be read",
            code=ErrorCode.CHECKPOINT_INVALID,
            where=where,
            evidence=type(error).__name__,
            next_step=next_step,
        ) from error


def _lake_of(place: str) -> str:
    """Return the lake whose folder holds the parking; empty if batches wait in a checkpoint."""
    return place.rpartition(f"/{layout.HOME}/")[0]


def _name(mark: Mark) -> str:
    # A reset checkpoint numbers its batches from the start again, so the id is part of the name.
    life = hashlib.sha256(mark.app_id.encode()).hexdigest()[:12]
    return f"{lane_of(mark.app_id)}-{mark.batch:020d}-{life}"


# The check for whether a table still has its committed batches, by reading as little of its log as
# possible.
# The commit of the newest batch is a small file with a known name. If it exists and carries the
# batch's mark, the table is complete, and nothing else is read: a thousand tables take a few
# hundredths of a second. If it does not, the log may have been cleaned up, or the table may have
# been replaced: then the table is loaded.

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Expected:
    """The newest commit that a lane of a pipeline has made to a table."""

    path: str
    app_id: str
    batch: int
    version: int
    marked: bool = True
    """True if every batch's commit carries its mark. A merge that changes nothing makes no commit,
    so only a version that it has seen is known."""


class Loss(StrEnum):
    """The losses that can be seen from file names."""

    MISSING = "missing"
    BEHIND = "behind"


def lacking(expected: Expected) -> Held | None:
    """Return the state of a table that lacks the expected commit; None if nothing is missing.

    A table that cannot be read is not reported: the next commit to it raises the error.
    """
    store = at(expected.path)
    try:
        if _carries(store, expected):
            return None
        held = _held(expected.path, expected.app_id)
    except (BrokenLogError, OSError, ValueError):
        return Held(True) if _is_blank(store, expected.version) else None
    if held is None or not held.exists:
        return held
    if expected.marked:
        return None if held.mark is not None and held.mark >= expected.batch else held
    behind = held.version < expected.version or _is_blank(store, expected.version)
    return held if behind else None


def held_by(path: str, app_id: str) -> Held | None:
    """Return what a table has of a lane; None where the table does not say it."""
    try:
        return _held(path, app_id)
    except (BrokenLogError, OSError, ValueError):
        return None


def loss_at_a_glance(path: str, version: int | None) -> Loss | None:
    """Return the loss of a local table, by names and sizes of files only; None if none is seen."""
    folder = local_folder(path)
    if folder is None or version is None:
        return None
    log = f"{folder}/_delta_log"
    try:
        if os.stat(f"{log}/{version:020d}.json").st_size:
            return None
        return Loss.BEHIND
    except FileNotFoundError:
        pass
    except OSError:
        return None
    if not os.path.isdir(log):
        return None if format_at(folder) is not None else Loss.MISSING
    # A log that was cleaned up continues after the version; a log that was restored ends before it.
    names = filter(None, map(_COMMIT.fullmatch, os.listdir(log)))
    newest = max((int(name[1]) for name in names), default=-1)
    return Loss.BEHIND if newest < version else None


def newest_with_content(path: str, version: int | None) -> int | None:
    """Return the newest version, up to `version`, whose commit is not empty.

    None if there is none.
    """
    folder = local_folder(path)
    while folder is not None and version is not None and _is_blank(at(folder), version):
        version = version - 1 if version else None
    return version


def _carries(store: Store, expected: Expected) -> bool:
    """Return whether a file of the log carries the expected commit."""
    if not expected.marked:
        return bool(store.size(commit_name(expected.version)))
    commit = (expected.app_id, expected.batch, expected.version)
    answers = (format_entry(name).has_commit(store, *commit) for name in TABLE_FORMATS)
    return next((answer for answer in answers if answer is not None), False)


def _held(path: str, app_id: str) -> Held | None:
    """Return the state of a table; None if it does not tell its marks."""
    held = ask_table(path, lambda entry: entry.held(at(path), app_id)) or Held(False)
    return held if held.tells_marks else None


def _is_blank(store: Store, version: int) -> bool:
    """Return whether the commit of a version exists and is empty."""
    return store.size(commit_name(version)) == 0
