"""The files of a pipeline in a Databricks workspace, and the one thing that runs them.

That is a job, or a declarative pipeline. It is found by the id in the note beside its files, or
else by its name. Either way it must have the tag of this pipeline. Two of one name are never
changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from distributary.config.deploy import OWN_TAG, DatabricksAccess
from distributary.deploy import package
from distributary.deploy.databricks_workspace import (
    PREFIX,
    Files,
    NotLoggedInError,
    asking,
    open_workspace,
)
from distributary.deploy.file_targets import (
    DeployTarget,
    InstallStep,
    StepAction,
    digest,
    marked,
)
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError, DeployError, ErrorCode

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

PIPELINE_TAG = f"{OWN_TAG}_pipeline"
DIGEST_TAG = f"{OWN_TAG}_sha256"
FILE, WHEEL_FILE = "workspace file", "wheel"
_WATCHED = ("schedule", "continuous", "trigger")
"""Settings of a schedule: one that exists there and is missing in the file also counts as an
edit."""

Settings = dict[str, Any]


# The definition of a job or a pipeline as plain data, and its comparison with an existing one.


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of the files, as programs in the workspace see them."""

    program: str
    """The file that runs, or that defines the tables."""
    file: str
    requirements: str
    """The packages to install, unless the deploy section names others."""


def given(**settings: Any) -> Settings:
    """Return the settings that have a value."""
    return {name: value for name, value in settings.items() if value is not None}


def principal(name: str | None) -> Settings | None:
    """Return the user or service principal that something runs as."""
    if name is None:
        return None
    return {"user_name" if "@" in name else "service_principal_name": name}


def tagged(definition: Settings) -> Settings:
    """Return the definition with its own digest among the tags."""
    tags = {**definition["tags"], DIGEST_TAG: digest(as_text(definition))}
    return {**definition, "tags": tags}


def as_text(definition: Mapping[str, Any]) -> str:
    """Return a definition as readable text, the same for equal definitions."""
    return json.dumps(definition, indent=2, sort_keys=True) + "\n"


def like(there: Mapping[str, Any], ours: Mapping[str, Any]) -> Settings:
    """Return the part of an existing definition that can be compared with ours.

    Databricks adds its own defaults.
    """
    seen: Settings = _projected(there, ours)
    return {**seen, **{key: there[key] for key in _WATCHED if there.get(key) is not None}}


def _projected(there: Any, ours: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(there, Mapping):
        return {key: _projected(there[key], ours[key]) for key in ours if key in there}
    if isinstance(ours, list) and isinstance(there, list) and len(ours) == len(there):
        return [_projected(one, other) for one, other in zip(there, ours, strict=True)]
    return there


# Where things that run are kept: the jobs of a workspace, or its declarative pipelines.


class WorkspaceItems(Protocol):
    """The jobs, or the declarative pipelines, of a workspace."""

    @property
    def kind(self) -> str:
        """Return the word for one of them."""

    def named(self, name: str) -> list[str]:
        """Return the ids of those with exactly this name."""

    def get(self, item: str) -> Settings | None:
        """Return a definition; None if there is none of this id."""

    def create(self, definition: Settings) -> str:
        """Create one; return its id."""

    def change(self, item: str, definition: Settings) -> None:
        """Replace a definition."""

    def delete(self, item: str) -> None:
        """Delete one."""

    def start(self, item: str) -> str:
        """Start a run; return its address below that of the workspace."""


SomeAccess = TypeVar("SomeAccess", bound=DatabricksAccess)


def required_section(
    pipeline: Installable, section: SomeAccess | None, *, name: str, what: str, add: str
) -> SomeAccess:
    """Return a section of `deploy`. Raises ConfigError without it, and for clear secrets."""
    if section is None:
        raise ConfigError(
            what,
            code=ErrorCode.CONFIG_MISSING_KEY,
            where=f"{pipeline.path.name} deploy.{name}",
            next_step=f"add deploy: {add}",
        )
    pipeline.refuse_clear_secrets(to="the workspace")
    return section


def workspace_target(
    target: str,
    pipeline: Installable,
    settings: DatabricksAccess,
    *,
    folder: str,
    program: tuple[str, str],
    items: Callable[[WorkspaceClient], WorkspaceItems],
    kind: str,
    define: Callable[[Places], Settings],
) -> DeployTarget:
    """Return the target with files in a workspace and what runs them.

    `folder` is the default folder below the user's home, `program` the name and the text of the
    file that runs.
    """
    login: WorkspaceClient | NotLoggedInError
    try:
        login = open_workspace(settings)
    except NotLoggedInError as error:
        login = error
    if settings.folder is not None:
        folder = settings.folder.removeprefix(PREFIX) or "/"
    else:
        user = "{you}"
        if not isinstance(login, NotLoggedInError):
            with asking(login, "return the current user"):
                user = str(login.current_user.me().user_name)
        # the user's own folder: in a shared one, any user could change the files that run
        folder = f"/Users/{user}/.distributary/{folder}"
    file, main = f"{folder}/{pipeline.name}.yaml", f"{folder}/{program[0]}"
    requirements = f"{folder}/requirements.txt"
    texts = {file: pipeline.shared_text, main: program[1]}
    wheel = None
    if settings.package is None:
        # the runtime keeps its own Spark
        content = package.wheel(without=package.RUNTIMES_OWN)
        wheel = Wheel(f"{folder}/{package.WHEEL}", content)
        own = f"{PREFIX}{wheel.path} --hash=sha256:{wheel.digest}\n"
        texts[requirements] = own + package.locked()
    texts = {path: marked(t, target=target, pipeline=pipeline.name) for path, t in texts.items()}
    wanted = define(Places(*(f"{PREFIX}{path}" for path in (main, file, requirements))))
    if isinstance(login, NotLoggedInError):
        return UnseenTarget(texts, wheel, kind, wanted, login)
    note = f"{folder}/{kind}.json"
    return DatabricksTarget(target, pipeline.name, login, items(login), note, texts, wheel, wanted)


@dataclass(frozen=True, slots=True)
class Wheel:
    """The wheel of Distributary.

    It cannot have a mark, so the requirements beside it name its digest.
    """

    path: str
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the wheel."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def about(self) -> str:
        """Return the wheel's size and digest, for display."""
        return f"{len(self.content):,} bytes, sha256 {self.digest}\n"


@dataclass(frozen=True, slots=True)
class UnseenTarget:
    """A `DeployTarget` without a login, which can only show what would be created."""

    texts: Mapping[str, str]
    wheel: Wheel | None
    kind: str
    wanted: Settings
    refusal: NotLoggedInError
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps for the files and what runs them, compared with nothing."""
        item = (self.kind, str(self.wanted["name"]), as_text(self.wanted))
        wheel = [(WHEEL_FILE, self.wheel.path, self.wheel.about)] if self.wheel else []
        why = "not compared: there is no login to a workspace"
        return tuple(
            InstallStep(kind, name, StepAction.CREATE, after, why=why, refusal=self.refusal)
            for kind, name, after in (*((FILE, *f) for f in self.texts.items()), *wheel, item)
        )

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Raise the missing login."""
        raise self.refusal

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Raise the missing login: only the workspace knows which files exist."""
        raise self.refusal

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Raise the missing login."""
        raise self.refusal


@dataclass(frozen=True, slots=True)
class _Item:
    """An existing job or pipeline."""

    id: str
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class DatabricksTarget:
    """The files of a pipeline in a workspace and what runs them; satisfies `DeployTarget`."""

    target: str
    pipeline: str
    client: WorkspaceClient = field(repr=False)
    items: WorkspaceItems = field(repr=False)
    note: str
    """The path of the file in the workspace that holds the id of what was created."""
    texts: Mapping[str, str]
    """The files in the workspace, with their marks."""
    wheel: Wheel | None
    """The wheel to install; None if the deploy section names another package."""
    wanted: Settings
    """The definition of the job or the pipeline."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps for the files and what runs them."""
        steps = [self._file_step(path, text) for path, text in self.texts.items()]
        wheel = [self._wheel_step(self.wheel)] if self.wheel is not None else []
        return (*steps, *wheel, self._item_step())

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Write the files first: what runs never refers to missing files."""
        files = Files(self.client)
        for step in steps:
            if step.kind == FILE and step.changes:
                files.write(step.name, step.after.encode())
            elif step.kind == WHEEL_FILE and step.changes and self.wheel is not None:
                files.write(step.name, self.wheel.content)
        step = next(step for step in steps if step.kind == self.items.kind)
        if step.action is StepAction.CREATE:
            self._remember(self._create())
        elif step.changes:
            item = self._find()
            if item is None:
                what = f"the {self.items.kind} was deleted while it was being changed"
                raise self._conflict(what, "")
            self.items.change(item.id, self.wanted)
            self._remember(item.id)

    def start(self) -> str:
        """Start a run now; return its address."""
        item = self._find()
        if item is None:
            raise self._conflict(f"there is no {self.items.kind} to start", "")
        host = str(self.client.config.host).rstrip("/")
        return f"{host}/{self.items.start(item.id)}"

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Return steps for what runs, its files and the note, as far as they have our mark."""
        files = Files(self.client)
        steps = [
            InstallStep(self.items.kind, f"{it.settings.get('name')} ({it.id})", StepAction.REMOVE)
            for it in self._candidates()
            if self._is_mine(it.settings)
        ]
        if self.wheel is not None and self._uploaded(self.wheel) is not None:
            steps.append(InstallStep(WHEEL_FILE, self.wheel.path, StepAction.REMOVE))
        for path in (*self.texts, self.note):
            text, mark = files.mark(path)
            if mark is not None and mark.pipeline == self.pipeline:
                steps.append(InstallStep(FILE, path, StepAction.REMOVE, before=text or ""))
        return tuple(steps)

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Remove what runs first: its files may go once nothing runs them."""
        mine = {item.id for item in self._candidates() if self._is_mine(item.settings)}
        for item in sorted(mine, key=_age):
            self.items.delete(item)
        for step in steps:
            if step.kind in (FILE, WHEEL_FILE):
                Files(self.client).remove(step.name)

    def _is_mine(self, definition: Settings) -> bool:
        """Return whether `install` created it for this pipeline."""
        return (definition.get("tags") or {}).get(PIPELINE_TAG) == self.pipeline

    def _file_step(self, path: str, after: str) -> InstallStep:
        before, mark = Files(self.client).mark(path)
        if before is None:
            return InstallStep(FILE, path, StepAction.CREATE, after)
        if mark is None or mark.pipeline != self.pipeline:
            return InstallStep(
                FILE, path, StepAction.FOREIGN, after, why="has no mark of this pipeline"
            )
        return InstallStep(FILE, path, mark.change(before, after), after, before)

    def _wheel_step(self, wheel: Wheel) -> InstallStep:
        there = Files(self.client).read(wheel.path)
        if there is None:
            return InstallStep(WHEEL_FILE, wheel.path, StepAction.CREATE, wheel.about)
        if there == wheel.content:
            return InstallStep(WHEEL_FILE, wheel.path, StepAction.UNCHANGED, wheel.about)
        before = Wheel(wheel.path, there).about
        if self._uploaded(wheel) is None:
            why = "is not the wheel that install uploaded"
            return InstallStep(
                WHEEL_FILE, wheel.path, StepAction.FOREIGN, wheel.about, before, why=why
            )
        return InstallStep(WHEEL_FILE, wheel.path, StepAction.UPDATE, wheel.about, before)

    def _uploaded(self, wheel: Wheel) -> str | None:
        """Return the digest of an existing wheel that our own requirements name."""
        files = Files(self.client)
        there = files.read(wheel.path)
        text, mark = files.mark(f"{wheel.path.rpartition('/')[0]}/requirements.txt")
        ours = text is not None and mark is not None and mark.pipeline == self.pipeline
        digest = hashlib.sha256(there or b"").hexdigest()
        return digest if ours and text and there is not None and digest in text else None

    def _item_step(self) -> InstallStep:
        wanted, kind = self.wanted, self.items.kind
        name, after = str(wanted["name"]), as_text(wanted)
        item = self._find()
        if item is None:
            return InstallStep(kind, name, StepAction.CREATE, after)
        seen = like(item.settings, wanted)
        before = as_text(seen)
        if not self._is_mine(item.settings):
            why = f"{kind} {item.id} has this name but was not made for this pipeline"
            return InstallStep(kind, name, StepAction.FOREIGN, after, before, why=why)
        if seen == wanted:
            return InstallStep(kind, name, StepAction.UNCHANGED, after, before)
        written = self._written(item)
        edited = written is not None and like(item.settings, written) != written
        return InstallStep(
            kind, name, StepAction.EDITED if edited else StepAction.UPDATE, after, before
        )

    def _written(self, item: _Item) -> Settings | None:
        """Return the definition as we wrote it last, if it is known."""
        tags = item.settings.get("tags") or {}
        note = self._read_note()
        for known in (self.wanted, note.get("settings") or {}):
            if (known.get("tags") or {}).get(DIGEST_TAG) == tags.get(DIGEST_TAG):
                return dict(known)
        return None

    def _find(self) -> _Item | None:
        """Return what runs this pipeline; refuse if there are several."""
        found = self._candidates()
        if len(found) < 2:
            return found[0] if found else None
        kind = self.items.kind
        evidence = "; ".join(f"{kind} {it.id} named {it.settings.get('name')}" for it in found)
        raise self._conflict(f"several {kind}s match this pipeline", evidence)

    def _candidates(self) -> list[_Item]:
        ids = {*self.items.named(str(self.wanted["name"]))}
        remembered = self._read_note().get(f"{self.items.kind}_id")
        found = [item for item in map(self._get, sorted(ids, key=_age)) if item is not None]
        if isinstance(remembered, int | str) and str(remembered) not in ids:
            # the pipeline file has renamed it since it was installed
            item = self._get(str(remembered))
            found += [item] if item is not None and self._is_mine(item.settings) else []
        return found

    def _get(self, item: str) -> _Item | None:
        definition = self.items.get(item)
        return None if definition is None else _Item(item, definition)

    def _create(self) -> str:
        made = self.items.create(self.wanted)
        # an answer was lost, or another process did the same at the same moment: the oldest stays
        tags = self.wanted["tags"]
        found = map(self._get, self.items.named(str(self.wanted["name"])))
        twins = sorted((it.id for it in found if it and it.settings["tags"] == tags), key=_age)
        for twin in twins[1:]:
            self.items.delete(twin)
        return twins[0] if twins else made

    def _read_note(self) -> dict[str, Any]:
        text, mark = Files(self.client).mark(self.note)
        if text is None or mark is None or mark.pipeline != self.pipeline:
            return {}
        try:
            note = json.loads(text)
        except ValueError:
            return {}
        return note if isinstance(note, dict) else {}

    def _remember(self, item: str) -> None:
        known = {f"{self.items.kind}_id": item, "settings": self.wanted}
        note = json.dumps(known, indent=2) + "\n"
        text = marked(note, target=self.target, pipeline=self.pipeline)
        Files(self.client).write(self.note, text.encode())

    def _conflict(self, what: str, evidence: str) -> DeployError:
        return DeployError(
            what,
            code=ErrorCode.DEPLOY_CONFLICT,
            where=str(self.client.config.host),
            evidence=evidence,
            next_step="remove or rename all but one of them in the workspace",
        )


def _age(item: str) -> tuple[int, str]:
    """Return a key that sorts ids; numbers were given out in ascending order."""
    return len(item), item
