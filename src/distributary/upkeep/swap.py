"""One commit that takes files out of a table and puts others in, beside whoever else writes.

Commits that only add files do not stand in the way: they come in between, and the swap goes on top
of them. One that took a file away, or changed the columns, has changed what the swap was made of:
that part of it is dropped, and nothing has happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from distributary.publish.commit_file import commit_lines, commit_path, create_commit
from distributary.publish.races import OvertakenError, until_not_overtaken
from distributary.upkeep.rewrite import NewFile
from distributary.upkeep.state import DataFile, TableState, follow


class BusyError(Exception):
    """Another writer needs the table now; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Files that go, and the one that stands for them."""

    removed: tuple[DataFile, ...]
    added: NewFile | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a commit says of itself."""

    operation: str
    data_change: bool
    """Whether rows are other ones than before."""
    ready: Callable[[], None] = field(default=lambda: None)
    """Asked before every try; may raise BusyError."""
    patient: bool = True
    """Whether to try again when another commit was faster."""


def exchange(
    state: TableState, swaps: Sequence[Swap], about: Exchange
) -> tuple[TableState, list[Swap]]:
    """Commit what can still be swapped; files that were written for the rest are removed.

    Returns the table as it is then, and what was done. Raises BusyError and OvertakenError.
    """
    done: list[Swap] = []

    def attempt() -> TableState:
        about.ready()
        newest = follow(state)
        done[:] = [] if _is_other(state, newest) else _possible(newest, swaps)
        if done:
            _commit(newest, done, about)
            newest = follow(newest)
        return newest

    try:
        after = until_not_overtaken(attempt) if about.patient else attempt()
    except (BusyError, OvertakenError):
        drop(state.folder, swaps)
        raise
    drop(state.folder, [swap for swap in swaps if swap not in done])
    return after, done


def drop(folder: str, swaps: Sequence[Swap]) -> None:
    """Remove files that no commit names."""
    for swap in swaps:
        if swap.added is not None:
            try:
                os.unlink(f"{folder}/{swap.added.path}")
            except FileNotFoundError:
                continue


def _is_other(before: TableState, now: TableState) -> bool:
    return before.metadata is not now.metadata or before.protocol is not now.protocol


def _possible(now: TableState, swaps: Sequence[Swap]) -> list[Swap]:
    return [s for s in swaps if all(now.files.get(f.path) == f for f in s.removed)]


def _commit(state: TableState, swaps: Sequence[Swap], about: Exchange) -> None:
    text = _text(swaps, about)
    path = commit_path(state.folder, state.version + 1)
    try:
        create_commit(path, text)
    except OSError:
        # it may have landed all the same: the log decides
        if not _is_ours(path, text):
            raise


def _is_ours(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except OSError:
        return False


def _text(swaps: Sequence[Swap], about: Exchange) -> str:
    now = time.time_ns() // 1_000_000
    gone = [file for swap in swaps for file in swap.removed]
    new = [swap.added for swap in swaps if swap.added is not None]
    actions: list[dict[str, Any]] = [{"commitInfo": _info(gone, new, about, now)}]
    actions += [{"remove": _remove(file, about, now)} for file in gone]
    actions += [{"add": _add(file, about)} for file in new]
    return commit_lines(actions)


def _info(
    gone: Sequence[DataFile], new: Sequence[NewFile], about: Exchange, now: int
) -> Mapping[str, Any]:
    return {
        "timestamp": now,
        "operation": about.operation,
        "operationParameters": {},
        "operationMetrics": {
            "numRemovedFiles": str(len(gone)),
            "numRemovedBytes": str(sum(file.size for file in gone)),
            "numAddedFiles": str(len(new)),
            "numAddedBytes": str(sum(file.size for file in new)),
        },
        "isBlindAppend": False,
        "engineInfo": "Distributary",
    }


def _remove(file: DataFile, about: Exchange, now: int) -> Mapping[str, Any]:
    return {
        "path": file.spelled,
        "deletionTimestamp": now,
        "dataChange": about.data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.values),
        "size": file.size,
    }


def _add(file: NewFile, about: Exchange) -> Mapping[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": dict(file.values),
        "size": file.size,
        "modificationTime": file.modified_ms,
        "dataChange": about.data_change,
        "stats": file.stats,
    }
