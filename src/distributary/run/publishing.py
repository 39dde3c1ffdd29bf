"""Step `publish`: every table of a decided batch gets its commit; one that cannot is parked."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from distributary.errors import (
    DistributaryError,
    DivergedError,
    LakeUnavailableError,
    PublishError,
    StagedFileError,
)
from distributary.model.manifest import Manifest, TableEntry
from distributary.observe.events import TableParked
from distributary.publish.base import Mark, Outcome, Published
from distributary.publish.parking import park, parked
from distributary.run.change_tables import log_of
from distributary.run.chaos import Moment, reached
from distributary.run.context import RunContext
from distributary.run.merging import DERIVED, merge_all, merge_order


def publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    """Commit all tables in parallel; the results are in the manifest's order."""
    with context.publishing:
        return _publish_all(context, manifest, fresh=fresh)


def _publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    context.claim.check()
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    queued = {p.table for p in parked(context.parking)}
    commits = itertools.count(1)

    def one(entry: TableEntry) -> Published | DistributaryError:
        if entry.table.role in DERIVED:
            return Published(entry.table.name, Outcome.PUBLISHED)
        if not entry.files and not entry.changes:
            return Published(entry.table.name, Outcome.PUBLISHED)
        if entry.table.name in queued:
            # order within a table is kept: what came first must be published first
            park(entry, mark, folder=context.parking, reason="waits behind earlier batches")
            return Published(entry.table.name, Outcome.PARKED, error="waits behind earlier batches")
        try:
            context.claim.check()
            result = context.publisher.publish(entry, mark)
        except StagedFileError:
            raise
        except PublishError as error:
            return error
        if next(commits) == 1:
            reached(Moment.AFTER_FIRST_COMMIT, manifest.batch)
        return result

    entries = list(manifest.tables)
    with ThreadPoolExecutor(context.config.run.publish_threads) as pool:
        results = list(pool.map(one, entries))
    _lake_is_there(entries, results)
    published = tuple(
        _park(context, entry, mark, result) if isinstance(result, DistributaryError) else result
        for entry, result in zip(entries, results, strict=True)
    )
    if fresh:
        _refuse_foreign_marks(context, entries, published, mark)
    return _derive(context, manifest, published, mark, queued)


def _derive(
    context: RunContext,
    manifest: Manifest,
    published: tuple[Published, ...],
    mark: Mark,
    queued: set[str],
) -> tuple[Published, ...]:
    """Bring the tables that are made of a log up to date with it."""
    results = {result.table: result for result in published}
    files = {
        entry.table.name: [f"{entry.table.path}/{file.path}" for file in entry.files]
        for entry in manifest.tables
    }
    orders = []
    for entry in manifest.tables:
        name = entry.table.name
        if entry.table.role not in DERIVED:
            continue
        log = log_of(name)
        if name in queued or results[log].outcome is Outcome.PARKED:
            why = "waits behind earlier batches" if name in queued else f"waits for {log}"
            park(entry, mark, folder=context.parking, reason=why)
            results[name] = Published(name, Outcome.PARKED, error=why)
        else:
            orders.append(merge_order(context.config, entry, mark, files[log]))
    if orders:
        context.claim.check()
        reached(Moment.BEFORE_MERGE, manifest.batch)
    merges = {result.table: result for result in merge_all(context.spark, orders)}
    for entry in manifest.tables:
        result = merges.get(entry.table.name)
        if result is not None and result.outcome is Outcome.PARKED:
            error = PublishError(f"{entry.table.name} could not be merged", evidence=result.error)
            result = _park(context, entry, mark, error)
        if result is not None:
            results[entry.table.name] = result
    return tuple(results[entry.table.name] for entry in manifest.tables)


def _lake_is_there(entries: list[TableEntry], results: list[Published | DistributaryError]) -> None:
    """When nothing at all can be written it is the lake that is away: wait, do not park it all."""
    failed = [r for r in results if isinstance(r, DistributaryError)]
    if not failed or len(failed) < len(entries):
        return
    if len(entries) > 1 or isinstance(failed[0], LakeUnavailableError):
        raise failed[0]


def _park(
    context: RunContext, entry: TableEntry, mark: Mark, error: DistributaryError
) -> Published:
    reason = f"{error.code}: {error.evidence or error.what}"
    park(entry, mark, folder=context.parking, reason=reason)
    context.bus.publish(
        TableParked(
            pipeline=context.config.name,
            batch=mark.batch,
            table=entry.table.name,
            records=entry.records,
            error=reason,
        )
    )
    return Published(entry.table.name, Outcome.PARKED, error=reason)


def _refuse_foreign_marks(
    context: RunContext, entries: list[TableEntry], published: tuple[Published, ...], mark: Mark
) -> None:
    """A batch that was just staged cannot be in a table already, unless the checkpoint is old."""
    for entry, result in zip(entries, published, strict=True):
        if result.outcome is not Outcome.SKIPPED:
            continue
        committed = context.publisher.committed(entry.table.path, mark)
        if committed is None or committed.source_hash != mark.source_hash:
            raise DivergedError(
                f"table {entry.table.name} has batch {mark.batch} already, with other records",
                where=str(context.checkpoint.folder),
                evidence=f"its newest mark is batch {committed.batch if committed else '?'}",
                next_step="the checkpoint is older than the table: put the newest copy back, or "
                "start a new life with `distributary reset`",
            )
