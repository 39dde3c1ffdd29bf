"""One declarative pipeline in a Databricks workspace, with our decoders.

Databricks owns its tables, its checkpoints and its schedule; ours are the columns and the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributary.config.deploy import Lakeflow
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

NAME = "lakeflow"
PIPELINE = "pipeline"


def pipeline_settings(pipeline: str, settings: Lakeflow, places: Places) -> Settings:
    """Return the complete definition of the pipeline, with its mark among the tags."""
    named = settings.package or places.requirements
    cluster = given(
        label="default",
        node_type_id=settings.node_type,
        policy_id=settings.policy,
        num_workers=settings.workers,
    )
    mails = {
        "email_recipients": list(settings.notify_on_failure),
        "alerts": ["on-update-failure", "on-update-fatal-failure"],
    }
    definition = given(
        name=settings.pipeline_name or pipeline,
        catalog=settings.catalog,
        schema=settings.schema_,
        channel=settings.channel.upper(),
        # written even if false: the workspace returns them, and compares them with nothing else
        continuous=settings.continuous,
        development=settings.development,
        serverless=settings.serverless,
        clusters=None if settings.serverless else [cluster],
        libraries=[{"file": {"path": places.program}}],
        root_path=places.program.rpartition("/")[0],
        configuration={"distributary.pipeline_file": places.file},
        environment={"dependencies": [f"-r {named}" if named.endswith(".txt") else named]},
        notifications=[mails] if settings.notify_on_failure else None,
        run_as=principal(settings.run_as),
        tags={**settings.tags, PIPELINE_TAG: pipeline},
    )
    return tagged(definition)


def pipeline_section(pipeline: Installable) -> Lakeflow:
    """Return the section about the pipeline. Raises ConfigError without one, or with secrets."""
    return required_section(
        pipeline,
        pipeline.deploy.lakeflow,
        name="lakeflow",
        what="the pipeline file does not say where a declarative pipeline keeps its tables",
        add="{lakeflow: {catalog: main, schema: games}}",
    )


def lakeflow_target(pipeline: Installable) -> DeployTarget:
    """Return the target of `install --target lakeflow`."""
    settings = pipeline_section(pipeline)
    return workspace_target(
        NAME,
        pipeline,
        settings,
        # the files of a job of the same file have the same names
        folder=f"{NAME}/{pipeline.name}",
        program=("tables.py", template("tables.py.txt")),
        items=DatabricksPipelines,
        kind=PIPELINE,
        define=lambda places: pipeline_settings(pipeline.name, settings, places),
    )


@dataclass(frozen=True, slots=True)
class DatabricksPipelines:
    """The declarative pipelines of a workspace; satisfies `WorkspaceItems`."""

    client: WorkspaceClient = field(repr=False)
    kind: str = PIPELINE

    def named(self, name: str) -> list[str]:
        """Return the ids of the pipelines with exactly this name."""
        with asking(self.client, "list pipelines"):
            # a name has no quotes, and what its wildcards find is compared
            found = self.client.pipelines.list_pipelines(filter=f"name LIKE '{name}'")
            return [
                it.pipeline_id for it in found if it.pipeline_id is not None and it.name == name
            ]

    def get(self, item: str) -> Settings | None:
        """Return the definition of a pipeline; None if there is none."""
        from databricks.sdk.errors import NotFound

        with asking(self.client, f"show pipeline {item}"):
            try:
                answer = self.client.pipelines.get(item)
            except NotFound:
                return None
        definition = answer.spec.as_dict() if answer.spec else {}
        # the only part that is not in the specification
        return given(**definition, run_as=answer.run_as.as_dict() if answer.run_as else None)

    def create(self, definition: Settings) -> str:
        """Create a pipeline; return its id."""
        with asking(self.client, "create the pipeline"):
            return str(self.client.pipelines.create(**_typed(definition)).pipeline_id)

    def change(self, item: str, definition: Settings) -> None:
        """Replace the definition of a pipeline."""
        with asking(self.client, f"change pipeline {item}"):
            self.client.pipelines.update(item, **_typed(definition))

    def delete(self, item: str) -> None:
        """Delete a pipeline, and none of its tables."""
        with asking(self.client, f"remove pipeline {item}"):
            self.client.pipelines.delete(item, cascade=False)

    def start(self, item: str) -> str:
        """Start an update; return its address below that of the workspace."""
        with asking(self.client, f"start pipeline {item}"):
            update = self.client.pipelines.start_update(item).update_id
        return f"pipelines/{item}/updates/{update}"


def _typed(definition: Settings) -> dict[str, Any]:
    """Return a definition as arguments of the SDK."""
    from databricks.sdk.service.pipelines import PipelineSpec, RunAs

    run_as = definition.get("run_as")
    spec = PipelineSpec.from_dict(definition).as_shallow_dict()
    return given(**spec, run_as=None if run_as is None else RunAs.from_dict(run_as))
