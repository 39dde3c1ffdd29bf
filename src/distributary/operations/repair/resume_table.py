"""`resume`: publish the parked batches of a table, in order.

Only the owner of the checkpoint may publish. A running pipeline receives the request as a file in
the parking folder and does it between two batches; otherwise this process takes the claim.
"""

from __future__ import annotations

import time

from distributary.changes.merge_order import Undecided
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.claim import Claim
from distributary.engine.progress.recovery import refuse_lost_parking
from distributary.engine.progress.removal import finish_removal
from distributary.engine.requests import drained, family, request_name
from distributary.engine.seams import make_publisher
from distributary.errors import ConfigError, ErrorCode, OwnedError
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import ParkedBatch, parked
from distributary.store.base import Store, at

_PATIENCE_SECONDS = 120.0


def waiting(pipeline: Pipeline, table: str | None = None) -> list[ParkedBatch]:
    """Return the parked batches, oldest first; of one table with those of its log."""
    folder = pipeline.parking
    names = None if table is None else family(pipeline.config, table)
    return [p for p in parked(folder) if names is None or p.table in names]


def resume(pipeline: Pipeline, table: str, *, undecided: Undecided = "refuse") -> list[Published]:
    """Publish the parked batches of a table; stop at the first one that still fails.

    `undecided` is the user's decision about a source that went back in its log.
    """
    finish_removal(pipeline)
    folder = pipeline.parking
    refuse_lost_waiting(pipeline, table)
    if not waiting(pipeline, table):
        raise ConfigError(
            f"nothing is parked for table {table}",
            code=ErrorCode.NOT_FOUND,
            where=folder,
            next_step="`distributary status` lists the parked tables",
        )
    lease = pipeline.config.run.lease.total_seconds()
    try:
        claim = Claim.take(pipeline.checkpoint, lease=lease)
    except OwnedError:
        return _ask_the_owner(pipeline, at(folder), table, undecided)
    try:
        publisher = make_publisher(pipeline.config)
        return drained(
            publisher,
            pipeline.ledger(),
            folder,
            config=pipeline.config,
            table=table,
            undecided=undecided,
        )
    finally:
        claim.release()


def refuse_lost_waiting(pipeline: Pipeline, table: str) -> None:
    """Raise if a parked batch of a table is lost: later ones must not overtake it."""
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=pipeline.config.name)
    if checkpoint is not None:
        names = family(pipeline.config, table)
        refuse_lost_parking(pipeline.config, pipeline.ledger(), checkpoint.life, names)


def _ask_the_owner(
    pipeline: Pipeline, parking: Store, table: str, undecided: Undecided
) -> list[Published]:
    before = waiting(pipeline, table)
    request = request_name(table)
    word = b"" if undecided == "refuse" else undecided.encode()
    parking.write(request, word, durable=False)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (unanswered := parking.look(request) is not None) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = {batch.folder for batch in waiting(pipeline, table)}
    done = [Published(b.table, Outcome.PUBLISHED) for b in before if b.folder not in left]
    if left:
        why = "the running pipeline has not answered" if unanswered else "it failed again"
        done.append(Published(table, Outcome.PARKED, error=why))
    return done
