"""Builds the implementations that a pipeline file selects: registry, source, publisher."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyspark.sql import SparkSession

from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.formats import FORMATS
from distributary.engine.earlier_tables_publisher import EarlierTablesPublisher
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import table_folder
from distributary.engine.shards.share_source import shard_source
from distributary.errors import ConfigError
from distributary.model.table_format import DELTA, TABLE_FORMATS, stored_format
from distributary.publish.base import MixedPublisher, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.formats.table_format_entry import format_entry
from distributary.registry.base import RegistryCalls, SchemaRegistry
from distributary.registry.cached_registry import CachedRegistry
from distributary.registry.folder import FileRegistry
from distributary.registry.folder_files import file_schemas_folder, inferred_folder
from distributary.registry.http.http_registry import HttpRegistry
from distributary.registry.record_schemas import CarriedSchemas, InferredSchemas
from distributary.source.base import Source
from distributary.source.source_entry import SourceEnds, entry_of
from distributary.store.base import absolute, introduce


def make_registry(
    config: PipelineConfig, *, calls: RegistryCalls | None = None
) -> SchemaRegistry | None:
    """Return the registry, a folder or a server; None if the pipeline has none.

    Requests to a server are counted in `calls`.
    """
    settings = config.registry
    if config.source.own_payload is not None:
        return entry_of(config.source).schemas(config.source, config)
    if settings is None and config.infers:
        return None
    if settings is None:
        raise ConfigError(
            f"payloads of format {config.payload.format if config.payload else '?'} need schemas",
            where="registry",
            next_step="set registry.url, or registry.path for a folder of schemas",
        )
    if settings.path is not None:
        return FileRegistry(Path(settings.path))
    registry = HttpRegistry(settings)
    if calls is not None:
        registry.count_in(calls)
    return CachedRegistry(
        registry,
        folder=schema_cache(config),
        latest_seconds=settings.cache_ttl.total_seconds(),
    )


def make_inferred(config: PipelineConfig, *, trial: bool = False) -> InferredSchemas | None:
    """Return the inferred schemas; None if every record has a schema."""
    if not config.infers:
        return None
    return InferredSchemas(inferred_folder(_checkpoint(config)), trial=trial)


def make_carried(config: PipelineConfig, *, trial: bool = False) -> CarriedSchemas | None:
    """Return the store of schemas that records carry; None if records carry none."""
    language = FORMATS[config.records.format].language
    format_ = strategy_of(config).format
    if format_ is None or not format_.carries_schemas(language):
        return None
    return CarriedSchemas(file_schemas_folder(_checkpoint(config)), trial=trial)


def schema_cache(config: PipelineConfig) -> str:
    """Return the folder for schemas across runs, one per registry and context."""
    places = "\n".join(config.registry.places if config.registry else ())
    registry = hashlib.sha256(places.encode()).hexdigest()[:16]
    return f"{_checkpoint(config)}/schemas/{registry}"


def _checkpoint(config: PipelineConfig) -> str:
    return absolute(config.checkpoint_path)


def make_source(config: PipelineConfig) -> Source:
    """Return the source of the pipeline."""
    if config.shard is not None and not config.shard.lands:
        return shard_source(config, config.shard)
    source: Source = entry_of(config.source).open(config.source, config)
    return source


def require_source(config: PipelineConfig) -> None:
    """Raise SourceUnavailableError if the server of a pipeline's source does not answer."""
    if config.shard is None or config.shard.lands:
        entry_of(config.source).require(config.source)


def make_ends(config: PipelineConfig) -> SourceEnds | None:
    """Return the ends of the source; None if they are not known by offsets."""
    if config.shard is not None and not config.shard.lands:
        return None
    return entry_of(config.source).ends(config.source, config)


def needs_delta(config: PipelineConfig) -> str:
    """Return the setting for which the session of Spark needs Delta Lake; empty without one."""
    if stored_format(config.tables.format) != DELTA:
        return ""
    if config.tables.publisher == "spark":
        return "tables.publisher: spark"
    catalog = config.lake.registered_in
    return f"lake.catalog of type {catalog.type}" if catalog and catalog.by_session else ""


def make_publisher(
    config: PipelineConfig, spark: SparkSession | None = None, *, adopts: bool = False
) -> Publisher:
    """Return the publisher of a pipeline's tables.

    With `adopts`, it gives a Delta log to tables that an earlier version wrote: the caller owns the
    pipeline.
    """
    introduce(config.lake.address, config.lake.options)
    if TABLE_FORMATS[config.tables.format].always_mirrored and config.lake.is_local:
        return EarlierTablesPublisher(config.lake, adopts=adopts)
    usual = format_entry(config.tables.format).publisher(config, spark)
    if stored_format(config.tables.format) == DELTA:
        return usual
    letters = table_folder(config, config.tables.dead_letters)
    return MixedPublisher(usual, special={letters: DirectPublisher()})
