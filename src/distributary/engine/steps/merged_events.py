"""Removal of merged events from a log that is not kept (`cdc.log: false`).

Events are first committed to a hidden log, because an interrupted merge needs them again. Removed
are events of settled batches without parked tables. After a crash in between, the next process
removes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import snapshot_of
from distributary.delta.tables import committing, until_not_overtaken
from distributary.engine.context import RunContext
from distributary.engine.planning.table_book import relatives, table_folder
from distributary.errors import PublishError
from distributary.model.table import Role
from distributary.publish.parking import parked
from distributary.stage.task_outputs import origin_of
from distributary.store.base import at

_log = logging.getLogger(__name__)


def forget_merged(context: RunContext, logs: Iterable[str]) -> None:
    """Remove the merged events from these logs, unless logs are kept."""
    if not context.config.hides_logs:
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
            # the tables are correct; the next batch removes the events
            _log.warning("events of %s stay until the next batch: %s", log, type(error).__name__)


def forget_all_merged(context: RunContext) -> None:
    """Remove the merged events from all logs of a pipeline, after an earlier process."""
    if not context.config.hides_logs:
        return
    tables = context.ledger.tables(context.config.name, schema_ids=False)
    forget_merged(context, [t.table for t in tables if t.role == Role.LOG])


def _forget(context: RunContext, log: str, settled: int, kept: set[int]) -> None:
    path = table_folder(context.config, log)

    def is_done(file: str) -> bool:
        found = origin_of(file)
        # other pipelines may write to the same table, with their own batch numbers
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
        # this log has no readers of older versions
        store = at(path)
        files = [file.name for file in store.files(recursive=True)]
        store.remove_files([name for name in files if is_done(name)])
