"""`reset --table`: a table is taken as it is, because somebody meant it to be so.

Nothing of the table and nothing of the ledger is removed. A row is added to the ledger for every
lane that has written to the table: batches up to here are no longer looked for in it, and its rows
count from what they are now.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributary.errors import ConfigError, ErrorCode, OwnedError, TableBehindError
from distributary.observe.pipelines import registrations
from distributary.observe.recording import Accepted
from distributary.observe.verify import TableCheck, check_table, rows_to_accept, written_tables
from distributary.publish.marks import newest_told
from distributary.run.claim import liveness, refuse_owned
from distributary.run.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What taking a table as it is would say."""

    check: TableCheck
    """The table as it is, and what is wrong with it by the ledger."""
    difference: int
    """Rows that it has more, or fewer, than were written to it."""
    taken: tuple[Accepted, ...]


def plan_acceptance(pipeline: Pipeline, table: str) -> Acceptance:
    """What there is to accept about one table of a pipeline."""
    ledger, options = pipeline.ledger(), pipeline.config.lake.options or None
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
    check = check_table(known, options)
    unreadable = next((f for f in check.findings if f.kind == "unreadable"), None)
    if unreadable is not None:
        raise TableBehindError(
            f"{table} cannot be taken as it is: its log cannot be read",
            where=known.path,
            evidence=unreadable.evidence,
            next_step="put it back from a copy; or, if it may go, remove its folder and say this "
            "again",
        )
    version = newest_told(known.path, check.version)
    difference = left = rows_to_accept(known, check, options)
    # whose rows are gone is not known where several write to one table: its own go first
    lanes = sorted(
        (commit for commit in known.commits if commit.batch is not None),
        key=lambda c: (c.pipeline != pipeline.config.name, -c.rows, c.life, c.lane),
    )
    taken = []
    for commit in lanes:
        share = left if left > 0 else max(left, -commit.rows)
        left -= share
        taken.append(Accepted(commit, commit.batch or 0, share, version))
    return Acceptance(check, difference, tuple(taken))


def accept(pipeline: Pipeline, plan: Acceptance) -> None:
    """Write it down. Whoever writes to the table must not run meanwhile."""
    refuse_running(pipeline, plan)
    pipeline.ledger().accept(plan.taken)


def refuse_running(pipeline: Pipeline, plan: Acceptance) -> None:
    """A batch that is being committed would be counted twice."""
    refuse_owned(pipeline.checkpoint_folder)
    options = pipeline.config.lake.options or None
    for card in registrations(pipeline.lake, storage_options=options):
        if card.name in plan.check.pipelines and liveness(card.checkpoint) == "running":
            raise OwnedError(
                f"pipeline {card.name} is running, and writes to {plan.check.table} too",
                where=card.checkpoint,
                evidence=f"writers: {', '.join(plan.check.pipelines)}",
                next_step="stop it first",
            )
