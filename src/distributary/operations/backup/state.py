"""A consistent state of a lake, with all files and documents that a backup copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from tenacity import Retrying

from distributary.model import layout
from distributary.retries import attempts_on
from distributary.store.base import Store, same_place, stay_inside

THREADS = 16
_ATTEMPTS, _PAUSE, _JITTER = 8, 0.5, 0.5

_A = TypeVar("_A")
_B = TypeVar("_B")


class MovedError(Exception):
    """The lake changed during the search for a state; the message names the change."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """A file that the state needs, with its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class BackedUpTable:
    """A table at the version that belongs to the state."""

    folder: str
    """The path below the lake."""
    version: int
    """The version of a Delta table; -1 if the state has no commit of it, or for plain Parquet."""
    format: str = "delta"
    files: tuple[FileSize, ...] = ()
    """Files that no Delta log names: staged ones, and all of a plain Parquet table."""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The progress of a pipeline."""

    name: str
    life: str
    checkpoint: str
    settled: Mapping[str, int]
    """The newest settled batch of each lane; -1 if there is none."""
    under_way: Mapping[str, int]
    """The decided, unsettled batch of a lane, if the state has a part of it."""


@dataclass(frozen=True, slots=True)
class ParkedState:
    """A parked batch: its entry is among the documents, its files are copied."""

    pipeline: str
    place: str
    """Table and name of the batch, below the pipeline's parking folder."""
    source: str
    """The address of the batch's folder."""
    files: tuple[FileSize, ...]


@dataclass(frozen=True, slots=True)
class LakeState:
    """A consistent state of a lake and of the progress of its pipelines."""

    lake: str
    taken_at: str
    pipelines: tuple[PipelineState, ...]
    tables: tuple[BackedUpTable, ...]
    parked: tuple[ParkedState, ...]
    documents: Mapping[str, bytes]
    """Documents by their names in a backup: `lake/...`, `checkpoint/<pipeline>/...`, `parked/...`.
    """


def retried() -> Retrying:
    """Return attempts that end with the first one without a MovedError."""
    return attempts_on(MovedError, most=_ATTEMPTS, pause=_PAUSE, jitter=_JITTER)


def each(work: Callable[[_A], _B], items: Iterable[_A], *, threads: int = THREADS) -> list[_B]:
    """Return the results of `work` for many items, computed in parallel threads."""
    listed = list(items)
    if len(listed) < 2:
        return list(map(work, listed))
    with ThreadPoolExecutor(min(threads, len(listed))) as pool:
        return list(pool.map(work, listed))


def read_document(store: Store, name: str) -> bytes:
    """Read a document. Raises MovedError if it was deleted since it was listed."""
    stay_inside(store.address, f"{store.address}/{name}")
    try:
        return store.read(name)
    except FileNotFoundError:
        raise MovedError(f"{store.address}/{name} is gone") from None


def inside_lake(lake: str, place: str) -> str:
    """Return the path of a checkpoint below its lake; empty if it is elsewhere."""
    stem = layout.join(lake, "")
    if place.startswith(stem):
        return place[len(stem) :]
    return "" if not same_place(place, lake) else "."
