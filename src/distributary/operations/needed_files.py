"""The files that the pipelines of a lake still need, determined before anything is deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributary.delta.log_reading import commit_name
from distributary.delta.removal.holds import Holds
from distributary.delta.removal.vacuum import Keepers
from distributary.engine.progress.checkpoint import Checkpoint, Manifests
from distributary.engine.progress.claim import CLAIMS, living_owner
from distributary.errors import CheckpointError
from distributary.model import layout
from distributary.observe.cards import Registration, registrations
from distributary.store.base import Store, at, is_remote

FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True)
class ReadingPipeline:
    """A pipeline whose source is a Delta table, with its position."""

    pipeline: str
    folder: str
    """The table's folder according to its card; may be empty."""
    topic: str
    """The topic name of the table."""
    version: int
    whole: bool
    """Whether it still reads a snapshot of that version."""

    def reads(self, folder: str) -> bool:
        """Return whether this table may be the pipeline's source."""
        if self.folder:
            place = folder if is_remote(folder) else os.path.realpath(folder)
            return place == self.folder
        # before its first batch the topic name is unknown: the source may be any table
        return self.topic in ("", folder.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Watched:
    """The pipelines of a lake at one moment."""

    paths: frozenset[str]
    running_since: float
    readers: tuple[ReadingPipeline, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes about pipelines that could not be checked."""
    holds: Holds = field(default_factory=Holds)
    """The versions that cuts need."""

    def keepers(self, folder: str) -> Keepers:
        """Return the files of one table that must stay."""
        since = min((_time_of(folder, r) for r in self._of(folder)), default=FOR_EVER)
        store = at(folder)
        hold = self.holds.of(store.address)
        held = frozenset(f"{store.address}/{path}" for path in hold.paths(store))
        return Keepers(self.paths | held, self.running_since, min(since, hold.since))

    def keep_from(self, folder: str) -> int | None:
        """Return the oldest version that a pipeline or a pinned cut needs; None if none does."""
        pinned = self.holds.of(at(folder).address).versions
        read = (0 if r.whole else r.version for r in self._of(folder))
        return min([*read, *pinned], default=None)

    def _of(self, folder: str) -> list[ReadingPipeline]:
        return [reader for reader in self.readers if reader.reads(folder)]


def watch(lake: str) -> Watched:
    """Return the state of all pipelines with a card in a lake."""
    paths: set[str] = set()
    since = time.time()
    readers: list[ReadingPipeline] = []
    notes: list[str] = []
    for card in registrations(lake):
        checkpoint = at(card.checkpoint)
        if not checkpoint.exists():
            notes.append(f"the checkpoint of pipeline {card.name} cannot be read from here")
            continue
        for lane, manifests in lanes(checkpoint):
            since = min(since, _running_since(lane, manifests))
            paths |= set(_decided(lake, manifests))
        reader = _reader(card, Manifests(checkpoint.below("manifests")))
        readers += [reader] if reader else []
    return Watched(frozenset(paths), since, tuple(readers), tuple(notes))


def lanes(checkpoint: Store) -> Iterator[tuple[Store, Manifests]]:
    """Yield the folders of the stream and of each other lane, with their manifests."""
    yield checkpoint, Manifests(checkpoint.below("manifests"))
    for folder in map(checkpoint.below, checkpoint.folders()):
        if folder.exists(CLAIMS):
            yield folder, Manifests(folder)


def batch_under_way(checkpoint: str) -> bool:
    """Return whether a running pipeline has decided a batch that its tables do not all have yet."""
    place = at(checkpoint)
    if living_owner(place) is None:
        return False
    manifests = Manifests(place.below("manifests"))
    return manifests.settled() < manifests.newest()


def _running_since(lane: Store, manifests: Manifests) -> float:
    """Return the earliest possible start of the batch that a running process works on."""
    owner = living_owner(lane)
    if owner is None:
        return FOR_EVER
    return max(owner.claimed_at, manifests.decided_at(manifests.newest()))


def _decided(lake: str, manifests: Manifests) -> Iterator[str]:
    """Yield the files of batches that are decided but not settled. Raises CheckpointError."""
    settled = manifests.settled()
    for number in (n for n in manifests.numbers() if n > settled):
        manifest = manifests.read(number)
        for entry in manifest.tables if manifest else ():
            folder = at(layout.place(lake, entry.table.path)).address
            yield from (f"{folder}/{file.path}" for file in entry.files)


def _reader(card: Registration, manifests: Manifests) -> ReadingPipeline | None:
    position, topic = _position(at(card.checkpoint), manifests)
    whole = "snapshot" in position
    version = position.get("snapshot" if whole else "version")
    if "index" not in position or not isinstance(version, int):
        return None
    return ReadingPipeline(card.name, card.reads, topic, version, whole)


def _position(checkpoint: Store, manifests: Manifests) -> tuple[Mapping[str, Any], str]:
    """Return the position at which a pipeline would continue, and the topic name of its source."""
    settled = manifests.settled()
    manifest = manifests.read(settled) if settled >= 0 else None
    if manifest is not None:
        topics = [r.topic for r in manifest.ranges]
        return manifest.source_state, topics[0] if topics else ""
    try:
        return Checkpoint(checkpoint, "").known_first_position() or {}, ""
    except CheckpointError:
        return {}, ""


def _time_of(folder: str, reader: ReadingPipeline) -> float:
    """Return the time of the first commit that a reader still has to read."""
    if reader.whole:
        return 0.0
    store = at(folder)
    commit = store.look(commit_name(reader.version))
    if commit is not None:
        return commit.modified
    # the reader is behind the newest commit, or its commit was deleted
    return FOR_EVER if store.look(commit_name(reader.version - 1)) else 0.0
