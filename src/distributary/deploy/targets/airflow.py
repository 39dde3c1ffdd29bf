"""A DAG file for Airflow, as an entry of the table of targets."""

from __future__ import annotations

from pathlib import Path

from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.scripts import airflow_target
from distributary.deploy.targets.target_entry import TargetEntry


class AirflowEntry(TargetEntry):
    """A DAG file."""

    name, section, job_key = "airflow", "airflow", "dag_id"
    file_key = "file"

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline."""
        return airflow_target(pipeline, out=out)


ENTRY = AirflowEntry()
