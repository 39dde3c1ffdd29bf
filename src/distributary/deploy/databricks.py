"""One job in a Databricks workspace, and the files that it runs.

A job is found by the id that was written down beside its files, else by its name; whichever way,
it must bear the tag of this pipeline. Two jobs of one name are never touched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributary.config.deploy import Databricks
from distributary.deploy.databricks_job import (
    DIGEST_TAG,
    Settings,
    as_text,
    belongs_to,
    job_settings,
    like,
)
from distributary.deploy.launcher import LAUNCHER
from distributary.deploy.mark import marked
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.steps import Action, Step, Target
from distributary.deploy.workspace import (
    Files,
    NotLoggedInError,
    api_path,
    asking,
    file_path,
    home_folder,
    open_workspace,
    user_name,
)
from distributary.errors import ConfigError, DeployError, ErrorCode

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

NAME = "databricks"
JOB, FILE = "job", "workspace file"
_PAGE = 100
_UNKNOWN_USER = "{you}"


def databricks_target(pipeline: Installable) -> Target:
    """The target of `install --target databricks`."""
    settings = pipeline.deploy.databricks
    if settings is None:
        raise ConfigError(
            "the pipeline file does not say how to run on Databricks",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where=f"{pipeline.path.name} deploy.databricks",
            next_step="add deploy: {databricks: {serverless: true}}, or a cluster",
        )
    pipeline.refuse_clear_secrets(to="the workspace")
    given = settings.folder
    try:
        client = open_workspace(settings)
    except NotLoggedInError as refusal:
        folder = api_path(given) if given else home_folder(_UNKNOWN_USER, pipeline.name)
        return UnseenTarget(pipeline, settings, refusal, folder)
    folder = api_path(given) if given else home_folder(user_name(client), pipeline.name)
    return DatabricksTarget(pipeline, settings, client, folder)


@dataclass(frozen=True, slots=True)
class UnseenTarget:
    """Satisfies `Target` where nobody is logged in: what would be made can be shown, no more."""

    pipeline: Installable
    settings: Databricks
    refusal: NotLoggedInError
    folder: str
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[Step, ...]:
        """The two files and the job, compared with nothing."""
        wanted = _wanted(self.pipeline, self.settings, self.folder)
        files = _texts(self.pipeline, self.folder).items()
        steps = [self._step(FILE, path, text) for path, text in files]
        return (*steps, self._step(JOB, str(wanted["name"]), as_text(wanted)))

    def apply(self, steps: Sequence[Step]) -> None:
        """Refused."""
        raise self.refusal

    def plan_removal(self) -> tuple[Step, ...]:
        """Refused: only the workspace knows what is there."""
        raise self.refusal

    def remove(self, steps: Sequence[Step]) -> None:
        """Refused."""
        raise self.refusal

    def _step(self, kind: str, name: str, after: str) -> Step:
        why = "not compared: nobody is logged in to a workspace"
        return Step(kind, name, Action.CREATE, after, why=why, refusal=self.refusal)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that is there."""

    id: int
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class DatabricksTarget:
    """Satisfies `Target`."""

    pipeline: Installable
    settings: Databricks
    client: WorkspaceClient = field(repr=False)
    folder: str
    """Where the files are in the workspace."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[Step, ...]:
        """The two files and the job."""
        steps = [self._file_step(path, text) for path, text in self._texts().items()]
        return (*steps, self._job_step())

    def apply(self, steps: Sequence[Step]) -> None:
        """Files first: a job never points at something that is not there."""
        files = Files(self.client)
        wanted = self._wanted()
        for step in steps:
            if step.kind == FILE and step.changes:
                files.write(step.name, step.after)
        step = next(step for step in steps if step.kind == JOB)
        if step.action is Action.CREATE:
            self._remember(self._create(wanted), wanted)
        elif step.changes:
            found = self._find()
            if found is None:
                raise self._conflict("the job went away while it was being changed", "")
            self._reset(found.id, wanted)
            self._remember(found.id, wanted)

    def plan_removal(self) -> tuple[Step, ...]:
        """The job, its files and the note of them, as far as they bear our mark."""
        files = Files(self.client)
        mine = [job for job in self._candidates() if self._is_mine(job.settings)]
        steps = [Step(JOB, f"{job.settings.get('name')} ({job.id})", Action.REMOVE) for job in mine]
        for path in (*self._texts(), self._note()):
            text, mark = files.mark(path)
            if mark is not None and mark.pipeline == self.pipeline.name:
                steps.append(Step(FILE, path, Action.REMOVE, before=text or ""))
        return tuple(steps)

    def remove(self, steps: Sequence[Step]) -> None:
        """The job first: files may go once nothing runs them."""
        mine = {job.id for job in self._candidates() if self._is_mine(job.settings)}
        for job in sorted(mine):
            self._delete(job)
        for step in steps:
            if step.kind == FILE:
                Files(self.client).remove(step.name)

    def _wanted(self) -> Settings:
        return _wanted(self.pipeline, self.settings, self.folder)

    def _texts(self) -> dict[str, str]:
        return _texts(self.pipeline, self.folder)

    def _is_mine(self, job: Settings) -> bool:
        return belongs_to(job, self.pipeline.name)

    def _file_step(self, path: str, after: str) -> Step:
        before, mark = Files(self.client).mark(path)
        if before is None:
            return Step(FILE, path, Action.CREATE, after)
        if mark is None or mark.pipeline != self.pipeline.name:
            return Step(FILE, path, Action.FOREIGN, after, why="has no mark of this pipeline")
        if before == after:
            return Step(FILE, path, Action.UNCHANGED, after, before)
        return Step(FILE, path, Action.UPDATE if mark.intact else Action.EDITED, after, before)

    def _job_step(self) -> Step:
        wanted = self._wanted()
        name, after = str(wanted["name"]), as_text(wanted)
        found = self._find()
        if found is None:
            return Step(JOB, name, Action.CREATE, after)
        seen = like(found.settings, wanted)
        before = as_text(seen)
        if not self._is_mine(found.settings):
            why = f"job {found.id} has this name and was not made for this pipeline"
            return Step(JOB, name, Action.FOREIGN, after, before, why=why)
        if seen == wanted:
            return Step(JOB, name, Action.UNCHANGED, after, before)
        written = self._written(wanted, found)
        edited = written is not None and like(found.settings, written) != written
        return Step(JOB, name, Action.EDITED if edited else Action.UPDATE, after, before)

    def _written(self, wanted: Settings, found: _Job) -> Settings | None:
        """What the job was when we wrote it, where that is known."""
        tags = found.settings.get("tags") or {}
        note = self._read_note()
        for known in (wanted, note.get("settings") or {}):
            if (known.get("tags") or {}).get(DIGEST_TAG) == tags.get(DIGEST_TAG):
                return dict(known)
        return None

    def _find(self) -> _Job | None:
        """The one job that is meant; refuses where there are several."""
        found = self._candidates()
        if len(found) < 2:
            return found[0] if found else None
        evidence = "; ".join(f"job {job.id} named {job.settings.get('name')}" for job in found)
        raise self._conflict("there are several jobs that this could be", evidence)

    def _candidates(self) -> list[_Job]:
        ids = {*self._named(str(self._wanted()["name"]))}
        remembered = self._read_note().get("job_id")
        found = [job for job in map(self._get, sorted(ids)) if job is not None]
        if isinstance(remembered, int) and remembered not in ids:
            # renamed in the pipeline file since it was installed
            job = self._get(remembered)
            found += [job] if job is not None and self._is_mine(job.settings) else []
        return found

    def _named(self, name: str) -> list[int]:
        with asking(self.client, "list jobs"):
            # the workspace compares names without regard to case
            return sorted(
                job.job_id
                for job in self.client.jobs.list(name=name, limit=_PAGE)
                if job.job_id is not None and job.settings and job.settings.name == name
            )

    def _get(self, job: int) -> _Job | None:
        from databricks.sdk.errors import NotFound

        with asking(self.client, f"show job {job}"):
            try:
                found = self.client.jobs.get(job)
            except NotFound:
                return None
        return _Job(job, found.settings.as_dict() if found.settings else {})

    def _create(self, wanted: Settings) -> int:
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, "create the job"):
            made = self.client.jobs.create(**JobSettings.from_dict(wanted).as_shallow_dict())
        # an answer that was lost, or somebody else at the same moment: the oldest one stays
        ids = self._named(str(wanted["name"]))
        twins = [
            job for job in map(self._get, ids) if job and job.settings["tags"] == wanted["tags"]
        ]
        for twin in sorted(twins, key=lambda job: job.id)[1:]:
            self._delete(twin.id)
        return min((twin.id for twin in twins), default=int(made.job_id or 0))

    def _reset(self, job: int, wanted: Settings) -> None:
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, f"change job {job}"):
            self.client.jobs.reset(job, JobSettings.from_dict(wanted))

    def _delete(self, job: int) -> None:
        with asking(self.client, f"remove job {job}"):
            self.client.jobs.delete(job)

    def _note(self) -> str:
        return f"{self.folder}/job.json"

    def _read_note(self) -> dict[str, Any]:
        text, mark = Files(self.client).mark(self._note())
        if text is None or mark is None or mark.pipeline != self.pipeline.name:
            return {}
        try:
            note = json.loads(text)
        except ValueError:
            return {}
        return note if isinstance(note, dict) else {}

    def _remember(self, job: int, wanted: Settings) -> None:
        note = json.dumps({"job_id": job, "settings": wanted}, indent=2) + "\n"
        text = marked(note, target=NAME, pipeline=self.pipeline.name)
        Files(self.client).write(self._note(), text)

    def _conflict(self, what: str, evidence: str) -> DeployError:
        return DeployError(
            what,
            code=ErrorCode.DEPLOY_CONFLICT,
            where=str(self.client.config.host),
            evidence=evidence,
            next_step="remove or rename all but one of them in the workspace",
        )


def _wanted(pipeline: Installable, settings: Databricks, folder: str) -> Settings:
    file, launcher = (file_path(path) for path in _texts(pipeline, folder))
    return job_settings(pipeline.name, settings, launcher=launcher, file=file)


def _texts(pipeline: Installable, folder: str) -> dict[str, str]:
    """The pipeline file, then the launcher."""
    texts = {
        f"{folder}/{pipeline.name}.yaml": pipeline.shared_text,
        f"{folder}/launch.py": LAUNCHER,
    }
    return {path: marked(text, target=NAME, pipeline=pipeline.name) for path, text in texts.items()}
