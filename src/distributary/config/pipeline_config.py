"""The model of the whole pipeline file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from distributary.config.alerts import Alerts, Lineage, MetricsConfig
from distributary.config.base import TYPE_PLACE, Conflict, PipelineName, Section, placeholders
from distributary.config.catalog import IcebergConfig, catalog_conflicts, format_conflicts
from distributary.config.cdc import Cdc
from distributary.config.deploy import Deploy
from distributary.config.lake import Evolution, Grant, LakeConfig, Maintain, NarrowEvolution, Tables
from distributary.config.message import WITH_SCHEMA, Envelope, Framing, PayloadConfig
from distributary.config.registry import RegistryConfig
from distributary.config.rules.aggregates import AggregateConfig, aggregate_conflicts
from distributary.config.rules.expectations import Expectation, expectation_conflicts
from distributary.config.rules.keys import KeyedTables, key_conflicts
from distributary.config.rules.shape import Masking, ShapeConfig, mask_conflicts, shape_conflicts
from distributary.config.runtime import AVAILABLE_NOW, Limits, Restart, Run, Spark, TriggerSetting
from distributary.config.shard import Shard, shard_conflicts
from distributary.config.sources.files import TYPE_OF_FILE
from distributary.config.sources.source_types import Source, types_bringing
from distributary.errors import ConfigError
from distributary.model.rules.shape_rule import RawRecords
from distributary.model.table_format import TABLE_FORMATS, formats_with

_CHANGE_DATA_ONLY = ("database", "schema", "table")


_BUCKET_THREADS = 32
"""The number of commits in parallel to a bucket: threads that wait for it need no core."""


def with_envelope(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the place of the type in the template of tables by an envelope.

    `each: "{field:event}"` becomes `each: "{type}"` with `envelope: {format: json, type: event}`;
    the format is msgpack if that is the payload's.
    """
    tables = data.get("tables")
    each = tables.get("each") if isinstance(tables, Mapping) else None
    match = TYPE_PLACE.search(each) if isinstance(each, str) else None
    if not isinstance(tables, Mapping) or not isinstance(each, str) or match is None:
        return data
    if data.get("envelope") is not None:
        return data
    place = match["field"] or f"{{{match['other']}}}"
    short = f"{each[: match.start()]}{{type}}{each[match.end() :]}"
    payload = data.get("payload")
    format = payload.get("format") if isinstance(payload, Mapping) else None
    envelope = {"format": format if format in ("json", "msgpack") else "json", "type": place}
    return {**data, "envelope": envelope, "tables": {**tables, "each": short}}


def with_plain_files(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the defaults of a source of files without `cdc`: its layout, and the type's place."""
    source = data.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "files" or data.get("cdc"):
        return data
    if source.get("layout", "plain") != "plain":
        return data
    data = {**data, "source": {**source, "layout": "plain"}}
    if data.get("envelope") is None:
        data["envelope"] = {"format": "json", "type": TYPE_OF_FILE}
    return data


class PipelineConfig(Section):
    """One pipeline: a source, the format of its records, and the tables they are written to."""

    name: PipelineName = Field(examples=["games"])
    """Name of the pipeline. It is part of the checkpoint's path and of the marks in the tables'
    logs."""
    source: Source
    """The source of the records."""
    registry: RegistryConfig | None = None
    """The registry of the schemas; required for protobuf and Avro on Kafka or Delta."""
    envelope: Envelope | None = None
    """The message around the payload, or the place where each record names its type. Leave it out
    when the topic alone distinguishes the records."""
    payload: PayloadConfig | None = None
    """The message itself. Leave it out for files, which name their own format."""
    cdc: Cdc | None = None
    """Settings for records that are changes of rows in a database."""
    tables: Tables
    """The tables to keep."""
    keys: tuple[KeyedTables, ...] = ()
    """Tables in which the records with one key become one row."""
    lake: LakeConfig
    """Where tables and progress are stored."""
    trigger: TriggerSetting = Field(
        default=AVAILABLE_NOW,
        examples=["available_now", "continuous", "every 10s", {"freshness": "30s"}],
    )
    """When batches run: available_now, continuous, `every` with a duration, or as rarely as a
    freshness allows: `{freshness: 30s}` makes records readable within 30 seconds, in batches as
    large as possible."""
    evolution: Evolution = Field(default_factory=Evolution, validate_default=True)
    """What to do when a schema changes."""
    shape: tuple[ShapeConfig, ...] = ()
    """Columns by expressions, filters, and columns that are left out or renamed, by tables."""
    masking: Masking | None = None
    """The key of masks in `shape`, and what other layers keep."""
    expectations: tuple[Expectation, ...] = ()
    """Rules about rows, and what to do with rows that break them."""
    aggregates: tuple[AggregateConfig, ...] = ()
    """Tables of counts, sums and bounds for groups of rows, kept current in each batch."""
    limits: Limits = Field(default_factory=Limits)
    """Limits beyond which records are refused."""
    spark: Spark = Field(default_factory=Spark)
    """The Spark session."""
    run: Run = Field(default_factory=Run)
    """Retries, leases and parallelism of a run."""
    maintain: Maintain = Field(default_factory=Maintain)
    """Maintenance that keeps tables small and fast to read."""
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    """Metrics for a monitoring system."""
    lineage: Lineage | None = None
    """Destination of OpenLineage events. No events are sent when left out."""
    restart: Restart = Field(default_factory=Restart)
    """When `up` restarts the pipeline after a failure."""
    alerts: Alerts = Field(default_factory=Alerts)
    """Messages to people when something needs their attention."""
    grants: tuple[Grant, ...] = ()
    """Privileges on the tables; `distributary grants` shows and applies them."""
    deploy: Deploy | None = None
    """Where `install` deploys this pipeline, and how it runs there."""
    shard: Shard | None = None
    """The part of a pipeline that this file runs, where several jobs share its types."""

    @model_validator(mode="before")
    @classmethod
    def _type_in_template(cls, data: Any) -> Any:
        return with_plain_files(with_envelope(data)) if isinstance(data, dict) else data

    @field_validator("payload")
    @classmethod
    def _default_framing(
        cls, payload: PayloadConfig | None, info: ValidationInfo
    ) -> PayloadConfig | None:
        # an envelope or a registry that is invalid is absent from the data, so nothing is inferred
        # from it
        if payload is None or "framing" in payload.model_fields_set:
            return payload
        framing: Framing = "confluent"
        envelope = info.data.get("envelope")
        if envelope is not None and envelope.payload is not None:
            framing = "none"
        elif payload.format not in WITH_SCHEMA:
            framing = "auto" if info.data.get("registry") is not None else "none"
        return payload.model_copy(update={"framing": framing})

    @field_validator("lake")
    @classmethod
    def _with_mirrors(cls, lake: LakeConfig, info: ValidationInfo) -> LakeConfig:
        """Add the mirrors that the format of the tables asks for."""
        tables = info.data.get("tables")
        if tables is None or not TABLE_FORMATS[tables.format].always_mirrored:
            return lake
        iceberg = lake.iceberg or IcebergConfig()
        if iceberg.type is None:
            kind = "sql" if lake.is_local else "none"
            iceberg = iceberg.model_copy(update={"type": kind})
        return lake.model_copy(update={"iceberg": iceberg})

    @field_validator("evolution")
    @classmethod
    def _as_the_format_allows(cls, evolution: Evolution, info: ValidationInfo) -> Evolution:
        tables, lake = info.data.get("tables"), info.data.get("lake")
        if tables is None:
            return evolution
        format_ = TABLE_FORMATS[tables.format]
        mirrored = lake is not None and lake.iceberg is not None and format_.mirrored
        if format_.widens_all and not mirrored:
            return evolution
        return NarrowEvolution.model_construct(evolution.model_fields_set, **dict(evolution))

    def conflicts(self) -> Iterator[Conflict]:
        """Yield sections that need or exclude each other."""
        yield from self.source.conflicts_in(self)
        if self.source.own_payload is None:
            if self.payload is None:
                yield (), "needs payload for this source, such as payload: {format: protobuf}"
            elif self.registry is None and self.needs_registry:
                yield (), "needs registry, with url or path, for this payload"
        if self.envelope is not None:
            yield from self._envelope_conflicts(self.envelope)
        limit, trigger = self.alerts.on.freshness, self.trigger
        between = trigger.interval or trigger.freshness
        # tables would exceed the limit before the next batch begins
        if limit is not None and between is not None and limit <= between:
            yield ("alerts", "on", "freshness"), f"must be longer than {trigger}, the trigger"
        watches = self.cdc is not None and self.cdc.source_url is not None
        if self.alerts.on.held_log is not None and not watches:
            yield ("alerts", "on", "held_log"), "needs cdc.source_url, the source's address"
        if self.alerts.on.held_transactions is not None and self.cdc is None:
            yield ("alerts", "on", "held_transactions"), "needs cdc: other records have none"
        if self.spark.remote is not None:
            if self.tables.publisher == "spark":
                yield ("tables", "publisher"), "must be direct with spark.remote: it needs the JVM"
        yield from catalog_conflicts(self)
        yield from format_conflicts(self)
        if self.shard is not None:
            yield from shard_conflicts(self, self.shard)
        events = self.envelope is not None and self.envelope.format == "cloudevents"
        if "cloudevent" in self.tables.metadata and not events:
            yield (
                ("tables", "metadata"),
                "can hold cloudevent only with envelope: {format: cloudevents}",
            )
        if self.cdc is not None:
            yield from self._cdc_conflicts()
        else:
            used = placeholders(self.tables.each or "")
            if any(name in _CHANGE_DATA_ONLY for name in used):
                yield ("tables", "each"), "may use {database}, {schema} and {table} with cdc only"
        yield from key_conflicts(
            self.keys,
            self.tables,
            cdc=self.cdc is not None,
            envelope=self.envelope is not None,
        )
        yield from shape_conflicts(self.shape, self.tables, self.keys, changes=self.cdc is not None)
        lands = self.shard is not None and self.shard.lands
        yield from mask_conflicts(self.shape, self.tables, self.masking, lands=lands)
        yield from aggregate_conflicts(self.aggregates, self.tables)
        yield from expectation_conflicts(
            self.expectations, self.tables, changes=self.cdc is not None
        )

    def _envelope_conflicts(self, envelope: Envelope) -> Iterator[Conflict]:
        if "topic" in placeholders(self.tables.each or ""):
            # records of one type may come from several topics
            yield ("tables", "each"), "cannot use {topic} with an envelope: use {type}"
        payload = self.source.own_payload or self.payload
        text = payload is not None and payload.format == "json"
        maps = self.payload is not None and self.payload.format == "msgpack"
        if envelope.format == "msgpack" and not maps and envelope.fields and not envelope.payload:
            yield ("envelope", "format"), "reads MessagePack: payload.format must be msgpack too"
        if envelope.format == "json" and not text:
            if envelope.payload is None and envelope.fields:
                yield ("envelope", "format"), "reads JSON: payload.format must be json too"
            elif envelope.payload is not None and envelope.encoding == "none":
                yield ("envelope", "encoding"), "must be base64: JSON cannot hold raw bytes"

    def _cdc_conflicts(self) -> Iterator[Conflict]:
        fitting = () if self.cdc is None else types_bringing(self.cdc.format)
        if self.source.type not in fitting:
            yield ("cdc", "format"), f"needs a source of type {' or '.join(fitting)}"
        if self.envelope is not None:
            yield ("envelope",), "cannot be combined with cdc"
        if self.payload is not None and self.payload.format == "msgpack":
            yield ("payload", "format"), "cannot be msgpack for change data"
        if "key" in self.tables.metadata:
            yield ("tables", "metadata"), "cannot hold key: change data has its own key"
        if not TABLE_FORMATS[self.tables.format].replaces_rows:
            able = formats_with(lambda format_: format_.replaces_rows)
            yield ("tables", "format"), f"must be {able} for change data: rows are replaced"
        if not self.tables.each:
            yield ("tables",), "needs each for change data, such as each: '{schema}_{table}'"

    @property
    def records(self) -> PayloadConfig:
        """Return the format of a record: the payload, or the events of a source of files."""
        payload = self.source.own_payload or self.payload
        if payload is None:
            raise ConfigError("a pipeline without payload has nothing to decode", where="payload")
        return payload

    @property
    def raw_records(self) -> RawRecords:
        """Return what bronze and the dead letters have of whole records."""
        return "keep" if self.masking is None else self.masking.raw

    @property
    def infers(self) -> bool:
        """Return true when records may come without a schema, which is then inferred from them."""
        payload, envelope = self.records, self.envelope
        if payload.format in WITH_SCHEMA or (
            envelope is not None and envelope.schema_id is not None
        ):
            return False
        if envelope is not None and envelope.has_schema and payload.framing == "none":
            # the registry then serves the envelope only
            return True
        return self.registry is None or self.cdc is not None

    @property
    def needs_registry(self) -> bool:
        """Return true when records cannot be decoded without a registry."""
        payload, envelope = self.payload, self.envelope
        ids = envelope is not None and (envelope.has_schema or envelope.schema_id is not None)
        return payload is not None and (
            ids
            or payload.format in WITH_SCHEMA
            or (payload.framing, payload.validation) != ("none", "none")
        )

    @property
    def hides_logs(self) -> bool:
        """Return whether logs lose their events after the merge and are hidden from readers."""
        return self.cdc is not None and not self.cdc.log

    @property
    def publish_threads(self) -> int:
        """Return the number of tables to commit to at the same time."""
        is_set = "publish_threads" in self.run.model_fields_set
        return self.run.publish_threads if is_set or self.lake.is_local else _BUCKET_THREADS

    @property
    def checkpoint_path(self) -> str:
        """Return the folder of this pipeline's progress."""
        return self.lake.checkpoint_of(self.name)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics known before any record; none for a pattern or for files."""
        return self.source.known_topics
