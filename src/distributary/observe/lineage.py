"""The lineage of one run: collected by the run, sent by a thread of its own.

The run only updates a state for each table, which takes the same time if the server does not
answer: there is no queue that could grow. Unsent data is sent with the next event. A server that
hangs or fails does not delay a batch.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import pyarrow as pa
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    BaseFacet,
    RunFacet,
    column_lineage_dataset,
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

from distributary.config.alerts import Lineage
from distributary.config.base import hide_credentials
from distributary.evolve.types import is_list, is_struct, sql_name
from distributary.model.dataset import Dataset, stored_dataset
from distributary.model.manifest import Counts
from distributary.model.table import Column, Origin, TablePlan
from distributary.model.table_format import TABLE_FORMATS
from distributary.observe.events import BatchSettled, TableWritten

# The columns of tables for OpenLineage: their types, and the fields they come from.

MOST_TOPICS = 5
"""A field that comes from more topics than these has no named origin."""
_MOST_FIELDS = 200
"""The largest number of fields in the lineage of a column: `_rest` of many types has thousands."""
_MOST_SCHEMA_FIELDS = 5000

Clean = Callable[[str], str]
"""Takes secrets out of a text."""
Fields = Mapping[str, tuple[Origin, ...]]
"""The fields whose values each column holds, by column."""


def _schema(columns: Sequence[Column], clean: Clean) -> schema_dataset.SchemaDatasetFacet:
    fields = [
        schema_dataset.SchemaDatasetFacetFields(
            c.name, sql_name(c.type), clean(c.comment) or None, position, _inside(c.type)
        )
        for position, c in enumerate(columns, 1)
    ]
    return schema_dataset.SchemaDatasetFacet(fields)


def _column_lineage(
    columns: Sequence[Column], origins: Fields, inputs: Mapping[str, Dataset]
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return the fields of topics that each column holds; the engine's own columns hold none."""
    direct = [column_lineage_dataset.Transformation("DIRECT", "IDENTITY")]
    fields: dict[str, column_lineage_dataset.Fields] = {}
    for column in columns:
        found = [
            column_lineage_dataset.InputField(
                inputs[name].namespace, inputs[name].name, origin.field, direct
            )
            for origin in origins.get(column.name, ())[:_MOST_FIELDS]
            for name in _topics(origin, inputs)
        ]
        if found:
            fields[column.name] = column_lineage_dataset.Fields(found)
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields)


def _fields_by_topic(
    every: Iterable[Fields], inputs: Mapping[str, Dataset]
) -> dict[str, tuple[str, ...]]:
    """Return every field that some column holds; none for a topic with too many fields."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for origin in (o for each in every for origins in each.values() for o in origins):
        for name in _topics(origin, inputs):
            found[name][origin.field] = None
    return {name: tuple(f) for name, f in found.items() if len(f) <= _MOST_SCHEMA_FIELDS}


def _inside(type_: pa.DataType) -> list[schema_dataset.SchemaDatasetFacetFields]:
    below = type_.value_type if is_list(type_) else type_
    if not is_struct(below):
        return []
    return [
        schema_dataset.SchemaDatasetFacetFields(f.name, sql_name(f.type), fields=_inside(f.type))
        for f in below
    ]


def _topics(origin: Origin, inputs: Mapping[str, Dataset]) -> Iterable[str]:
    if origin.topic in inputs:
        return (origin.topic,)
    return inputs if len(inputs) <= MOST_TOPICS else ()


# OpenLineage events, made from the facts of a run. Pure.

VERSION = version("distributary")
PRODUCER = f"urn:distributary:{VERSION}"


@dataclass(frozen=True, slots=True)
class _TableProgress:
    """The changes that a run has made to one table."""

    table: TablePlan
    origins: Fields
    rows: int = 0
    bytes: int = 0
    files: int = 0
    version: int | None = None
    created: bool = False


@dataclass(frozen=True, slots=True)
class _RunProgress:
    """The progress of a run."""

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


def _output(
    progress: _TableProgress, inputs: Mapping[str, Dataset], clean: Clean, *, whole: bool
) -> OutputDataset:
    """Return a table's current state, with its columns and their fields if `whole` is true."""
    table, dataset = progress.table, stored_dataset(progress.table.path)
    facets: dict[str, Any] = {}
    if progress.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            str(progress.version)
        )
    if whole:
        kind = dataset_type_dataset.DatasetTypeDatasetFacet("TABLE", str(table.role))
        comment = documentation_dataset.DocumentationDatasetFacet(clean(table.comment))
        facets |= {"datasetType": kind, "documentation": comment}
        facets["schema"] = _schema(table.columns, clean)
        if (storage := TABLE_FORMATS[table.format].storage) is not None:
            facets["storage"] = storage_dataset.StorageDatasetFacet(*storage)
        lineage = _column_lineage(table.columns, progress.origins, inputs)
        if lineage.fields:
            facets["columnLineage"] = lineage
        if progress.created:
            created = lifecycle_state_change_dataset.LifecycleStateChange.CREATE
            facets["lifecycleStateChange"] = (
                lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(created)
            )
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=progress.rows, size=progress.bytes, fileCount=progress.files
    )
    own: dict[str, Any] = {"outputStatistics": statistics}
    return OutputDataset(dataset.namespace, clean(dataset.name), facets=facets, outputFacets=own)


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


def _counts(progress: _RunProgress) -> BaseFacet:
    """Build the facet with the equation of a run and its progress."""
    counts = progress.counts
    return RunFacet().with_additional_properties(
        batches=progress.batches,
        lastBatch=progress.last_batch,
        recordsRead=counts.read,
        recordsWritten=counts.written,
        recordsDeadLettered=counts.dead_lettered,
        recordsParked=counts.parked,
        recordsSkipped=counts.skipped,
        recordsFiltered=counts.filtered,
        bytesRead=progress.bytes_read,
    )


def _inputs(
    inputs: Mapping[str, Dataset], progress: _RunProgress, fields: Mapping[str, Sequence[str]]
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
            statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rowCount=progress.counts.read, size=progress.bytes_read
            )
            own["inputStatistics"] = statistics
        yield InputDataset(dataset.namespace, dataset.name, facets=facets, inputFacets=own)


def _signed(event: RunEvent) -> str:
    """Return JSON with our producer name on every facet.

    The library would sign them with its own, unless its one global is changed for everybody.
    """
    document = Serde.to_dict(event)

    def sign(value: Any) -> None:
        if isinstance(value, dict):
            # a column may have this name too, but only in a facet the value is text
            if isinstance(value.get("_producer"), str):
                value["_producer"] = PRODUCER
            for inner in value.values():
                sign(inner)
        elif isinstance(value, list):
            for inner in value:
                sign(inner)

    sign(document)
    return json.dumps(document)


# Where lineage events go: a server, a file, or both.

Sink = Callable[[str], None]
"""Takes one event as JSON; raises OSError when it cannot be delivered."""


def sinks(config: Lineage) -> list[Sink]:
    """Build the sinks that the settings name."""
    found: list[Sink] = [] if config.url is None else [http_sink(config)]
    return found if config.file is None else [*found, file_sink(Path(config.file))]


def file_sink(file: Path) -> Sink:
    """Return a sink that appends one line an event to a file."""
    path = file.absolute()

    def append(event: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as lines:
            lines.write(event + "\n")

    return append


def http_sink(config: Lineage) -> Sink:
    """Posts events; redirects are not followed, the answer is not read."""
    headers = {"Content-Type": "application/json"}
    if config.token is not None:
        headers["Authorization"] = f"Bearer {config.token.get_secret_value()}"
    url = f"{(config.url or '').rstrip('/')}/{config.endpoint.lstrip('/')}"
    seconds = config.timeout.total_seconds()
    client = httpx2.Client(headers=headers, timeout=seconds, follow_redirects=False)

    def post(event: str) -> None:
        try:
            with client.stream("POST", url, content=event.encode()) as answer:
                status = answer.status_code
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            # the text of such an error may quote headers
            raise OSError(f"{type(error).__name__} at {hide_credentials(url)}") from None
        if not 200 <= status < 300:
            raise OSError(f"status {status} from {hide_credentials(url)}")

    return post


_OUTPUTS_PER_EVENT = 100
_PATIENCE_SECONDS = 30.0
"""The pause before the next request to a server that has failed."""
_log = logging.getLogger(__name__)

Shape = tuple[TablePlan, Fields]
"""A table, and the fields that its columns hold."""


@dataclass(frozen=True, slots=True)
class _Update:
    """The data of the next event."""

    inputs: Mapping[str, Dataset]
    progress: _RunProgress
    tables: tuple[tuple[_TableProgress, bool], ...]
    """Each with whether its columns are new, or only numbers are."""
    all: tuple[_TableProgress, ...]
    """Every table, where columns of any are new."""
    end: tuple[str, str] | None
    """The state in which the run has ended, and why."""


class LineageRun:
    """Sends the events of one run to one sink."""

    def __init__(self, facts: RunFacts, sink: Sink, *, every: float) -> None:
        self.lost = 0
        """Events that could not be delivered."""
        self._facts, self._sink, self._every = facts, sink, every
        self._inputs: dict[str, Dataset] = {}
        self._tables: dict[str, _TableProgress] = {}
        self._whole: set[str] = set()
        self._counts: set[str] = set()
        self._progress = _RunProgress()
        self._end: tuple[str, str] | None = None
        self._started = False
        self._due = self._quiet_until = time.monotonic()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)

    def start(self, inputs: Mapping[str, Dataset]) -> None:
        """Start the thread that sends the events of the run."""
        self._inputs.update(inputs)
        self._thread.start()

    def settled(
        self,
        event: BatchSettled,
        inputs: Mapping[str, Dataset],
        tables: Iterable[tuple[TableWritten, Shape]],
    ) -> None:
        """Note a settled batch for the next event; never wait for its delivery."""
        with self._changed:
            self._inputs.update(inputs)
            self._progress = _RunProgress(
                counts=self._progress.counts + event.counts,
                batches=self._progress.batches + 1,
                last_batch=event.batch,
                bytes_read=self._progress.bytes_read + (event.bytes_read or 0),
            )
            for written, shape in tables:
                self._add(written, shape)
            self._changed.notify()

    def end(self, state: str, error: str = "", *, patience: float) -> None:
        """Have the last event sent, COMPLETE, FAIL or ABORT, and wait for it a short time."""
        with self._changed:
            self._end = (state, error)
            self._changed.notify()
        self._thread.join(patience)
        if self.lost:
            _log.warning("%d lineage events could not be delivered", self.lost)

    def _add(self, written: TableWritten, shape: Shape) -> None:
        name = written.table
        table, origins = shape
        known = self._tables.get(name)
        if known is None or (known.table.columns, known.origins) != (table.columns, origins):
            self._whole.add(name)
        before = known or _TableProgress(table, origins)
        self._tables[name] = _TableProgress(
            table,
            origins,
            rows=before.rows + written.rows,
            bytes=before.bytes + written.bytes,
            files=before.files + written.files,
            version=before.version if written.version is None else written.version,
            # the creation of a table is reported once
            created=written.created or (before.created and name in self._whole),
        )
        self._counts.add(name)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (wait := self._seconds_to_wait()) > 0:
                    self._changed.wait(wait)
                update = self._take()
            try:
                delivered = self._tell(update)
            except Exception:
                # an error about one table must not stop the events of all others
                _log.warning("a lineage event could not be made", exc_info=True)
                delivered = update.end is None or self._send(
                    update.end[0], update, error=update.end[1]
                )
            with self._changed:
                self._due = time.monotonic() + self._every
                if not delivered:
                    self._whole |= {
                        progress.table.name for progress, whole in update.tables if whole
                    }
                    self._counts |= {progress.table.name for progress, _ in update.tables}
                    self._quiet_until = time.monotonic() + _PATIENCE_SECONDS
            if update.end is not None:
                return

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        if self._end is not None:
            return 0.0
        if self._started and not self._whole and not self._counts:
            return _PATIENCE_SECONDS
        due = self._due if self._started and not self._whole else now
        return max(due, self._quiet_until) - now

    def _take(self) -> _Update:
        whole, counts = self._whole, self._counts - self._whole
        self._whole, self._counts = set(), set()
        names = [*((name, True) for name in sorted(whole)), *((n, False) for n in sorted(counts))]
        return _Update(
            inputs=dict(self._inputs),
            progress=self._progress,
            tables=tuple((self._tables[name], is_whole) for name, is_whole in names),
            all=tuple(self._tables.values()) if whole else (),
            end=self._end,
        )

    def _tell(self, update: _Update) -> bool:
        if not self._started:
            self._started = self._send("START", update)
            if not self._started and update.end is None:
                return False
        parts, end = update.tables, update.end
        fields = _fields_by_topic(
            (table_progress.origins for table_progress in update.all), update.inputs
        )
        last = max(0, len(parts) - 1) // _OUTPUTS_PER_EVENT * _OUTPUTS_PER_EVENT
        for at in range(0, last + 1, _OUTPUTS_PER_EVENT):
            state, error = end if end is not None and at == last else ("RUNNING", "")
            if not parts and end is None:
                break
            portion = parts[at : at + _OUTPUTS_PER_EVENT]
            table_progress = {} if at else fields
            if (
                not self._send(state, update, portion, fields=table_progress, error=error)
                and end is None
            ):
                return False
        return True

    def _send(
        self,
        state: str,
        update: _Update,
        parts: Sequence[tuple[_TableProgress, bool]] = (),
        *,
        fields: Mapping[str, Sequence[str]] = MappingProxyType({}),
        error: str = "",
    ) -> bool:
        """Send an event and return whether it was delivered.

        `fields` are the fields of each topic.
        """
        facts, inputs = self._facts, update.inputs
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=facts.engine, name="spark", openlineageAdapterVersion=VERSION
            ),
            "distributary": _counts(update.progress),
        }
        if error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=facts.clean(error), programmingLanguage="PYTHON"
            )
        job = Job(facts.namespace, facts.pipeline, facets={"jobType": _job(facts)})
        event = RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=facts.run_id, facets=facets),
            job=job,
            inputs=list(_inputs(inputs, update.progress, fields)),
            outputs=[
                _output(progress, inputs, facts.clean, whole=whole) for progress, whole in parts
            ],
            producer=PRODUCER,
        )
        try:
            self._sink(_signed(event))
        except OSError as failure:
            self.lost += 1
            if self.lost == 1:
                _log.warning("lineage cannot be delivered, the run goes on: %s", failure)
            return False
        return True
