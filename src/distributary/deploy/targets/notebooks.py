"""Notebooks that install, run and feed a pipeline, as an entry of the table of targets."""

from __future__ import annotations

from pathlib import Path

from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.notebook_files import notebooks_target
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_entry import TargetEntry


class NotebooksEntry(TargetEntry):
    """Two notebooks, for Databricks and for Jupyter."""

    name = "notebooks"
    has_own_files = spreads = False

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline."""
        return notebooks_target(pipeline, out=out)

    def hides_folders(self, pipeline: Installable) -> str:
        """Return nothing: where it runs is known to the target that the notebook installs."""
        return ""


ENTRY = NotebooksEntry()
