"""OpenLineage events, made of what is known of a run. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    BaseFacet,
    RunFacet,
    dataset_type_dataset,
    dataset_version_dataset,
    documentation_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
)
from openlineage.client.serde import Serde

from distributary.model.manifest import Counts
from distributary.model.table import TablePlan
from distributary.observe.lineage_columns import Clean, Fields, column_lineage, schema_facet
from distributary.observe.lineage_names import Dataset, place

VERSION = version("distributary")
PRODUCER = f"urn:distributary:{VERSION}"


@dataclass(frozen=True, slots=True)
class Told:
    """What a run has done to one table."""

    table: TablePlan
    origins: Fields
    rows: int = 0
    bytes: int = 0
    files: int = 0
    version: int | None = None
    created: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run has done so far."""

    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    last_batch: int | None = None
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What stays the same through a run."""

    run_id: str
    namespace: str
    pipeline: str
    streaming: bool
    engine: str
    every_seconds: float
    clean: Clean


def run_event(
    facts: RunFacts,
    state: str,
    *,
    progress: Progress,
    inputs: Mapping[str, Dataset],
    outputs: Iterable[OutputDataset] = (),
    fields: Mapping[str, Sequence[str]] | None = None,
    error: str = "",
) -> str:
    """One event as JSON. `fields` are the fields of each topic, where they are to be told."""
    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=facts.engine, name="spark", openlineageAdapterVersion=VERSION
        ),
        "distributary": _counts(progress),
    }
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=facts.clean(error), programmingLanguage="PYTHON"
        )
    event = RunEvent(
        eventType=RunState[state],
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=facts.run_id, facets=facets),
        job=Job(namespace=facts.namespace, name=facts.pipeline, facets={"jobType": _job(facts)}),
        inputs=list(_inputs(inputs, progress, fields or {})),
        outputs=list(outputs),
        producer=PRODUCER,
    )
    return _signed(event)


def output(
    told: Told, inputs: Mapping[str, Dataset], clean: Clean, *, whole: bool
) -> OutputDataset:
    """A table as it is now; with its columns and their fields when it is told `whole`."""
    dataset = place(told.table.path)
    facets: dict[str, Any] = {}
    if told.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(told.version))
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=told.rows, size=told.bytes, fileCount=told.files
    )
    return OutputDataset(
        dataset.namespace,
        clean(dataset.name),
        facets=facets | (_described(told, inputs, clean) if whole else {}),
        outputFacets={"outputStatistics": statistics},
    )


def _described(told: Told, inputs: Mapping[str, Dataset], clean: Clean) -> dict[str, Any]:
    table = told.table
    facets: dict[str, Any] = {
        "datasetType": dataset_type_dataset.DatasetTypeDatasetFacet("TABLE", str(table.role)),
        "documentation": documentation_dataset.DocumentationDatasetFacet(clean(table.comment)),
        "schema": schema_facet(table.columns, clean),
    }
    if table.format == "delta":
        facets["storage"] = storage_dataset.StorageDatasetFacet("delta", "parquet")
    lineage = column_lineage(table.columns, told.origins, inputs)
    if lineage.fields:
        facets["columnLineage"] = lineage
    if told.created:
        facets["lifecycleStateChange"] = (
            lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
                lifecycle_state_change_dataset.LifecycleStateChange.CREATE
            )
        )
    return facets


def _job(facts: RunFacts) -> job_type_job.JobTypeJobFacet:
    return job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if facts.streaming else "BATCH",
        integration="DISTRIBUTARY",
        jobType="PIPELINE",
        emissionPattern=job_type_job.EmissionPattern(
            eventTrigger="PERIODIC" if facts.streaming else "EVENT_BASED",
            eventContentMode="ACCUMULATIVE",
            windowDuration=round(facts.every_seconds) or None,
        ),
    )


def _counts(progress: Progress) -> BaseFacet:
    """The equation of a run, and how far it got: a facet of our own."""
    counts = progress.counts
    return RunFacet().with_additional_properties(
        batches=progress.batches,
        lastBatch=progress.last_batch,
        recordsRead=counts.read,
        recordsWritten=counts.written,
        recordsDeadLettered=counts.dead_lettered,
        recordsParked=counts.parked,
        recordsSkipped=counts.skipped,
        bytesRead=progress.bytes_read,
    )


def _inputs(
    inputs: Mapping[str, Dataset], progress: Progress, fields: Mapping[str, Sequence[str]]
) -> Iterator[InputDataset]:
    for name, dataset in inputs.items():
        facets: dict[str, Any] = {
            "datasetType": dataset_type_dataset.DatasetTypeDatasetFacet(dataset.kind)
        }
        if fields.get(name):
            columns = [schema_dataset.SchemaDatasetFacetFields(each) for each in fields[name]]
            facets["schema"] = schema_dataset.SchemaDatasetFacet(columns)
        own: dict[str, Any] = {}
        if len(inputs) == 1:
            own["inputStatistics"] = (
                input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=progress.counts.read, size=progress.bytes_read
                )
            )
        yield InputDataset(dataset.namespace, dataset.name, facets=facets, inputFacets=own)


def _signed(event: RunEvent) -> str:
    """As JSON, with our name on every facet.

    The library would sign them with its own, unless its one global is changed for everybody.
    """
    document = Serde.to_dict(event)

    def sign(value: Any) -> None:
        if isinstance(value, dict):
            # a column may be called anything: of facets alone it is text
            if isinstance(value.get("_producer"), str):
                value["_producer"] = PRODUCER
            for inner in value.values():
                sign(inner)
        elif isinstance(value, list):
            for inner in value:
                sign(inner)

    sign(document)
    return json.dumps(document)
