"""One job in a Databricks workspace, and the files that it runs.

A job is found by the id that was written down beside its files, else by its name; whichever way,
it must bear the tag of this pipeline. Two jobs of one name are never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from distributary.config.deploy import OWN_TAG, Cluster, Databricks
from distributary.config.document import printable
from distributary.deploy import package
from distributary.deploy.files import (
    Action,
    Mark,
    Step,
    Target,
    digest,
    marked,
    read_mark,
    template,
)
from distributary.deploy.pipeline_file import Installable
from distributary.errors import (
    ConfigError,
    DeployError,
    DeployUnavailableError,
    ErrorCode,
    SetupError,
)
from distributary.retries import attempts_on

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


# The definition of a Databricks job as plain data, and how it compares with one that is there.

PIPELINE_TAG = f"{OWN_TAG}_pipeline"
DIGEST_TAG = f"{OWN_TAG}_sha256"
TASK = "run"
_ENVIRONMENT = "default"
_WATCHED = ("schedule", "continuous", "trigger")
"""Settings that say when a job runs: one that is there and not in the file is an edit too."""

_CATALOG = "spark.databricks.sql.initial.catalog.name"

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Places:
    """The files of a job in the workspace, as programs there see them."""

    launcher: str
    file: str
    requirements: str
    """What the job installs, where the deploy section names nothing else."""


def job_settings(pipeline: str, settings: Databricks, places: Places) -> Settings:
    """Everything that is said of the job, with its mark among the tags."""
    state = {"pause_status": "PAUSED" if settings.paused else "UNPAUSED"}
    clock = {"quartz_cron_expression": settings.schedule, "timezone_id": settings.timezone}
    version = settings.environment_version
    named = settings.package or places.requirements
    asked = f"-r {named}" if named.endswith(".txt") else named
    spec = {"environment_version": version, "dependencies": [asked]}
    mails = {k: list(v) for k, v in settings.notifications.model_dump().items() if v}
    tags = {**settings.tags, PIPELINE_TAG: pipeline}
    job = _given(
        name=settings.job_name or pipeline,
        description=f"Distributary pipeline {pipeline}; made by distributary install",
        max_concurrent_runs=1,
        tasks=[_task(settings, places)],
        tags=tags,
        schedule=clock | state if settings.schedule is not None else None,
        continuous=state if settings.continuous else None,
        timeout_seconds=int(settings.timeout.total_seconds()) if settings.timeout else None,
        email_notifications=mails or None,
        environments=[{"environment_key": _ENVIRONMENT, "spec": spec}]
        if settings.serverless
        else None,
    )
    tags[DIGEST_TAG] = digest(as_text(job))
    return job


def _given(**settings: Any) -> Settings:
    return {name: value for name, value in settings.items() if value is not None}


def as_text(job: Mapping[str, Any]) -> str:
    """A definition for people, and always the same for the same one."""
    return json.dumps(job, indent=2, sort_keys=True) + "\n"


def like(there: Mapping[str, Any], ours: Mapping[str, Any]) -> Settings:
    """Of a job that is there, what can be compared with ours: Databricks adds its own defaults."""
    seen: Settings = _projected(there, ours)
    return {**seen, **{key: there[key] for key in _WATCHED if there.get(key) is not None}}


def _projected(there: Any, ours: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(there, Mapping):
        return {key: _projected(there[key], ours[key]) for key in ours if key in there}
    if isinstance(ours, list) and isinstance(there, list) and len(ours) == len(there):
        return [_projected(one, other) for one, other in zip(there, ours, strict=True)]
    return there


def _task(settings: Databricks, places: Places) -> Settings:
    # without a clock the file's own trigger says when a run ends
    once = ["--available-now"] if settings.schedule is not None else []
    task: Settings = {
        "task_key": TASK,
        "spark_python_task": {
            "python_file": places.launcher,
            "parameters": ["run", places.file, *once],
            "source": "WORKSPACE",
        },
    }
    if not settings.continuous:
        task["max_retries"] = settings.retries
        task["min_retry_interval_millis"] = settings.retry_wait // timedelta(milliseconds=1)
        task["retry_on_timeout"] = False
    cluster = settings.cluster
    if cluster is None:
        return task | {"environment_key": _ENVIRONMENT}
    named = settings.package or places.requirements
    library: Settings = {"pypi": {"package": named}}
    if named.endswith((".whl", ".txt")):
        library = {"whl" if named.endswith(".whl") else "requirements": named}
    new = {"new_cluster": _new(cluster, settings.catalog)}
    place = {"existing_cluster_id": cluster.id} if cluster.id else new
    return task | {"libraries": [library]} | place


def _new(cluster: Cluster, catalog: str | None) -> Settings:
    scales = cluster.min_workers is not None
    alone = not scales and not cluster.workers
    # how Databricks is told that the driver does the work
    single = {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*]"}
    # so that `lake.database` is a schema of that catalog, as it is for `grants`
    names = {_CATALOG: catalog} if catalog else {}
    return _given(
        spark_version=cluster.spark_version,
        # the engine talks to the driver's JVM, which a shared cluster does not allow
        data_security_mode="SINGLE_USER",
        node_type_id=cluster.node_type,
        policy_id=cluster.policy,
        autoscale={"min_workers": cluster.min_workers, "max_workers": cluster.max_workers}
        if scales
        else None,
        num_workers=None if scales else cluster.workers or 0,
        custom_tags={"ResourceClass": "SingleNode"} if alone else None,
        spark_conf={**names, **cluster.spark_conf, **(single if alone else {})} or None,
        spark_env_vars=dict(cluster.env) or None,
    )


# A Databricks workspace through its own SDK, which is an extra; its errors in our words.

_RETRY_SECONDS = 120
_ANSWER_SECONDS = 30
_LONGEST = 300
_PREFIX = "/Workspace"
_NOT_CONFIGURED = "cannot configure default credentials"
"""What the SDK says when it finds no login at all; of its errors, only the words differ."""


class NotLoggedInError(ConfigError):
    """There is no login, as opposed to one that does not work."""


def open_workspace(settings: Databricks) -> WorkspaceClient:
    """A client that logs in by the environment or a profile.

    SetupError without the extra, NotLoggedInError where no login is configured.
    """
    try:
        sdk = import_module("databricks.sdk")
        core = import_module("databricks.sdk.core")
    except ImportError:
        raise SetupError(
            "the Databricks SDK is not installed",
            code=ErrorCode.EXTRA_MISSING,
            next_step="pip install 'distributary[databricks]'",
        ) from None
    try:
        config = core.Config(
            host=settings.host,
            profile=settings.profile,
            retry_timeout_seconds=_RETRY_SECONDS,
            http_timeout_seconds=_ANSWER_SECONDS,
            product="distributary",
        )
        client: WorkspaceClient = sdk.WorkspaceClient(config=config)
    except ValueError as error:
        kind = NotLoggedInError if _NOT_CONFIGURED in str(error) else ConfigError
        raise kind(
            "nobody is logged in to Databricks",
            where=settings.host or os.environ.get("DATABRICKS_HOST", "deploy.databricks.host"),
            evidence=words(error),
            next_step="set DATABRICKS_HOST and DATABRICKS_TOKEN, or name a profile",
        ) from None
    return client


@contextmanager
def asking(client: WorkspaceClient, what: str) -> Iterator[None]:
    """Turns what the SDK raises into our own errors."""
    from databricks.sdk import errors
    from databricks.sdk.errors.base import DatabricksError

    host = str(client.config.host)
    later = (
        errors.TooManyRequests,
        errors.InternalError,
        errors.TemporarilyUnavailable,
        errors.DeadlineExceeded,
    )
    try:
        yield
    except (*later, TimeoutError, ConnectionError) as error:
        raise DeployUnavailableError(
            f"the workspace could not {what}",
            where=host,
            evidence=words(error),
            next_step="try again later: what was done is found again, and nothing is made twice",
        ) from error
    except DatabricksError as error:
        refused = isinstance(error, errors.PermissionDenied | errors.Unauthenticated)
        raise DeployError(
            f"the workspace refuses to {what}",
            where=host,
            evidence=words(error),
            next_step="ask for the right to it, or log in as somebody who has it"
            if refused
            else "correct the deploy section as the workspace says",
        ) from error
    except OSError as error:
        # what `requests` raises when there is no network
        raise DeployUnavailableError(
            f"the workspace could not be asked to {what}",
            where=host,
            evidence=type(error).__name__,
            next_step="check deploy.databricks.host and the network, then try again",
        ) from error


class Files:
    """Small files in the workspace, by their absolute paths."""

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def read(self, path: str) -> bytes | None:
        """A file's content; None where there is none."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.workspace import ExportFormat

        with asking(self._client, f"read {path}"):
            try:
                with self._client.workspace.download(path, format=ExportFormat.RAW) as content:
                    return bytes(content.read())
            except NotFound:
                return None

    def write(self, path: str, content: bytes) -> None:
        """Put a file in place of another, or of none."""
        from databricks.sdk.errors import TemporarilyUnavailable, TooManyRequests
        from databricks.sdk.service.workspace import ImportFormat

        # the SDK tries everything again but uploads
        busy = (TooManyRequests, TemporarilyUnavailable)
        with asking(self._client, f"write {path}"):
            self._client.workspace.mkdirs(path.rpartition("/")[0])
            for attempt in attempts_on(busy, most=8, seconds=_RETRY_SECONDS):
                with attempt:
                    # always a file: what looks like a notebook would become one otherwise
                    self._client.workspace.upload(
                        path, content, format=ImportFormat.RAW, overwrite=True
                    )

    def remove(self, path: str) -> None:
        """Remove a file, and its folder if nothing else is in it."""
        from databricks.sdk.errors import NotFound

        with asking(self._client, f"remove {path}"):
            folder = path.rpartition("/")[0]
            try:
                self._client.workspace.delete(path)
                if not list(self._client.workspace.list(folder)):
                    self._client.workspace.delete(folder)
            except NotFound:
                return

    def mark(self, path: str) -> tuple[str | None, Mark | None]:
        """A file's text and its mark."""
        content = self.read(path)
        text = None if content is None else content.decode("utf-8", "replace")
        return text, None if text is None else read_mark(text)


def words(error: BaseException) -> str:
    """The first line of an error, for evidence."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}", longest=_LONGEST)


NAME = "databricks"
JOB, FILE, WHEEL_FILE = "job", "workspace file", "wheel"
_PAGE = 100


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
    login: WorkspaceClient | NotLoggedInError
    try:
        login = open_workspace(settings)
    except NotLoggedInError as error:
        login = error
    if settings.folder is not None:
        folder = settings.folder.removeprefix(_PREFIX) or "/"
    else:
        user = "{you}"
        if not isinstance(login, NotLoggedInError):
            with asking(login, "say who is logged in"):
                user = str(login.current_user.me().user_name)
        # the user's own: in a shared one anybody could change what the job runs
        folder = f"/Users/{user}/.distributary/{pipeline.name}"
    file, launcher = f"{folder}/{pipeline.name}.yaml", f"{folder}/launch.py"
    requirements = f"{folder}/requirements.txt"
    texts = {file: pipeline.shared_text, launcher: template("launch.py.txt")}
    wheel = None
    if settings.package is None:
        # the runtime's own Spark stays what it is
        content = package.wheel(without=package.RUNTIMES_OWN)
        wheel = Wheel(f"{folder}/{package.WHEEL}", content)
        own = f"{_PREFIX}{wheel.path} --hash=sha256:{wheel.digest}\n"
        texts[requirements] = own + package.locked()
    texts = {path: marked(t, target=NAME, pipeline=pipeline.name) for path, t in texts.items()}
    places = Places(*(f"{_PREFIX}{path}" for path in (launcher, file, requirements)))
    wanted = job_settings(pipeline.name, settings, places)
    if isinstance(login, NotLoggedInError):
        return UnseenTarget(texts, wheel, wanted, login)
    return DatabricksTarget(pipeline.name, login, f"{folder}/job.json", texts, wheel, wanted)


@dataclass(frozen=True, slots=True)
class Wheel:
    """Distributary itself; it cannot bear a mark, so the requirements beside it name its digest."""

    path: str
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """Its SHA-256."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def about(self) -> str:
        """It, for people."""
        return f"{len(self.content):,} bytes, sha256 {self.digest}\n"


@dataclass(frozen=True, slots=True)
class UnseenTarget:
    """Satisfies `Target` where nobody is logged in: what would be made can be shown, no more."""

    texts: Mapping[str, str]
    wheel: Wheel | None
    wanted: Settings
    refusal: NotLoggedInError
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[Step, ...]:
        """The files and the job, compared with nothing."""
        job = (JOB, str(self.wanted["name"]), as_text(self.wanted))
        wheel = [(WHEEL_FILE, self.wheel.path, self.wheel.about)] if self.wheel else []
        why = "not compared: nobody is logged in to a workspace"
        return tuple(
            Step(kind, name, Action.CREATE, after, why=why, refusal=self.refusal)
            for kind, name, after in (*((FILE, *each) for each in self.texts.items()), *wheel, job)
        )

    def apply(self, steps: Sequence[Step]) -> None:
        """Refused."""
        raise self.refusal

    def plan_removal(self) -> tuple[Step, ...]:
        """Refused: only the workspace knows what is there."""
        raise self.refusal

    def remove(self, steps: Sequence[Step]) -> None:
        """Refused."""
        raise self.refusal


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that is there."""

    id: int
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class DatabricksTarget:
    """Satisfies `Target`."""

    pipeline: str
    client: WorkspaceClient = field(repr=False)
    note: str
    """The file in the workspace that says which job was made."""
    texts: Mapping[str, str]
    """The files that the job runs, with their marks."""
    wheel: Wheel | None
    """What it installs; None where the deploy section names something else."""
    wanted: Settings
    """The definition of the job."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[Step, ...]:
        """The files and the job."""
        steps = [self._file_step(path, text) for path, text in self.texts.items()]
        wheel = [self._wheel_step(self.wheel)] if self.wheel is not None else []
        return (*steps, *wheel, self._job_step())

    def apply(self, steps: Sequence[Step]) -> None:
        """Files first: a job never points at something that is not there."""
        files = Files(self.client)
        for step in steps:
            if step.kind == FILE and step.changes:
                files.write(step.name, step.after.encode())
            elif step.kind == WHEEL_FILE and step.changes and self.wheel is not None:
                files.write(step.name, self.wheel.content)
        step = next(step for step in steps if step.kind == JOB)
        if step.action is Action.CREATE:
            self._remember(self._create())
        elif step.changes:
            found = self._find()
            if found is None:
                raise self._conflict("the job went away while it was being changed", "")
            self._reset(found.id)
            self._remember(found.id)

    def plan_removal(self) -> tuple[Step, ...]:
        """The job, its files and the note of them, as far as they bear our mark."""
        files = Files(self.client)
        mine = [job for job in self._candidates() if self._is_mine(job.settings)]
        steps = [Step(JOB, f"{job.settings.get('name')} ({job.id})", Action.REMOVE) for job in mine]
        if self.wheel is not None and self._uploaded(self.wheel) is not None:
            steps.append(Step(WHEEL_FILE, self.wheel.path, Action.REMOVE))
        for path in (*self.texts, self.note):
            text, mark = files.mark(path)
            if mark is not None and mark.pipeline == self.pipeline:
                steps.append(Step(FILE, path, Action.REMOVE, before=text or ""))
        return tuple(steps)

    def remove(self, steps: Sequence[Step]) -> None:
        """The job first: files may go once nothing runs them."""
        mine = {job.id for job in self._candidates() if self._is_mine(job.settings)}
        for job in sorted(mine):
            self._delete(job)
        for step in steps:
            if step.kind in (FILE, WHEEL_FILE):
                Files(self.client).remove(step.name)

    def _is_mine(self, job: Settings) -> bool:
        """Whether a job was made by `install` for this pipeline."""
        return (job.get("tags") or {}).get(PIPELINE_TAG) == self.pipeline

    def _file_step(self, path: str, after: str) -> Step:
        before, mark = Files(self.client).mark(path)
        if before is None:
            return Step(FILE, path, Action.CREATE, after)
        if mark is None or mark.pipeline != self.pipeline:
            return Step(FILE, path, Action.FOREIGN, after, why="has no mark of this pipeline")
        return Step(FILE, path, mark.change(before, after), after, before)

    def _wheel_step(self, wheel: Wheel) -> Step:
        there = Files(self.client).read(wheel.path)
        if there is None:
            return Step(WHEEL_FILE, wheel.path, Action.CREATE, wheel.about)
        if there == wheel.content:
            return Step(WHEEL_FILE, wheel.path, Action.UNCHANGED, wheel.about)
        before = Wheel(wheel.path, there).about
        if self._uploaded(wheel) is None:
            why = "is not the wheel that was uploaded"
            return Step(WHEEL_FILE, wheel.path, Action.FOREIGN, wheel.about, before, why=why)
        return Step(WHEEL_FILE, wheel.path, Action.UPDATE, wheel.about, before)

    def _uploaded(self, wheel: Wheel) -> str | None:
        """The digest of a wheel that is there and that our own requirements name."""
        files = Files(self.client)
        there = files.read(wheel.path)
        text, mark = files.mark(f"{wheel.path.rpartition('/')[0]}/requirements.txt")
        ours = text is not None and mark is not None and mark.pipeline == self.pipeline
        digest = hashlib.sha256(there or b"").hexdigest()
        return digest if ours and text and there is not None and digest in text else None

    def _job_step(self) -> Step:
        wanted = self.wanted
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
        written = self._written(found)
        edited = written is not None and like(found.settings, written) != written
        return Step(JOB, name, Action.EDITED if edited else Action.UPDATE, after, before)

    def _written(self, found: _Job) -> Settings | None:
        """What the job was when we wrote it, where that is known."""
        tags = found.settings.get("tags") or {}
        note = self._read_note()
        for known in (self.wanted, note.get("settings") or {}):
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
        ids = {*self._named(str(self.wanted["name"]))}
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

    def _create(self) -> int:
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, "create the job"):
            made = self.client.jobs.create(**JobSettings.from_dict(self.wanted).as_shallow_dict())
        # an answer that was lost, or somebody else at the same moment: the oldest one stays
        ids = self._named(str(self.wanted["name"]))
        tags = self.wanted["tags"]
        twins = [job for job in map(self._get, ids) if job and job.settings["tags"] == tags]
        for twin in sorted(twins, key=lambda job: job.id)[1:]:
            self._delete(twin.id)
        return min((twin.id for twin in twins), default=int(made.job_id or 0))

    def _reset(self, job: int) -> None:
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, f"change job {job}"):
            self.client.jobs.reset(job, JobSettings.from_dict(self.wanted))

    def _delete(self, job: int) -> None:
        with asking(self.client, f"remove job {job}"):
            self.client.jobs.delete(job)

    def _read_note(self) -> dict[str, Any]:
        text, mark = Files(self.client).mark(self.note)
        if text is None or mark is None or mark.pipeline != self.pipeline:
            return {}
        try:
            note = json.loads(text)
        except ValueError:
            return {}
        return note if isinstance(note, dict) else {}

    def _remember(self, job: int) -> None:
        note = json.dumps({"job_id": job, "settings": self.wanted}, indent=2) + "\n"
        text = marked(note, target=NAME, pipeline=self.pipeline)
        Files(self.client).write(self.note, text.encode())

    def _conflict(self, what: str, evidence: str) -> DeployError:
        return DeployError(
            what,
            code=ErrorCode.DEPLOY_CONFLICT,
            where=str(self.client.config.host),
            evidence=evidence,
            next_step="remove or rename all but one of them in the workspace",
        )
