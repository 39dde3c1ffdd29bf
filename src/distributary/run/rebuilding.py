"""`rebuild`: a merged table is made anew from its log, by one commit.

Only the owner of the checkpoint may do it. Where the pipeline runs, it is asked by a file and does
it between two batches; where it does not, this process takes the claim.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

from distributary.errors import OwnedError, PublishError
from distributary.observe.rows import TableSummary
from distributary.run.claim import Claim, state_of
from distributary.run.from_log import merged_table
from distributary.run.parts import make_publisher
from distributary.run.pipeline import Pipeline
from distributary.run.rebuild_requests import Rebuilt, Request, rebuild_now
from distributary.run.removal import finish_removal

_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.1


def rebuild_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Rebuilt:
    """Make one table what its log says, or said at a moment; the others stay as they are."""
    finish_removal(pipeline)
    publisher = make_publisher(pipeline.config)
    # what cannot be done is said before anybody is asked to do it
    merged_table(pipeline.config, known, publisher)
    lease = pipeline.config.run.lease.total_seconds()
    while True:
        try:
            claim = Claim.take(pipeline.checkpoint_folder, lease=lease)
        except OwnedError as owned:
            done = _ask_the_owner(pipeline, known.table, as_of_us, owned)
            if done is None:
                # it has ended before it came to it
                continue
            return done
        try:
            return rebuild_now(
                pipeline.config, pipeline.ledger(), known, publisher, as_of_us=as_of_us
            )
        finally:
            claim.release()


def _ask_the_owner(
    pipeline: Pipeline, table: str, as_of_us: int | None, owned: OwnedError
) -> Rebuilt | None:
    folder = Path(pipeline.parking)
    request = Request(folder, table, uuid.uuid4().hex, as_of_us)
    request.send()
    try:
        return _awaited(request, pipeline.checkpoint_folder, owned)
    finally:
        request.withdraw()


def _awaited(request: Request, checkpoint: Path, owned: OwnedError) -> Rebuilt | None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        alive = state_of(checkpoint) == "running"
        answer = request.answer()
        if answer is not None:
            return _told(answer, checkpoint)
        if not alive:
            return None
        time.sleep(_POLL_SECONDS)
    raise OwnedError(
        "the running pipeline was asked, and has not rebuilt the table yet",
        where=owned.where,
        evidence=f"{owned.evidence}; waited {_PATIENCE_SECONDS:.0f} s",
        next_step="it does so between two batches: try again later, or stop it first",
    )


def _told(answer: dict[str, object], checkpoint: Path) -> Rebuilt:
    done = answer.get("rebuilt")
    if isinstance(done, dict):
        return replace(Rebuilt(**done), by_owner=True)
    raise PublishError(
        "the running pipeline could not rebuild the table",
        where=str(checkpoint),
        evidence=str(answer.get("error", "")),
        next_step="mend what it says, and try again",
    )
