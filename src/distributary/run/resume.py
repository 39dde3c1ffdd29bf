"""`resume`: a parked table gets its waiting batches, in order.

Only the owner of the checkpoint may publish. Where the pipeline runs, it is asked by a file in the
parking folder and does it between two batches; where it does not, this process takes the claim.
"""

from __future__ import annotations

import time
from pathlib import Path

from distributary.errors import ConfigError, ErrorCode, OwnedError
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import ParkedBatch, parked
from distributary.run.claim import Claim
from distributary.run.draining import drained, family, request_file
from distributary.run.parts import make_publisher
from distributary.run.pipeline import Pipeline
from distributary.run.removal import finish_removal

_PATIENCE_SECONDS = 120.0


def waiting(pipeline: Pipeline, table: str | None = None) -> list[ParkedBatch]:
    """What waits for parked tables, oldest first; with a table waits what it is made of."""
    folder = pipeline.parking
    names = None if table is None else family(pipeline.config, table)
    return [p for p in parked(folder) if names is None or p.table in names]


def resume(pipeline: Pipeline, table: str) -> list[Published]:
    """Publish what waits for a table; stops at the first batch that still fails."""
    finish_removal(pipeline)
    folder = pipeline.parking
    if not waiting(pipeline, table):
        raise ConfigError(
            f"nothing is parked for table {table}",
            code=ErrorCode.NOT_FOUND,
            where=folder,
            next_step="`distributary status` lists the parked tables",
        )
    lease = pipeline.config.run.lease.total_seconds()
    try:
        claim = Claim.take(pipeline.checkpoint_folder, lease=lease)
    except OwnedError:
        return _ask_the_owner(pipeline, Path(folder), table)
    try:
        publisher = make_publisher(pipeline.config)
        return drained(publisher, pipeline.ledger(), folder, config=pipeline.config, table=table)
    finally:
        claim.release()


def _ask_the_owner(pipeline: Pipeline, folder: Path, table: str) -> list[Published]:
    before = waiting(pipeline, table)
    request = request_file(str(folder), table)
    request.touch()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while request.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    left = {batch.folder for batch in waiting(pipeline, table)}
    done = [Published(b.table, Outcome.PUBLISHED) for b in before if b.folder not in left]
    if left:
        why = "the running pipeline has not answered" if request.exists() else "it failed again"
        done.append(Published(table, Outcome.PARKED, error=why))
    return done
