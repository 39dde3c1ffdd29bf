"""A Delta table as an entry of the table of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.base import storage_options_of
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.errors import SourceUnavailableError
from distributary.model.check import Check, CheckState
from distributary.model.names import quote_sql
from distributary.observe.log_format import counted
from distributary.source.delta.sample import sample_table
from distributary.source.delta.source import DeltaEnds, DeltaSource
from distributary.source.source_entry import SourceEntry
from distributary.source.source_sample import Sample
from distributary.store.base import introduce

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class DeltaEntry(SourceEntry[DeltaSourceConfig]):
    """A Delta table."""

    def open(self, settings: DeltaSourceConfig, config: PipelineConfig) -> DeltaSource:
        """Return the source that reads the table."""
        return DeltaSource(settings, storage_options=storage_options_of(settings, config.lake))

    def sample(self, settings: DeltaSourceConfig) -> Sample:
        """Read rows of the first and the last file."""
        introduce(settings.path, settings.options)
        return sample_table(settings.path)

    def checks(
        self, settings: DeltaSourceConfig, config: PipelineConfig
    ) -> Iterator[tuple[str, Callable[[], Check]]]:
        """Yield the check of the table and its first file."""
        yield "source", lambda: _table(settings, config)

    def ends(self, settings: DeltaSourceConfig, config: PipelineConfig) -> DeltaEnds | None:
        """Return the end of the table; None if a run does not begin with its first row."""
        # rows before a version that was named are not counted
        if not settings.reads_all:
            return None
        return DeltaEnds(settings, storage_options=storage_options_of(settings, config.lake))

    def stream(self, spark: SparkSession, settings: DeltaSourceConfig) -> DataFrame:
        """Return the table as a stream of Spark's."""
        reader = spark.readStream.format("delta").options(**stream_options(settings))
        return reader.load(settings.path).select(*_columns(settings))


ENTRY = DeltaEntry()


def stream_options(source: DeltaSourceConfig) -> dict[str, str]:
    """Return the options of Delta's stream."""
    if source.starting_version is not None:
        return {"startingVersion": str(source.starting_version)}
    if source.starting_timestamp is not None:
        return {"startingTimestamp": source.starting_timestamp.isoformat()}
    return {}


def _columns(source: DeltaSourceConfig) -> list[Column]:
    from pyspark.sql import functions as f

    def column(name: str | None, kind: str) -> Column:
        return f.lit(None).cast(kind) if name is None else f.col(quote_sql(name)).cast(kind)

    headers = f.lit(None).cast("string")
    if source.headers is not None:
        headers = f.to_json(f.col(quote_sql(source.headers)))
    return [
        column(source.key, "binary").alias("key"),
        column(source.value, "binary").alias("value"),
        headers.alias("headers"),
        f.lit(source.topic_name).alias("topic"),
        f.lit(0).cast("int").alias("partition"),
        f.lit(None).cast("bigint").alias("offset"),
        column(source.timestamp, "timestamp").alias("timestamp"),
    ]


def _table(source: DeltaSourceConfig, config: PipelineConfig) -> Check:
    table = DeltaSource(source, storage_options=storage_options_of(source, config.lake))
    try:
        # what a task does: the log alone says nothing about the files
        first = next(table.peek(table.first()), None)
    except SourceUnavailableError as error:
        if error.context.get("reason") != "missing":
            raise
        registry = config.registry.path if config.registry else None
        return Check(
            "source",
            CheckState.FAIL,
            f"no Delta table at {source.path}",
            f"a table with column {source.value}",
            f"distributary produce games --to delta {source.path} "
            f"--registry {registry or './schemas'}",
        )
    rows = 0 if first is None else first.num_rows
    version = table.newest()["version"] - 1
    found = f"{source.path} at version {version}, {counted(rows, 'record')} read of its first file"
    return Check("source", CheckState.PASS, found, f"a column {source.value}")
