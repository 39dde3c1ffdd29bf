"""`rebuild`: build a merged table again from its log, by one commit.

Only the owner of the checkpoint may do it. A running pipeline receives the request as a file and
does it between two batches; otherwise this process takes the claim.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import Claim, state_of
from distributary.engine.progress.removal import finish_removal
from distributary.engine.requests import Rebuilt, Request, merged_table, rebuild_now
from distributary.engine.seams import make_publisher
from distributary.engine.steps.aggregate_commits import listed_order
from distributary.errors import ConfigError, OwnedError, PublishError
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.store.base import Store, at

_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.1


def rebuild_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Rebuilt:
    """Make a table agree with its log, now or as of a moment; other tables stay unchanged."""
    finish_removal(pipeline)
    publisher = make_publisher(pipeline.config)
    # impossible requests are refused before they are sent
    if known.role == Role.AGGREGATE:
        _refuse_moment(known, as_of_us)
        listed_order(pipeline.config, known)
    else:
        merged_table(pipeline.config, known, publisher)
    lease = pipeline.config.run.lease.total_seconds()
    while True:
        try:
            claim = Claim.take(pipeline.checkpoint, lease=lease)
        except OwnedError as owned:
            done = _ask_for_rebuild(pipeline, known.table, as_of_us, owned)
            if done is None:
                # the pipeline ended before it read the request
                continue
            return done
        try:
            return rebuild_now(
                pipeline.config, pipeline.ledger(), known, publisher, as_of_us=as_of_us
            )
        finally:
            claim.release()


def _refuse_moment(known: TableSummary, as_of_us: int | None) -> None:
    if as_of_us is not None:
        raise ConfigError(
            f"{known.table} is computed from the current rows",
            where="--as-of",
            next_step="leave --as-of out",
        )


def _ask_for_rebuild(
    pipeline: Pipeline, table: str, as_of_us: int | None, owned: OwnedError
) -> Rebuilt | None:
    request = Request(at(pipeline.parking), table, uuid.uuid4().hex, as_of_us)
    request.send()
    try:
        return _awaited(request, pipeline.checkpoint, owned)
    finally:
        request.withdraw()


def _awaited(request: Request, checkpoint: Store, owned: OwnedError) -> Rebuilt | None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        alive = state_of(checkpoint) == "running"
        answer = request.answer()
        if answer is not None:
            return _result_of(answer, checkpoint)
        if not alive:
            return None
        time.sleep(_POLL_SECONDS)
    raise OwnedError(
        "the running pipeline has the request and has not rebuilt the table yet",
        where=owned.where,
        evidence=f"{owned.evidence}; waited {_PATIENCE_SECONDS:.0f} s",
        next_step="it rebuilds tables between two batches: try again later, or stop the pipeline "
        "first",
    )


def _result_of(answer: dict[str, object], checkpoint: Store) -> Rebuilt:
    done = answer.get("rebuilt")
    if isinstance(done, dict):
        return replace(Rebuilt(**done), by_owner=True)
    raise PublishError(
        "the running pipeline could not rebuild the table",
        where=checkpoint.address,
        evidence=str(answer.get("error", "")),
        next_step="fix the reported problem, and try again",
    )
