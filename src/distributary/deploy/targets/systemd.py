"""A systemd service on this machine, as an entry of the table of targets."""

from __future__ import annotations

from pathlib import Path

from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.scripts import systemd_target
from distributary.deploy.targets.target_entry import TargetEntry


class SystemdEntry(TargetEntry):
    """A service, or a timer and its service."""

    name, section, job_key = "systemd", "systemd", "name"
    restarts = True

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline."""
        return systemd_target(pipeline, out=out)


ENTRY = SystemdEntry()
