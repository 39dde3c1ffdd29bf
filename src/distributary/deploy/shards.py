"""`install --shards N`: the files of the jobs, and the installation of each job.

The division of the stream is not written here: the bronze job reads the number in its file and cuts
the stream when it starts. A superfluous job stays until it has settled the batches before the cut,
because no other job would; a later `install` removes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from distributary.config.file.document import PipelineFileError, dotted, parse, to_yaml
from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig, with_envelope
from distributary.config.shard import MOST_SHARDS, Part, job_name, unspreadable
from distributary.deploy.file_targets import (
    Artifact,
    DeployTarget,
    FileTarget,
    InstallStep,
    StepAction,
    open_target,
    read_mark,
)
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.targets.target_types import TARGETS, target_entry
from distributary.errors import ConfigError
from distributary.model.names import DEAD_LETTERS, printable

# The pipeline files of the jobs that share a pipeline's types, derived from the pipeline's own
# file. References stay references, and settings that do not concern the division stay unchanged.

Tree = dict[str, Any]

_DERIVED = re.compile(r"shard-([0-9]{1,3})\.yaml")
_LISTEN = re.compile(r"(?:[^:\s$]+:|\[[0-9A-Fa-f:.]+\]:)?[0-9]{1,5}")
_OF_ANY_SOURCE: tuple[str, ...] = ("max_records_per_batch", "tombstones")
"""Settings of the pipeline's source that also apply to bronze as a source."""


def shards_folder(pipeline: Installable) -> Path:
    """Return the folder of the jobs' files, beside the pipeline's own."""
    return pipeline.path.with_name(f"{pipeline.path.stem}.shards")


def file_of(folder: Path, pipeline: str, part: Part) -> Path:
    """Return the path of one job's file."""
    return folder / f"{job_name(pipeline, part)}.yaml"


def numbers_in(folder: Path, pipeline: str) -> tuple[int, ...]:
    """Return the shards that have a file, from this installation or an earlier one."""
    stem = f"{pipeline}-"
    names = [p.name.removeprefix(stem) for p in folder.glob("*.yaml") if p.name.startswith(stem)]
    numbers = (int(match[1]) for name in names if (match := _DERIVED.fullmatch(name)))
    return tuple(sorted(number for number in numbers if number < MOST_SHARDS))


def parts_of(pipeline: Installable, numbers: range | tuple[int, ...]) -> tuple[Part, ...]:
    """Return the jobs: bronze, the shards, and the unified table if there is one."""
    unified = bool(_section(_tree(pipeline), "tables").get("unified"))
    return ("bronze", *numbers, *(("unified",) if unified else ()))


def derived(pipeline: Installable, part: Part, *, shards: int) -> str:
    """Return the text of one job's file."""
    tree = _tree(pipeline)
    tables = _section(tree, "tables")
    # grants are defined once for all jobs, in the pipeline's own file
    tree.pop("grants", None)
    name = job_name(pipeline.name, part)
    if part == "bronze":
        _keep_bronze(tree, tables)
        tree["shard"] = {"of": pipeline.name, "part": part, "shards": shards}
    else:
        tree["source"] = _bronze_source(tree, tables, pipeline)
        tree["shard"] = {"of": pipeline.name, "part": part}
        _keep_rest(tree, tables, part)
        _move_ports(tree, 1 if part == "unified" else 2 + int(part))
        _rename(tree, pipeline, part)
    _point_to(tree, name)
    return to_yaml({"name": name, **{key: tree[key] for key in tree if key != "name"}})


def _tree(pipeline: Installable) -> Tree:
    tree, _ = parse(pipeline.text, file=printable(str(pipeline.path)))
    # a job without tables per type also needs the setting of the types
    return dict(with_envelope(cast(Tree, tree.without_unset().plain())))


def _section(tree: Tree, name: str) -> Tree:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}


def _keep_bronze(tree: Tree, tables: Tree) -> None:
    for name in ("each", "unified", "prefix", "names"):
        tables.pop(name, None)
    _partition_by(tables, lambda name: name in {"_date", "_type"})
    tree.pop("expectations", None)
    tree.pop("shape", None)


def _keep_rest(tree: Tree, tables: Tree, part: Part) -> None:
    tables.pop("bronze", None)
    if part == "unified":
        for name in ("each", "prefix", "names"):
            tables.pop(name, None)
        _partition_by(tables, lambda name: name == "_date")
        tree.pop("expectations", None)
        # a record that it cannot write cannot be written by a shard either, and each job replays
        # its own dead letters
        tables["dead_letters"] = f"{tables.get('dead_letters', DEAD_LETTERS)}_unified"
    else:
        tables.pop("unified", None)
        _partition_by(tables, lambda name: name != "_type")


def _partition_by(tables: Tree, fits: Callable[[str], bool]) -> None:
    """Keep those of the partition columns by which a table of this job is partitioned."""
    wanted = tables.pop("partition_by", ())
    names = wanted.split(",") if isinstance(wanted, str) else wanted
    kept = [name for name in (str(name).strip() for name in names) if fits(name)]
    if kept:
        tables["partition_by"] = kept


def _bronze_source(tree: Tree, tables: Tree, pipeline: Installable) -> Tree:
    lake, bronze = _section(tree, "lake").get("path"), tables.get("bronze")
    if not isinstance(lake, str) or not isinstance(bronze, str):
        raise ConfigError(
            "the pipeline file must name its lake and its bronze table",
            where=f"{pipeline.path.name} lake.path, tables.bronze",
            next_step="add them to the file; ${env:...} is allowed",
        )
    before = _section(tree, "source")
    kept: Tree = {key: before[key] for key in _OF_ANY_SOURCE if key in before}
    return {
        "type": "delta",
        "path": f"{lake.rstrip('/')}/{bronze}",
        "value": "payload",
        "key": "key",
        "headers": "headers",
        "timestamp": "_timestamp",
        **kept,
    }


def _move_ports(tree: Tree, by: int) -> None:
    """Give each job of one machine its own port."""
    for section in (_section(tree, "metrics"), _section(_section(tree, "deploy"), "systemd")):
        address = section.get("listen")
        if address is None:
            continue
        if not _LISTEN.fullmatch(str(address)):
            # a reference: its value is known elsewhere only, and only one job can use it
            del section["listen"]
            continue
        host, colon, port = str(address).rpartition(":")
        section["listen"] = f"{host}{colon}{int(port) + by}"


def _rename(tree: Tree, pipeline: Installable, part: Part) -> None:
    deploy = _section(tree, "deploy")
    ending = job_name(pipeline.name, part).removeprefix(pipeline.name)
    for entry in map(target_entry, TARGETS):
        entry.rename_job(_section(deploy, entry.section), ending)


def _point_to(tree: Tree, name: str) -> None:
    """Set paths to the pipeline's file: the job's file is in a folder beside it."""
    deploy = _section(tree, "deploy")
    for entry in map(target_entry, TARGETS):
        entry.point_to_shard(_section(deploy, entry.section), name)


NAME = "shards"


@dataclass(frozen=True, slots=True)
class ShardsTarget:
    """Several jobs that belong together; satisfies `DeployTarget`."""

    files: FileTarget
    jobs: tuple[DeployTarget, ...]
    retired: tuple[DeployTarget, ...] = ()
    """Superfluous jobs that have finished."""
    kept: tuple[str, ...] = ()
    """Superfluous jobs that have not finished yet."""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Return the remaining commands of all jobs, each line once."""
        return _once(line for job in self.jobs for line in job.next_steps)

    @property
    def last_steps(self) -> tuple[str, ...]:
        """Return the commands after a removal; lines that all jobs share come last."""
        lines = [line for job in (*self.jobs, *self.retired) for line in job.last_steps]
        return _once(reversed(lines))[::-1]

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps for files, jobs, and superfluous jobs."""
        steps = [*self.files.plan(), *(step for job in self.jobs for step in job.plan())]
        return _distinct((*steps, *(s for job in self.retired for s in job.plan_removal())))

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Write files before the jobs that read them, and remove jobs before their files."""
        removed = [step for step in steps if step.action is StepAction.REMOVE]
        self.files.apply(_of([s for s in steps if s not in removed], self.files.plan()))
        for job in self.jobs:
            mine = _of(steps, job.plan())
            if any(step.changes for step in mine):
                job.apply(mine)
        for job in self.retired:
            job.remove(_of(removed, job.plan_removal()))
        self.files.apply(_of(removed, self.files.plan_removal()))

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Return steps for all jobs and all files."""
        jobs = (step for job in (*self.jobs, *self.retired) for step in job.plan_removal())
        return _distinct((*jobs, *self.files.plan_removal()))

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Remove the jobs first: their files may go once nothing runs them."""
        for job in (*self.jobs, *self.retired):
            job.remove(_of(steps, job.plan_removal()))
        self.files.remove(_of(steps, self.files.plan_removal()))
        if self.files.folder.is_dir() and not any(self.files.folder.iterdir()):
            self.files.folder.rmdir()


def spread_target(
    name: str,
    pipeline: Installable,
    *,
    shards: int,
    out: Path | None = None,
    is_done: Callable[[int], bool],
    has_letters: Callable[[int], bool],
) -> ShardsTarget:
    """Return the target with the jobs of a pipeline whose types are spread.

    `is_done` tests whether a superfluous job has finished; `has_letters` whether its file is still
    needed to replay dead letters.
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
        kept=tuple(job_name(pipeline.name, number) for number in kept),
    )


def removal_target(
    name: str, pipeline: Installable, *, out: Path | None = None
) -> DeployTarget | None:
    """Return the target with everything that was installed for a spread pipeline.

    None for any other.
    """
    folder = shards_folder(pipeline)
    shards = installed_shards(pipeline)
    if not shards:
        return None
    parts = parts_of(pipeline, tuple({*range(shards), *numbers_in(folder, pipeline.name)}))
    jobs = [_job(pipeline, folder, part, shards) for part in parts]
    targets = tuple(_open(name, job, out) for job in jobs)
    return ShardsTarget(_files(pipeline, folder, jobs), jobs=targets)


def installed_shards(pipeline: Installable) -> int:
    """Return the number of jobs over which the existing files spread the types; 0 for none."""
    path = file_of(shards_folder(pipeline), pipeline.name, "bronze")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return 0
    mark = read_mark(text)
    if mark is None or mark.target != NAME:
        return 0
    shard = read_for_install(path, text=text).shard
    return shard.shards or 0 if shard is not None else 0


def refuse_single(pipeline: Installable) -> None:
    """Raise ConfigError if a spread pipeline would get one more job.

    It would write everything twice.
    """
    if shards := installed_shards(pipeline):
        raise ConfigError(
            f"the types of pipeline {pipeline.name} are spread over {shards} jobs",
            where=str(shards_folder(pipeline)),
            next_step=f"add --shards {shards}, or another number",
        )


def refuse_unspreadable(pipeline: Installable) -> None:
    """Raise ConfigError for a pipeline that cannot be spread.

    Its tables would have two writers, or its bronze table could not be read.
    """
    pipeline.refuse_clear_secrets(to="the files of its jobs")
    config = _known(pipeline)
    if config.shard is not None:
        raise ConfigError(
            "this file is a job of a pipeline that is already spread",
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
    """Return the file's settings.

    Values known only on other machines do not matter for the division.
    """
    if pipeline.loaded is not None:
        return pipeline.loaded.config
    stand_ins = {name: os.environ.get(name, "1") for name in pipeline.variables}
    try:
        return load_text(pipeline.text, environ={**os.environ, **stand_ins}).config
    except PipelineFileError:
        raise ConfigError(
            "the file cannot be spread while some of its values are unknown",
            where=str(pipeline.path),
            evidence="; ".join(pipeline.unknown_here),
            next_step="set the variables here, too; their values are not written to a file",
        ) from None


def _job(pipeline: Installable, folder: Path, part: Part, shards: int) -> Installable:
    text = derived(pipeline, part, shards=shards)
    return read_for_install(file_of(folder, pipeline.name, part), text=text)


def _files(pipeline: Installable, folder: Path, jobs: Sequence[Installable]) -> FileTarget:
    artifacts = tuple(Artifact(job.path, job.text) for job in jobs)
    return FileTarget(NAME, pipeline.name, folder, artifacts, ("*.yaml",))


def _open(name: str, job: Installable, out: Path | None) -> DeployTarget:
    place = out / job.name if out is not None and not target_entry(name).has_own_files else out
    return open_target(name, job, out=place)


def _of(steps: Sequence[InstallStep], plan: Sequence[InstallStep]) -> list[InstallStep]:
    """Return the steps that concern the same files and jobs as `plan`."""
    about = {(step.kind, step.name) for step in plan}
    return [step for step in steps if (step.kind, step.name) in about]


def _distinct(steps: Iterable[InstallStep]) -> tuple[InstallStep, ...]:
    return tuple({(step.kind, step.name): step for step in steps}.values())


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
