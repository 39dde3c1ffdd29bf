"""One job in a Databricks workspace, and the files that it runs.

A job is found by the id in the note beside its files, or else by its name. Either way it must have
the tag of this pipeline. Two jobs of one name are never changed.
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
from distributary.deploy import package
from distributary.deploy.file_targets import (
    DeployTarget,
    FileMark,
    InstallStep,
    StepAction,
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
from distributary.model.names import printable
from distributary.retries import attempts_on

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


# The definition of a Databricks job as plain data, and its comparison with an existing job.

PIPELINE_TAG = f"{OWN_TAG}_pipeline"
DIGEST_TAG = f"{OWN_TAG}_sha256"
TASK = "run"
_ENVIRONMENT = "default"
_WATCHED = ("schedule", "continuous", "trigger")
"""Settings of a job's schedule: one that the job has and the file lacks also counts as an edit."""

_CATALOG = "spark.databricks.sql.initial.catalog.name"

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of a job's files, as programs in the workspace see them."""

    launcher: str
    file: str
    requirements: str
    """The packages that the job installs, unless the deploy section names others."""


def job_settings(pipeline: str, settings: Databricks, places: Places) -> Settings:
    """Return the complete definition of the job, with its mark among the tags."""
    state = {"pause_status": "PAUSED" if settings.paused else "UNPAUSED"}
    clock = {"quartz_cron_expression": settings.schedule, "timezone_id": settings.timezone}
    version = settings.environment_version
    named = settings.package or places.requirements
    dependency = f"-r {named}" if named.endswith(".txt") else named
    spec = {"environment_version": version, "dependencies": [dependency]}
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
        run_as=_run_as(settings.run_as),
        environments=[{"environment_key": _ENVIRONMENT, "spec": spec}]
        if settings.serverless
        else None,
    )
    tags[DIGEST_TAG] = digest(as_text(job))
    return job


def _run_as(name: str | None) -> Settings | None:
    if name is None:
        return None
    return {"user_name" if "@" in name else "service_principal_name": name}


def _given(**settings: Any) -> Settings:
    return {name: value for name, value in settings.items() if value is not None}


def as_text(job: Mapping[str, Any]) -> str:
    """Return a definition as readable text, the same for equal definitions."""
    return json.dumps(job, indent=2, sort_keys=True) + "\n"


def like(there: Mapping[str, Any], ours: Mapping[str, Any]) -> Settings:
    """Return the part of an existing job that can be compared with ours.

    Databricks adds its own defaults to a job.
    """
    seen: Settings = _projected(there, ours)
    return {**seen, **{key: there[key] for key in _WATCHED if there.get(key) is not None}}


def _projected(there: Any, ours: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(there, Mapping):
        return {key: _projected(there[key], ours[key]) for key in ours if key in there}
    if isinstance(ours, list) and isinstance(there, list) and len(ours) == len(there):
        return [_projected(one, other) for one, other in zip(there, ours, strict=True)]
    return there


def _task(settings: Databricks, places: Places) -> Settings:
    # without a schedule, the file's own trigger decides when a run ends
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
    new = {"new_cluster": _new(cluster, settings)}
    place = {"existing_cluster_id": cluster.id} if cluster.id else new
    return task | {"libraries": [library]} | place


def _new(cluster: Cluster, settings: Databricks) -> Settings:
    catalog = settings.catalog
    scales = cluster.min_workers is not None
    alone = not scales and not cluster.workers
    # this is how a single-node cluster is declared
    single = {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*]"}
    # so that `lake.database` is a schema of that catalog, as it is for `grants`
    names = {_CATALOG: catalog} if catalog else {}
    return _given(
        spark_version=cluster.spark_version,
        # the engine talks to the driver's JVM, which a shared cluster does not allow
        data_security_mode="SINGLE_USER",
        node_type_id=cluster.node_type,
        driver_node_type_id=cluster.driver_node_type,
        instance_pool_id=cluster.instance_pool,
        driver_instance_pool_id=cluster.driver_instance_pool,
        policy_id=cluster.policy,
        **_machines(cluster, settings.host or os.environ.get("DATABRICKS_HOST", "")),
        autoscale={"min_workers": cluster.min_workers, "max_workers": cluster.max_workers}
        if scales
        else None,
        num_workers=None if scales else cluster.workers or 0,
        custom_tags={"ResourceClass": "SingleNode"} if alone else None,
        spark_conf={**names, **cluster.spark_conf, **(single if alone else {})} or None,
        spark_env_vars=dict(cluster.env) or None,
    )


def _machines(cluster: Cluster, host: str) -> Settings:
    """Return the attributes of machines in the cloud of the workspace, which its address names."""
    kind, spot = "aws", "SPOT_WITH_FALLBACK"
    if "azuredatabricks" in host:
        kind, spot = "azure", "SPOT_WITH_FALLBACK_AZURE"
    elif ".gcp." in host:
        kind, spot = "gcp", "PREEMPTIBLE_WITH_FALLBACK_GCP"
    attributes = _given(
        availability=spot if cluster.spot else None,
        # the driver's state would be lost with its machine
        first_on_demand=1 if cluster.spot else None,
        zone_id=cluster.zone if kind != "azure" else None,
        instance_profile_arn=cluster.instance_profile if kind == "aws" else None,
    )
    return {f"{kind}_attributes": attributes} if attributes else {}


# A Databricks workspace through its own SDK, which is an extra; its errors become ours.

_RETRY_SECONDS = 120
_ANSWER_SECONDS = 30
_LONGEST = 300
_PREFIX = "/Workspace"
_NOT_CONFIGURED = "cannot configure default credentials"
"""The SDK's message when it finds no login at all; its errors differ in the message only."""


class NotLoggedInError(ConfigError):
    """The error of a missing login, as opposed to a login that is refused."""


def open_workspace(settings: Databricks) -> WorkspaceClient:
    """Return a client that logs in with the environment or a profile.

    Raises SetupError without the extra, NotLoggedInError if no login is configured.
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
            "there are no credentials for Databricks",
            where=settings.host or os.environ.get("DATABRICKS_HOST", "deploy.databricks.host"),
            evidence=words(error),
            next_step="set DATABRICKS_HOST and DATABRICKS_TOKEN, or name a profile",
        ) from None
    return client


@contextmanager
def asking(client: WorkspaceClient, what: str) -> Iterator[None]:
    """Translate errors of the SDK into our own."""
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
            next_step="try again later: finished steps are not repeated",
        ) from error
    except DatabricksError as error:
        refused = isinstance(error, errors.PermissionDenied | errors.Unauthenticated)
        raise DeployError(
            f"the workspace refuses to {what}",
            where=host,
            evidence=words(error),
            next_step="ask for the permission, or log in as a user with this permission"
            if refused
            else "correct the deploy section by the message of the workspace",
        ) from error
    except OSError as error:
        # what `requests` raises when there is no network
        raise DeployUnavailableError(
            f"the workspace could not be reached to {what}",
            where=host,
            evidence=type(error).__name__,
            next_step="check deploy.databricks.host and the network, then try again",
        ) from error


class Files:
    """Small files in the workspace, by their absolute paths."""

    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        from databricks.sdk.errors import NotFound
        from databricks.sdk.service.workspace import ExportFormat

        with asking(self._client, f"read {path}"):
            try:
                with self._client.workspace.download(path, format=ExportFormat.RAW) as content:
                    return bytes(content.read())
            except NotFound:
                return None

    def write(self, path: str, content: bytes) -> None:
        """Write a file, also over another one."""
        from databricks.sdk.errors import TemporarilyUnavailable, TooManyRequests
        from databricks.sdk.service.workspace import ImportFormat

        # the SDK retries everything except uploads
        busy = (TooManyRequests, TemporarilyUnavailable)
        with asking(self._client, f"write {path}"):
            self._client.workspace.mkdirs(path.rpartition("/")[0])
            for attempt in attempts_on(busy, most=8, seconds=_RETRY_SECONDS):
                with attempt:
                    # always a file: a source that looks like a notebook would otherwise become one
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

    def mark(self, path: str) -> tuple[str | None, FileMark | None]:
        """Return a file's text and its mark."""
        content = self.read(path)
        text = None if content is None else content.decode("utf-8", "replace")
        return text, None if text is None else read_mark(text)


def words(error: BaseException) -> str:
    """Return the first line of an error, for evidence."""
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}", longest=_LONGEST)


NAME = "databricks"
JOB, FILE, WHEEL_FILE = "job", "workspace file", "wheel"
_PAGE = 100


def job_section(pipeline: Installable) -> Databricks:
    """Return the section about the job. Raises ConfigError without one, and for clear secrets."""
    settings = pipeline.deploy.databricks
    if settings is None:
        raise ConfigError(
            "the pipeline file does not say how to run on Databricks",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where=f"{pipeline.path.name} deploy.databricks",
            next_step="add deploy: {databricks: {serverless: true}}, or a cluster",
        )
    pipeline.refuse_clear_secrets(to="the workspace")
    return settings


def databricks_target(pipeline: Installable) -> DeployTarget:
    """Return the target of `install --target databricks`."""
    settings = job_section(pipeline)
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
            with asking(login, "return the current user"):
                user = str(login.current_user.me().user_name)
        # the user's own folder: in a shared one, any user could change the files that the job runs
        folder = f"/Users/{user}/.distributary/{pipeline.name}"
    file, launcher = f"{folder}/{pipeline.name}.yaml", f"{folder}/launch.py"
    requirements = f"{folder}/requirements.txt"
    texts = {file: pipeline.shared_text, launcher: template("launch.py.txt")}
    wheel = None
    if settings.package is None:
        # the runtime keeps its own Spark
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
    wanted: Settings
    refusal: NotLoggedInError
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps for the files and the job, compared with nothing."""
        job = (JOB, str(self.wanted["name"]), as_text(self.wanted))
        wheel = [(WHEEL_FILE, self.wheel.path, self.wheel.about)] if self.wheel else []
        why = "not compared: there is no login to a workspace"
        return tuple(
            InstallStep(kind, name, StepAction.CREATE, after, why=why, refusal=self.refusal)
            for kind, name, after in (*((FILE, *item) for item in self.texts.items()), *wheel, job)
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
class _Job:
    """An existing job."""

    id: int
    settings: Settings = field(repr=False)


@dataclass(frozen=True, slots=True)
class DatabricksTarget:
    """The job and files of a pipeline in a workspace; satisfies `DeployTarget`."""

    pipeline: str
    client: WorkspaceClient = field(repr=False)
    note: str
    """The path of the file in the workspace that holds the id of the created job."""
    texts: Mapping[str, str]
    """The files that the job runs, with their marks."""
    wheel: Wheel | None
    """The wheel that the job installs; None if the deploy section names another package."""
    wanted: Settings
    """The definition of the job."""
    next_steps: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()

    def plan(self) -> tuple[InstallStep, ...]:
        """Return the steps for the files and the job."""
        steps = [self._file_step(path, text) for path, text in self.texts.items()]
        wheel = [self._wheel_step(self.wheel)] if self.wheel is not None else []
        return (*steps, *wheel, self._job_step())

    def apply(self, steps: Sequence[InstallStep]) -> None:
        """Write the files first, then the job: a job never refers to missing files."""
        files = Files(self.client)
        for step in steps:
            if step.kind == FILE and step.changes:
                files.write(step.name, step.after.encode())
            elif step.kind == WHEEL_FILE and step.changes and self.wheel is not None:
                files.write(step.name, self.wheel.content)
        step = next(step for step in steps if step.kind == JOB)
        if step.action is StepAction.CREATE:
            self._remember(self._create())
        elif step.changes:
            job = self._find()
            if job is None:
                raise self._conflict("the job was deleted while it was being changed", "")
            self._reset(job.id)
            self._remember(job.id)

    def start(self) -> str:
        """Start a run of the job now; return its address."""
        job = self._find()
        if job is None:
            raise self._conflict("there is no job to start", "")
        with asking(self.client, f"start job {job.id}"):
            run = self.client.jobs.run_now(job.id).bind()["run_id"]
        host = str(self.client.config.host).rstrip("/")
        return f"{host}/jobs/{job.id}/runs/{run}"

    def plan_removal(self) -> tuple[InstallStep, ...]:
        """Return steps for the job, its files and the note, as far as they have our mark."""
        files = Files(self.client)
        mine = [job for job in self._candidates() if self._is_mine(job.settings)]
        steps = [
            InstallStep(JOB, f"{job.settings.get('name')} ({job.id})", StepAction.REMOVE)
            for job in mine
        ]
        if self.wheel is not None and self._uploaded(self.wheel) is not None:
            steps.append(InstallStep(WHEEL_FILE, self.wheel.path, StepAction.REMOVE))
        for path in (*self.texts, self.note):
            text, mark = files.mark(path)
            if mark is not None and mark.pipeline == self.pipeline:
                steps.append(InstallStep(FILE, path, StepAction.REMOVE, before=text or ""))
        return tuple(steps)

    def remove(self, steps: Sequence[InstallStep]) -> None:
        """Remove the job first: its files may go once nothing runs them."""
        mine = {job.id for job in self._candidates() if self._is_mine(job.settings)}
        for job in sorted(mine):
            self._delete(job)
        for step in steps:
            if step.kind in (FILE, WHEEL_FILE):
                Files(self.client).remove(step.name)

    def _is_mine(self, job: Settings) -> bool:
        """Return whether `install` created a job for this pipeline."""
        return (job.get("tags") or {}).get(PIPELINE_TAG) == self.pipeline

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

    def _job_step(self) -> InstallStep:
        wanted = self.wanted
        name, after = str(wanted["name"]), as_text(wanted)
        job = self._find()
        if job is None:
            return InstallStep(JOB, name, StepAction.CREATE, after)
        seen = like(job.settings, wanted)
        before = as_text(seen)
        if not self._is_mine(job.settings):
            why = f"job {job.id} has this name but was not made for this pipeline"
            return InstallStep(JOB, name, StepAction.FOREIGN, after, before, why=why)
        if seen == wanted:
            return InstallStep(JOB, name, StepAction.UNCHANGED, after, before)
        written = self._written(job)
        edited = written is not None and like(job.settings, written) != written
        return InstallStep(
            JOB, name, StepAction.EDITED if edited else StepAction.UPDATE, after, before
        )

    def _written(self, job: _Job) -> Settings | None:
        """Return the definition of the job as we wrote it last, if it is known."""
        tags = job.settings.get("tags") or {}
        note = self._read_note()
        for known in (self.wanted, note.get("settings") or {}):
            if (known.get("tags") or {}).get(DIGEST_TAG) == tags.get(DIGEST_TAG):
                return dict(known)
        return None

    def _find(self) -> _Job | None:
        """Return the one job of this pipeline; refuse if there are several."""
        jobs = self._candidates()
        if len(jobs) < 2:
            return jobs[0] if jobs else None
        evidence = "; ".join(f"job {job.id} named {job.settings.get('name')}" for job in jobs)
        raise self._conflict("several jobs match this pipeline", evidence)

    def _candidates(self) -> list[_Job]:
        ids = {*self._named(str(self.wanted["name"]))}
        remembered = self._read_note().get("job_id")
        jobs = [job for job in map(self._get, sorted(ids)) if job is not None]
        if isinstance(remembered, int) and remembered not in ids:
            # the pipeline file has renamed the job since it was installed
            job = self._get(remembered)
            jobs += [job] if job is not None and self._is_mine(job.settings) else []
        return jobs

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
                answer = self.client.jobs.get(job)
            except NotFound:
                return None
        return _Job(job, answer.settings.as_dict() if answer.settings else {})

    def _create(self) -> int:
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, "create the job"):
            made = self.client.jobs.create(**JobSettings.from_dict(self.wanted).as_shallow_dict())
        # an answer was lost, or another process did the same at the same moment: the oldest job
        # stays
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
