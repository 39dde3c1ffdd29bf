"""Whether the columns of a pipeline's tables are known before a record is read.

Declarative pipelines fix them when an update begins.
"""

from __future__ import annotations

from distributary.config.pipeline_config import PipelineConfig
from distributary.registry.message_choice import ANY


def unfit_for_flows(config: PipelineConfig) -> str:
    """Return why a declarative pipeline cannot be made of a file; empty if it can."""
    if config.source.no_flows:
        return config.source.no_flows
    if config.cdc is not None:
        return "it reads change data"
    if config.keys:
        return "it merges rows by key (keys)"
    if config.shape:
        return "it shapes its tables (shape)"
    if config.registry is None or config.infers:
        return "its records have no schemas in a registry"
    each = config.tables.each or ""
    if "{type}" not in each and "{record}" not in each:
        return "it has no table for each type (tables.each)"
    if config.envelope is not None and config.envelope.schema_id is None:
        return "its records do not name their schemas (envelope.schema_id)"
    if config.envelope is not None and config.records.subject == ANY:
        return "with payload.subject: any no subject belongs to a type"
    return ""
