"""The table of catalogs: by the settings of each, the function that opens it.

A new catalog is its settings in `config/catalog.py`, its module beside this one, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distributary.catalog.base import TableCatalog
from distributary.catalog.glue import GlueTables
from distributary.catalog.spark_catalog import SessionCatalog
from distributary.catalog.unity import UnityTables
from distributary.config.catalog import (
    GlueCatalogConfig,
    HiveCatalogConfig,
    SparkCatalogConfig,
    UnityCatalogConfig,
)
from distributary.config.lake import LakeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Open = Callable[[Any, LakeConfig, Callable[[], "SparkSession"]], TableCatalog]
"""Opens a catalog, given its settings, those of the lake, and a function that returns a session."""

CATALOGS: Mapping[type, Open] = {
    SparkCatalogConfig: lambda settings, _, spark: SessionCatalog(spark(), settings),
    HiveCatalogConfig: lambda settings, _, spark: SessionCatalog(spark(), settings),
    UnityCatalogConfig: lambda settings, _, __: UnityTables(settings),
    GlueCatalogConfig: lambda settings, lake, _: GlueTables(settings, lake.options),
}


def open_catalog(config: PipelineConfig, spark: Callable[[], SparkSession]) -> TableCatalog:
    """Open the catalog of the pipeline file; a session is requested only if it is needed."""
    catalog = config.lake.registered_in
    if catalog is None:
        raise ConfigError("no catalog is named", where="lake.catalog")
    return CATALOGS[type(catalog)](catalog, config.lake, spark)
