"""One job in a Databricks workspace, which runs `distributary run`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from distributary.config.deploy import Cluster, Databricks
from distributary.deploy.databricks_target import (
    PIPELINE_TAG,
    Places,
    Settings,
    given,
    principal,
    required_section,
    tagged,
    workspace_target,
)
from distributary.deploy.databricks_workspace import asking
from distributary.deploy.file_targets import DeployTarget, template
from distributary.deploy.pipeline_file import Installable

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

NAME = "databricks"
JOB = "job"
TASK = "run"
_ENVIRONMENT = "default"
_CATALOG = "spark.databricks.sql.initial.catalog.name"
_PAGE = 100


def job_settings(pipeline: str, settings: Databricks, places: Places) -> Settings:
    """Return the complete definition of the job, with its mark among the tags."""
    state = {"pause_status": "PAUSED" if settings.paused else "UNPAUSED"}
    clock = {"quartz_cron_expression": settings.schedule, "timezone_id": settings.timezone}
    version = settings.environment_version
    named = settings.package or places.requirements
    dependency = f"-r {named}" if named.endswith(".txt") else named
    spec = {"environment_version": version, "dependencies": [dependency]}
    mails = {k: list(v) for k, v in settings.notifications.model_dump().items() if v}
    job = given(
        name=settings.job_name or pipeline,
        description=f"Distributary pipeline {pipeline}; made by distributary install",
        max_concurrent_runs=1,
        tasks=[_task(settings, places)],
        tags={**settings.tags, PIPELINE_TAG: pipeline},
        schedule=clock | state if settings.schedule is not None else None,
        continuous=state if settings.continuous else None,
        timeout_seconds=int(settings.timeout.total_seconds()) if settings.timeout else None,
        email_notifications=mails or None,
        run_as=principal(settings.run_as),
        environments=[{"environment_key": _ENVIRONMENT, "spec": spec}]
        if settings.serverless
        else None,
    )
    return tagged(job)


def _task(settings: Databricks, places: Places) -> Settings:
    # without a schedule, the file's own trigger decides when a run ends
    once = ["--available-now"] if settings.schedule is not None else []
    task: Settings = {
        "task_key": TASK,
        "spark_python_task": {
            "python_file": places.program,
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
    return given(
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
    attributes = given(
        availability=spot if cluster.spot else None,
        # the driver's state would be lost with its machine
        first_on_demand=1 if cluster.spot else None,
        zone_id=cluster.zone if kind != "azure" else None,
        instance_profile_arn=cluster.instance_profile if kind == "aws" else None,
    )
    return {f"{kind}_attributes": attributes} if attributes else {}


def job_section(pipeline: Installable) -> Databricks:
    """Return the section about the job. Raises ConfigError without one, and for clear secrets."""
    return required_section(
        pipeline,
        pipeline.deploy.databricks,
        name="databricks",
        what="the pipeline file does not say how to run on Databricks",
        add="{databricks: {serverless: true}}, or a cluster",
    )


def databricks_target(pipeline: Installable) -> DeployTarget:
    """Return the target of `install --target databricks`."""
    settings = job_section(pipeline)
    return workspace_target(
        NAME,
        pipeline,
        settings,
        folder=pipeline.name,
        program=("launch.py", template("launch.py.txt")),
        items=DatabricksJobs,
        kind=JOB,
        define=lambda places: job_settings(pipeline.name, settings, places),
    )


@dataclass(frozen=True, slots=True)
class DatabricksJobs:
    """The jobs of a workspace; satisfies `WorkspaceItems`."""

    client: WorkspaceClient = field(repr=False)
    kind: str = JOB

    def named(self, name: str) -> list[str]:
        """Return the ids of the jobs with exactly this name."""
        with asking(self.client, "list jobs"):
            # the workspace compares names without regard to case
            return [
                str(job.job_id)
                for job in self.client.jobs.list(name=name, limit=_PAGE)
                if job.job_id is not None and job.settings and job.settings.name == name
            ]

    def get(self, item: str) -> Settings | None:
        """Return the definition of a job; None if there is none."""
        from databricks.sdk.errors import NotFound

        with asking(self.client, f"show job {item}"):
            try:
                answer = self.client.jobs.get(int(item))
            except NotFound:
                return None
        return answer.settings.as_dict() if answer.settings else {}

    def create(self, definition: Settings) -> str:
        """Create a job; return its id."""
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, "create the job"):
            settings = JobSettings.from_dict(definition).as_shallow_dict()
            return str(self.client.jobs.create(**settings).job_id or 0)

    def change(self, item: str, definition: Settings) -> None:
        """Replace the definition of a job."""
        from databricks.sdk.service.jobs import JobSettings

        with asking(self.client, f"change job {item}"):
            self.client.jobs.reset(int(item), JobSettings.from_dict(definition))

    def delete(self, item: str) -> None:
        """Delete a job."""
        with asking(self.client, f"remove job {item}"):
            self.client.jobs.delete(int(item))

    def start(self, item: str) -> str:
        """Start a run of a job; return its address below that of the workspace."""
        with asking(self.client, f"start job {item}"):
            run = self.client.jobs.run_now(int(item)).bind()["run_id"]
        return f"jobs/{item}/runs/{run}"
