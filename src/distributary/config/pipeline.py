"""The whole pipeline file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from distributary.config.alerts import Alerts, Lineage, Metrics
from distributary.config.base import (
    TYPE_PLACE,
    Conflict,
    PipelineName,
    Section,
    placeholders,
)
from distributary.config.catalog import catalog_conflicts, iceberg_conflicts
from distributary.config.deploy import Deploy
from distributary.config.engine import AVAILABLE_NOW, Limits, Restart, Run, Spark, TriggerSetting
from distributary.config.expectations import Expectation, expectation_conflicts
from distributary.config.kafka import KafkaSource, Registry
from distributary.config.lake import (
    Evolution,
    Grant,
    IcebergEvolution,
    Lake,
    Maintain,
    Tables,
)
from distributary.config.source import (
    Cdc,
    DeltaSource,
    Envelope,
    FilesSource,
    Framing,
    Payload,
    Shard,
    Source,
    shard_conflicts,
)
from distributary.errors import ConfigError

_CHANGE_DATA_ONLY = ("database", "schema", "table")


_BUCKET_THREADS = 32
"""What waits for a bucket needs no processor."""


def with_envelope(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file in whose template the type's place is short for an envelope, with that envelope.

    `each: "{field:event}"` is `each: "{type}"` with `envelope: {format: json, type: event}`.
    """
    tables = data.get("tables")
    each = tables.get("each") if isinstance(tables, Mapping) else None
    found = TYPE_PLACE.search(each) if isinstance(each, str) else None
    if not isinstance(tables, Mapping) or not isinstance(each, str) or found is None:
        return data
    if data.get("envelope") is not None:
        return data
    place = found["field"] or f"{{{found['other']}}}"
    short = f"{each[: found.start()]}{{type}}{each[found.end() :]}"
    envelope = {"format": "json", "type": place}
    return {**data, "envelope": envelope, "tables": {**tables, "each": short}}


class PipelineConfig(Section):
    """One pipeline: a source, what its records are, and the tables they end up in."""

    name: PipelineName = Field(examples=["games"])
    """Name of the pipeline; part of its checkpoint and of its marks in the tables."""
    source: Source
    """Where records come from."""
    registry: Registry | None = None
    """Where schemas come from; needed for protobuf and Avro on Kafka or Delta."""
    envelope: Envelope | None = None
    """Where each record names its type, or the message around its payload; leave out when the topic
    is all that tells records apart."""
    payload: Payload | None = None
    """The message itself; leave out for files, which name their own format."""
    cdc: Cdc | None = None
    """Given when records are changes of rows in a database."""
    tables: Tables
    """Which tables are kept."""
    lake: Lake
    """Where tables and progress are stored."""
    trigger: TriggerSetting = Field(
        default=AVAILABLE_NOW, examples=["available_now", "continuous", "every 10s"]
    )
    """When batches run: available_now, continuous, or `every` with a duration."""
    evolution: Evolution = Field(default_factory=Evolution, validate_default=True)
    """What happens when a schema changes."""
    expectations: tuple[Expectation, ...] = ()
    """Rules that rows are expected to keep, and what becomes of those that break them."""
    limits: Limits = Field(default_factory=Limits)
    """What is refused."""
    spark: Spark = Field(default_factory=Spark)
    """The Spark session."""
    run: Run = Field(default_factory=Run)
    """How a run behaves when something fails."""
    maintain: Maintain = Field(default_factory=Maintain)
    """What keeps tables small and quick to read."""
    metrics: Metrics = Field(default_factory=Metrics)
    """Numbers for a monitoring system."""
    lineage: Lineage | None = None
    """Where OpenLineage events go; nowhere when left out."""
    restart: Restart = Field(default_factory=Restart)
    """When `up` starts it again after a failure."""
    alerts: Alerts = Field(default_factory=Alerts)
    """Who is told when something needs people."""
    grants: tuple[Grant, ...] = ()
    """Who may read which tables; `distributary grants` says and does it."""
    deploy: Deploy | None = None
    """Where `install` puts this pipeline, and how it runs there."""
    shard: Shard | None = None
    """Which part of a pipeline this is, where several jobs share its types."""

    @model_validator(mode="before")
    @classmethod
    def _type_in_template(cls, data: Any) -> Any:
        return with_envelope(data) if isinstance(data, dict) else data

    @field_validator("payload")
    @classmethod
    def _default_framing(cls, payload: Payload | None, info: ValidationInfo) -> Payload | None:
        # an envelope or registry that is itself invalid is absent from the data: no guess then
        if payload is None or "framing" in payload.model_fields_set:
            return payload
        framing: Framing = "confluent"
        envelope = info.data.get("envelope")
        if envelope is not None and envelope.payload is not None:
            framing = "none"
        elif payload.format == "json":
            framing = "auto" if info.data.get("registry") is not None else "none"
        return payload.model_copy(update={"framing": framing})

    @field_validator("evolution")
    @classmethod
    def _as_the_format_allows(cls, evolution: Evolution, info: ValidationInfo) -> Evolution:
        tables = info.data.get("tables")
        if tables is None or tables.format != "iceberg":
            return evolution
        return IcebergEvolution.model_construct(evolution.model_fields_set, **dict(evolution))

    def conflicts(self) -> Iterator[Conflict]:
        """Sections that need or exclude each other."""
        if isinstance(self.source, FilesSource):
            yield from self._files_conflicts()
        elif self.payload is None:
            yield (), "needs payload for this source, such as payload: {format: protobuf}"
        elif self.registry is None and self.needs_registry:
            yield (), "needs registry, with url or path, for this payload"
        if self.envelope is not None:
            yield from self._envelope_conflicts(self.envelope)
        if isinstance(self.source, DeltaSource) and self.source.timestamp is None:
            if "_date" in self.tables.partition_by:
                yield ("tables", "partition_by"), "needs source.timestamp for _date"
        limit, interval = self.alerts.on.freshness, self.trigger.interval
        # tables would be older than they may be before the next batch even begins
        if limit is not None and interval is not None and limit <= interval:
            yield ("alerts", "on", "freshness"), "must be longer than the trigger's interval"
        if self.spark.remote is not None:
            if self.tables.publisher == "spark":
                yield ("tables", "publisher"), "must be direct with spark.remote: it needs the JVM"
        yield from catalog_conflicts(self)
        yield from iceberg_conflicts(self)
        if self.shard is not None:
            yield from shard_conflicts(self, self.shard)
        events = self.envelope is not None and self.envelope.format == "cloudevents"
        if "cloudevent" in self.tables.metadata and not events:
            yield ("tables", "metadata"), "has cloudevent only with envelope: {format: cloudevents}"
        if self.cdc is not None:
            yield from self._cdc_conflicts()
        else:
            used = placeholders(self.tables.each or "")
            if any(name in _CHANGE_DATA_ONLY for name in used):
                yield ("tables", "each"), "may use {database}, {schema} and {table} with cdc only"
        yield from expectation_conflicts(
            self.expectations, self.tables, changes=self.cdc is not None
        )

    def _envelope_conflicts(self, envelope: Envelope) -> Iterator[Conflict]:
        if "topic" in placeholders(self.tables.each or ""):
            # records of a type may come by several topics
            yield ("tables", "each"), "has no {topic} beside an envelope: use {type}"
        text = self.payload is not None and self.payload.format == "json"
        if envelope.format == "json" and not text:
            if envelope.payload is None and envelope.fields:
                yield ("envelope", "format"), "reads JSON: payload.format must be json too"
            elif envelope.payload is not None and envelope.encoding == "none":
                yield ("envelope", "encoding"), "must be base64: bytes have no place in JSON"
        if isinstance(self.source, DeltaSource) and envelope.type is not None:
            for place, column in (("{key}", "key"), ("{header:", "headers")):
                if envelope.type.startswith(place) and getattr(self.source, column) is None:
                    yield ("source",), f"needs {column}, the column in which types are looked for"

    def _files_conflicts(self) -> Iterator[Conflict]:
        if self.cdc is None:
            yield (), "needs cdc for a source of files, such as cdc: {format: datastream}"
        for name in ("envelope", "payload"):
            if getattr(self, name) is not None:
                yield (name,), "means nothing for a source of files: see source.format"

    def _cdc_conflicts(self) -> Iterator[Conflict]:
        files = isinstance(self.source, FilesSource)
        if self.cdc is not None and (self.cdc.format == "datastream") != files:
            kind = "files" if not files else "kafka or delta"
            yield ("cdc", "format"), f"needs a source of type {kind}"
        if self.envelope is not None:
            yield ("envelope",), "cannot stand beside cdc"
        if "key" in self.tables.metadata:
            yield ("tables", "metadata"), "has no room for key beside the key of the changes"
        if self.tables.format != "delta":
            yield ("tables", "format"), "must be delta for change data: rows are replaced"
        if not self.tables.each:
            yield ("tables",), "needs each for change data, such as each: '{schema}_{table}'"

    @property
    def records(self) -> Payload:
        """What a record is: the payload, or what a source of files makes of its events."""
        if isinstance(self.source, FilesSource):
            # the reader frames each event with the fingerprint of its file's own schema
            avro = self.source.format == "avro"
            return Payload(format="avro") if avro else Payload(format="json", framing="none")
        if self.payload is None:
            raise ConfigError("a pipeline without payload has nothing to decode", where="payload")
        return self.payload

    @property
    def infers(self) -> bool:
        """Whether records may come without any schema, which is then what they look like."""
        payload, envelope = self.records, self.envelope
        if payload.format != "json" or (envelope is not None and envelope.schema_id is not None):
            return False
        if envelope is not None and envelope.has_schema and payload.framing == "none":
            # the registry is there for the envelope
            return True
        return self.registry is None or self.cdc is not None

    @property
    def needs_registry(self) -> bool:
        """Whether records cannot be decoded without a registry."""
        payload, envelope = self.payload, self.envelope
        ids = envelope is not None and (envelope.has_schema or envelope.schema_id is not None)
        return payload is not None and (
            ids or (payload.format, payload.framing, payload.validation) != ("json", "none", "none")
        )

    @property
    def publish_threads(self) -> int:
        """Tables committed at the same time."""
        told = "publish_threads" in self.run.model_fields_set
        return self.run.publish_threads if told or self.lake.is_local else _BUCKET_THREADS

    @property
    def checkpoint_path(self) -> str:
        """The folder of this pipeline's progress."""
        return self.lake.checkpoint_of(self.name)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics known before any record; none for a pattern or files."""
        match self.source:
            case KafkaSource():
                return self.source.topics
            case DeltaSource():
                return (self.source.topic_name,)
        return ()
