"""`verify`: compare a merged table with the rows that its log yields; nothing is changed.

A running pipeline commits a log before the tables that are built from it. A state in between would
look like a difference, so a difference counts only if no batch came in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributary.changes.aggregate_tables import AggregateCheck, verify_aggregates
from distributary.changes.rebuild import Verified, Versions, verify
from distributary.delta.tables import reaching_table
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import state_of
from distributary.engine.requests import merged_table
from distributary.engine.seams import make_publisher
from distributary.engine.steps.aggregate_commits import listed_order
from distributary.observe.ledger.ledger_rows import TableSummary

_TRIES = 3
_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A comparison, with the circumstances for judging it."""

    verified: Verified
    log: str
    parked_batches: int = 0
    """The number of parked batches of the table: their events are in the log already."""
    unfinished: bool = False
    """Whether a batch was under way, or was left unfinished by an ended process."""


def verify_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Checked:
    """Compare one table with its log, now or as of a moment."""
    target = merged_table(pipeline.config, known, make_publisher(pipeline.config))
    manifests = Manifests(pipeline.checkpoint.below("manifests"))
    for _ in range(_TRIES):
        before = _between_batches(pipeline, manifests)
        comparison = verify(target.log_path, target.order, as_of_us=as_of_us)
        unfinished = manifests.settled() < manifests.newest()
        if comparison.agrees or (not unfinished and manifests.newest() == before):
            break
        if state_of(pipeline.checkpoint) != "running":
            break
    else:
        unfinished = True
    return Checked(
        comparison, target.log, known.parked_batches, unfinished and not comparison.agrees
    )


def verify_table_at(pipeline: Pipeline, known: TableSummary, versions: Versions) -> Checked:
    """Compare one table with its log, both at their versions of a cut."""
    target = merged_table(pipeline.config, known, make_publisher(pipeline.config))
    return Checked(verify(target.log_path, target.order, versions=versions), target.log)


def verify_aggregate(pipeline: Pipeline, known: TableSummary) -> AggregateCheck | None:
    """Compare an aggregate table with the groups of its source table; None if there is none.

    A difference counts only if no batch came in between.
    """
    order = listed_order(pipeline.config, known)
    manifests = Manifests(pipeline.checkpoint.below("manifests"))
    check: AggregateCheck | None = None
    for _ in range(_TRIES):
        before = _between_batches(pipeline, manifests)
        with reaching_table(order.path):
            check = verify_aggregates(order)
        if check is None or check.agrees:
            break
        if manifests.newest() == before or state_of(pipeline.checkpoint) != "running":
            break
    return check


def _between_batches(pipeline: Pipeline, manifests: Manifests) -> int:
    """Wait until the batch that is under way is settled; return its number."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while manifests.settled() < manifests.newest() and time.monotonic() < deadline:
        if state_of(pipeline.checkpoint) != "running":
            break
        time.sleep(_POLL_SECONDS)
    return manifests.newest()
