"""Without a log to keep: the events of a batch are removed once their tables have them.

They are committed to a log first, out of sight, because a batch that was half merged must be found
again. What is removed belongs to batches that are settled and for which no table waits. A process
that ends in between leaves a little more behind, which the next one removes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from distributary.errors import PublishError
from distributary.merge.commit import Changeset, commit
from distributary.merge.snapshot import load
from distributary.merge.usable import folder_of, merging
from distributary.model.table import Role
from distributary.publish.parking import parked
from distributary.publish.races import until_not_overtaken
from distributary.run.change_tables import relatives
from distributary.run.context import RunContext
from distributary.run.tables import table_folder

_log = logging.getLogger(__name__)

_NAME = re.compile(r"part-([a-z]+)-(\d+)-[^/]*\.parquet")
"""What `stage.names.file_name` makes: of which lane and batch a file is."""


def forget_merged(context: RunContext, logs: Iterable[str]) -> None:
    """Remove from these logs what is in their tables, if no log is to be kept."""
    cdc = context.config.cdc
    if cdc is None or cdc.log:
        return
    waiting = [(p.table, p.lane, p.mark.batch) for p in parked(context.parking)]
    settled = context.manifests.settled()
    for log in logs:
        family = relatives(log)
        kept = {batch for table, lane, batch in waiting if table in family and lane == context.lane}
        try:
            _forget(table_folder(context.config, log), log, context.lane, settled, kept)
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


def _forget(path: str, log: str, lane: str, settled: int, kept: set[int]) -> None:
    folder = folder_of(path)

    def is_done(file: str) -> bool:
        found = _NAME.fullmatch(file.rpartition("/")[2])
        if found is None or found[1] != lane:
            return False
        return int(found[2]) <= settled and int(found[2]) not in kept

    def attempt() -> None:
        before = load(folder)
        done = [file for file in before.files if is_done(file.path)] if before else []
        if done:
            commit(folder, before, Changeset("DELETE", log, removed=done))

    with merging(path, doing="remove what was merged"):
        until_not_overtaken(attempt)
    # nobody reads this log at an older version
    for file in Path(folder).rglob("part-*.parquet"):
        if is_done(file.name):
            file.unlink(missing_ok=True)
