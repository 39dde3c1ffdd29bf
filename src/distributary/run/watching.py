"""What the pipelines of a lake need to find there: asked before anything is taken away."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.observe import layout
from distributary.observe.pipelines import Registration, registrations
from distributary.publish.commit_file import commit_path
from distributary.run.checkpoint import Manifests
from distributary.run.claim import CLAIMS, current_owner, is_alive
from distributary.upkeep.vacuum import Keepers

_FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True)
class Reader:
    """A pipeline whose source is a Delta table, and how far it has come."""

    pipeline: str
    folder: str
    """The table, as its card says; empty when it does not."""
    topic: str
    """What it calls the table."""
    version: int
    whole: bool
    """It still reads the table as it was at that version."""

    def reads(self, folder: str) -> bool:
        """Whether this table may be its source."""
        if self.folder:
            return os.path.realpath(folder) == self.folder
        # before its first batch nobody knows what it calls the table: it may be any
        return self.topic in ("", os.path.basename(folder))


@dataclass(frozen=True, slots=True)
class Watched:
    """The pipelines of a lake at one moment."""

    paths: frozenset[str]
    running_since: float
    readers: tuple[Reader, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be found out."""

    def keepers(self, folder: str) -> Keepers:
        """What must stay of one table."""
        since = min((_time_of(folder, r) for r in self._of(folder)), default=_FOR_EVER)
        return Keepers(self.paths, self.running_since, since)

    def keep_from(self, folder: str) -> int | None:
        """The oldest version of a table that a pipeline has still to read, if one reads it."""
        return min((0 if r.whole else r.version for r in self._of(folder)), default=None)

    def _of(self, folder: str) -> list[Reader]:
        return [reader for reader in self.readers if reader.reads(folder)]


def watch(lake: str) -> Watched:
    """Look at all pipelines that have left a card in a lake on this machine."""
    paths: set[str] = set()
    since = time.time()
    readers: list[Reader] = []
    notes: list[str] = []
    for card in registrations(lake):
        folder = Path(card.checkpoint)
        if not folder.is_dir():
            notes.append(f"the progress of pipeline {card.name} is not to be seen from here")
            continue
        for lane, manifests in lanes(folder):
            since = min(since, _running_since(lane, manifests))
            paths |= set(_decided(lake, manifests))
        reader = _reader(card, Manifests(folder / "manifests"))
        readers += [reader] if reader else []
    return Watched(frozenset(paths), since, tuple(readers), tuple(notes))


def lanes(checkpoint: Path) -> Iterator[tuple[Path, Manifests]]:
    """The folders that are claimed for the stream and for each other lane, and their batches."""
    yield checkpoint, Manifests(checkpoint / "manifests")
    for folder in sorted(checkpoint.iterdir()):
        if (folder / CLAIMS).is_dir():
            yield folder, Manifests(folder)


def is_owned(lane: Path) -> bool:
    """Whether a process works on a lane now."""
    owner = current_owner(lane) if (lane / CLAIMS).is_dir() else None
    return owner is not None and is_alive(lane, owner)


def batch_under_way(checkpoint: str) -> bool:
    """Whether a running pipeline has decided a batch that its tables do not all have yet."""
    folder = Path(checkpoint)
    if not folder.is_dir() or not is_owned(folder):
        return False
    manifests = Manifests(folder / "manifests")
    return manifests.settled() < manifests.newest()


def _running_since(lane: Path, manifests: Manifests) -> float:
    """When the batch that a running process works on can have begun at the earliest."""
    owner = current_owner(lane) if (lane / CLAIMS).is_dir() else None
    if owner is None or not is_alive(lane, owner):
        return _FOR_EVER
    newest = manifests.newest()
    decided = manifests.folder / f"{newest:020d}.json"
    try:
        return max(owner.claimed_at, decided.stat().st_mtime)
    except FileNotFoundError:
        return owner.claimed_at


def _decided(lake: str, manifests: Manifests) -> Iterator[str]:
    """Files of batches that are decided and not settled. Raises CheckpointError."""
    settled = manifests.settled()
    for number in (n for n in manifests.numbers() if n > settled):
        manifest = manifests.read(number)
        for entry in manifest.tables if manifest else ():
            folder = layout.place(lake, entry.table.path)
            yield from (f"{folder}/{file.path}" for file in entry.files)


def _reader(card: Registration, manifests: Manifests) -> Reader | None:
    position, topic = _position(Path(card.checkpoint), manifests)
    whole = "snapshot" in position
    version = position.get("snapshot" if whole else "version")
    if "index" not in position or not isinstance(version, int):
        return None
    return Reader(card.name, card.reads, topic, version, whole)


def _position(checkpoint: Path, manifests: Manifests) -> tuple[Mapping[str, Any], str]:
    """Where a pipeline would begin to read again, and what it calls its source."""
    settled = manifests.settled()
    manifest = manifests.read(settled) if settled >= 0 else None
    if manifest is not None:
        topics = [r.topic for r in manifest.ranges]
        return manifest.source_state, topics[0] if topics else ""
    try:
        first: Mapping[str, Any] = json.loads((checkpoint / "first.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}, ""
    return first, ""


def _time_of(folder: str, reader: Reader) -> float:
    """When the first commit was made that a reader has still to see."""
    if reader.whole:
        return 0.0
    try:
        return os.stat(commit_path(folder, reader.version)).st_mtime
    except FileNotFoundError:
        # behind the newest commit, or one that is gone
        newer = os.path.exists(commit_path(folder, reader.version - 1))
        return _FOR_EVER if newer else 0.0
