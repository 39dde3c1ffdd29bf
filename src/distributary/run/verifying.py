"""`verify`: is a merged table what its log says? Recomputed and compared; nothing is changed.

A running pipeline commits a log before the tables that are made of it. What is found between the
two would look like a difference, so a difference counts only if no batch came in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributary.merge.verify import Verified, verify
from distributary.observe.rows import TableSummary
from distributary.run.checkpoint import Manifests
from distributary.run.claim import state_of
from distributary.run.from_log import merged_table
from distributary.run.parts import make_publisher
from distributary.run.pipeline import Pipeline

_TRIES = 3
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Checked:
    """A comparison, and what has to be known to judge it."""

    verified: Verified
    log: str
    parked_batches: int = 0
    """Batches that wait for the table: their events are in the log already."""
    unfinished: bool = False
    """A batch was under way, or was left half way by a process that ended."""


def verify_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Checked:
    """Compare one table with what its log says, or said at a moment."""
    target = merged_table(pipeline.config, known, make_publisher(pipeline.config))
    manifests = Manifests(pipeline.checkpoint_folder / "manifests")
    for _ in range(_TRIES):
        before = _between_batches(pipeline, manifests)
        found = verify(target.log_path, target.order, as_of_us=as_of_us)
        unfinished = manifests.settled() < manifests.newest()
        if found.agrees or (not unfinished and manifests.newest() == before):
            break
        if state_of(pipeline.checkpoint_folder) != "running":
            break
    else:
        unfinished = True
    return Checked(found, target.log, known.parked_batches, unfinished and not found.agrees)


def _between_batches(pipeline: Pipeline, manifests: Manifests) -> int:
    """Wait until the batch that is under way is settled; returns its number."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while manifests.settled() < manifests.newest() and time.monotonic() < deadline:
        if state_of(pipeline.checkpoint_folder) != "running":
            break
        time.sleep(_POLL_SECONDS)
    return manifests.newest()
