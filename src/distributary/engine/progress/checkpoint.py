"""A pipeline's checkpoint: its life, its first position, and the decided batches.

<checkpoint>/<pipeline>/
    life.json      the id of this life: a reset checkpoint is a new life
    claims/             its owner
    first.json     the source's position at the beginning of this life
    manifests/     the decided batches of the stream
    runs/          records between the two hops of a stage, gone when it is over
    replay/        the decided batches of dead letters that were sent again

It is a folder or a part of a bucket. The lake keeps a copy of the newest manifest. A checkpoint
that is older than its tables, because a copy of it was put back, is brought up to date from there;
one that is lost can be made again.

Each document is sealed (`store/seal.py`). The marks of settled batches are empty files, of which
the name counts: nothing in them can be damaged, and a run compares the highest with the ledger.
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
from distributary.model.manifest import LANES, Manifest
from distributary.store.base import Store, at, is_remote, packed, reaching, unpacked
from distributary.store.seal import seal, unseal

_NAME = re.compile(r"([0-9]{20})\.json(\.zst)?")
_SETTLED = re.compile(r"([0-9]{20})\.settled")
_ASIDE = re.compile(r"([0-9]{20})\.broken-.*")
_PUT_BACK = (
    "restore the checkpoint from a copy; do not delete the manifest. If it is the newest one, "
    "`distributary recover FILE` writes it again from the lake's copy"
)
_PRUNED_EVERY = 10
"""Batches, where each look costs a request."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of a pipeline, with the id of its life."""

    store: Store
    life: str

    @classmethod
    def find(cls, store: Store, *, pipeline: str) -> Checkpoint | None:
        """Return the existing checkpoint; None if the folder has none."""
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
        """Create a checkpoint for a new life, or for a life whose checkpoint was lost."""
        life = life or uuid.uuid4().hex[:12]
        with reaching(store.address):
            text = json.dumps({"life": life, "pipeline": pipeline})
            store.write("life.json", seal(text.encode()))
        return cls(store, life)

    def first_position(self, find: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the first position of this life.

        Found once and stored, so that `latest` does not move.
        """
        known = self.known_first_position()
        if known is None:
            text = json.dumps(find())
            with reaching(self.store.address):
                self.store.create("first.json", seal(text.encode()))
            known = self.known_first_position()
        return known or {}

    def keep_first_position(self, position: Mapping[str, Any]) -> None:
        """Store the first position of a life in a recovered checkpoint."""
        with reaching(self.store.address):
            self.store.write("first.json", seal(json.dumps(position).encode()))

    def known_first_position(self) -> Mapping[str, Any] | None:
        """Return the stored first position of this life, if there is one."""
        where = f"{self.store.address}/first.json"
        next_step = (
            "put the file back from a copy; if no batch was decided yet, start over with "
            "`distributary reset`"
        )
        with reaching(self.store.address):
            try:
                sealed = self.store.read("first.json")
            except FileNotFoundError:
                return None
        try:
            data = unseal(sealed, where=where, next_step=next_step)
            found: Mapping[str, Any] = json.loads(data)
        except ValueError as error:
            raise CheckpointError(
                "the start position of this life of the pipeline cannot be read",
                where=where,
                evidence=f"{len(data)} bytes that are not a position",
                next_step=next_step,
            ) from error
        return found

    def runs(self, lane: str) -> Path:
        """Return the folder, absolute, in which the stages of a lane store sorted records."""
        if is_remote(self.store.address):
            return Path(tempfile.gettempdir(), f"distributary-{self.life}-{lane}")
        return Path(self.store.address, "runs", lane).resolve()

    def open_runs(self, lane: str) -> Path:
        """Create that folder; in the system's temporary folder, only its owner may enter it."""
        folder = self.runs(lane)
        with reaching(str(folder)):
            private = is_remote(self.store.address)
            folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        return folder

    def close_runs(self, lane: str) -> None:
        """Remove the folder of sorted records, if it is temporary."""
        if is_remote(self.store.address):
            with suppress(OSError):
                self.runs(lane).rmdir()

    def settled(self) -> dict[str, int]:
        """Return the newest settled batch of each lane, or -1."""
        with reaching(self.store.address):
            return {lane: self.manifests(lane).settled() for lane in LANES}

    def manifests(self, lane: str = "stream", *, owned: bool = False) -> Manifests:
        """Return the manifests of a lane."""
        folder = "manifests" if lane == "stream" else lane
        return Manifests(self.store.below(folder), owned=owned)


class Manifests:
    """The manifests of a lane, one per batch number, each created exactly once.

    Only the owner of the checkpoint adds manifests, so it need not list them each time.
    """

    def __init__(self, store: Store, *, owned: bool = False) -> None:
        self.store = store
        self._owned = owned
        self._newest: int | None = None
        self._settled: int | None = None
        self._decided: tuple[int, bytes] = (-1, b"")
        """The newest batch that this process decided, with its manifest."""
        self.in_doubt = False
        """Whether it is unknown if the last manifest was written, because no answer came."""
        # indented in a folder, for people; compact in a bucket, where size costs
        self._packed = not store.asks_for_free

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch; None if the batch is not decided."""
        data = self.text(batch)
        if data is None:
            return None
        return _parsed(data, where=f"{self.store.address}/{self._name(batch)}", batch=batch)

    def text(self, batch: int) -> bytes | None:
        """Return the text of a decided batch's manifest."""
        if self._decided[0] == batch:
            return self._decided[1]
        if self._owned and self._newest is not None and batch > self._newest:
            return None
        for small in (self._packed, not self._packed):
            with suppress(FileNotFoundError):
                name = self._name(batch, packed=small)
                return self._content(self.store.read(name), name, packed=small)
        return None

    def _content(self, data: bytes, name: str, *, packed: bool) -> bytes:
        """Return the document in a file."""
        where = f"{self.store.address}/{name}"
        try:
            data = unpacked(data) if packed else data
        except (OSError, ValueError) as error:
            raise CheckpointError(
                "a manifest cannot be unpacked",
                where=where,
                evidence=type(error).__name__,
                next_step=_PUT_BACK,
            ) from error
        return unseal(data, where=where, next_step=_PUT_BACK)

    def create(self, manifest: Manifest) -> None:
        """Decide a batch. Raises FencedError if another process has decided it."""
        if not self._created(manifest):
            raise FencedError(
                f"batch {manifest.batch} was decided by another process meanwhile",
                where=f"{self.store.address}/{self._name(manifest.batch)}",
                evidence=f"own epoch {manifest.epoch}",
                next_step="nothing is lost: let the other process continue",
            )

    def _created(self, manifest: Manifest) -> bool:
        text, self.in_doubt = manifest.to_json().encode(), False
        with reaching(self.store.address):
            if not self._landed(self._name(manifest.batch), self._stored(text)):
                return False
        self._newest, self._decided = max(manifest.batch, self.newest()), (manifest.batch, text)
        return True

    def _landed(self, name: str, data: bytes) -> bool:
        """Create a file; after a lost answer, read it to find out whether it was created."""
        try:
            return self.store.create(name, data) is not None
        except OSError:
            # in doubt until the file was read
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
        """Replace the manifest of a batch whose files are lost, with the same records.

        The old manifest is kept for a while, for analysis.
        """
        name, text = self._name(manifest.batch), manifest.to_json().encode()
        with reaching(self.store.address):
            with suppress(OSError):
                aside = f"{manifest.batch:020d}.broken-{uuid.uuid4().hex[:8]}"
                self.store.write(aside, self.store.read(name))
            self.store.write(name, self._stored(text))
        self._decided = manifest.batch, text

    def settle(self, batch: int) -> None:
        """Mark a batch and all earlier ones as settled.

        Each batch has its own mark, and the highest one counts: a late process can add a mark, but
        not undo one.
        """
        with reaching(self.store.address):
            self.store.write(f"{batch:020d}.settled", b"", durable=False)
        if self._settled is not None:
            self._settled = max(batch, self._settled)

    def settled(self) -> int:
        """Return the newest settled batch, or -1."""
        if self._settled is None or not self._owned:
            self._look()
        return -1 if self._settled is None else self._settled

    def newest(self) -> int:
        """Return the newest decided batch, or -1."""
        if self._newest is None or not self._owned:
            self._look()
        return -1 if self._newest is None else self._newest

    def _look(self) -> None:
        names = self._names()
        self._newest = max(_numbers(_NAME, names), default=-1)
        before = _settled_before(self.store) if "settled" in names else -1
        self._settled = max([*_numbers(_SETTLED, names), before])

    def decided_at(self, batch: int) -> float:
        """Return the time at which a batch was decided; 0 if it was not, or if unknown."""
        found = self.store.look(self._name(batch))
        return found.modified if found else 0.0

    def numbers(self) -> list[int]:
        """Return the numbers of the decided batches that are kept, the oldest first."""
        return _numbers(_NAME, self._names())

    def prune(self, *, keep: int) -> None:
        """Remove the manifests of settled batches, except the newest `keep`."""
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

    def decided_behind(self, batch: int) -> int:
        """Return the last of the decided batches that follow a batch without a gap."""
        decided = self.numbers()
        while batch + 1 in decided:
            batch += 1
        return batch

    def take_back(self, settled: int, *, kept: int) -> None:
        """Remove the settled marks after batch `settled`, and the manifests after batch `kept`.

        The next run publishes batches that stay decided with the same records, and plans the rest
        again.
        """
        names, decided = self._names(), self.numbers()
        with reaching(self.store.address):
            # the highest number first: a crash in between leaves a checkpoint that is still ahead
            gone = [n for n in decided if n > kept]
            for number in reversed(gone):
                for name in (self._name(number, packed=True), self._name(number, packed=False)):
                    self.store.remove(name)
            if settled >= 0:
                self.settle(settled)
            self.store.remove("settled")
            for name in sorted(names, reverse=True):
                mark = _SETTLED.fullmatch(name)
                if mark and int(mark[1]) > settled:
                    self.store.remove(name)
        self._newest = self._settled = None
        self._decided = (-1, b"")

    def adopt(self, manifest: Manifest) -> None:
        """Add a batch that was decided after this checkpoint was copied.

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
        return packed(seal(text)) if self._packed else seal(text)


def _parsed(data: bytes, *, where: str, batch: int | None = None) -> Manifest:
    """Parse a manifest whose seal is valid, or one of an earlier version without a seal."""
    try:
        found = Manifest.from_json(data.decode())
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "a manifest cannot be read",
            where=where,
            evidence=f"{type(error).__name__}: {error}",
            next_step=_PUT_BACK,
        ) from error
    if batch not in (None, found.batch):
        raise CheckpointError(
            "a manifest has the file name of another batch",
            where=where,
            evidence=f"it is that of batch {found.batch}",
            next_step=_PUT_BACK,
        )
    return found


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """The copy of a lane's newest manifest in the lake."""

    lake: str
    pipeline: str
    lane: str = "stream"

    def write(self, text: bytes) -> None:
        """Replace the copy; called before the first commit of the batch."""
        with reaching(self._store.address):
            self._store.write(self._name, seal(text))

    def read(self) -> Manifest | None:
        """Return the newest decided batch, independently of the checkpoint."""
        where = f"{self._store.address}/{self._name}"
        with reaching(self._store.address):
            try:
                data = self._store.read(self._name)
            except FileNotFoundError:
                return None
        next_step = (
            "put the file back from a copy; where the checkpoint is there and newer than any copy "
            "of the lake, remove it: the next batch writes it again"
        )
        return _parsed(unseal(data, where=where, next_step=next_step), where=where)

    def remove(self) -> None:
        """Remove the copy at the end of its life."""
        with reaching(self._store.address):
            self._store.remove(self._name)

    @property
    def _store(self) -> Store:
        return at(layout.pipeline(self.lake, self.pipeline))

    @property
    def _name(self) -> str:
        return f"decided-{self.lane}.json"


def _read_life(store: Store) -> tuple[str, str] | None:
    """Read life and pipeline; None if the file is missing or damaged."""
    try:
        text = store.read("life.json")
        data = json.loads(unseal(text, where=f"{store.address}/life.json", next_step=""))
        return str(data["life"]), str(data["pipeline"])
    except (FileNotFoundError, CheckpointError, ValueError, KeyError, TypeError):
        return None


def _life_of_manifests(store: Store) -> tuple[str, str] | None:
    """Read life and pipeline from the manifests, and write the file again."""
    manifests = Manifests(store.below("manifests"))
    newest = manifests.newest()
    manifest = manifests.read(newest) if newest >= 0 else None
    if manifest is None:
        return None
    Checkpoint.begin(store, pipeline=manifest.pipeline, life=manifest.life)
    return manifest.life, manifest.pipeline


def _settled_before(store: Store) -> int:
    """Return the settled batch in the file of an earlier version; None if the file is empty."""
    try:
        return int(store.read("settled"))
    except (FileNotFoundError, ValueError):
        return -1
