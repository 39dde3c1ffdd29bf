"""The settings of deployment targets: Kubernetes, Databricks, systemd, Airflow, spark-submit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import (
    Conflict,
    Duration,
    HttpUrl,
    Listed,
    PositiveDuration,
    Section,
    TableName,
    Text,
    Texts,
    matching,
    secrets_of,
)

# Kubernetes.

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
    """CPU and memory of the pod."""

    cpu: Quantity = "1"
    """CPU request in cores."""
    memory: Quantity = "4Gi"
    """Memory request and memory limit."""
    cpu_limit: Quantity | None = None
    """CPU limit in cores. No limit when left out, because a limit slows a JVM down without need."""


class Executors(Section):
    """Spark executors as separate pods."""

    executors: int = Field(default=0, ge=0)
    """Number of executors. 0: Spark runs inside the one pod."""
    cores: int = Field(default=1, ge=1)
    """Number of cores of each executor."""
    memory: JvmMemory = "2g"
    """JVM memory of each executor."""
    memory_overhead: JvmMemory | None = Field(default=None, examples=["3g"])
    """Memory of each executor beside its JVM, for the Python workers; 384m and 1g for each core
    when left out."""
    conf: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"spark.kubernetes.executor.request.cores": "500m"}]
    )
    """Further Spark settings, each with the prefix `spark.`; never a secret."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that do not belong to Spark, or that hold a secret."""
        return _unfit_spark_settings(self.conf)


# a line of a file of settings is a name and a value
_SPARK_NAME = re.compile(r"spark\.[!-<>-~]+")


def _unfit_spark_settings(conf: Mapping[str, str]) -> Iterator[Conflict]:
    for name, value in conf.items():
        if not _SPARK_NAME.fullmatch(name):
            yield ("conf", name), "must start with spark. and have no space, = or line break"
        elif any(secrets_of(name, value)):
            yield ("conf", name), "holds a secret: set spark.conf with ${env:...} instead"


def _with_weights(node: Any) -> Any:
    """Return an affinity with its weights as numbers: scalars of a pipeline file are text."""
    if isinstance(node, Mapping):
        return {
            key: int(item) if key == "weight" and str(item).isdigit() else _with_weights(item)
            for key, item in node.items()
        }
    return [_with_weights(item) for item in node] if isinstance(node, list | tuple) else node


Affinity = Annotated[Mapping[str, Any], AfterValidator(_with_weights)]


class Toleration(Section):
    """A taint of nodes on which the pods may run nevertheless."""

    key: Text | None = Field(default=None, examples=["spot"])
    """Key of the taint; every taint when left out, with `operator: Exists`."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the taint must have the value, or any."""
    value: Text | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; every effect when left out."""
    seconds: int | None = Field(default=None, ge=0)
    """How long a pod stays on a node that gets a `NoExecute` taint; without end when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield combinations that Kubernetes refuses."""
        if self.operator == "Exists" and self.value is not None:
            yield ("value",), "has no effect with operator: Exists"
        elif self.operator == "Equal" and self.key is None:
            yield ("key",), "is needed with operator: Equal"
        if self.seconds is not None and self.effect != "NoExecute":
            yield ("seconds",), "needs effect: NoExecute"


class ServiceMonitor(Section):
    """A ServiceMonitor of the Prometheus operator, which collects `/metrics`."""

    interval: PositiveDuration = timedelta(seconds=30)
    """Time between two collections."""
    labels: Mapping[str, Text] = Field(default_factory=dict, examples=[{"release": "prometheus"}])
    """Labels by which the operator selects its monitors."""


class Kubernetes(Section):
    """A Deployment with one pod, or a CronJob."""

    image: Image = Field(examples=["registry.example/games:1.0"])
    """Image of the pods; `install` writes a Dockerfile for it."""
    base_image: Image = Field(
        default="python:3.11-slim-bookworm", examples=["python:3.11-slim-bookworm@sha256:..."]
    )
    """Base image of the Dockerfile: Debian with Python. Pin it with `@sha256:DIGEST`."""
    name: ShortLabel | None = None
    """Name of all objects; derived from the pipeline's name when left out."""
    namespace: Label = "default"
    """Namespace of all objects."""
    service_account: Subdomain | None = None
    """Name of an existing service account. `install` creates one when left out."""
    secrets: Subdomains = Field(default=(), examples=[["games-secrets"]])
    """Secrets whose keys become the environment variables of `${env:...}`."""
    secret_files: Subdomains = Field(default=(), examples=[["games-files"]])
    """Secrets mounted as files under `/secrets/NAME/KEY`, for `${file:...}`."""
    token_secret: Subdomain | None = Field(default=None, examples=["games-token"])
    """Secret whose key `token` grants access to `/status` and `/metrics`. All requests are refused
    when left out."""
    pull_secrets: Subdomains = ()
    """Secrets for pulling images, of the pod and of executors."""
    service_account_annotations: Mapping[str, Text] = Field(
        default_factory=dict,
        examples=[{"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/games"}],
    )
    """Annotations of the service account that `install` creates, such as the cloud's role."""
    node_selector: Mapping[str, Text] = Field(default_factory=dict, examples=[{"pool": "data"}])
    """Labels of the nodes on which the pod and executors run."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pod and executors tolerate."""
    affinity: Affinity = Field(default_factory=dict)
    """Affinity of the pod and of executors, as Kubernetes writes it."""
    service_monitor: ServiceMonitor | None = None
    """Collection of metrics by the Prometheus operator, with the token of `token_secret`."""
    network_policy: bool = False
    """Allow connections only to the health endpoint, and between the pod and its executors."""
    claim: Subdomain | None = Field(default=None, examples=["games-lake"])
    """Existing volume claim, mounted at `/lake`, for a lake on a file system. It is not mounted
    when no path of the file is below `/lake`."""
    resources: Resources = Field(default_factory=Resources)
    """CPU and memory of the pod."""
    spark: Executors = Field(default_factory=Executors)
    """Executors as separate pods."""
    schedule: Cron | None = Field(default=None, examples=["0 * * * *"])
    """Cron of the runs; each processes the available records and ends. The pod runs continuously
    when left out."""
    timezone: Text = "Etc/UTC"
    """Time zone of the schedule."""
    port: int = Field(default=8080, ge=1024, le=65535)
    """Port of the health endpoint."""
    retries: int = Field(default=3, ge=0)
    """Number of retries of a scheduled run."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings whose object is missing."""
        if self.service_account is not None and self.service_account_annotations:
            yield (
                ("service_account_annotations",),
                "has no effect with service_account: annotate that account itself",
            )
        if self.service_monitor is not None and self.token_secret is None:
            yield ("service_monitor",), "needs token_secret: /metrics asks for a token"
        if self.service_monitor is not None and self.schedule is not None:
            yield ("service_monitor",), "has no effect with schedule: no pod stays to be asked"


_UNIT = r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,99}"
_DAG = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}"
_TAG = re.compile(r"[A-Za-z0-9 +\-=.:/@_]{0,255}")
_SECRET_REFERENCE = re.compile(r"\{\{secrets/[^/{}\s]+/[^/{}\s]+\}\}")
OWN_TAG = "distributary"
"""The prefix of all tags that Distributary sets."""


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
WorkspaceFolder = Annotated[
    AbsolutePath,
    # it is a part of a line for pip, of a bundle and of a configuration of Terraform
    matching(r"[^\s${}%\"'`\\;]+", "workspace_folder", "must be a path without spaces or quotes"),
]
WorkspaceName = Annotated[
    Text,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9 _.:@()-]{0,199}", "pipeline_name", "must be a name without quotes"
    ),
]
SharedFolders = Annotated[tuple[AbsolutePath, ...], Listed]


class MailRecipients(Section):
    """Recipients of mail from the scheduler."""

    on_start: Texts = ()
    """Recipients of mail when a run begins."""
    on_success: Texts = ()
    """Recipients of mail when a run has succeeded."""
    on_failure: Texts = Field(default=(), examples=[["data-team@example.com"]])
    """Recipients of mail when a run has failed, after its last retry."""


class Cluster(Section):
    """A new cluster for each run of the job, or an existing cluster."""

    id: Text | None = None
    """Id of an existing cluster; then no other key may be set here."""
    spark_version: Text | None = Field(default=None, examples=["18.x-scala2.13"])
    """Version of the Databricks runtime; runtime 18 has the Spark version that this release
    requires."""
    node_type: Text | None = Field(default=None, examples=["i3.xlarge"])
    """Machine type of the nodes."""
    workers: int | None = Field(default=None, ge=0)
    """Number of workers; set this, or `min_workers` and `max_workers`."""
    min_workers: int | None = Field(default=None, ge=0)
    """Smallest number of workers of an autoscaling cluster."""
    max_workers: int | None = Field(default=None, ge=1)
    """Largest number of workers of an autoscaling cluster."""
    policy: Text | None = None
    """Id of a cluster policy."""
    driver_node_type: Text | None = None
    """Machine type of the driver; that of the nodes when left out."""
    instance_pool: Text | None = None
    """Id of the pool that the nodes come from, instead of `node_type`."""
    driver_instance_pool: Text | None = None
    """Id of the pool that the driver comes from; that of the nodes when left out."""
    instance_profile: Text | None = Field(
        default=None, examples=["arn:aws:iam::123456789012:instance-profile/games"]
    )
    """Instance profile of the nodes on AWS, which reaches the bucket."""
    zone: Text | None = Field(default=None, examples=["eu-central-1a", "auto"])
    """Availability zone of the nodes, on AWS and Google Cloud."""
    spot: bool = False
    """Take spot machines for all but the first node, and usual ones where there are none."""
    spark_conf: Mapping[str, Text] = Field(default_factory=dict)
    """Further Spark settings of the cluster."""
    env: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"KAFKA_SECRET": "{{secrets/kafka/secret}}"}]
    )
    """Environment variables. Write secrets as `{{secrets/SCOPE/KEY}}`, never in clear."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings beside `id`, contradicting sizes, and secrets in clear."""
        given = self.model_fields_set - {"id"}
        if self.id is not None:
            yield from (
                ((name,), "has no effect with id: remove one of the two") for name in sorted(given)
            )
        elif self.spark_version is None:
            yield (), "needs spark_version, or the id of an existing cluster"
        if self.instance_pool is not None and self.node_type is not None:
            yield ("node_type",), "has no effect with instance_pool: the pool has the machines"
        if (self.min_workers is None) != (self.max_workers is None):
            yield (), "needs min_workers and max_workers together"
        elif self.workers is not None and self.min_workers is not None:
            yield ("workers",), "cannot be combined with min_workers and max_workers"
        elif (self.min_workers or 0) > (self.max_workers or 0):
            yield ("min_workers",), "must not be more than max_workers"
        for section in ("spark_conf", "env"):
            for name, value in getattr(self, section).items():
                if any(secrets_of(name, value)) and not _SECRET_REFERENCE.fullmatch(value):
                    yield (section, name), "holds a secret: write {{secrets/SCOPE/KEY}}"


class DatabricksAccess(Section):
    """A Databricks workspace, and what every deployment there has."""

    host: HttpUrl | None = Field(default=None, examples=["https://example.cloud.databricks.com"])
    """Address of the workspace; `DATABRICKS_HOST` or a profile when left out."""
    profile: Text | None = None
    """Profile of `~/.databrickscfg`. Credentials are never written into a pipeline file."""
    folder: WorkspaceFolder | None = Field(default=None, examples=["/Shared/pipelines/games"])
    """Workspace folder for the pipeline file; a folder in the user's home when left out."""
    package: Text | None = Field(default=None, examples=["/Volumes/main/libs/requirements.txt"])
    """Package to install instead of the uploaded wheel and locked requirements: the path of a
    wheel or of a requirements.txt, or a requirement for pip."""
    run_as: Text | None = Field(
        default=None, examples=["data-team@example.com", "6a1c8e4c-0000-4000-8000-000000000000"]
    )
    """User (an address) or service principal (its application id) that it runs as; the user who
    installs it when left out."""
    tags: Mapping[str, Text] = Field(default_factory=dict, examples=[{"team": "data"}])
    """Further tags."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield tags that Databricks or `install` refuses."""
        for name, value in self.tags.items():
            if name.startswith(OWN_TAG):
                yield ("tags", name), f"must not begin with {OWN_TAG}"
            elif not _TAG.fullmatch(name) or not _TAG.fullmatch(value):
                yield ("tags", name), "must be letters, digits and + - = . : / @ _"


class Databricks(DatabricksAccess):
    """A job in a Databricks workspace."""

    job_name: Text | None = None
    """Name of the job; the pipeline's name when left out. `install` never creates a second job of
    this name."""
    cluster: Cluster | None = None
    """The cluster of the job; set this or `serverless`."""
    serverless: bool = False
    """Run the job on serverless compute."""
    environment_version: Text = "5"
    """Version of the serverless environment; version 5 has the Spark version that this release
    requires."""
    schedule: Quartz | None = Field(default=None, examples=["0 0 * * * ?"])
    """Quartz cron of the runs; each processes the available records and ends."""
    timezone: Text = "UTC"
    """Time zone of the schedule."""
    continuous: bool = False
    """Run continuously: Databricks restarts a run that ends."""
    paused: bool = False
    """Install the job paused: its schedule or continuous run starts when it is resumed."""
    retries: int = Field(default=3, ge=-1)
    """Number of retries of a failed run, -1 for no limit. Databricks always retries a continuous
    job."""
    retry_wait: Duration = timedelta(minutes=1)
    """Pause before a retry."""
    timeout: Duration = timedelta(0)
    """Timeout of a run; 0s for no limit."""
    notifications: MailRecipients = Field(default_factory=MailRecipients)
    """Mail from Databricks."""
    catalog: TableName | None = Field(default=None, examples=["main"])
    """Unity Catalog of the tables, for `grants`, when `lake.catalog` does not name it. Its schema
    is the one in `lake.catalog` or `lake.database`."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield contradictions about compute, schedule and retries, and invalid tags."""
        yield from super().conflicts()
        if (self.cluster is not None) == self.serverless:
            yield (), "needs exactly one of cluster and serverless: true"
        if self.continuous and self.schedule is not None:
            yield ("continuous",), "cannot be combined with schedule"
        if self.continuous and "retries" in self.model_fields_set:
            yield ("retries",), "has no effect for a continuous job: Databricks always retries it"


class Lakeflow(DatabricksAccess):
    """A declarative pipeline in a Databricks workspace."""

    catalog: TableName = Field(examples=["main"])
    """Unity Catalog of the tables."""
    schema_: Annotated[TableName, Field(alias="schema", examples=["games"])]
    """Schema of the tables."""
    pipeline_name: WorkspaceName | None = None
    """Name of the pipeline in the workspace; that of this file when left out."""
    continuous: bool = False
    """Run continuously; otherwise each update reads the available records and ends."""
    development: bool = False
    """Keep the compute between updates, and do not retry a failed update."""
    channel: Literal["current", "preview"] = "current"
    """Release channel of the runtime."""
    node_type: Text | None = Field(default=None, examples=["i3.xlarge"])
    """Machine type of a classic cluster. The pipeline is serverless without `node_type` and
    `policy`."""
    policy: Text | None = None
    """Id of the policy of a classic cluster."""
    workers: int | None = Field(default=None, ge=1)
    """Number of workers of a classic cluster."""
    notify_on_failure: Texts = Field(default=(), examples=[["data-team@example.com"]])
    """Recipients of mail when an update has failed."""

    @property
    def serverless(self) -> bool:
        """Return whether the pipeline has no cluster of its own."""
        return self.node_type is None and self.policy is None

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a size without a cluster, and invalid tags."""
        yield from super().conflicts()
        if self.serverless and self.workers is not None:
            yield ("workers",), "has no effect without node_type or policy: remove it"


class Systemd(Section):
    """A systemd service on this machine."""

    name: UnitName | None = None
    """Name of the unit; `distributary-` and the pipeline's name when left out."""
    user: bool = True
    """true: a unit of the user's service manager; false: a unit of the system."""
    run_as: Text | None = Field(default=None, examples=["distributary"])
    """User that a system unit runs as."""
    schedule: Text | None = Field(default=None, examples=["hourly", "*-*-* 02:00:00"])
    """Calendar of a timer; each run processes the available records and ends. The service runs
    continuously when left out."""
    working_directory: AbsolutePath | None = None
    """Folder at which relative paths of the file start; the folder in which `install` runs when
    left out."""
    environment_file: AbsolutePath | None = Field(default=None, examples=["/etc/games.env"])
    """File of variables for `${env:...}`, with mode 0600. Put secrets there, never here."""
    listen: Text | None = Field(default=None, examples=["127.0.0.1:9108"])
    """Address of the health endpoint. There is no endpoint when left out."""
    memory_max: Text | None = Field(default=None, examples=["8G"])
    """Memory limit of the service with all its processes."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that this kind of unit does not support."""
        if self.run_as is not None and self.user:
            yield ("run_as",), "needs user: false"
        if self.listen is not None and self.schedule is not None:
            yield ("listen",), "has no effect with schedule: remove one of the two"


class Airflow(Section):
    """An Airflow DAG with one task."""

    dag_id: DagId | None = None
    """Id of the DAG; the pipeline's name when left out."""
    schedule: Text | None = Field(default="@hourly", examples=["0 * * * *"])
    """Schedule of the runs; each processes the available records and ends."""
    retries: int = Field(default=3, ge=0)
    """Number of retries. A mistake in the pipeline file is not retried."""
    retry_wait: Duration = timedelta(minutes=5)
    """Pause before a retry."""
    folder: Text | None = None
    """Folder for DAG files; `$AIRFLOW_HOME/dags`, or `dags` in the working directory, when left
    out."""
    command: Texts = Field(default=("distributary",), examples=[["/opt/venv/bin/distributary"]])
    """Command on the worker, to which `run FILE` is appended."""
    file: AbsolutePath | None = None
    """Path of the pipeline file on the workers; the same path as here when left out."""
    tags: Texts = ()
    """Further tags of the DAG."""


class SparkSubmit(Section):
    """A script that starts the pipeline with `spark-submit`."""

    master: Text | None = Field(default=None, examples=["spark://host:7077", "yarn"])
    """Spark master; `spark.master` when left out."""
    environment: Literal["archive", "workers"] = "archive"
    """Where executors get their Python packages. archive: from a file that `distributary package`
    writes; workers: the packages are installed on the workers."""
    archive: Text = "environment.tar.gz"
    """Path of that file; a relative path starts at the script."""
    conf: Mapping[str, Text] = Field(
        default_factory=dict, examples=[{"spark.executor.memory": "4g"}]
    )
    """Further Spark settings, each with the prefix `spark.`; never a secret, because they are on a
    command line."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings that do not belong to Spark, or that hold a secret."""
        return _unfit_spark_settings(self.conf)


class Deploy(Section):
    """Where `distributary install FILE --target ...` deploys this pipeline."""

    databricks: Databricks | None = None
    """A job in a Databricks workspace."""
    lakeflow: Lakeflow | None = None
    """A declarative pipeline in a Databricks workspace."""
    systemd: Systemd | None = None
    """A systemd service on this machine."""
    kubernetes: Kubernetes | None = None
    """Manifests and a chart for Kubernetes."""
    airflow: Airflow | None = None
    """A DAG file."""
    spark_submit: SparkSubmit | None = None
    """A script for `spark-submit`."""
    shared: SharedFolders = Field(default=(), examples=[["/mnt/lake"]])
    """Folders that all machines with tasks see under the same path, such as an NFS mount. With
    executors, the lake and the checkpoint must be below one of them or in a bucket."""
