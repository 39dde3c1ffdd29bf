"""Step `publish`, second half, for change data: a log is committed, then its tables follow it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from distributary.errors import ErrorCode, LakeUnavailableError
from distributary.model.manifest import Manifest, TableEntry
from distributary.model.table import Role
from distributary.publish.base import Mark, Outcome, Published
from distributary.publish.parking import park
from distributary.run.change_tables import files_of_commit, log_files, log_of
from distributary.run.chaos import Moment, reached
from distributary.run.context import RunContext
from distributary.run.failing import BEHIND_OTHERS, in_rounds, park_failed
from distributary.run.merging import DERIVED, Merge, merge_all, merge_of


def is_behind(context: RunContext, entry: TableEntry, mark: Mark) -> bool:
    """Whether a log may hold what was never merged: it was there before this life had begun.

    A life that ended, by `reset`, may have written to a log without merging it. The next one finds
    these events in the log, so they are not delivered again. Asked before the log's own commit.
    """
    if entry.table.role is not Role.LOG or context.lane != "stream" or not entry.table.exists:
        return False
    if entry.table.name in context.followed:
        return False
    known = context.publisher.committed(entry.table.path, mark)
    return known is None or known.batch >= mark.batch


def derive(
    context: RunContext,
    manifest: Manifest,
    published: tuple[Published, ...],
    *,
    queued: set[str],
    behind: set[str],
    fresh: bool,
) -> tuple[Published, ...]:
    """Bring the tables that are made of a log up to date with it."""
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    results = {e.table.name: Published(e.table.name, Outcome.PUBLISHED) for e in manifest.tables}
    results |= {result.table: result for result in published}
    entries = {entry.table.name: entry for entry in manifest.tables}
    merges: list[Merge] = []
    for name, entry in entries.items():
        if entry.table.role not in DERIVED:
            continue
        log = log_of(name)
        if name in queued or results[log].outcome is Outcome.PARKED:
            why = BEHIND_OTHERS if name in queued else f"waits for {log}"
            park(entry, mark, folder=context.parking, reason=why)
            results[name] = Published(name, Outcome.PARKED, error=why)
            continue
        whole = log in behind
        files = _files(context, entries[log], mark, results[log], whole=whole, fresh=fresh)
        if files:
            merges.append(merge_of(context.config, entry, mark, files))
    for result in _merged(context, merges, manifest.batch):
        failed = result.outcome is Outcome.PARKED
        entry = entries[result.table]
        results[result.table] = (
            park_failed(context, entry, mark, result.error) if failed else result
        )
    context.followed.update(_written(entries.values(), results))
    return tuple(results[entry.table.name] for entry in manifest.tables)


def _merged(context: RunContext, merges: list[Merge], batch: int) -> list[Published]:
    if not merges:
        return []
    context.claim.check()
    reached(Moment.BEFORE_MERGE, batch)

    def some(chosen: Sequence[Merge]) -> list[Published]:
        done = merge_all(context.spark, chosen)
        if len(chosen) == len(merges):
            _lake_is_there(done)
        return done

    attempts = context.config.run.publish_attempts
    return in_rounds(some, merges, again=lambda result: result.may_pass, attempts=attempts)


def _files(
    context: RunContext,
    log: TableEntry,
    mark: Mark,
    published: Published,
    *,
    whole: bool,
    fresh: bool,
) -> list[str]:
    """The files of a log with the events that its tables have to be told."""
    path = log.table.path
    if whole:
        return log_files(path)
    if fresh and log.files:
        staged = [f"{path}/{file.path}" for file in log.files]
        if all(map(os.path.exists, staged)):
            return staged
        # Spark's writer has put the rows into files of its own
        return files_of_commit(path, published.version or 0) or log_files(path, mark.batch)
    # decided by another process: what was staged then may lie in other files by now, and what an
    # older copy of the checkpoint has brought already is not staged again
    known = context.publisher.committed(path, mark)
    return log_files(path, mark.batch) if known and known.batch >= mark.batch else []


def _lake_is_there(results: list[Published]) -> None:
    """When no table at all can be merged it is the lake that is away: wait, do not park it all."""
    away = [r for r in results if r.error.startswith(f"{ErrorCode.LAKE_UNAVAILABLE}:")]
    if len(results) > 1 and len(away) == len(results):
        raise LakeUnavailableError(
            "no table can be merged",
            evidence=away[0].error,
            next_step="check that the lake can be reached and written to, and has room",
        )


def _written(entries: Iterable[TableEntry], results: dict[str, Published]) -> set[str]:
    """The logs that have this batch; a table that could not follow is queued until `resume`."""
    return {
        entry.table.name
        for entry in entries
        if entry.table.role is Role.LOG and results[entry.table.name].outcome is not Outcome.PARKED
    }
