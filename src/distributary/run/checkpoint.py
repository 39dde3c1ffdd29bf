"""A pipeline's checkpoint: whose life it is, where it began, and the decided batches.

<checkpoint>/<pipeline>/
    life.json      the id of this life: a reset checkpoint is a new life
    claims/        who owns it
    first.json     the source's position at the beginning of this life
    manifests/     the decided batches of the stream
    runs/          records between the two hops of a stage, gone when it is over
    replay/        the decided batches of dead letters that were sent again
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.errors import CheckpointError, FencedError
from distributary.model.manifest import Manifest
from distributary.run.writing import create_exclusively, replace_atomically

_NAME = re.compile(r"[0-9]{20}\.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder of one pipeline and the id of its life."""

    folder: Path
    life: str

    @classmethod
    def open(cls, folder: Path, *, pipeline: str) -> Checkpoint:
        """Open a checkpoint, or begin a new life where there is none."""
        path = folder / "life.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "manifests").exists():
                raise CheckpointError(
                    "the checkpoint has decided batches, but its life.json is missing",
                    where=str(folder),
                    next_step="restore the whole folder from a copy, or begin anew with `reset`",
                )
            create_exclusively(
                path, json.dumps({"life": uuid.uuid4().hex[:12], "pipeline": pipeline})
            )
        data = json.loads(path.read_text())
        if data["pipeline"] != pipeline:
            raise CheckpointError(
                f"the checkpoint belongs to pipeline {data['pipeline']!r}, not {pipeline!r}",
                where=str(folder),
                next_step="give the pipelines different names or different `lake.checkpoint`s",
            )
        return cls(folder, data["life"])

    def first_position(self, find: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Where this life begins: found once, then kept, so that `latest` stays the same moment."""
        known = self.known_first_position()
        if known is None:
            create_exclusively(self.folder / "first.json", json.dumps(find()))
            known = self.known_first_position()
        return known or {}

    def known_first_position(self) -> Mapping[str, Any] | None:
        """Where this life has begun, if it has."""
        try:
            found: Mapping[str, Any] = json.loads((self.folder / "first.json").read_text())
        except FileNotFoundError:
            return None
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
        """Remember that all tables have this batch."""
        replace_atomically(self.folder / "settled", str(batch), sync=False)

    def settled(self) -> int:
        """The newest settled batch, or -1."""
        path = self.folder / "settled"
        return int(path.read_text()) if path.exists() else -1

    def newest(self) -> int:
        """The newest decided batch, or -1."""
        numbers = self.numbers()
        return numbers[-1] if numbers else -1

    def numbers(self) -> list[int]:
        """All decided batches that are still kept, oldest first."""
        if not self.folder.exists():
            return []
        return sorted(int(p.stem) for p in self.folder.iterdir() if _NAME.fullmatch(p.name))

    def prune(self, *, keep: int) -> int:
        """Forget settled batches beyond the newest `keep`; returns how many went."""
        settled = self.settled()
        old = [n for n in self.numbers() if n <= settled][:-keep]
        for number in old:
            self._path(number).unlink(missing_ok=True)
        return len(old)

    def _path(self, batch: int) -> Path:
        return self.folder / f"{batch:020d}.json"
