"""`resume`: a parked table gets its waiting batches, in order."""

from __future__ import annotations

from distributary.errors import ConfigError, ErrorCode
from distributary.observe import layout
from distributary.publish.base import Published
from distributary.publish.parking import ParkedBatch, parked
from distributary.publish.parking import resume as drain
from distributary.run.parts import make_publisher
from distributary.run.pipeline import Pipeline


def waiting(pipeline: Pipeline, table: str | None = None) -> list[ParkedBatch]:
    """What waits for parked tables, oldest first."""
    folder = layout.parked(pipeline.lake, pipeline.config.name)
    return [p for p in parked(folder) if table in (None, p.table)]


def resume(pipeline: Pipeline, table: str) -> list[Published]:
    """Publish what waits for a table; stops at the first batch that still fails."""
    batches = waiting(pipeline, table)
    if not batches:
        raise ConfigError(
            f"nothing is parked for table {table}",
            code=ErrorCode.NOT_FOUND,
            where=layout.parked(pipeline.lake, pipeline.config.name),
            next_step="`distributary status` lists the parked tables",
        )
    folder = layout.parked(pipeline.lake, pipeline.config.name)
    ledger = pipeline.ledger()
    results = drain(
        make_publisher(pipeline.config),
        folder,
        table,
        on_published=lambda batch, result: ledger.record_resumed(
            batch.mark.app_id, batch.entry, result, batch=batch.mark.batch
        ),
    )
    return results
