"""Batches of a table that cannot be committed now wait here, out of the reach of any VACUUM.

A parked batch is a folder `<parking>/<table>/<lane>-<batch>-<application>` with a copy of each
staged file and, written last, `entry.json`: without it the batch is not parked. Nothing is taken
out of the table's folder, because an answer that was lost may mean that the files are committed
after all; and nothing is removed from here before the table's own log carries the batch. So a
crash at any moment leaves each file in at least one of the two places.
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
from distributary.delta.log import BrokenLogError, commit_name, load, parse_commit
from distributary.errors import ErrorCode, PublishError
from distributary.model import layout
from distributary.model.manifest import (
    Mark,
    TableEntry,
    compact,
    entry_from_dict,
    entry_to_dict,
)
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.parquet import HOME, ParquetTable, app_key, format_of, open_parquet
from distributary.store.base import Store, at, local_folder, reaching, stay_inside
from distributary.store.seal import seal, unseal

ENTRY = "entry.json"
PARKING_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """What one batch would have done to one table."""

    folder: str
    entry: TableEntry
    mark: Mark
    parked_at: float
    """Seconds since 1970."""
    reason: str

    @property
    def table(self) -> str:
        """The table that waits for it."""
        return self.entry.table.name

    @property
    def lane(self) -> str:
        """`stream` or `replay`."""
        return lane_of(self.mark.app_id)


def park(entry: TableEntry, mark: Mark, *, folder: str, reason: str = "") -> None:
    """Keep the staged files of an entry until `resume`. Calling it again completes it.

    Raises StagedFileError if a file is no longer what was staged, LakeUnavailableError if the
    parking folder cannot be written.
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
    """All that waits, table by table, in the order in which it must be published.

    With a lake, its tables are meant, whatever the entries say: others may have written them, or
    the lake was moved since.
    """
    with reaching(folder):
        parking = at(folder)
        names = [table] if table is not None else parking.folders()
        places = [at(f"{parking.address}/{n}/{p}") for n in names for p in parking.folders(n)]
        found = [_read(place, lake) for place in places if place.size(ENTRY) is not None]
    # a life that began to wait earlier goes first; within it, the numbers of its batches count
    began: dict[tuple[str, str], float] = {}
    for batch in found:
        queue = (batch.table, batch.mark.app_id)
        began[queue] = min(began.get(queue, batch.parked_at), batch.parked_at)
    return sorted(
        found, key=lambda b: (b.table, began[b.table, b.mark.app_id], b.mark.app_id, b.mark.batch)
    )


def in_lake(entry: TableEntry, lake: str) -> TableEntry:
    """An entry whose table is one of this lake, whatever whoever wrote it says."""
    return replace(entry, table=replace(entry.table, path=layout.place(lake, entry.table.path)))


def unpark(batch: ParkedBatch) -> None:
    """Bring the files back to the table's folder, where a commit can name them.

    A file that is there already is put in place again: the new one is young, and no VACUUM takes
    it before it is committed.
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
    """Remove a parked batch: only when the table's log carries it."""
    with reaching(batch.folder):
        place = at(batch.folder)
        # first what makes it a parked batch: a half removed one is none
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
    """Publish what waits for a table, in order, up to the first that fails.

    With `publish` in that way instead of the publisher's own.

    Only the owner of the pipeline's checkpoint may call it. A batch that is not settled goes on
    waiting: whoever settles it would count its records once more. Where something still waits, the
    last result has the outcome `parked`. A crash in between is made good by the next call, which is
    why `on_published` hears of a batch before the batch is forgotten, and perhaps twice.
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
    "stream": "its batch is not finished: the next run finishes it, and tries the table again",
    "replay": "its batch is not finished: say `distributary dlq replay` once more",
}


def _sweep(folder: str, table: str) -> None:
    """Remove what a crash left of a batch that was never quite parked, or is no longer.

    Only of the stream, whose owner has called: a replay may be about to park something here.
    """
    parking = at(folder)
    for name in parking.folders(table):
        place = f"{table}/{name}"
        if name.startswith("stream-") and parking.size(f"{place}/{ENTRY}") is None:
            parking.remove_folder(place)
    local = local_folder(folder)
    if local is not None:
        # a folder in which something waits again stays
        with suppress(OSError):
            os.rmdir(f"{local}/{table}")


def _require_proof(publisher: Publisher, batch: ParkedBatch) -> None:
    """A mark past the batch does not prove that the batch is in the table: its own commit does."""
    committed = publisher.committed(batch.entry.table.path, batch.mark)
    if committed is None or committed.source_hash != batch.mark.source_hash:
        raise PublishError(
            f"table {batch.table} is past batch {batch.mark.batch}, but no commit carries it",
            code=ErrorCode.CHECKPOINT_DIVERGED,
            where=batch.folder,
            evidence=f"newest mark: {f'batch {committed.batch}' if committed else 'none'}",
            next_step="batches that came later were published before it: its files are kept; add "
            "them to the table by hand, then remove the folder",
        )


def _read(place: Store, lake: str | None) -> ParkedBatch:
    where = f"{place.address}/{ENTRY}"
    next_step = "put the file back from a copy: the records are in the files beside it"
    try:
        text = unseal(place.read(ENTRY), where=where, next_step=next_step)
        data: dict[str, Any] = json.loads(text)
        entry, home = entry_from_dict(data["entry"]), lake or _lake_of(place.address)
        words = (data["app_id"], data["source_hash"], data["reason"])
        if not all(isinstance(word, str) for word in words) or type(data["batch"]) is not int:
            raise TypeError("a word or a number is something else")
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
    """The lake in whose own folder batches wait; empty where they wait in a checkpoint."""
    return place.rpartition(f"/{layout.HOME}/")[0]


def _name(mark: Mark) -> str:
    # a new life counts its batches from the start again
    life = hashlib.sha256(mark.app_id.encode()).hexdigest()[:12]
    return f"{lane_of(mark.app_id)}-{mark.batch:020d}-{life}"


# Whether a table still holds what was committed to it: asked of its own log, as little as will
# do.
#
# The commit of the newest batch is a small file with a known name. Where it is there and carries
# the batch's mark, the table is not behind, and nothing else has to be read: a thousand tables
# take a few hundredths of a second. Where it is not, the log may have been cleaned up, or the
# table may be another one: then the table is loaded and asked.

_COMMIT = re.compile(r"(\d{20})\.json")
_FORGETS_MARKS = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class Expected:
    """The newest commit that a lane of a pipeline has made to a table."""

    path: str
    app_id: str
    batch: int
    version: int
    marked: bool = True
    """Whether the commit of a batch always carries its mark: a merge that changes nothing makes
    no commit, and is only known to have seen a version."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a table has of a lane."""

    exists: bool
    version: int = -1
    mark: int | None = None
    """The newest batch of the lane."""


class Loss(StrEnum):
    """What can be wrong with a table at a glance."""

    MISSING = "missing"
    BEHIND = "behind"


def lacking(expected: Expected) -> Held | None:
    """What a table has, if that is less than it must have; None where nothing is missing.

    A table that cannot be read is none of the questions here: whoever commits to it will say so.
    """
    store = at(expected.path)
    try:
        if _carries(store, expected):
            return None
        held = _held(store, expected)
    except (BrokenLogError, OSError, ValueError):
        return Held(True) if _is_blank(store, expected.version) else None
    if held is None or not held.exists:
        return held
    if expected.marked:
        return None if held.mark is not None and held.mark >= expected.batch else held
    behind = held.version < expected.version or _is_blank(store, expected.version)
    return held if behind else None


def loss_at_a_glance(path: str, version: int | None) -> Loss | None:
    """The same by names and sizes of files only, for tables on this machine; None: nothing seen."""
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
        return None if format_of(folder) is not None else Loss.MISSING
    # a log that was cleaned up goes on behind the version; one that was put back ends before it
    names = filter(None, map(_COMMIT.fullmatch, os.listdir(log)))
    newest = max((int(name[1]) for name in names), default=-1)
    return Loss.BEHIND if newest < version else None


def newest_told(path: str, version: int | None) -> int | None:
    """The newest version, up to this one, whose commit says anything; None: there is none."""
    folder = local_folder(path)
    while folder is not None and version is not None and _is_blank(at(folder), version):
        version = version - 1 if version else None
    return version


def _carries(store: Store, expected: Expected) -> bool:
    try:
        text = store.read(commit_name(expected.version))
    except FileNotFoundError:
        return _has_commit(store, expected)
    if not expected.marked:
        return bool(text)
    # as our own commits spell it: to look for it is quicker than to read all that they say, and a
    # number that only begins like this one is past it
    mark = compact({"appId": expected.app_id, "version": expected.batch})[:-1]
    if f'"txn":{mark}'.encode() in text:
        return True
    return parse_commit(text, last=True).marks.get(expected.app_id, -1) >= expected.batch


def _has_commit(store: Store, expected: Expected) -> bool:
    """The same of a plain Parquet table, whose commits are known by their names."""
    name = f"{expected.version:012d}-{app_key(expected.app_id)}-{expected.batch:012d}.json"
    return expected.marked and store.look(f"{HOME}/log/{name}") is not None


def _held(store: Store, expected: Expected) -> Held | None:
    folder = local_folder(store.address)
    if folder is not None and os.path.isfile(f"{folder}/{HOME}/table.json"):
        log = ParquetTable(folder).log()
        return Held(True, log.version, log.newest(expected.app_id))
    if folder is not None and format_of(folder) == "iceberg":
        return _held_by_iceberg(folder, expected)
    table = load(store, files=False)
    if table is None:
        if folder is None and (found := open_parquet(expected.path)) is not None:
            log = found[0].log()
            return Held(True, log.version, log.newest(expected.app_id))
        return Held(False)
    mark = table.marks.get(expected.app_id)
    if mark is None and _FORGETS_MARKS in table.properties:
        # its owner lets it forget marks: nobody can tell
        return None
    return Held(True, table.version, mark)


def _held_by_iceberg(folder: str, expected: Expected) -> Held | None:
    # a package that not everybody has
    from distributary.publish.iceberg import open_iceberg

    try:
        table = open_iceberg(folder)
    except PublishError:
        return None
    if table is None:
        return Held(False)
    return Held(True, table.version, table.mark(expected.app_id))


def _is_blank(store: Store, version: int) -> bool:
    """Whether the very commit is there without a word in it."""
    return store.size(commit_name(version)) == 0
