"""Deploy targets that are files: they are written whole and recognised by their mark."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from distributary.config.base import MASK, is_secret_name
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_types import target_entry
from distributary.errors import DeployError, DistributaryError, ErrorCode
from distributary.store import disk

# The mark on everything that `install` writes: the pipeline, the target, and a checksum. It is one
# line among the first of a text: a comment, the `$comment` of a JSON object, or a line of the first
# cell of a notebook. It holds the SHA-256 of the rest, which shows whether the text was edited.

_LOOKED_AT = 12
_MARK = re.compile(
    r"made by distributary install: target=([a-z-]+) pipeline=([A-Za-z0-9._-]+)"
    r" sha256=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class FileMark:
    """The content of a mark."""

    target: str
    pipeline: str
    intact: bool
    """Whether the text is unchanged since it was marked."""

    def change(self, before: str, after: str) -> StepAction:
        """Return the action when another text replaces the marked one."""
        if before == after:
            return StepAction.UNCHANGED
        return StepAction.UPDATE if self.intact else StepAction.EDITED


def marked(
    body: str, *, target: str, pipeline: str, comment: str = "$comment", place: str = ""
) -> str:
    """Return the text with its mark: as first line, or behind a line that must come first.

    `place` is a text whose line becomes the mark's, in a format that allows no other comment.
    """
    lines = body.splitlines(keepends=True)
    held = [at for at, line in enumerate(lines[:_LOOKED_AT]) if place and place in line][:1]
    body = "".join(line for at, line in enumerate(lines) if at not in held)
    mark = f"made by distributary install: target={target} pipeline={pipeline} sha256="
    mark += digest(body)
    for at in held:
        return "".join([*lines[:at], lines[at].replace(place, mark), *lines[at + 1 :]])
    first = lines[0] if lines else ""
    if first == "{\n":
        return "".join([first, f'  "{comment}": "{mark}",\n', *lines[1:]])
    before = 1 if first.startswith("#!") else 0
    return "".join([*lines[:before], f"# {mark}\n", *lines[before:]])


def read_mark(text: str) -> FileMark | None:
    """Return the mark of a text; None for a text that `install` did not write."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[:_LOOKED_AT]):
        if match := _MARK.search(line):
            body = "".join(lines[:at] + lines[at + 1 :])
            return FileMark(match[1], match[2], intact=digest(body) == match[3])
    return None


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_TEMPLATES = Path(__file__).with_name("templates")
_PLACE = re.compile(r"@([a-z_]+)@")


def template(file: str, /, **values: object) -> str:
    """Return a text of `templates/` with values in place of `@names@`."""
    text = _TEMPLATES.joinpath(file).read_text("utf-8")
    return _PLACE.sub(lambda place: str(values[place[1]]), text)


# The steps of an installation, before anything is done.

_ASSIGNMENT = re.compile(r'^([-+ ]?\s*(?:-\s+)?(?:Environment=)?"?([\w.-]+)"?\s*[:=]\s*)(\S.*)$')
_REFERENCE = re.compile(r"\$\{|\{\{")


class StepAction(StrEnum):
    """The ways in which a step changes one file or job."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REMOVE = "remove"
    EDITED = "edited"
    """The file was written by `install` and edited since."""
    FOREIGN = "foreign"
    """Another file or job is in its place."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """The change of one file or one job."""

    kind: str
    name: str
    action: StepAction
    after: str = field(default="", repr=False)
    """The text of the file after the installation."""
    before: str = field(default="", repr=False)
    """The current text of the file."""
    mode: int = 0o644
    why: str = ""
    """The reason why it conflicts, or is unknown."""
    refusal: DistributaryError | None = field(default=None, repr=False, compare=False)
    """The error for which the step can be shown but not done."""

    @property
    def changes(self) -> bool:
        """Return whether the step changes anything."""
        return self.action is not StepAction.UNCHANGED

    def as_dict(self) -> dict[str, str]:
        """Return the step for `--json`."""
        shown = {"kind": self.kind, "name": self.name, "action": str(self.action), "why": self.why}
        if self.action is StepAction.CREATE:
            return shown | {"text": self.after}
        return shown | {"diff": self.diff()} if self.changes else shown

    def diff(self) -> str:
        """Return the difference between the texts, with values of foreign secrets hidden."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), "now", "then", lineterm="", n=2
        )
        return "\n".join(map(_hidden, lines))


class DeployTarget(Protocol):
    """A place to install to."""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Return the remaining commands after an installation, as lines to paste."""

    @property
    def last_steps(self) -> tuple[str, ...]:
        """Return the remaining commands after a removal."""

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps of an installation."""

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Do the steps of an installation."""

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Return steps for everything of this pipeline that was ever written there."""

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Do the steps of a removal."""


@runtime_checkable
class Startable(Protocol):
    """A target whose job can be started at once."""

    def start(self) -> str:
        """Start a run; return its address."""


def refuse_conflicts(steps: Iterable[InstallStep], *, force: bool) -> None:
    """Raise an error if a step cannot be done, before anything is written."""
    steps = tuple(steps)
    for step in steps:
        if step.refusal is not None:
            raise step.refusal
    foreign = [step for step in steps if step.action is StepAction.FOREIGN]
    edited = [step for step in steps if step.action is StepAction.EDITED]
    if foreign:
        raise DeployError(
            "a file or job of this name exists, and distributary did not write it",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=foreign[0].name,
            evidence="; ".join(f"{step.kind} {step.name}: {step.why}" for step in foreign[:5]),
            next_step="move or rename it, or choose another name in the deploy section",
        )
    if edited and not force:
        raise DeployError(
            "a file or job of distributary was edited",
            code=ErrorCode.DEPLOY_CONFLICT,
            where=edited[0].name,
            evidence="; ".join(f"{step.kind} {step.name}" for step in edited[:5]),
            next_step="--dry-run shows the difference; --force replaces it",
        )


def _hidden(line: str) -> str:
    match = _ASSIGNMENT.match(line)
    if match and is_secret_name(match[2]) and not _REFERENCE.search(match[3]):
        return f"{match[1]}{MASK}"
    return line


_LARGEST = 4 << 20
_UNIT = "file"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file, without its mark."""

    path: Path
    text: str = field(repr=False)
    mode: int = 0o644
    comment: str = "$comment"
    """The name under which a JSON object holds a comment."""
    place: str = ""
    """The text whose line becomes the mark's, as in `marked`."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Files below one folder; satisfies `DeployTarget`."""

    name: str
    pipeline: str
    folder: Path
    artifacts: tuple[Artifact, ...]
    patterns: tuple[str, ...]
    """Patterns of our files below the folder, also those of an earlier configuration."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[InstallStep, ...]:
        """Return steps for each file, and for leftovers of an earlier configuration."""
        steps = [self._step(artifact) for artifact in self.artifacts]
        planned = {step.name for step in steps}
        return (*steps, *(step for step in self.plan_removal() if step.name not in planned))

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Write the changed files; after a crash each file is whole, old or new."""
        for step in steps:
            if not step.changes:
                continue
            with _writing(step.name):
                path = Path(step.name)
                if step.action is StepAction.REMOVE:
                    path.unlink(missing_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                disk.replace(path, step.after.encode())
                path.chmod(step.mode)

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Return steps for every file below the folder that has our mark."""
        paths = sorted({p for pattern in self.patterns for p in self.folder.glob(pattern)})
        return tuple(
            InstallStep(_UNIT, str(path), StepAction.REMOVE, before=text)
            for path in paths
            if (text := _text(path)) is not None and self._is_mine(read_mark(text))
        )

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Remove the files, and folders that become empty."""
        for step in steps:
            with _writing(step.name):
                Path(step.name).unlink(missing_ok=True)
        folders = {p for step in steps for p in Path(step.name).parents}
        for folder in sorted(folders, key=lambda p: -len(p.parts)):
            if folder != self.folder and self.folder in folder.parents and not _holds(folder):
                folder.rmdir()

    def _step(self, artifact: Artifact) -> InstallStep:
        path = str(artifact.path)
        after = marked(
            artifact.text,
            target=self.name,
            pipeline=self.pipeline,
            comment=artifact.comment,
            place=artifact.place,
        )
        if not os.path.lexists(artifact.path):
            return InstallStep(_UNIT, path, StepAction.CREATE, after, mode=artifact.mode)
        before = _text(artifact.path)
        mark = None if before is None else read_mark(before)
        if before is None or mark is None:
            return InstallStep(
                _UNIT, path, StepAction.FOREIGN, after, why="has no mark of distributary"
            )
        if not self._is_mine(mark):
            whose = f"belongs to pipeline {mark.pipeline}, target {mark.target}"
            return InstallStep(_UNIT, path, StepAction.FOREIGN, after, before, why=whose)
        return InstallStep(_UNIT, path, mark.change(before, after), after, before, artifact.mode)

    def _is_mine(self, mark: FileMark | None) -> bool:
        return mark is not None and (mark.target, mark.pipeline) == (self.name, self.pipeline)


def _text(path: Path) -> str | None:
    """Return a file's text; None for a file that `install` cannot have written."""
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
            next_step="check permissions and free space, or name another folder with --out",
        ) from error


# The targets of `install`.


def warnings(name: str, pipeline: Installable) -> tuple[str, ...]:
    """Return the warnings before an installation."""
    texts = [f"not checked here: {unknown}" for unknown in pipeline.unknown_here]
    entry = target_entry(name)
    settings = entry.settings(pipeline)
    if entry.restarts and pipeline.ends and getattr(settings, "schedule", None) is None:
        texts.append(
            "the trigger available_now reads the available records and ends: set trigger to "
            f"continuous or every, or deploy.{entry.section}.schedule"
        )
    return tuple(texts)


def missing_key(name: str, pipeline: Installable) -> str:
    """Return the setting that a target cannot do without and the file does not have; else empty."""
    entry = target_entry(name)
    return entry.needs if entry.settings(pipeline) is None else ""


def with_placeholder(name: str, pipeline: Installable) -> Installable:
    """Return the pipeline with `<KEY>` for the missing key, to show what would be written."""
    entry = target_entry(name)
    # not validated: no image and no cluster has such a name
    update = {entry.section: entry.placeholder(f"<{entry.needs}>")}
    return replace(pipeline, deploy=pipeline.deploy.model_copy(update=update))


def open_target(
    name: str, pipeline: Installable, *, out: Path | None = None, form: str = ""
) -> DeployTarget:
    """Return the target for one pipeline; `out` is a folder for targets that are files.

    `form` is another form of the target, which a tool of its own deploys.
    """
    entry = target_entry(name)
    return entry.open_as(form, pipeline, out) if form else entry.open(pipeline, out)
