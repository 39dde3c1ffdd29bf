"""A pipeline's checkpoint: whose life it is, where it began, and the decided batches.

<checkpoint>/<pipeline>/
    life.json      the id of this life: a reset checkpoint is a new life
    claims/        who owns it
    first.json     the source's position at the beginning of this life
    manifests/     the decided batches of the stream
    runs/          records between the two hops of a stage, gone when it is over
    replay/        the decided batches of dead letters that were sent again

The lake keeps a copy of the newest manifest. A checkpoint that is older than its tables, because a
copy of it was put back, is brought up to date from there; one that is lost can be made anew.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.errors import CheckpointError, FencedError, LakeUnavailableError
from distributary.model import layout
from distributary.model.manifest import Manifest
from distributary.store import disk
from distributary.store.bucket import Folder, reaching

# The checkpoint's own files, and the error of a folder that cannot be written.


def create_exclusively(path: Path, text: str) -> bool:
    """Create a file with all of its content, unless it exists. True if this call created it."""
    with _writable(path):
        return disk.create(path, text.encode()) is not None


def replace_atomically(path: Path, text: str) -> None:
    """Put a new content in place of the old one: a reader sees the one or the other."""
    with _writable(path):
        disk.replace(path, text.encode())


def touch(path: Path) -> None:
    """Create an empty file whose name says everything, unless it is there."""
    with _writable(path):
        path.touch()


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise LakeUnavailableError(
            "cannot write a file",
            where=str(path),
            evidence=error.strerror or type(error).__name__,
            next_step="check that the folder is writable and that the disk has room",
        ) from error


_NAME = re.compile(r"[0-9]{20}\.json")
_SETTLED = re.compile(r"[0-9]{20}\.settled")
_ASIDE = re.compile(r"([0-9]{20})\.broken-.*")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of one pipeline and the id of its life."""

    folder: Path
    life: str

    @classmethod
    def find(cls, folder: Path, *, pipeline: str) -> Checkpoint | None:
        """The checkpoint that is there; None where nothing was begun or all of it is lost."""
        known = _read_life(folder / "life.json") or _life_of_manifests(folder)
        if known is None:
            return None
        life, owner = known
        if owner != pipeline:
            raise CheckpointError(
                f"the checkpoint belongs to pipeline {owner!r}, not {pipeline!r}",
                where=str(folder),
                next_step="give the pipelines different names or different `lake.checkpoint`s",
            )
        return cls(folder, life)

    @classmethod
    def begin(cls, folder: Path, *, pipeline: str, life: str | None = None) -> Checkpoint:
        """Begin a new life, or go on with one whose checkpoint was lost."""
        life = life or uuid.uuid4().hex[:12]
        replace_atomically(folder / "life.json", json.dumps({"life": life, "pipeline": pipeline}))
        return cls(folder, life)

    def first_position(self, find: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Where this life begins: found once, then kept, so that `latest` stays the same moment."""
        known = self.known_first_position()
        if known is None:
            create_exclusively(self.folder / "first.json", json.dumps(find()))
            known = self.known_first_position()
        return known or {}

    def known_first_position(self) -> Mapping[str, Any] | None:
        """Where this life has begun, if it has."""
        path = self.folder / "first.json"
        try:
            found: Mapping[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(
                "where this life of the pipeline began cannot be read",
                where=str(path),
                evidence=f"{path.stat().st_size} bytes that are no position",
                next_step="put the file back from a copy; if no batch was decided yet, begin anew "
                "with `distributary reset`",
            ) from error
        return found

    def runs(self, lane: str) -> Path:
        """Where the stages of a lane keep sorted records; absolute, for workers elsewhere."""
        return self.folder.resolve() / "runs" / lane

    def manifests(self, lane: str = "stream") -> Manifests:
        """The decided batches of a lane."""
        return Manifests(self.folder / ("manifests" if lane == "stream" else lane))


@dataclass(frozen=True, slots=True)
class Manifests:
    """A folder of manifests, one per batch number, each created exactly once."""

    folder: Path

    def read(self, batch: int) -> Manifest | None:
        """The manifest of a batch, if the batch is decided."""
        path = self._path(batch)
        try:
            return Manifest.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a manifest cannot be read",
                where=str(path),
                evidence=f"{type(error).__name__}: {error}",
                next_step="restore the checkpoint from a copy; do not delete the manifest",
            ) from error

    def create(self, manifest: Manifest) -> None:
        """Decide a batch. Raises FencedError when it is decided already, by somebody else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not create_exclusively(self._path(manifest.batch), manifest.to_json()):
            raise FencedError(
                f"batch {manifest.batch} was decided by another process meanwhile",
                where=str(self._path(manifest.batch)),
                evidence=f"own epoch {manifest.epoch}",
                next_step="nothing is lost: let the other process go on",
            )

    def replace(self, manifest: Manifest) -> None:
        """Decide a batch anew whose files are gone. It is decided all the time, for its records.

        The old manifest is kept for a while, for whoever wants to know what has happened.
        """
        path = self._path(manifest.batch)
        with suppress(OSError):
            path.with_suffix(f".broken-{uuid.uuid4().hex[:8]}").hardlink_to(path)
        replace_atomically(path, manifest.to_json())

    def settle(self, batch: int) -> None:
        """Remember that all tables have this batch and those before it.

        Each batch has a mark of its own, and the highest counts: a process that is late can add
        one, and cannot take one back.
        """
        touch(self.folder / f"{batch:020d}.settled")

    def settled(self) -> int:
        """The newest settled batch, or -1."""
        marks = [int(p.stem) for p in self._files() if _SETTLED.fullmatch(p.name)]
        return max([*marks, _settled_before(self.folder / "settled")])

    def newest(self) -> int:
        """The newest decided batch, or -1."""
        numbers = self.numbers()
        return numbers[-1] if numbers else -1

    def numbers(self) -> list[int]:
        """All decided batches that are still kept, oldest first."""
        return sorted(int(p.stem) for p in self._files() if _NAME.fullmatch(p.name))

    def prune(self, *, keep: int) -> int:
        """Forget settled batches beyond the newest `keep`; returns how many went."""
        settled = self.settled()
        old = [n for n in self.numbers() if n <= settled][:-keep]
        for number in old:
            self._path(number).unlink(missing_ok=True)
        for path in self._files():
            aside = _ASIDE.fullmatch(path.name)
            if (aside and int(aside[1]) <= settled) or (
                _SETTLED.fullmatch(path.name) and int(path.stem) < settled
            ):
                path.unlink(missing_ok=True)
        return len(old)

    def text(self, batch: int) -> bytes:
        """The manifest of a decided batch as it was written."""
        return self._path(batch).read_bytes()

    def adopt(self, manifest: Manifest) -> None:
        """Take over a batch that was decided after this folder was copied.

        A batch is decided only when all tables have the one before.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        create_exclusively(self._path(manifest.batch), manifest.to_json())
        self.settle(manifest.batch - 1)

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.exists() else []

    def _path(self, batch: int) -> Path:
        return self.folder / f"{batch:020d}.json"


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """The lake's copy of the newest manifest of a pipeline's lane."""

    lake: str
    pipeline: str
    lane: str = "stream"

    def write(self, text: bytes) -> None:
        """Replace the copy; before the first commit of its batch."""
        with reaching(self._folder.path):
            self._folder.write(self._name, text)

    def read(self) -> Manifest | None:
        """The newest batch that was decided, whatever became of the checkpoint."""
        with reaching(self._folder.path):
            if self._folder.size(self._name) is None:
                return None
            text = self._folder.read(self._name)
        try:
            return Manifest.from_json(text.decode())
        except (ValueError, KeyError, TypeError):
            # only a copy: the checkpoint and the tables' own marks are asked without it
            return None

    def remove(self) -> None:
        """Forget it: the life it belongs to has ended."""
        with reaching(self._folder.path):
            self._folder.remove(self._name)

    @property
    def _folder(self) -> Folder:
        return Folder(layout.pipeline(self.lake, self.pipeline))

    @property
    def _name(self) -> str:
        return f"decided-{self.lane}.json"


def _read_life(path: Path) -> tuple[str, str] | None:
    """Life and pipeline; None where the file is missing or was emptied by a power cut."""
    try:
        data = json.loads(path.read_text())
        return str(data["life"]), str(data["pipeline"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _life_of_manifests(folder: Path) -> tuple[str, str] | None:
    """The same from the decided batches, each of which names both; the file is written again."""
    manifests = Manifests(folder / "manifests")
    newest = manifests.newest()
    manifest = manifests.read(newest) if newest >= 0 else None
    if manifest is None:
        return None
    Checkpoint.begin(folder, pipeline=manifest.pipeline, life=manifest.life)
    return manifest.life, manifest.pipeline


def _settled_before(path: Path) -> int:
    """What the version before kept in one file; nothing where that was emptied."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return -1
