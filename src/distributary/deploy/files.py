"""Targets that are files: written whole, found again by their mark."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Protocol

from distributary.config.base import MASK, Section, is_secret_name
from distributary.config.deploy import Cluster, Databricks, Kubernetes
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, DeployError, DistributaryError, ErrorCode
from distributary.store import disk

# The mark on everything that `install` writes: whose it is, and what it was when it was written.
#
# One line among the first of a text: a comment, or the `$comment` of a JSON object. It holds the
# SHA-256 of all the rest, so that a later look tells our own text from one that somebody edited.

_LOOKED_AT = 4
_MARK = re.compile(
    r"made by distributary install: target=([a-z-]+) pipeline=([A-Za-z0-9._-]+)"
    r" sha256=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a text says of itself."""

    target: str
    pipeline: str
    intact: bool
    """Whether the text is still the one that was marked."""

    def change(self, before: str, after: str) -> Action:
        """What becomes of the text that bears this mark when another takes its place."""
        if before == after:
            return Action.UNCHANGED
        return Action.UPDATE if self.intact else Action.EDITED


def marked(body: str, *, target: str, pipeline: str) -> str:
    """The text with its mark: first of all, or after what must come first."""
    lines = body.splitlines(keepends=True)
    mark = f"made by distributary install: target={target} pipeline={pipeline} sha256="
    mark += digest(body)
    first = lines[0] if lines else ""
    if first == "{\n":
        return "".join([first, f'  "$comment": "{mark}",\n', *lines[1:]])
    before = 1 if first.startswith("#!") else 0
    return "".join([*lines[:before], f"# {mark}\n", *lines[before:]])


def read_mark(text: str) -> Mark | None:
    """The mark of a text; None for one that is not ours."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[:_LOOKED_AT]):
        if found := _MARK.search(line):
            body = "".join(lines[:at] + lines[at + 1 :])
            return Mark(found[1], found[2], intact=digest(body) == found[3])
    return None


def digest(text: str) -> str:
    """A stable name for exactly this text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_TEMPLATES = Path(__file__).with_name("templates")
_PLACE = re.compile(r"@([a-z_]+)@")


def template(file: str, /, **values: object) -> str:
    """A text of `templates/`, with values in place of `@names@`."""
    text = _TEMPLATES.joinpath(file).read_text("utf-8")
    return _PLACE.sub(lambda place: str(values[place[1]]), text)


# What an installation would do, step by step, before anything is done.

_ASSIGNMENT = re.compile(r'^([-+ ]?\s*(?:-\s+)?(?:Environment=)?"?([\w.-]+)"?\s*[:=]\s*)(\S.*)$')
_REFERENCE = re.compile(r"\$\{|\{\{")


class Action(StrEnum):
    """What becomes of one thing."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REMOVE = "remove"
    EDITED = "edited"
    """It is ours, and somebody changed it since."""
    FOREIGN = "foreign"
    """Something that is not ours is in the way."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file or one job."""

    kind: str
    name: str
    action: Action
    after: str = field(default="", repr=False)
    """Its text afterwards."""
    before: str = field(default="", repr=False)
    """Its text as it is now."""
    mode: int = 0o644
    why: str = ""
    """Why it is in the way, or what is not known of it."""
    refusal: DistributaryError | None = field(default=None, repr=False, compare=False)
    """Why it can be shown and not done."""

    @property
    def changes(self) -> bool:
        """Whether something is to be done."""
        return self.action is not Action.UNCHANGED

    def as_dict(self) -> dict[str, str]:
        """The step for `--json`."""
        shown = {"kind": self.kind, "name": self.name, "action": str(self.action), "why": self.why}
        if self.action is Action.CREATE:
            return shown | {"text": self.after}
        return shown | {"diff": self.diff()} if self.changes else shown

    def diff(self) -> str:
        """From what is there to what will be; values of secrets that others put there hidden."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "now", "then", lineterm="", n=2
        )
        return "\n".join(map(_hidden, lines))


class Target(Protocol):
    """A place to install to."""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What is left to do afterwards, as lines to paste."""

    @property
    def last_steps(self) -> tuple[str, ...]:
        """The same after a removal."""

    def plan(self) -> tuple[Step, ...]:
        """What installing would do."""

    def apply(self, steps: Sequence[Step]) -> None:
        """Do it."""

    def plan_removal(self) -> tuple[Step, ...]:
        """Everything of this pipeline that was ever written there."""

    def remove(self, steps: Sequence[Step]) -> None:
        """Remove it."""


def refuse_conflicts(steps: Iterable[Step], *, force: bool) -> None:
    """Nothing is written when one step cannot be taken."""
    steps = tuple(steps)
    for step in steps:
        if step.refusal is not None:
            raise step.refusal
    foreign = [step for step in steps if step.action is Action.FOREIGN]
    edited = [step for step in steps if step.action is Action.EDITED]
    if foreign:
        raise DeployError(
            "something that distributary did not write is in the way",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=foreign[0].name,
            evidence="; ".join(f"{step.kind} {step.name}: {step.why}" for step in foreign[:5]),
            next_step="move or rename it, or choose another name in the deploy section",
        )
    if edited and not force:
        raise DeployError(
            "somebody edited what distributary wrote",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=edited[0].name,
            evidence="; ".join(f"{step.kind} {step.name}" for step in edited[:5]),
            next_step="--dry-run shows the difference; --force replaces it",
        )


def _hidden(line: str) -> str:
    found = _ASSIGNMENT.match(line)
    if found and is_secret_name(found[2]) and not _REFERENCE.search(found[3]):
        return f"{found[1]}{MASK}"
    return line


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
                disk.replace(path, step.after.encode())
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
        path = str(artifact.path)
        after = marked(artifact.text, target=self.name, pipeline=self.pipeline)
        if not os.path.lexists(artifact.path):
            return Step(_UNIT, path, Action.CREATE, after, mode=artifact.mode)
        before = _text(artifact.path)
        mark = None if before is None else read_mark(before)
        if before is None or mark is None:
            return Step(_UNIT, path, Action.FOREIGN, after, why="has no mark of distributary")
        if not self._is_mine(mark):
            whose = f"belongs to pipeline {mark.pipeline}, target {mark.target}"
            return Step(_UNIT, path, Action.FOREIGN, after, before, why=whose)
        return Step(_UNIT, path, mark.change(before, after), after, before, artifact.mode)

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


# The places that `install` knows.


class TargetName(StrEnum):
    """What `--target` takes."""

    AIRFLOW = "airflow"
    DATABRICKS = "databricks"
    KUBERNETES = "kubernetes"
    SPARK_SUBMIT = "spark-submit"
    SYSTEMD = "systemd"


_FILES = {
    TargetName.AIRFLOW: ("distributary.deploy.scripts", "airflow_target"),
    TargetName.KUBERNETES: ("distributary.deploy.kubernetes", "kubernetes_target"),
    TargetName.SPARK_SUBMIT: ("distributary.deploy.scripts", "spark_submit_target"),
    TargetName.SYSTEMD: ("distributary.deploy.scripts", "systemd_target"),
}
"""Targets that are files, by the function that makes them; one is imported only when asked for."""


def warnings(name: TargetName, pipeline: Installable) -> tuple[str, ...]:
    """What to know before a pipeline is installed there."""
    found = [f"not checked here: {unknown}" for unknown in pipeline.unknown_here]
    deploy = pipeline.deploy
    stays = {TargetName.SYSTEMD: deploy.systemd, TargetName.KUBERNETES: deploy.kubernetes}
    if name in stays and pipeline.ends and getattr(stays[name], "schedule", None) is None:
        found.append(
            "the trigger available_now takes what is there and ends: set trigger to continuous or "
            f"every, or deploy.{name}.schedule"
        )
    return tuple(found)


def missing_key(name: TargetName, pipeline: Installable) -> str:
    """Return the setting that a target cannot do without and the file does not have; else empty."""
    deploy = pipeline.deploy
    if name is TargetName.KUBERNETES and deploy.kubernetes is None:
        return "deploy.kubernetes.image"
    if name is TargetName.DATABRICKS and deploy.databricks is None:
        return "deploy.databricks.cluster"
    return ""


def with_placeholder(pipeline: Installable, key: str) -> Installable:
    """Return the pipeline with `<KEY>` for a missing key, to show what would be written."""
    mark = f"<{key}>"
    # not validated: no image and no cluster has such a name
    sections: dict[str, Section] = {
        "deploy.kubernetes.image": Kubernetes.model_construct(image=mark),
        "deploy.databricks.cluster": Databricks.model_construct(
            cluster=Cluster.model_construct(id=mark)
        ),
    }
    update = {key.split(".")[1]: sections[key]}
    return replace(pipeline, deploy=pipeline.deploy.model_copy(update=update))


def open_target(name: TargetName, pipeline: Installable, *, out: Path | None = None) -> Target:
    """The target for one pipeline; `out` is a folder for targets that are files."""
    if name is TargetName.DATABRICKS:
        from distributary.deploy.databricks import databricks_target

        if out is not None:
            raise ConfigError(
                "--out means nothing for databricks",
                where="command line",
                next_step="set deploy.databricks.folder, a folder of the workspace",
            )
        return databricks_target(pipeline)
    module, function = _FILES[name]
    make: Callable[..., Target] = getattr(import_module(module), function)
    return make(pipeline, out=out)
