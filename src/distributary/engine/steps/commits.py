"""Step `publish`: commit a decided batch to every table, or park it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from distributary.delta.tables import may_pass
from distributary.engine.context import RunContext
from distributary.engine.kill_points import KillPoint, reached
from distributary.engine.steps.aggregate_commits import follow_tables
from distributary.engine.steps.merges import DERIVED, derive, is_behind
from distributary.engine.steps.unwritable import BEHIND_OTHERS, in_rounds, park_failed, reason_of
from distributary.errors import (
    DistributaryError,
    DivergedError,
    LakeUnavailableError,
    PublishError,
    StagedFileError,
)
from distributary.model.manifest import Manifest, Mark, TableEntry
from distributary.model.table import Role
from distributary.publish.base import Outcome, PreparingPublisher, Published
from distributary.publish.parking import park, parked
from distributary.spark.session import named

_MANY = 50
"""The number of tables from which one sync of the file system is quicker than one per commit."""
_AT_ONCE = 200
"""The largest number of prepared commits: each is an open file, of which a process may have
1,024."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The progress of a batch whose files were lost."""

    kept: Mapping[str, TableEntry]
    """The entries that tables have already, or that are parked."""
    free: tuple[TableEntry, ...]
    """The entries that no table has; their files will never be committed."""
    dead_letters: Mapping[str, int] | None
    """Dead letters by reason, if their entry is kept."""
    batch_us: int | None
    """The time of the batch, which stays."""


def reach_of(context: RunContext, manifest: Manifest) -> Reach:
    """Determine which tables of a batch have it."""
    mark = Mark(context.progress.app_id, manifest.batch, manifest.source_hash)
    kept = {p.table: p.entry for p in parked(context.publishing.parking) if p.mark == mark}
    free: list[TableEntry] = []
    dead: Mapping[str, int] | None = None
    for entry in manifest.tables:
        if entry.table.role in DERIVED or not entry.files:
            continue
        if entry.table.name not in kept:
            try:
                known = context.publishing.publisher.committed(entry.table.path, mark)
            except PublishError:
                continue
            if known is None or known.batch < mark.batch:
                free.append(entry)
                continue
            if known.source_hash != mark.source_hash:
                continue
            kept[entry.table.name] = entry
        if entry.table.role is Role.DEAD_LETTERS:
            dead = manifest.dead_letters
    return Reach(kept, tuple(free), dead, manifest.batch_us)


def publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    """Commit all tables in parallel; the results are in the manifest's order."""
    with context.publishing.lock:
        return _publish_all(context, manifest, fresh=fresh)


def _publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    context.progress.claim.check()
    # from the first commit on, the batch must be recoverable without the checkpoint
    text = context.progress.manifests.text(manifest.batch)
    context.progress.manifest_copy.write(text or manifest.to_json().encode())
    mark = Mark(context.progress.app_id, manifest.batch, manifest.source_hash)
    queued = {p.table for p in parked(context.publishing.parking)}
    behind: set[str] = set()
    commits = itertools.count(1)
    by_spark = context.config.tables.publisher == "spark"

    def publish(entry: TableEntry) -> Published:
        if not by_spark:
            # these commits run no Spark job, so naming jobs would cost as much as the commits
            return context.publishing.publisher.publish(entry, mark)
        name, batch = context.config.name, manifest.batch
        with named(context.spark, pipeline=name, batch=batch, step=f"publish {entry.table.name}"):
            return context.publishing.publisher.publish(entry, mark)

    def one(entry: TableEntry) -> Published | DistributaryError:
        if entry.table.name in queued:
            # batches of a table must be published in order
            park(entry, mark, folder=context.publishing.parking, reason=BEHIND_OTHERS)
            return Published(entry.table.name, Outcome.PARKED, error=BEHIND_OTHERS)
        try:
            if is_behind(context, entry, mark):
                behind.add(entry.table.name)
            if not entry.files and not entry.changes:
                return Published(entry.table.name, Outcome.PUBLISHED)
            context.progress.claim.check()
            result = publish(entry)
            if (
                result.outcome is Outcome.SKIPPED
                and entry.table.name not in context.publishing.marked
            ):
                # its marks could not be read before, so its records must not count as written
                _refuse_foreign_mark(context, entry, mark, fresh=fresh)
        except StagedFileError:
            raise
        except PublishError as error:
            return error
        except DivergedError as error:
            return PublishError(error.what, code=error.code, evidence=error.evidence)
        if next(commits) == 1:
            reached(KillPoint.AFTER_FIRST_COMMIT, manifest.batch)
        return result

    entries = [entry for entry in manifest.tables if entry.table.role not in DERIVED]

    def some(chosen: Sequence[TableEntry]) -> list[Published | DistributaryError]:
        found = _each(context, chosen, mark, one)
        if len(chosen) == len(entries):
            _lake_is_there(found)
        return found

    results = in_rounds(
        some,
        entries,
        again=lambda result: isinstance(result, PublishError) and may_pass(result),
        attempts=context.config.run.publish_attempts,
    )
    published = tuple(
        park_failed(context, entry, mark, reason_of(result))
        if isinstance(result, DistributaryError)
        else result
        for entry, result in zip(entries, results, strict=True)
    )
    done = derive(context, manifest, published, queued=queued, behind=behind, fresh=fresh)
    return follow_tables(context, manifest, done, queued=queued)


def _each(
    context: RunContext,
    entries: Sequence[TableEntry],
    mark: Mark,
    one: Callable[[TableEntry], Published | DistributaryError],
) -> list[Published | DistributaryError]:
    """Publish all entries: prepared together and then one by one, or in parallel."""
    threads = context.config.publish_threads
    known: dict[str, Published | DistributaryError] = {}
    if len(entries) >= _MANY and isinstance(context.publishing.publisher, PreparingPublisher):
        try:
            for start in range(0, len(entries), _AT_ONCE):
                some = entries[start : start + _AT_ONCE]
                ready = context.publishing.publisher.prepare(some, mark)
                for entry in some:
                    if entry.table.name in ready:
                        known[entry.table.name] = one(entry)
        finally:
            context.publishing.publisher.finish(threads=threads)
    others = [entry for entry in entries if entry.table.name not in known]
    with ThreadPoolExecutor(threads) as pool:
        known.update(zip((e.table.name for e in others), pool.map(one, others), strict=True))
    return [known[entry.table.name] for entry in entries]


def _lake_is_there(results: list[Published | DistributaryError]) -> None:
    """Raise LakeUnavailableError if no table at all could be written."""
    failed = [r for r in results if isinstance(r, DistributaryError)]
    if not failed or len(failed) < len(results):
        return
    if len(results) > 1 or isinstance(failed[0], LakeUnavailableError):
        raise failed[0]


def refuse_foreign_marks(context: RunContext, manifest: Manifest, *, fresh: bool) -> None:
    """Raise DivergedError if a table has, or waits for, other records under this batch number.

    Then the checkpoint is older than the tables. The check runs before a batch is decided and
    before it is published, so that nothing of a refused batch is written. A table that was found
    behind this batch is not checked again, because only the owner of the claim writes these marks.
    """
    mark = Mark(context.progress.app_id, manifest.batch, manifest.source_hash)
    for waiting in parked(context.publishing.parking):
        ours = waiting.mark.app_id == mark.app_id and waiting.mark.batch >= mark.batch
        if ours and waiting.mark != mark:
            raise _diverged(context, waiting.table, mark, f"batch {waiting.mark.batch} is parked")
    for entry in manifest.tables:
        name = entry.table.name
        known_behind = fresh and context.publishing.marked.get(name, mark.batch) < mark.batch
        if known_behind or entry.table.role in DERIVED:
            continue
        # a table that cannot be read now is checked again when it is published
        with suppress(PublishError):
            _refuse_foreign_mark(context, entry, mark, fresh=fresh)


def _refuse_foreign_mark(
    context: RunContext, entry: TableEntry, mark: Mark, *, fresh: bool
) -> None:
    committed = context.publishing.publisher.committed(entry.table.path, mark)
    newest = -1 if committed is None else committed.batch
    context.publishing.marked[entry.table.name] = newest
    if committed is None or newest < mark.batch or committed.source_hash == mark.source_hash:
        return
    # a cleaned-up log no longer has the source of its newest mark
    if fresh or committed.source_hash is not None:
        raise _diverged(context, entry.table.name, mark, f"its newest mark is batch {newest}")


def _diverged(context: RunContext, table: str, mark: Mark, evidence: str) -> DivergedError:
    return DivergedError(
        f"table {table} has batch {mark.batch} already, with other records",
        where=context.progress.checkpoint.store.address,
        evidence=evidence,
        next_step="nothing of this batch was written. The checkpoint is older than the table: put "
        "the newest copy back. If this lake is a copy that was made while the pipeline ran, "
        "`distributary backup FILE PLACE` and `distributary restore PLACE` into an empty lake take "
        "all tables back to the last batch that they have in common; `distributary reset` starts "
        "a new life",
    )
