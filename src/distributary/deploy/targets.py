"""The places that `install` knows."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path

from distributary.deploy.pipeline_file import Installable
from distributary.deploy.steps import Target
from distributary.errors import ConfigError


class TargetName(StrEnum):
    """What `--target` takes."""

    AIRFLOW = "airflow"
    DATABRICKS = "databricks"
    KUBERNETES = "kubernetes"
    SPARK_SUBMIT = "spark-submit"
    SYSTEMD = "systemd"


_FILES = {
    TargetName.AIRFLOW: ("distributary.deploy.airflow", "airflow_target"),
    TargetName.KUBERNETES: ("distributary.deploy.kubernetes_target", "kubernetes_target"),
    TargetName.SPARK_SUBMIT: ("distributary.deploy.spark_submit", "spark_submit_target"),
    TargetName.SYSTEMD: ("distributary.deploy.systemd", "systemd_target"),
}
"""Targets that are files, by the function that makes them; one is imported only when asked for."""


def warnings(name: TargetName, pipeline: Installable) -> tuple[str, ...]:
    """What to know before a pipeline is installed there."""
    found = [f"not checked here: {unknown}" for unknown in pipeline.unknown_here]
    deploy = pipeline.deploy
    stays = {TargetName.SYSTEMD: deploy.systemd, TargetName.KUBERNETES: deploy.kubernetes}
    if name in stays and pipeline.ends and getattr(stays[name], "schedule", None) is None:
        found.append(
            "the trigger available_now takes what is there and ends: set trigger to continuous or "
            f"every, or deploy.{name}.schedule"
        )
    return tuple(found)


def open_target(name: TargetName, pipeline: Installable, *, out: Path | None = None) -> Target:
    """The target for one pipeline; `out` is a folder for targets that are files."""
    if name is TargetName.DATABRICKS:
        from distributary.deploy.databricks import databricks_target

        if out is not None:
            raise ConfigError(
                "--out means nothing for databricks",
                where="command line",
                next_step="set deploy.databricks.folder, a folder of the workspace",
            )
        return databricks_target(pipeline)
    module, function = _FILES[name]
    make: Callable[..., Target] = getattr(import_module(module), function)
    return make(pipeline, out=out)
