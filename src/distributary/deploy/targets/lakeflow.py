"""A declarative pipeline in a Databricks workspace, as an entry of the table of targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from distributary.config.base import Section
from distributary.config.deploy import Lakeflow
from distributary.deploy.databricks_files import lakeflow_bundle_target
from distributary.deploy.databricks_pipeline import lakeflow_target
from distributary.deploy.file_targets import DeployTarget
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.targets.target_entry import TargetEntry
from distributary.engine.planning.declarative_fit import unfit_for_flows
from distributary.errors import ConfigError, ErrorCode


class LakeflowEntry(TargetEntry):
    """A declarative pipeline."""

    name, section, job_key = "lakeflow", "lakeflow", "pipeline_name"
    needs, spreads, starts_runs = "deploy.lakeflow.catalog", False, True

    def open(self, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target for one pipeline. Raises ConfigError for `out`."""
        if out is not None:
            raise ConfigError(
                "--out does not apply to lakeflow",
                where="command line",
                next_step="set deploy.lakeflow.folder, a folder of the workspace",
            )
        return lakeflow_target(pipeline)

    def open_as(self, form: str, pipeline: Installable, out: Path | None) -> DeployTarget:
        """Return the target with an asset bundle; there is no other form."""
        if form != "bundle":
            return super().open_as(form, pipeline, out)
        return lakeflow_bundle_target(pipeline, out=out)

    def placeholder(self, mark: str) -> Section:
        """Return the section with a mark in place of catalog and schema."""
        return Lakeflow.model_construct(catalog=mark, schema_="<deploy.lakeflow.schema>")

    def unfit(self, pipeline: Installable, environ: Mapping[str, str]) -> Iterator[str]:
        """Yield what is not known here; refuse files that a declarative pipeline cannot run."""
        config = pipeline.loaded.config if pipeline.loaded is not None else None
        reasons = [unfit_for_flows(config)] if config is not None else []
        if pipeline.variables:
            reasons.append(f"variables cannot be set there: {', '.join(pipeline.variables)}")
        if any(reasons):
            raise ConfigError(
                "a declarative pipeline cannot be made of this file",
                code=ErrorCode.DEPLOY_UNFIT,
                where=f"{pipeline.path.name} deploy.lakeflow",
                evidence="; ".join(filter(None, reasons)),
                next_step="install it as a job, with --target databricks; secrets of declarative "
                "pipelines are ${databricks:SCOPE/KEY}",
                target=self.name,
            )
        yield "not checked here: whether the runtime has pyspark.pipelines (Spark 4.1 or newer)"

    def hides_folders(self, pipeline: Installable) -> str:
        """Return nothing: Databricks keeps the tables, and lake.path is not written to."""
        return ""


ENTRY = LakeflowEntry()
