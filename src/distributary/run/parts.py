"""The implementation of each seam that a pipeline file asks for."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.errors import ConfigError
from distributary.publish.base import Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.spark import SparkPublisher
from distributary.registry.base import SchemaRegistry
from distributary.registry.files import FileRegistry
from distributary.source.base import Source
from distributary.source.delta import DeltaSource


def make_registry(config: PipelineConfig) -> SchemaRegistry:
    """The folder or server that keeps the schemas."""
    if config.registry is None or config.registry.path is None:
        raise ConfigError(
            "this version reads schemas from a folder only",
            where="registry",
            next_step="set registry.path",
        )
    return FileRegistry(Path(config.registry.path))


def make_source(config: PipelineConfig) -> Source:
    """Where records come from."""
    if isinstance(config.source, DeltaSourceConfig):
        return DeltaSource(config.source, storage_options=config.lake.options)
    raise ConfigError(
        f"this version reads no source of type {config.source.type}",
        where="source.type",
        next_step="use a source of type delta",
    )


def make_publisher(config: PipelineConfig, spark: SparkSession | None = None) -> Publisher:
    """Who commits to the tables."""
    if config.tables.format != "delta":
        raise ConfigError(
            f"this version writes no tables of format {config.tables.format}",
            where="tables.format",
            next_step="use format: delta",
        )
    if config.tables.publisher == "spark" and spark is not None:
        return SparkPublisher(spark)
    return DirectPublisher(storage_options=config.lake.options)
