"""`install --shards N`: the files of the jobs, and each job where it runs.

How the stream is divided is not written here: the bronze job reads the number in its file and cuts
the stream when it starts. A job that has become superfluous stays until it has settled what comes
before the cut, for nobody else would; a later `install` removes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from distributary.config.document import PipelineFileError, dotted, parse, printable, to_yaml
from distributary.config.load import load_text
from distributary.config.pipeline import PipelineConfig, with_envelope
from distributary.config.source import MOST_SHARDS, Part, job_name, unspreadable
from distributary.deploy.files import (
    Action,
    Artifact,
    FileTarget,
    Step,
    Target,
    TargetName,
    open_target,
    read_mark,
)
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.errors import ConfigError
from distributary.model.names import DEAD_LETTERS

# The pipeline files of the jobs that share a pipeline's types, made of the pipeline's own file.
#
# References stay references, and what is not about the division stays as it is.

Tree = dict[str, Any]

_DERIVED = re.compile(r"shard-([0-9]{1,3})\.yaml")
_LISTEN = re.compile(r"(?:[^:\s$]+:|\[[0-9A-Fa-f:.]+\]:)?[0-9]{1,5}")
_NAMES = (
    ("databricks", "job_name"),
    ("systemd", "name"),
    ("airflow", "dag_id"),
    ("kubernetes", "name"),
)
"""Names in the deploy section that no two jobs may share."""
_OF_ANY_SOURCE: tuple[str, ...] = ("max_records_per_batch", "tombstones")
"""What is said of the pipeline's source and holds for bronze, too."""


def shards_folder(pipeline: Installable) -> Path:
    """Where the files of the jobs are: beside the pipeline's own."""
    return pipeline.path.with_name(f"{pipeline.path.stem}.shards")


def file_of(folder: Path, pipeline: str, part: Part) -> Path:
    """The file of one job."""
    return folder / f"{job_name(pipeline, part)}.yaml"


def numbers_in(folder: Path, pipeline: str) -> tuple[int, ...]:
    """The shards that have a file, from this installation or an earlier one."""
    stem = f"{pipeline}-"
    names = [p.name.removeprefix(stem) for p in folder.glob("*.yaml") if p.name.startswith(stem)]
    found = (int(match[1]) for name in names if (match := _DERIVED.fullmatch(name)))
    return tuple(sorted(number for number in found if number < MOST_SHARDS))


def parts_of(pipeline: Installable, numbers: range | tuple[int, ...]) -> tuple[Part, ...]:
    """The jobs: one that lands, the shards, and one for the unified table where there is one."""
    unified = bool(_section(_tree(pipeline), "tables").get("unified"))
    return ("bronze", *numbers, *(("unified",) if unified else ()))


def derived(pipeline: Installable, part: Part, *, shards: int) -> str:
    """The text of one job's file."""
    tree = _tree(pipeline)
    tables = _section(tree, "tables")
    # who may read what is one matter for all jobs: the pipeline's own file says it
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
    _point_airflow(tree, pipeline, name)
    return to_yaml({"name": name, **{key: tree[key] for key in tree if key != "name"}})


def _tree(pipeline: Installable) -> Tree:
    tree, _ = parse(pipeline.text, file=printable(str(pipeline.path)))
    # a job without tables per type must know, too, what the types are
    return dict(with_envelope(cast(Tree, tree.without_unset().plain())))


def _section(tree: Tree, name: str) -> Tree:
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _keep_bronze(tree: Tree, tables: Tree) -> None:
    for name in ("each", "unified", "prefix", "names"):
        tables.pop(name, None)
    _partition_by_date_only(tables)
    tree.pop("expectations", None)


def _keep_rest(tree: Tree, tables: Tree, part: Part) -> None:
    tables.pop("bronze", None)
    if part == "unified":
        for name in ("each", "prefix", "names"):
            tables.pop(name, None)
        _partition_by_date_only(tables)
        tree.pop("expectations", None)
        # what it cannot write a shard cannot either, and a letter is sent again by its own job
        tables["dead_letters"] = f"{tables.get('dead_letters', DEAD_LETTERS)}_unified"
    else:
        tables.pop("unified", None)


def _partition_by_date_only(tables: Tree) -> None:
    """Other columns partition the tables per type, which are not here."""
    wanted = tables.pop("partition_by", ())
    names = wanted.split(",") if isinstance(wanted, str) else wanted
    if "_date" in [str(name).strip() for name in names]:
        tables["partition_by"] = ["_date"]


def _bronze_source(tree: Tree, tables: Tree, pipeline: Installable) -> Tree:
    lake, bronze = _section(tree, "lake").get("path"), tables.get("bronze")
    if not isinstance(lake, str) or not isinstance(bronze, str):
        raise ConfigError(
            "the file itself must name its lake and its bronze table",
            where=f"{pipeline.path.name} lake.path, tables.bronze",
            next_step="write them there; ${env:...} is fine",
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
    """Jobs of one machine cannot listen at one address."""
    for section in (_section(tree, "metrics"), _section(_section(tree, "deploy"), "systemd")):
        address = section.get("listen")
        if address is None:
            continue
        if not _LISTEN.fullmatch(str(address)):
            # a reference: what it holds is known elsewhere, and only one job can have it
            del section["listen"]
            continue
        host, colon, port = str(address).rpartition(":")
        section["listen"] = f"{host}{colon}{int(port) + by}"


def _rename(tree: Tree, pipeline: Installable, part: Part) -> None:
    deploy = _section(tree, "deploy")
    ending = job_name(pipeline.name, part).removeprefix(pipeline.name)
    for target, key in _NAMES:
        section = _section(deploy, target)
        if key in section:
            section[key] = f"{section[key]}{ending}"
    databricks = _section(deploy, "databricks")
    if "folder" in databricks:
        databricks["folder"] = f"{str(databricks['folder']).rstrip('/')}/{ending.lstrip('-')}"


def _point_airflow(tree: Tree, pipeline: Installable, name: str) -> None:
    """Where the workers find the file: beside the pipeline's own, as here."""
    airflow = _section(_section(tree, "deploy"), "airflow")
    if "file" in airflow:
        there = PurePosixPath(str(airflow["file"]))
        airflow["file"] = str(there.with_name(f"{there.stem}.shards") / f"{name}.yaml")


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
        kept=tuple(job_name(pipeline.name, number) for number in kept),
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
