"""`reset --table`: accept a table as it is, because the change was intended.

Nothing of the table or the ledger is removed. The ledger gets a row for every lane that has written
to the table: earlier batches are no longer expected in it, and its rows count from now on.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributary.changes.tombstones import take_as_they_are
from distributary.delta.commit import mend_lost_commit
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.claim import liveness, refuse_owned
from distributary.errors import ConfigError, ErrorCode, OwnedError, TableBehindError
from distributary.model import layout
from distributary.observe.cards import registrations
from distributary.observe.ledger.recording import Accepted
from distributary.observe.verify.gaps import lost_parking
from distributary.observe.verify.row_counts import (
    TableCheck,
    check_table,
    rows_to_accept,
    written_tables,
)
from distributary.publish.parking import newest_with_content
from distributary.store.base import at


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The consequences of accepting a table as it is."""

    check: TableCheck
    """The table as it is, with its differences from the ledger."""
    difference: int
    """The number of rows by which it differs from the rows written to it."""
    taken: tuple[Accepted, ...]


def plan_acceptance(pipeline: Pipeline, table: str) -> Acceptance:
    """Return the acceptance of one table of a pipeline."""
    ledger = pipeline.ledger()
    tables = written_tables(pipeline.lake, ledger.last_commits(), parked={}, files={})
    mine = [t for t in tables if pipeline.config.name in t.pipelines]
    known = next((t for t in mine if t.table == table), None)
    if known is None:
        names = ", ".join(t.table for t in mine[:10])
        raise ConfigError(
            f"pipeline {pipeline.config.name} has never written to a table of this name",
            code=ErrorCode.NOT_FOUND,
            where=table,
            evidence=f"its tables: {names}" if names else "it has written to no table",
            next_step="distributary tables",
        )
    check = check_table(known)
    unreadable = next((f for f in check.findings if f.kind == "unreadable"), None)
    if unreadable is not None:
        raise TableBehindError(
            f"{table} cannot be accepted: its log cannot be read",
            where=known.path,
            evidence=unreadable.evidence,
            next_step="restore it from a copy; or, if the table is not needed, remove its folder "
            "and repeat the command",
        )
    version = newest_with_content(known.path, check.version)
    difference = left = rows_to_accept(known, check)
    # if several pipelines write to one table, the owner of missing rows is unknown: its own count
    # first
    lost = {
        (row.life, row.lane): row.batch
        for row in lost_parking(ledger, pipeline.config.name, pipeline.parking)
        if row.table == table
    }
    lanes = sorted(
        (c for c in known.commits if c.batch is not None or (c.life, c.lane) in lost),
        key=lambda c: (c.pipeline != pipeline.config.name, -c.rows, c.life, c.lane),
    )
    taken = []
    for commit in lanes:
        share = left if left > 0 else max(left, -commit.rows)
        left -= share
        own = commit.pipeline == pipeline.config.name
        newest = max(commit.batch or 0, lost.get((commit.life, commit.lane), 0) if own else 0)
        taken.append(Accepted(commit, newest, share, version))
    return Acceptance(check, difference, tuple(taken))


def accept(pipeline: Pipeline, plan: Acceptance) -> None:
    """Write the acceptance into the ledger. No writer of the table may run meanwhile."""
    refuse_running(pipeline, plan)
    path, table = plan.check.path, plan.check.table
    mend_lost_commit(at(path))
    take_as_they_are(path, layout.tombstones(pipeline.lake, table), table=table)
    pipeline.ledger().accept(plan.taken)


def refuse_running(pipeline: Pipeline, plan: Acceptance) -> None:
    """Raise OwnedError if a writer of the table runs: its batch would be counted twice."""
    refuse_owned(pipeline.checkpoint)
    for card in registrations(pipeline.lake):
        if card.name in plan.check.pipelines and liveness(card.checkpoint) == "running":
            raise OwnedError(
                f"pipeline {card.name} is running, and writes to {plan.check.table} too",
                where=card.checkpoint,
                evidence=f"writers: {', '.join(plan.check.pipelines)}",
                next_step="stop it first",
            )
