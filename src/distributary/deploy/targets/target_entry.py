"""The entry of a deploy target, as the program uses it; `target_types.py` lists the targets.

The answers here are those of a target that writes files for machines which the user looks after.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from distributary.config.base import Section
from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.errors import ConfigError


class TargetEntry(ABC):
    """A target of `install`."""

    name: ClassVar[str]
    """The value of `--target`."""
    section: ClassVar[str] = ""
    """The section below `deploy`; empty for a target without settings."""
    job_key: ClassVar[str] = ""
    """The setting in the section that names the job; empty where a job has no name."""
    file_key: ClassVar[str] = ""
    """The setting in the section with the path of the pipeline's file there; empty for none."""
    has_own_files: ClassVar[bool] = True
    """Whether files are named after the pipeline, so that several fit into one folder."""
    needs: ClassVar[str] = ""
    """The setting that the target requires; empty if there is none."""
    restarts: ClassVar[bool] = False
    """Whether the target restarts a run that has ended, so that a run should not end by itself."""
    spreads: ClassVar[bool] = True
    """Whether `install --shards` can install the jobs of one pipeline there."""
    starts_runs: ClassVar[bool] = False
    """Whether `install --run` can start a run there."""
    where_instead: ClassVar[str] = (
        "put both in a bucket (s3://, gs://, abfss://), or, if every machine sees the folder "
        "under this path, write deploy: {shared: [FOLDER]}"
    )
    """The next step if lake or checkpoint are in a folder that the target's machines do not see."""

    @abstractmethod
    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline; `out` is a folder for targets that are files."""

    def open_as(self, form: str, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return another form of the target. Raises ConfigError where there is none."""
        raise ConfigError(
            f"{self.name} has no form {form}",
            where="command line",
            next_step=f"leave out --as {form}, which is for databricks",
        )

    def settings(self, pipeline: Installable) -> Section | None:
        """Return the section of the pipeline file; None if it has none."""
        section: Section | None = getattr(pipeline.deploy, self.section, None)
        return section

    def placeholder(self, mark: str) -> Section:
        """Return the section with a mark in place of the setting that it needs."""
        raise LookupError(self.name)

    def unfit(self, pipeline: Installable, environ: Mapping[str, str]) -> Iterator[str]:
        """Yield unknown properties as warnings. Raises ConfigError for what cannot run there."""
        yield from ()

    def master(self, pipeline: Installable) -> str:
        """Return the Spark master of the pipeline there."""
        return pipeline.master

    def hides_folders(self, pipeline: Installable) -> str:
        """Return why the lake cannot be in a folder there; empty if it can."""
        if pipeline.connects:
            return "is a folder that the Spark Connect server and its executors need not see"
        master = self.master(pipeline)
        if re.match(r"local(\[|$)", master):
            return ""
        return f"is a folder that the executors of {master} need not see"

    def shared(self, pipeline: Installable) -> tuple[str, ...]:
        """Return the folders that all machines see under the same path."""
        return pipeline.deploy.shared

    def rename_job(self, section: dict[str, Any], ending: str) -> None:
        """Give the job of a shard a name of its own, in its section of the pipeline file."""
        if self.job_key in section:
            section[self.job_key] = f"{section[self.job_key]}{ending}"

    def point_to_shard(self, section: dict[str, Any], name: str) -> None:
        """Set a path to the pipeline's file to the file of a shard, in a folder beside it."""
        if self.file_key in section:
            there = PurePosixPath(str(section[self.file_key]))
            section[self.file_key] = str(there.with_name(f"{there.stem}.shards") / f"{name}.yaml")
