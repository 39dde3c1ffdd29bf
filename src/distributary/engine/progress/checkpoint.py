"""A pipeline's checkpoint: whose life it is, where it began, and the decided batches.

<checkpoint>/<pipeline>/
    life.json      the id of this life: a reset checkpoint is a new life
    claims/        who owns it
    first.json     the source's position at the beginning of this life
    manifests/     the decided batches of the stream
    runs/          records between the two hops of a stage, gone when it is over
    replay/        the decided batches of dead letters that were sent again

It is a folder or a part of a bucket. The lake keeps a copy of the newest manifest. A checkpoint
that is older than its tables, because a copy of it was put back, is brought up to date from there;
one that is lost can be made again.
"""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.errors import CheckpointError, FencedError
from distributary.model import layout
from distributary.model.manifest import Manifest
from distributary.store.base import Store, at, is_remote, packed, reaching, unpacked

_NAME = re.compile(r"([0-9]{20})\.json(\.zst)?")
_SETTLED = re.compile(r"([0-9]{20})\.settled")
_ASIDE = re.compile(r"([0-9]{20})\.broken-.*")
_SELECTION = re.compile(r"selection-([0-9]+)\.parquet")
REPLAY = "replay"
"""The lane of dead letters that are sent again."""
_PRUNED_EVERY = 10
"""Batches, where each look costs a request."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The place of one pipeline's progress and the id of its life."""

    store: Store
    life: str

    @classmethod
    def find(cls, store: Store, *, pipeline: str) -> Checkpoint | None:
        """The checkpoint that is there; None where nothing was begun or all of it is lost."""
        known = _read_life(store) or _life_of_manifests(store)
        if known is None:
            return None
        life, owner = known
        if owner != pipeline:
            raise CheckpointError(
                f"the checkpoint belongs to pipeline {owner!r}, not {pipeline!r}",
                where=store.address,
                next_step="give the pipelines different names or different `lake.checkpoint`s",
            )
        return cls(store, life)

    @classmethod
    def begin(cls, store: Store, *, pipeline: str, life: str | None = None) -> Checkpoint:
        """Begin a new life, or go on with one whose checkpoint was lost."""
        life = life or uuid.uuid4().hex[:12]
        with reaching(store.address):
            store.write("life.json", json.dumps({"life": life, "pipeline": pipeline}).encode())
        return cls(store, life)

    def first_position(self, find: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Where this life begins: found once, then kept, so that `latest` stays the same moment."""
        known = self.known_first_position()
        if known is None:
            with reaching(self.store.address):
                self.store.create("first.json", json.dumps(find()).encode())
            known = self.known_first_position()
        return known or {}

    def known_first_position(self) -> Mapping[str, Any] | None:
        """Where this life has begun, if it has."""
        data = b""
        try:
            data = self.store.read("first.json")
            found: Mapping[str, Any] = json.loads(data)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(
                "where this life of the pipeline began cannot be read",
                where=f"{self.store.address}/first.json",
                evidence=f"{len(data)} bytes that are no position",
                next_step="put the file back from a copy; if no batch was decided yet, start over "
                "with `distributary reset`",
            ) from error
        return found

    def runs(self, lane: str) -> Path:
        """Where the stages of a lane keep sorted records: a folder, absolute."""
        if is_remote(self.store.address):
            return Path(tempfile.gettempdir(), f"distributary-{self.life}-{lane}")
        return Path(self.store.address, "runs", lane).resolve()

    def open_runs(self, lane: str) -> Path:
        """Make that folder; among everybody's temporary files it is for its owner only."""
        folder = self.runs(lane)
        with reaching(str(folder)):
            private = is_remote(self.store.address)
            folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        return folder

    def close_runs(self, lane: str) -> None:
        """Leave nothing among temporary files, unless somebody needs it."""
        if is_remote(self.store.address):
            with suppress(OSError):
                self.runs(lane).rmdir()

    def manifests(self, lane: str = "stream", *, owned: bool = False) -> Manifests:
        """The decided batches of a lane."""
        folder = "manifests" if lane == "stream" else lane
        return Manifests(self.store.below(folder), owned=owned)


class Manifests:
    """The manifests of a lane, one per batch number, each created exactly once.

    Whoever owns the checkpoint is the only one to add to them, and need not look each time.
    """

    def __init__(self, store: Store, *, owned: bool = False) -> None:
        self.store = store
        self._owned = owned
        self._newest: int | None = None
        self._settled: int | None = None
        self._decided: tuple[int, bytes] = (-1, b"")
        """The batch that was decided here last, and its manifest."""
        self.in_doubt = False
        """Whether nobody knows if the last manifest was written, because no answer came."""
        # people look into a folder; a bucket is paid by what is sent
        self._packed = not store.asks_for_free

    def read(self, batch: int) -> Manifest | None:
        """The manifest of a batch, if the batch is decided."""
        data = self.text(batch)
        if data is None:
            return None
        try:
            return Manifest.from_json(data.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a manifest cannot be read",
                where=f"{self.store.address}/{self._name(batch)}",
                evidence=f"{type(error).__name__}: {error}",
                next_step="restore the checkpoint from a copy; do not delete the manifest",
            ) from error

    def text(self, batch: int) -> bytes | None:
        """The manifest of a decided batch as it was written."""
        if self._decided[0] == batch:
            return self._decided[1]
        if self._owned and self._newest is not None and batch > self._newest:
            return None
        for small in (self._packed, not self._packed):
            with suppress(FileNotFoundError):
                data = self.store.read(self._name(batch, packed=small))
                return unpacked(data) if small else data
        return None

    def create(self, manifest: Manifest) -> None:
        """Decide a batch. Raises FencedError when it is decided already, by somebody else."""
        if not self._created(manifest):
            raise FencedError(
                f"batch {manifest.batch} was decided by another process meanwhile",
                where=f"{self.store.address}/{self._name(manifest.batch)}",
                evidence=f"own epoch {manifest.epoch}",
                next_step="nothing is lost: let the other process go on",
            )

    def _created(self, manifest: Manifest) -> bool:
        text, self.in_doubt = manifest.to_json().encode(), False
        with reaching(self.store.address):
            if not self._landed(self._name(manifest.batch), self._stored(text)):
                return False
        self._newest, self._decided = max(manifest.batch, self.newest()), (manifest.batch, text)
        return True

    def _landed(self, name: str, data: bytes) -> bool:
        """Create a file; where no answer comes, what is there says whether it was created."""
        try:
            return self.store.create(name, data) is not None
        except OSError:
            # until somebody could look
            self._newest, self.in_doubt = None, True
            try:
                found = self.store.read(name)
            except FileNotFoundError:
                found = None
            self.in_doubt = False
            if found is None:
                raise
            return found == data

    def replace(self, manifest: Manifest) -> None:
        """Decide a batch again whose files are gone. It is decided all the time, for its records.

        The old manifest is kept for a while, for whoever wants to know what has happened.
        """
        name, text = self._name(manifest.batch), manifest.to_json().encode()
        with reaching(self.store.address):
            with suppress(OSError):
                aside = f"{manifest.batch:020d}.broken-{uuid.uuid4().hex[:8]}"
                self.store.write(aside, self.store.read(name))
            self.store.write(name, self._stored(text))
        self._decided = manifest.batch, text

    def settle(self, batch: int) -> None:
        """Remember that all tables have this batch and those before it.

        Each batch has a mark of its own, and the highest counts: a process that is late can add
        one, and cannot take one back.
        """
        with reaching(self.store.address):
            self.store.write(f"{batch:020d}.settled", b"", durable=False)
        if self._settled is not None:
            self._settled = max(batch, self._settled)

    def settled(self) -> int:
        """The newest settled batch, or -1."""
        if self._settled is None or not self._owned:
            self._look()
        return -1 if self._settled is None else self._settled

    def newest(self) -> int:
        """The newest decided batch, or -1."""
        if self._newest is None or not self._owned:
            self._look()
        return -1 if self._newest is None else self._newest

    def _look(self) -> None:
        names = self._names()
        self._newest = max(_numbers(_NAME, names), default=-1)
        before = _settled_before(self.store) if "settled" in names else -1
        self._settled = max([*_numbers(_SETTLED, names), before])

    def decided_at(self, batch: int) -> float:
        """When a batch was decided; 0 if it was not, or nobody knows."""
        found = self.store.look(self._name(batch))
        return found.modified if found else 0.0

    def numbers(self) -> list[int]:
        """All decided batches that are still kept, oldest first."""
        return _numbers(_NAME, self._names())

    def prune(self, *, keep: int) -> None:
        """Forget settled batches beyond the newest `keep`."""
        settled = self.settled()
        if self._packed and settled % _PRUNED_EVERY:
            return
        names = self._names()
        old = [n for n in _numbers(_NAME, names) if n <= settled][:-keep]
        for name in names:
            decided, aside, mark = (p.fullmatch(name) for p in (_NAME, _ASIDE, _SETTLED))
            if (
                (decided and int(decided[1]) in old)
                or (aside and int(aside[1]) <= settled)
                or (mark and int(mark[1]) < settled)
            ):
                self.store.remove(name)

    def adopt(self, manifest: Manifest) -> None:
        """Take over a batch that was decided after this folder was copied.

        A batch is decided only when all tables have the one before.
        """
        self._created(manifest)
        self.settle(manifest.batch - 1)

    def _names(self) -> list[str]:
        return [file.name for file in self.store.files()]

    def _name(self, batch: int, *, packed: bool | None = None) -> str:
        return f"{batch:020d}.json" + (
            ".zst" if packed or (packed is None and self._packed) else ""
        )

    def _stored(self, text: bytes) -> bytes:
        return packed(text) if self._packed else text


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """The lake's copy of the newest manifest of a pipeline's lane."""

    lake: str
    pipeline: str
    lane: str = "stream"

    def write(self, text: bytes) -> None:
        """Replace the copy; before the first commit of its batch."""
        with reaching(self._store.address):
            self._store.write(self._name, text)

    def read(self) -> Manifest | None:
        """The newest batch that was decided, whatever became of the checkpoint."""
        try:
            with reaching(self._store.address), suppress(FileNotFoundError):
                return Manifest.from_json(self._store.read(self._name).decode())
            return None
        except (ValueError, KeyError, TypeError):
            # only a copy: the checkpoint and the tables' own marks are asked without it
            return None

    def remove(self) -> None:
        """Forget it: the life it belongs to has ended."""
        with reaching(self._store.address):
            self._store.remove(self._name)

    @property
    def _store(self) -> Store:
        return at(layout.pipeline(self.lake, self.pipeline))

    @property
    def _name(self) -> str:
        return f"decided-{self.lane}.json"


def _read_life(store: Store) -> tuple[str, str] | None:
    """Life and pipeline; None where the file is missing or was emptied by a power cut."""
    try:
        data = json.loads(store.read("life.json"))
        return str(data["life"]), str(data["pipeline"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _life_of_manifests(store: Store) -> tuple[str, str] | None:
    """The same from the decided batches, each of which names both; the file is written again."""
    manifests = Manifests(store.below("manifests"))
    newest = manifests.newest()
    manifest = manifests.read(newest) if newest >= 0 else None
    if manifest is None:
        return None
    Checkpoint.begin(store, pipeline=manifest.pipeline, life=manifest.life)
    return manifest.life, manifest.pipeline


def _settled_before(store: Store) -> int:
    """What the version before kept in one file; nothing where that was emptied."""
    try:
        return int(store.read("settled"))
    except (FileNotFoundError, ValueError):
        return -1


def unfinished_replays(checkpoint: Store) -> list[int]:
    """Return the replays of dead letters that were begun and not ended, the oldest first."""
    found = (_SELECTION.fullmatch(file.name) for file in checkpoint.below(REPLAY).files())
    return sorted(int(one[1]) for one in found if one)
