"""A job in a Databricks workspace, as an entry of the table of targets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distributary.config.base import Section
from distributary.config.deploy import Cluster, Databricks
from distributary.deploy.databricks_files import bundle_target, terraform_target
from distributary.deploy.databricks_job import databricks_target
from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.refusals import other_spark
from distributary.deploy.targets.target_entry import TargetEntry
from distributary.errors import ConfigError, ErrorCode
from distributary.spark.versions import NEEDED, is_supported

# by the first number of a version; Databricks lists both under "release notes"
_RUNTIMES = {13: "3.4", 14: "3.5", 15: "3.5", 16: "3.5", 17: "4.0", 18: "4.1", 19: "4.2"}
_ENVIRONMENTS = {1: "3.5", 2: "3.5", 3: "3.5", 4: "4.0", 5: "4.1"}
_NUMBER = re.compile(r"([0-9]{1,4})\b")
_VOLUMES = "/Volumes"
_OWN_DISK = "/local_disk0"


class DatabricksEntry(TargetEntry):
    """A job."""

    name, section, job_key = "databricks", "databricks", "job_name"
    needs, starts_runs = "deploy.databricks.cluster", True
    where_instead = (
        f"put both in a bucket (s3://, gs://, abfss://), or the checkpoint below {_VOLUMES}"
        f"; {_OWN_DISK} and the like are the disk of one machine, and end with it"
    )

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline. Raises ConfigError for `out`."""
        if out is not None:
            raise ConfigError(
                "--out does not apply to databricks",
                where="command line",
                next_step="set deploy.databricks.folder, a folder of the workspace",
            )
        return databricks_target(pipeline)

    def open_as(self, form: str, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target with an asset bundle or a configuration of Terraform."""
        return {"bundle": bundle_target, "terraform": terraform_target}[form](pipeline, out=out)

    def placeholder(self, mark: str) -> Section:
        """Return the section with a mark in place of the cluster."""
        return Databricks.model_construct(cluster=Cluster.model_construct(id=mark))

    def unfit(self, pipeline: Installable, environ: Mapping[str, str]) -> Iterator[str]:
        """Yield a warning if the runtime's Spark is not known; refuse what cannot run there."""
        settings = pipeline.deploy.databricks
        if settings is None:
            return
        if settings.serverless:
            _refuse_beyond_connect(pipeline)
        yield from _runtime(pipeline, settings)

    def hides_folders(self, pipeline: Installable) -> str:
        """Return why the lake cannot be in a folder of a cluster; empty if it can."""
        return _hidden_folder(pipeline.deploy.databricks)

    def shared(self, pipeline: Installable) -> tuple[str, ...]:
        """Return the volumes, and the folders that the file names."""
        return (_VOLUMES, *pipeline.deploy.shared)

    def rename_job(self, section: dict[str, Any], ending: str) -> None:
        """Give the job of a shard a name and a folder of its own."""
        super().rename_job(section, ending)
        if "folder" in section:
            section["folder"] = f"{str(section['folder']).rstrip('/')}/{ending.lstrip('-')}"


ENTRY = DatabricksEntry()


def _hidden_folder(settings: Databricks | None) -> str:
    if settings is None:
        return ""
    cluster = settings.cluster
    if cluster is None:
        return "is a folder of a machine that ends with the run"
    if cluster.id is not None:
        return f"is a folder that not all machines of cluster {cluster.id} need to see"
    workers = cluster.max_workers or cluster.workers or 0
    if workers:
        return f"is a folder that its {workers} workers do not see"
    return "is a folder of a cluster that ends with the run"


def _refuse_beyond_connect(pipeline: Installable) -> None:
    """Raise ConfigError for settings that serverless compute (Spark Connect) cannot run."""
    reasons = [f"{name} needs the driver's JVM" for name in pipeline.needs_jvm]
    if pipeline.connects:
        reasons.append("spark.remote names another server")
    if pipeline.variables:
        reasons.append(f"variables cannot be set there: {', '.join(pipeline.variables)}")
    if reasons:
        raise ConfigError(
            "serverless compute cannot run this pipeline",
            code=ErrorCode.DEPLOY_UNFIT,
            where=f"{pipeline.path.name} deploy.databricks.serverless",
            evidence="; ".join(reasons),
            next_step="name a cluster in deploy.databricks.cluster, or leave those settings out; "
            "secrets are ${databricks:SCOPE/KEY} there",
            target="databricks",
        )


def _runtime(pipeline: Installable, settings: Databricks) -> Iterator[str]:
    """Warn of a runtime whose Spark is unknown; refuse one with another Spark."""
    if settings.serverless:
        key, given, known = "environment_version", settings.environment_version, _ENVIRONMENTS
    elif settings.cluster is not None and settings.cluster.spark_version is not None:
        key, given, known = "cluster.spark_version", settings.cluster.spark_version, _RUNTIMES
    else:
        yield f"not checked here: whether the cluster's Spark is {NEEDED}"
        return
    number = _NUMBER.match(given)
    spark_version = known.get(int(number[1])) if number else None
    if spark_version is None:
        yield f"not checked here: whether the Spark of {given} is {NEEDED}"
    elif not is_supported(spark_version):
        fitting = [str(n) for n, spark in known.items() if is_supported(spark)]
        raise other_spark(
            f"{pipeline.path.name} deploy.databricks.{key}",
            f"{given} has Spark {spark_version}",
            f"choose {' or '.join(fitting)}" if fitting else "choose another",
        )
