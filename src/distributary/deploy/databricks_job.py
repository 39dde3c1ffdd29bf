"""The definition of a Databricks job as plain data, and how it compares with one that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import distributary
from distributary.config.deploy import OWN_TAG, Cluster, Databricks
from distributary.deploy.mark import digest

PIPELINE_TAG = f"{OWN_TAG}_pipeline"
DIGEST_TAG = f"{OWN_TAG}_sha256"
TASK = "run"
_ENVIRONMENT = "default"
_WATCHED = ("schedule", "continuous", "trigger")
"""Settings that say when a job runs: one that is there and not in the file is an edit too."""

Settings = dict[str, Any]


def job_settings(pipeline: str, settings: Databricks, *, launcher: str, file: str) -> Settings:
    """Everything that is said of the job, with its mark among the tags."""
    state = "PAUSED" if settings.paused else "UNPAUSED"
    job: Settings = {
        "name": settings.job_name or pipeline,
        "description": f"Distributary pipeline {pipeline}; made by distributary install",
        "max_concurrent_runs": 1,
        "tasks": [_task(settings, launcher=launcher, file=file)],
        "tags": {**settings.tags, PIPELINE_TAG: pipeline},
    }
    if settings.schedule is not None:
        job["schedule"] = {
            "quartz_cron_expression": settings.schedule,
            "timezone_id": settings.timezone,
            "pause_status": state,
        }
    if settings.continuous:
        job["continuous"] = {"pause_status": state}
    if settings.timeout:
        job["timeout_seconds"] = int(settings.timeout.total_seconds())
    if mails := {k: list(v) for k, v in settings.notifications.model_dump().items() if v}:
        job["email_notifications"] = mails
    if settings.serverless:
        job["environments"] = [
            {
                "environment_key": _ENVIRONMENT,
                "spec": {
                    "environment_version": settings.environment_version,
                    "dependencies": [_package(settings)],
                },
            }
        ]
    job["tags"][DIGEST_TAG] = digest(as_text(job))
    return job


def as_text(job: Mapping[str, Any]) -> str:
    """A definition for people, and always the same for the same one."""
    return json.dumps(job, indent=2, sort_keys=True) + "\n"


def belongs_to(job: Mapping[str, Any], pipeline: str) -> bool:
    """Whether a job was made by `install` for this pipeline."""
    return (job.get("tags") or {}).get(PIPELINE_TAG) == pipeline


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


def _task(settings: Databricks, *, launcher: str, file: str) -> Settings:
    # without a clock the file's own trigger says when a run ends
    once = ["--available-now"] if settings.schedule is not None else []
    task: Settings = {
        "task_key": TASK,
        "spark_python_task": {
            "python_file": launcher,
            "parameters": ["run", file, *once],
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
    package = _package(settings)
    library = {"whl": package} if package.endswith(".whl") else {"pypi": {"package": package}}
    place = {"existing_cluster_id": cluster.id} if cluster.id else {"new_cluster": _new(cluster)}
    return task | {"libraries": [library]} | place


def _new(cluster: Cluster) -> Settings:
    made: Settings = {
        "spark_version": cluster.spark_version,
        # the engine talks to the driver's JVM, which a shared cluster does not allow
        "data_security_mode": "SINGLE_USER",
    }
    conf = dict(cluster.spark_conf)
    if cluster.node_type is not None:
        made["node_type_id"] = cluster.node_type
    if cluster.policy is not None:
        made["policy_id"] = cluster.policy
    if cluster.min_workers is not None:
        made["autoscale"] = {
            "min_workers": cluster.min_workers,
            "max_workers": cluster.max_workers,
        }
    else:
        made["num_workers"] = cluster.workers or 0
    if made.get("num_workers") == 0:
        # how Databricks is told that the driver does the work
        conf |= {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*]"}
        made["custom_tags"] = {"ResourceClass": "SingleNode"}
    if conf:
        made["spark_conf"] = conf
    if cluster.env:
        made["spark_env_vars"] = dict(cluster.env)
    return made


def _package(settings: Databricks) -> str:
    return settings.package or f"distributary=={distributary.__version__}"
