"""Targets that are files: written whole, found again by their mark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from distributary import durable
from distributary.deploy.mark import Mark, marked, read_mark
from distributary.deploy.steps import Action, Step
from distributary.errors import DeployError

_LARGEST = 4 << 20
_UNIT = "file"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file, without its mark."""

    path: Path
    text: str = field(repr=False)
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Some files below one folder; satisfies `Target`."""

    name: str
    pipeline: str
    folder: Path
    artifacts: tuple[Artifact, ...]
    patterns: tuple[str, ...]
    """Where files of ours may be below the folder, also those of an earlier configuration."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[Step, ...]:
        """Each file, and what an earlier configuration left behind."""
        steps = [self._step(artifact) for artifact in self.artifacts]
        planned = {step.name for step in steps}
        return (*steps, *(step for step in self.plan_removal() if step.name not in planned))

    def apply(self, steps: Sequence[Step]) -> None:
        """Write what changes; a crash in the middle leaves whole files, old or new."""
        for step in steps:
            if not step.changes:
                continue
            with _writing(step.name):
                path = Path(step.name)
                if step.action is Action.REMOVE:
                    path.unlink(missing_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                durable.replace(path, step.after.encode())
                path.chmod(step.mode)

    def plan_removal(self) -> tuple[Step, ...]:
        """Every file below the folder that bears the mark of this target and pipeline."""
        found = sorted({p for pattern in self.patterns for p in self.folder.glob(pattern)})
        return tuple(
            Step(_UNIT, str(path), Action.REMOVE, before=text)
            for path in found
            if (text := _text(path)) is not None and self._is_mine(read_mark(text))
        )

    def remove(self, steps: Sequence[Step]) -> None:
        """Remove the files, and folders in which nothing else is."""
        for step in steps:
            with _writing(step.name):
                Path(step.name).unlink(missing_ok=True)
        folders = {p for step in steps for p in Path(step.name).parents}
        for folder in sorted(folders, key=lambda p: -len(p.parts)):
            if folder != self.folder and self.folder in folder.parents and not _holds(folder):
                folder.rmdir()

    def _step(self, artifact: Artifact) -> Step:
        path, after = str(artifact.path), self._marked(artifact)
        if not os.path.lexists(artifact.path):
            return Step(_UNIT, path, Action.CREATE, after, mode=artifact.mode)
        before = _text(artifact.path)
        mark = None if before is None else read_mark(before)
        if before is None or mark is None:
            return Step(_UNIT, path, Action.FOREIGN, after, why="has no mark of distributary")
        if not self._is_mine(mark):
            whose = f"belongs to pipeline {mark.pipeline}, target {mark.target}"
            return Step(_UNIT, path, Action.FOREIGN, after, before, why=whose)
        if before == after:
            return Step(_UNIT, path, Action.UNCHANGED, after, before)
        action = Action.UPDATE if mark.intact else Action.EDITED
        return Step(_UNIT, path, action, after, before, artifact.mode)

    def _marked(self, artifact: Artifact) -> str:
        return marked(artifact.text, target=self.name, pipeline=self.pipeline)

    def _is_mine(self, mark: Mark | None) -> bool:
        return mark is not None and (mark.target, mark.pipeline) == (self.name, self.pipeline)


def _text(path: Path) -> str | None:
    """A file's text; None for whatever cannot be one of ours."""
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST:
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _holds(folder: Path) -> bool:
    return not folder.is_dir() or any(folder.iterdir())


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DeployError(
            "the file cannot be written or removed",
            where=path,
            evidence=f"{type(error).__name__}: {error.strerror}",
            next_step="check rights and room; --out names another folder",
        ) from error
