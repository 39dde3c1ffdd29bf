"""The implementation of each seam that a pipeline file asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyspark.sql import SparkSession

from distributary.config.kafka import KafkaSource as KafkaSourceConfig
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.config.source import FilesSource as FilesSourceConfig
from distributary.errors import ConfigError
from distributary.publish.base import Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.mixed import MixedPublisher
from distributary.publish.parquet import ParquetPublisher
from distributary.publish.spark import SparkPublisher
from distributary.registry.base import SchemaRegistry
from distributary.registry.cache import CachedRegistry
from distributary.registry.calls import RegistryCalls
from distributary.registry.carried import CarriedSchemas
from distributary.registry.file_schemas import FileSchemas
from distributary.registry.files import FileRegistry
from distributary.registry.http import HttpRegistry
from distributary.registry.inferred import InferredSchemas
from distributary.run.shard_source import shard_source
from distributary.run.tables import table_folder
from distributary.source.base import Source
from distributary.source.delta import DeltaSource
from distributary.source.files import FilesSource
from distributary.source.kafka import KafkaSource
from distributary.stores.known import introduce


def make_registry(
    config: PipelineConfig, *, calls: RegistryCalls | None = None
) -> SchemaRegistry | None:
    """The folder or server that keeps the schemas; None where records come without any.

    What a server is asked is counted in `calls`.
    """
    settings = config.registry
    if isinstance(config.source, FilesSourceConfig):
        return FileSchemas(file_schemas(config)) if config.source.format == "avro" else None
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
    """What records without a schema have looked like; None where every record has one."""
    if not config.infers:
        return None
    return InferredSchemas(local_folder(config.checkpoint_path) / "inferred", trial=trial)


def make_carried(config: PipelineConfig, *, trial: bool = False) -> CarriedSchemas | None:
    """Schemas that records bring along; None where none do."""
    if config.cdc is None or config.cdc.format != "debezium" or config.records.format != "json":
        return None
    return CarriedSchemas(file_schemas(config), trial=trial)


def file_schemas(config: PipelineConfig) -> Path:
    """Where the schemas in the heads of files are kept."""
    return local_folder(config.checkpoint_path) / "file-schemas"


def schema_cache(config: PipelineConfig) -> Path:
    """Where schemas outlive a run: one folder per registry and context, because ids are its own."""
    places = "\n".join(config.registry.places if config.registry else ())
    registry = hashlib.sha256(places.encode()).hexdigest()[:16]
    return local_folder(config.checkpoint_path) / "schemas" / registry


def local_folder(path: str) -> Path:
    """A folder of this machine; checkpoints on object stores need a conditional put."""
    if "://" in path and not path.startswith("file://"):
        raise ConfigError(
            "the checkpoint must be on a file system",
            where="lake.checkpoint",
            evidence=path,
            next_step="set lake.checkpoint to a folder that the driver can write to",
        )
    return Path(path.removeprefix("file://")).absolute()


def make_source(config: PipelineConfig) -> Source:
    """Where records come from."""
    if config.shard is not None and not config.shard.lands:
        return shard_source(config, config.shard)
    if isinstance(config.source, DeltaSourceConfig):
        return DeltaSource(config.source, storage_options=config.lake.options)
    if isinstance(config.source, KafkaSourceConfig):
        return KafkaSource(config.source)
    return FilesSource(
        config.source,
        folder=local_folder(config.checkpoint_path) / "files",
        schemas=file_schemas(config),
        storage_options={**config.lake.options, **config.source.options},
        max_payload_bytes=config.limits.max_payload_bytes,
    )


def make_publisher(config: PipelineConfig, spark: SparkSession | None = None) -> Publisher:
    """Who commits to the tables."""
    introduce(config.lake.address, config.lake.options)
    if config.cdc is not None and not config.lake.is_local:
        raise ConfigError(
            "change data needs a lake on a file system",
            where="lake.path",
            evidence="files of merged tables are read and written again, many at a time",
            next_step="set lake.path to a folder, or a mounted volume",
        )
    direct = DirectPublisher(storage_options=config.lake.options)
    if config.tables.format == "parquet":
        if not config.lake.is_local:
            raise ConfigError(
                "tables of format parquet need a lake on a file system",
                where="tables.format",
                evidence="an object store has no links and no locks",
                next_step="use format: delta, or a folder as lake.path",
            )
        letters = table_folder(config, config.tables.dead_letters)
        return MixedPublisher(ParquetPublisher(), special={letters: direct})
    # a log that is emptied again is nobody's but ours: it needs no features of Spark's
    hidden = config.cdc is not None and not config.cdc.log
    if config.tables.publisher == "spark" and spark is not None and not hidden:
        return SparkPublisher(spark)
    return direct
