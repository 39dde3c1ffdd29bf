"""Step `publish`: every table of a decided batch gets its commit; one that cannot is parked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from distributary.errors import (
    DistributaryError,
    DivergedError,
    LakeUnavailableError,
    PublishError,
    StagedFileError,
)
from distributary.model.manifest import Manifest, TableEntry
from distributary.model.table import Role
from distributary.publish.base import Mark, Outcome, PreparesCommits, Published
from distributary.publish.failures import may_pass
from distributary.publish.parking import park, parked
from distributary.run.chaos import Moment, reached
from distributary.run.context import RunContext
from distributary.run.deriving import derive, is_behind
from distributary.run.failing import BEHIND_OTHERS, in_rounds, park_failed, reason_of
from distributary.run.merging import DERIVED

_MANY = 50
"""Tables: for fewer it is quicker to sync each commit than the whole file system."""
_AT_ONCE = 200
"""Prepared commits are open files, of which a process may have 1,024 as a rule."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a batch has come, of which files were lost."""

    kept: Mapping[str, TableEntry]
    """What tables have of it already, or wait with."""
    free: tuple[TableEntry, ...]
    """What no table has: nobody will ever name these files."""
    dead_letters: Mapping[str, int] | None
    """By reason, if they are among what is kept."""


def reach_of(context: RunContext, manifest: Manifest) -> Reach:
    """Ask the tables of a batch which of them have it."""
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    kept = {p.table: p.entry for p in parked(context.parking) if p.mark == mark}
    free: list[TableEntry] = []
    dead: Mapping[str, int] | None = None
    for entry in manifest.tables:
        if entry.table.role in DERIVED or not entry.files:
            continue
        if entry.table.name not in kept:
            try:
                known = context.publisher.committed(entry.table.path, mark)
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
    return Reach(kept, tuple(free), dead)


def publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    """Commit all tables in parallel; the results are in the manifest's order."""
    with context.publishing:
        return _publish_all(context, manifest, fresh=fresh)


def _publish_all(context: RunContext, manifest: Manifest, *, fresh: bool) -> tuple[Published, ...]:
    context.claim.check()
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    queued = {p.table for p in parked(context.parking)}
    behind: set[str] = set()
    commits = itertools.count(1)

    def one(entry: TableEntry) -> Published | DistributaryError:
        if entry.table.name in queued:
            # order within a table is kept: what came first must be published first
            park(entry, mark, folder=context.parking, reason=BEHIND_OTHERS)
            return Published(entry.table.name, Outcome.PARKED, error=BEHIND_OTHERS)
        try:
            if is_behind(context, entry, mark):
                behind.add(entry.table.name)
            if not entry.files and not entry.changes:
                return Published(entry.table.name, Outcome.PUBLISHED)
            context.claim.check()
            result = context.publisher.publish(entry, mark)
        except StagedFileError:
            raise
        except PublishError as error:
            return error
        if next(commits) == 1:
            reached(Moment.AFTER_FIRST_COMMIT, manifest.batch)
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
    if fresh:
        _refuse_foreign_marks(context, entries, published, mark)
    return derive(context, manifest, published, queued=queued, behind=behind, fresh=fresh)


def _each(
    context: RunContext,
    entries: Sequence[TableEntry],
    mark: Mark,
    one: Callable[[TableEntry], Published | DistributaryError],
) -> list[Published | DistributaryError]:
    """Every entry, in the quickest way: prepared and then one by one, or in parallel."""
    threads = context.config.run.publish_threads
    known: dict[str, Published | DistributaryError] = {}
    if len(entries) >= _MANY and isinstance(context.publisher, PreparesCommits):
        try:
            for start in range(0, len(entries), _AT_ONCE):
                some = entries[start : start + _AT_ONCE]
                ready = context.publisher.prepare(some, mark)
                for entry in some:
                    if entry.table.name in ready:
                        known[entry.table.name] = one(entry)
        finally:
            context.publisher.finish(threads=threads)
    others = [entry for entry in entries if entry.table.name not in known]
    with ThreadPoolExecutor(threads) as pool:
        known.update(zip((e.table.name for e in others), pool.map(one, others), strict=True))
    return [known[entry.table.name] for entry in entries]


def _lake_is_there(results: list[Published | DistributaryError]) -> None:
    """When nothing at all can be written it is the lake that is away: wait, do not park it all."""
    failed = [r for r in results if isinstance(r, DistributaryError)]
    if not failed or len(failed) < len(results):
        return
    if len(results) > 1 or isinstance(failed[0], LakeUnavailableError):
        raise failed[0]


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
