"""Removal of merged events from a log that is not kept (`cdc.log: false`).

They are committed to a log first, out of sight, because a batch that was half merged must be
found again. What is removed belongs to batches that are settled and for which no table waits. A
process that ends in between leaves a little more behind, which the next one removes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import snapshot_of
from distributary.delta.tables import committing, until_not_overtaken
from distributary.engine.context import RunContext
from distributary.engine.tables import relatives, table_folder
from distributary.errors import PublishError
from distributary.model.table import Role
from distributary.publish.parking import parked
from distributary.stage.files import origin_of
from distributary.store.base import at

_log = logging.getLogger(__name__)


def forget_merged(context: RunContext, logs: Iterable[str]) -> None:
    """Remove from these logs what is in their tables, if no log is to be kept."""
    cdc = context.config.cdc
    if cdc is None or cdc.log:
        return
    waiting = [(p.table, p.lane, p.mark.batch) for p in parked(context.publishing.parking)]
    settled = context.progress.manifests.settled()
    for log in logs:
        family = relatives(log)
        kept = {
            batch
            for table, lane, batch in waiting
            if table in family and lane == context.progress.lane
        }
        try:
            _forget(context, log, settled, kept)
        except (PublishError, OSError) as error:
            # the tables are right; the next batch removes it
            _log.warning("events of %s stay until the next batch: %s", log, type(error).__name__)


def forget_all_merged(context: RunContext) -> None:
    """The same for all logs of a pipeline: what a process that was killed has left."""
    cdc = context.config.cdc
    if cdc is None or cdc.log:
        return
    tables = context.ledger.tables(context.config.name, schema_ids=False)
    forget_merged(context, [t.table for t in tables if t.role == Role.LOG])


def _forget(context: RunContext, log: str, settled: int, kept: set[int]) -> None:
    path = table_folder(context.config, log)

    def is_done(file: str) -> bool:
        found = origin_of(file)
        # other pipelines of the lake may keep the same table, and count their batches themselves
        if found is None or not found.may_be_of(context.config.name):
            return False
        return (
            found.lane == context.progress.lane
            and found.batch <= settled
            and found.batch not in kept
        )

    def attempt() -> None:
        before = snapshot_of(path)
        done = [file for file in before.files.values() if is_done(file.path)] if before else []
        if done:
            rewrite_files(path, before, Change("DELETE", log, removed=done))

    with committing(path, doing="remove what was merged"):
        until_not_overtaken(attempt)
        # nobody reads this log at an older version
        store = at(path)
        files = [file.name for file in store.files(recursive=True)]
        store.remove_files([name for name in files if is_done(name)])
