"""`install --shards N`: the files of the jobs, and each job where it runs.

How the stream is divided is not written here: the bronze job reads the number in its file and cuts
the stream when it starts. A job that has become superfluous stays until it has settled what comes
before the cut, for nobody else would; a later `install` removes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distributary.config.load import load_text
from distributary.config.node import dotted
from distributary.config.pipeline import PipelineConfig
from distributary.config.problems import PipelineFileError
from distributary.config.shard import Part, unspreadable
from distributary.deploy.files import Artifact, FileTarget
from distributary.deploy.mark import read_mark
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.shard_files import (
    derived,
    file_of,
    numbers_in,
    parts_of,
    shards_folder,
)
from distributary.deploy.steps import Action, Step, Target
from distributary.deploy.targets import TargetName, open_target
from distributary.errors import ConfigError

NAME = "shards"
_OWN_FOLDER = (TargetName.KUBERNETES, TargetName.SPARK_SUBMIT)
"""Targets whose files have the same names for every pipeline."""


@dataclass(frozen=True, slots=True)
class ShardsTarget:
    """Several jobs that go together; satisfies `Target`."""

    files: FileTarget
    jobs: tuple[Target, ...]
    retired: tuple[Target, ...] = ()
    """Jobs that have nothing left to do."""
    kept: tuple[str, ...] = ()
    """Jobs that are superfluous and not done yet."""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Of all jobs, each line once."""
        return _once(line for job in self.jobs for line in job.next_steps)

    @property
    def last_steps(self) -> tuple[str, ...]:
        """The same after a removal; what all have in common comes last."""
        lines = [line for job in (*self.jobs, *self.retired) for line in job.last_steps]
        return _once(reversed(lines))[::-1]

    def plan(self) -> tuple[Step, ...]:
        """Files, jobs, and what becomes superfluous."""
        steps = [*self.files.plan(), *(step for job in self.jobs for step in job.plan())]
        return _distinct((*steps, *(s for job in self.retired for s in job.plan_removal())))

    def apply(self, steps: Sequence[Step]) -> None:
        """Files before the jobs that read them, and jobs away before their files."""
        removed = [step for step in steps if step.action is Action.REMOVE]
        self.files.apply(_of([s for s in steps if s not in removed], self.files.plan()))
        for job in self.jobs:
            mine = _of(steps, job.plan())
            if any(step.changes for step in mine):
                job.apply(mine)
        for job in self.retired:
            job.remove(_of(removed, job.plan_removal()))
        self.files.apply(_of(removed, self.files.plan_removal()))

    def plan_removal(self) -> tuple[Step, ...]:
        """All jobs and all files."""
        jobs = (step for job in (*self.jobs, *self.retired) for step in job.plan_removal())
        return _distinct((*jobs, *self.files.plan_removal()))

    def remove(self, steps: Sequence[Step]) -> None:
        """Jobs first: files may go once nothing runs them."""
        for job in (*self.jobs, *self.retired):
            job.remove(_of(steps, job.plan_removal()))
        self.files.remove(_of(steps, self.files.plan_removal()))
        if self.files.folder.is_dir() and not any(self.files.folder.iterdir()):
            self.files.folder.rmdir()


def spread_target(
    name: TargetName,
    pipeline: Installable,
    *,
    shards: int,
    out: Path | None = None,
    is_done: Callable[[int], bool],
    has_letters: Callable[[int], bool],
) -> ShardsTarget:
    """The jobs of a pipeline whose types are spread.

    `is_done` knows which job may go, `has_letters` whose file is still needed to send dead letters
    again.
    """
    refuse_unspreadable(pipeline)
    folder = shards_folder(pipeline)
    superfluous = [n for n in numbers_in(folder, pipeline.name) if n >= shards]
    done = [number for number in superfluous if is_done(number)]
    kept = [number for number in superfluous if number not in done]
    parts = parts_of(pipeline, (*range(shards), *kept))
    wanted = [_job(pipeline, folder, part, shards) for part in parts]
    gone = {number: _job(pipeline, folder, number, shards) for number in done}
    needed = [job for number, job in gone.items() if has_letters(number)]
    return ShardsTarget(
        _files(pipeline, folder, [*wanted, *needed]),
        jobs=tuple(_open(name, job, out) for job in wanted),
        retired=tuple(_open(name, job, out) for job in gone.values()),
        kept=tuple(job.name for job in wanted if job.path in _paths(pipeline, folder, kept)),
    )


def removal_target(
    name: TargetName, pipeline: Installable, *, out: Path | None = None
) -> Target | None:
    """Everything that was installed for a pipeline that is spread; None for one that is not."""
    folder = shards_folder(pipeline)
    shards = installed_shards(pipeline)
    if not shards:
        return None
    parts = parts_of(pipeline, tuple({*range(shards), *numbers_in(folder, pipeline.name)}))
    jobs = [_job(pipeline, folder, part, shards) for part in parts]
    targets = tuple(_open(name, job, out) for job in jobs)
    return ShardsTarget(_files(pipeline, folder, jobs), jobs=targets)


def installed_shards(pipeline: Installable) -> int:
    """Over how many jobs the files beside the pipeline's own spread its types; 0 for none."""
    path = file_of(shards_folder(pipeline), pipeline.name, "bronze")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return 0
    mark = read_mark(text)
    if mark is None or mark.target != NAME:
        return 0
    found = read_for_install(path, text=text).shard
    return found.shards or 0 if found is not None else 0


def refuse_single(pipeline: Installable) -> None:
    """One job beside the jobs of a pipeline that is spread would write everything twice."""
    if shards := installed_shards(pipeline):
        raise ConfigError(
            f"the types of pipeline {pipeline.name} are spread over {shards} jobs",
            where=str(shards_folder(pipeline)),
            next_step=f"add --shards {shards}, or another number",
        )


def refuse_unspreadable(pipeline: Installable) -> None:
    """Pipelines whose tables would have two writers, or whose bronze nobody could read."""
    pipeline.refuse_clear_secrets(to="the files of its jobs")
    config = _known(pipeline)
    if config.shard is not None:
        raise ConfigError(
            "this file is a part of a pipeline that is spread already",
            where=str(pipeline.path),
            next_step=f"give the file of pipeline {config.shard.of} itself",
        )
    why = [f"{dotted(path)} {text}" for path, text in unspreadable(config)]
    if why:
        raise ConfigError(
            "the types of this pipeline cannot be spread over jobs",
            where=str(pipeline.path),
            evidence="; ".join(why),
            next_step="change these settings, or install it without --shards",
        )


def _known(pipeline: Installable) -> PipelineConfig:
    """The file's settings; what only other machines know does not matter for the division."""
    if pipeline.loaded is not None:
        return pipeline.loaded.config
    stand_ins = {name: os.environ.get(name, "1") for name in pipeline.variables}
    try:
        return load_text(pipeline.text, environ={**os.environ, **stand_ins}).config
    except PipelineFileError:
        raise ConfigError(
            "the file cannot be spread without knowing all of it",
            where=str(pipeline.path),
            evidence="; ".join(pipeline.unknown_here),
            next_step="set the variables here, too; their values are not written down",
        ) from None


def _job(pipeline: Installable, folder: Path, part: Part, shards: int) -> Installable:
    text = derived(pipeline, part, shards=shards)
    return read_for_install(file_of(folder, pipeline.name, part), text=text)


def _paths(pipeline: Installable, folder: Path, parts: Iterable[Part]) -> set[Path]:
    return {file_of(folder, pipeline.name, part).absolute() for part in parts}


def _files(pipeline: Installable, folder: Path, jobs: Sequence[Installable]) -> FileTarget:
    artifacts = tuple(Artifact(job.path, job.text) for job in jobs)
    return FileTarget(NAME, pipeline.name, folder, artifacts, ("*.yaml",))


def _open(name: TargetName, job: Installable, out: Path | None) -> Target:
    place = out / job.name if out is not None and name in _OWN_FOLDER else out
    return open_target(name, job, out=place)


def _of(steps: Sequence[Step], plan: Sequence[Step]) -> list[Step]:
    """The steps that are about the same things."""
    about = {(step.kind, step.name) for step in plan}
    return [step for step in steps if (step.kind, step.name) in about]


def _distinct(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple({(step.kind, step.name): step for step in steps}.values())


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
