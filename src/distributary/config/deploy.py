"""Where `install` puts a pipeline, and how it runs there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    Conflict,
    Duration,
    HttpUrl,
    Listed,
    Section,
    TableName,
    Text,
    Texts,
    matching,
    secrets_of,
)

# How a pipeline runs on Kubernetes.

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?"

Label = Annotated[
    Text, matching(_LABEL, "dns_label", "must be lower-case letters, digits and dashes")
]
ShortLabel = Annotated[Label, matching(".{0,40}", "dns_label", "must have 40 characters at most")]
Subdomain = Annotated[
    Text, matching(_SUBDOMAIN, "dns_name", "must be lower-case letters, digits, dashes and dots")
]
Subdomains = Annotated[tuple[Subdomain, ...], Listed]
Image = Annotated[
    Text, matching(_IMAGE, "image", "must be an image, such as registry.example/games:1.0")
]
Quantity = Annotated[
    Text, matching(_QUANTITY, "k8s_quantity", "must be a quantity, such as 500m, 2 or 4Gi")
]
JvmMemory = Annotated[
    Text, matching("[0-9]{1,9}[kmgt]", "memory", "must be a number and k, m, g or t, such as 4g")
]
Cron = Annotated[
    Text,
    matching(r"@.*|\S+(\s+\S+){4}", "cron", "must be a cron of 5 fields, such as 0 * * * *"),
]


class Resources(Section):
    """What the pod is given."""

    cpu: Quantity = "1"
    """Cores that are set aside."""
    memory: Quantity = "4Gi"
    """Memory that is set aside, and the most that it may use."""
    cpu_limit: Quantity | None = None
    """Most cores; no limit when left out, because a limit slows a JVM down without need."""


class Executors(Section):
    """Spark's executors, as pods of their own."""

    executors: int = Field(default=0, ge=0)
    """Number of executors; 0: Spark runs inside the one pod."""
    cores: int = Field(default=1, ge=1)
    """Cores of each."""
    memory: JvmMemory = "2g"
    """Memory of each one's JVM."""
    conf: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"spark.kubernetes.executor.request.cores": "500m"}]
    )
    """Further Spark settings, each starting with `spark.`; never a secret."""

    def conflicts(self) -> Iterator[Conflict]:
        """Spark's settings only, and nothing that others must not read."""
        return _unfit_spark_settings(self.conf)


def _unfit_spark_settings(conf: Mapping[str, str]) -> Iterator[Conflict]:
    for name, value in conf.items():
        if not name.startswith("spark."):
            yield ("conf", name), "must start with spark."
        elif any(secrets_of(name, value)):
            yield ("conf", name), "holds a secret: set spark.conf with ${env:...} instead"


class Kubernetes(Section):
    """A deployment of one pod, or a job by the clock."""

    image: Image = Field(examples=["registry.example/games:1.0"])
    """Image of the pods; `install` writes a Dockerfile for it."""
    base_image: Image = Field(
        default="python:3.11-slim-bookworm", examples=["python:3.11-slim-bookworm@sha256:..."]
    )
    """Image that the Dockerfile starts from: Debian with Python; pin it with `@sha256:DIGEST`."""
    name: ShortLabel | None = None
    """Name of all objects; made of the pipeline's when left out."""
    namespace: Label = "default"
    """Namespace of all objects."""
    service_account: Subdomain | None = None
    """An existing service account; one is made when left out."""
    secrets: Subdomains = Field(default=(), examples=[["games-secrets"]])
    """Secrets whose keys become the variables of `${env:...}`."""
    secret_files: Subdomains = Field(default=(), examples=[["games-files"]])
    """Secrets mounted as files under `/secrets/NAME/KEY`, for `${file:...}`."""
    token_secret: Subdomain | None = Field(default=None, examples=["games-token"])
    """Secret whose key `token` opens `/status` and `/metrics`; nobody gets in when left out."""
    pull_secrets: Subdomains = ()
    """Secrets with which images are pulled."""
    claim: Subdomain | None = Field(default=None, examples=["games-lake"])
    """Existing volume claim, mounted at `/lake`, for a lake on a file system; it is left out where
    nothing of the file is below `/lake`."""
    resources: Resources = Field(default_factory=Resources)
    """What the pod is given."""
    spark: Executors = Field(default_factory=Executors)
    """Executors as pods of their own."""
    schedule: Cron | None = Field(default=None, examples=["0 * * * *"])
    """Cron of the runs, each of which takes what is there and ends; without it the pod stays."""
    timezone: Text = "Etc/UTC"
    """Time zone of the schedule."""
    port: int = Field(default=8080, ge=1024, le=65535)
    """Port of the health endpoint."""
    retries: int = Field(default=3, ge=0)
    """Further tries of a scheduled run."""


_UNIT = r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,99}"
_DAG = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}"
_TAG = re.compile(r"[A-Za-z0-9 +\-=.:/@_]{0,255}")
_SECRET_REFERENCE = re.compile(r"\{\{secrets/[^/{}\s]+/[^/{}\s]+\}\}")
OWN_TAG = "distributary"
"""What every tag of ours begins with."""


def _absolute(value: str) -> str:
    if not PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
        raise PydanticCustomError("absolute", "must be an absolute path without ..")
    return value.rstrip("/") or "/"


UnitName = Annotated[
    Text,
    matching(_UNIT, "unit_name", "must be letters, digits, dots, dashes, colons and underscores"),
]
DagId = Annotated[
    Text, matching(_DAG, "dag_id", "must be letters, digits, dots, dashes and underscores")
]
Quartz = Annotated[
    Text,
    matching(
        r"\S+(\s+\S+){5,6}",
        "quartz",
        "must be a Quartz cron of 6 or 7 fields, such as 0 0 * * * ?",
    ),
]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
SharedFolders = Annotated[tuple[AbsolutePath, ...], Listed]


class Notifications(Section):
    """Who gets a mail from the scheduler."""

    on_start: Texts = ()
    """When a run begins."""
    on_success: Texts = ()
    """When a run has ended well."""
    on_failure: Texts = Field(default=(), examples=[["data-team@example.com"]])
    """When a run has failed, after its last retry."""


class Cluster(Section):
    """A cluster of its own for each run of the job, or one that is there."""

    id: Text | None = None
    """An existing cluster; then nothing else is set here."""
    spark_version: Text | None = Field(default=None, examples=["18.x-scala2.13"])
    """Version of the Databricks runtime; 18 has the Spark that this version is made for."""
    node_type: Text | None = Field(default=None, examples=["i3.xlarge"])
    """Kind of machine."""
    workers: int | None = Field(default=None, ge=0)
    """Number of workers; or give `min_workers` and `max_workers`."""
    min_workers: int | None = Field(default=None, ge=0)
    """Fewest workers of a cluster that grows and shrinks."""
    max_workers: int | None = Field(default=None, ge=1)
    """Most workers of a cluster that grows and shrinks."""
    policy: Text | None = None
    """Id of a cluster policy."""
    spark_conf: Mapping[str, Text] = Field(default_factory=dict)
    """Further Spark settings of the cluster."""
    env: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"KAFKA_SECRET": "{{secrets/kafka/secret}}"}]
    )
    """Environment variables; a secret only as `{{secrets/SCOPE/KEY}}`, never in clear."""

    def conflicts(self) -> Iterator[Conflict]:
        """One kind of cluster, one size, no secret in clear."""
        given = self.model_fields_set - {"id"}
        if self.id is not None:
            yield from (((name,), "means nothing beside id") for name in sorted(given))
        elif self.spark_version is None:
            yield (), "needs spark_version, or the id of an existing cluster"
        if (self.min_workers is None) != (self.max_workers is None):
            yield (), "needs min_workers and max_workers together"
        elif self.workers is not None and self.min_workers is not None:
            yield ("workers",), "cannot stand beside min_workers and max_workers"
        elif (self.min_workers or 0) > (self.max_workers or 0):
            yield ("min_workers",), "must not be more than max_workers"
        for section in ("spark_conf", "env"):
            for name, value in getattr(self, section).items():
                if any(secrets_of(name, value)) and not _SECRET_REFERENCE.fullmatch(value):
                    yield (section, name), "holds a secret: write {{secrets/SCOPE/KEY}}"


class Databricks(Section):
    """A job in a Databricks workspace."""

    host: HttpUrl | None = Field(default=None, examples=["https://example.cloud.databricks.com"])
    """Address of the workspace; `DATABRICKS_HOST` or a profile when left out."""
    profile: Text | None = None
    """Profile of `~/.databrickscfg`. Who logs in is never written into a pipeline file."""
    job_name: Text | None = None
    """Name of the job; the pipeline's when left out. There is never a second job of this name."""
    folder: AbsolutePath | None = Field(default=None, examples=["/Shared/pipelines/games"])
    """Workspace folder of the pipeline file; a folder below the user's own when left out."""
    package: Text | None = Field(default=None, examples=["/Volumes/main/libs/requirements.txt"])
    """What the job installs in place of the wheel and the locked requirements that are uploaded:
    the path of a wheel or of a requirements.txt, or a requirement for pip."""
    cluster: Cluster | None = None
    """The cluster of the job; give this or `serverless`."""
    serverless: bool = False
    """Run without a cluster of one's own."""
    environment_version: Text = "5"
    """Version of the serverless environment; 5 has the Spark that this version is made for."""
    schedule: Quartz | None = Field(default=None, examples=["0 0 * * * ?"])
    """Quartz cron of the runs; each takes what is there and ends."""
    timezone: Text = "UTC"
    """Time zone of the schedule."""
    continuous: bool = False
    """Run always; a run that ends is started again by Databricks."""
    paused: bool = False
    """Install without starting: schedule or continuous run wait to be resumed."""
    retries: int = Field(default=3, ge=-1)
    """Further tries of a run that failed, -1 for ever; a continuous job is retried anyway."""
    retry_wait: Duration = timedelta(minutes=1)
    """Pause before a further try."""
    timeout: Duration = timedelta(0)
    """Longest run; 0s for no limit."""
    notifications: Notifications = Field(default_factory=Notifications)
    """Mail from Databricks."""
    tags: Mapping[str, Text] = Field(default_factory=dict, examples=[{"team": "data"}])
    """Further tags of the job."""
    catalog: TableName | None = Field(default=None, examples=["main"])
    """Unity Catalog of the tables, for `grants`, where `lake.catalog` does not name it; the schema
    in it is that of `lake.catalog`, or `lake.database`."""

    def conflicts(self) -> Iterator[Conflict]:
        """One place to run, one time to run."""
        if (self.cluster is not None) == self.serverless:
            yield (), "needs exactly one of cluster and serverless: true"
        if self.continuous and self.schedule is not None:
            yield ("continuous",), "cannot stand beside schedule"
        if self.continuous and "retries" in self.model_fields_set:
            yield ("retries",), "means nothing for a continuous job: Databricks retries it"
        for name, value in self.tags.items():
            if name.startswith(OWN_TAG):
                yield ("tags", name), f"must not begin with {OWN_TAG}"
            elif not _TAG.fullmatch(name) or not _TAG.fullmatch(value):
                yield ("tags", name), "must be letters, digits and + - = . : / @ _"


class Systemd(Section):
    """A service of this machine."""

    name: UnitName | None = None
    """Name of the unit; `distributary-` and the pipeline's when left out."""
    user: bool = True
    """A unit of the user's own manager; false for a unit of the system."""
    run_as: Text | None = Field(default=None, examples=["distributary"])
    """User that a unit of the system runs as."""
    schedule: Text | None = Field(default=None, examples=["hourly", "*-*-* 02:00:00"])
    """Calendar of a timer; each run takes what is there and ends. Without it the service stays."""
    working_directory: AbsolutePath | None = None
    """Where relative paths of the file start; the folder `install` runs in when left out."""
    environment_file: AbsolutePath | None = Field(default=None, examples=["/etc/games.env"])
    """File of variables for `${env:...}`; its mode must be 0600. Secrets go there, never here."""
    listen: Text | None = Field(default=None, examples=["127.0.0.1:9108"])
    """Address of the health endpoint; none when left out."""
    memory_max: Text | None = Field(default=None, examples=["8G"])
    """Most memory of the service with all its processes."""

    def conflicts(self) -> Iterator[Conflict]:
        """A user is for units of the system."""
        if self.run_as is not None and self.user:
            yield ("run_as",), "needs user: false"
        if self.listen is not None and self.schedule is not None:
            yield ("listen",), "means nothing beside schedule"


class Airflow(Section):
    """A DAG with one task."""

    dag_id: DagId | None = None
    """Id of the DAG; the pipeline's name when left out."""
    schedule: Text | None = Field(default="@hourly", examples=["0 * * * *"])
    """When runs start; each takes what is there and ends."""
    retries: int = Field(default=3, ge=0)
    """Further tries; a mistake in the pipeline file is not tried again."""
    retry_wait: Duration = timedelta(minutes=5)
    """Pause before a further try."""
    folder: Text | None = None
    """Folder of DAG files; `$AIRFLOW_HOME/dags`, or `dags` in the working directory, when left
    out."""
    command: Texts = Field(default=("distributary",), examples=[["/opt/venv/bin/distributary"]])
    """What is run on the worker, before `run FILE`."""
    file: AbsolutePath | None = None
    """Path of the pipeline file on the workers; its path here when left out."""
    tags: Texts = ()
    """Further tags of the DAG."""


class SparkSubmit(Section):
    """A script that starts the pipeline with `spark-submit`."""

    master: Text | None = Field(default=None, examples=["spark://host:7077", "yarn"])
    """Where Spark runs; `spark.master` when left out."""
    environment: Literal["archive", "workers"] = "archive"
    """archive: executors get their Python packages from a file that `distributary package` makes;
    workers: they have them."""
    archive: Text = "environment.tar.gz"
    """That file, beside the script unless its path is absolute."""
    conf: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"spark.executor.memory": "4g"}]
    )
    """Further settings, each starting with `spark.`; never a secret: they stand on a command
    line."""

    def conflicts(self) -> Iterator[Conflict]:
        """Spark's settings only, and nothing that others must not read."""
        return _unfit_spark_settings(self.conf)


class Deploy(Section):
    """Where `distributary install FILE --target ...` puts this pipeline."""

    databricks: Databricks | None = None
    """A job in a Databricks workspace."""
    systemd: Systemd | None = None
    """A service of this machine."""
    kubernetes: Kubernetes | None = None
    """Manifests and a chart for Kubernetes."""
    airflow: Airflow | None = None
    """A DAG file."""
    spark_submit: SparkSubmit | None = None
    """A script for `spark-submit`."""
    shared: SharedFolders = Field(default=(), examples=[["/mnt/lake"]])
    """Folders that every machine on which tasks run sees under the same path, such as a mount of
    NFS. Where there are executors, lake and checkpoint are below one of them or in a bucket."""
