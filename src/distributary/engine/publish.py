"""Step `publish`: every table of a decided batch gets its commit; one that cannot is parked."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from distributary.changes.history import merge_history
from distributary.changes.rebuild import merge_in_order
from distributary.changes.shape import Arrival, MergeOrder, Undecided
from distributary.changes.spark import merge_table_with_spark, needs_spark
from distributary.config.lake import Lake
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import Cdc
from distributary.delta.commit import Change, rewrite_files
from distributary.delta.log import snapshot_of
from distributary.delta.tables import committing, may_pass, until_not_overtaken
from distributary.engine.parts import Moment, RunContext, reached
from distributary.engine.tables import (
    LOG,
    Pending,
    files_of_commit,
    log_files,
    log_of,
    own_columns,
    relatives,
    table_folder,
)
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    LakeUnavailableError,
    PublishError,
    StagedFileError,
)
from distributary.model import layout
from distributary.model.manifest import Manifest, Mark, TableEntry
from distributary.model.table import Role, TablePlan
from distributary.observe.events import TableParked
from distributary.publish.base import Outcome, Published, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.parking import park, parked
from distributary.retries import attempts_on
from distributary.source.base import parallelism
from distributary.spark.session import named
from distributary.stage.exchange import facts_batch
from distributary.stage.files import origin_of
from distributary.stage.guard import keep_zip_directories
from distributary.stage.job import run_tasks
from distributary.store.base import at, introduce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A table that cannot be written now: it is tried again, then its batch waits in a folder.

BEHIND_OTHERS = "waits behind earlier batches"

T = TypeVar("T")
R = TypeVar("R")


class _SomeFailedError(Exception):
    """Another round may help."""


def in_rounds(
    work: Callable[[Sequence[T]], Sequence[R]],
    items: Sequence[T],
    *,
    again: Callable[[R], bool],
    attempts: int,
) -> list[R]:
    """The results of all items, in order; those that failed wait together and are done again."""
    results: dict[int, R] = {}
    left = list(range(len(items)))
    with suppress(_SomeFailedError):
        for attempt in attempts_on(_SomeFailedError, most=attempts, pause=0.2, jitter=0.2):
            with attempt:
                results.update(zip(left, work([items[n] for n in left]), strict=True))
                left = [n for n in left if again(results[n])]
                if left:
                    raise _SomeFailedError
    return [results[n] for n in range(len(items))]


def reason_of(error: DistributaryError) -> str:
    """Why a table is parked, in one line."""
    return f"{error.code}: {error.evidence or error.what}"


def park_failed(context: RunContext, entry: TableEntry, mark: Mark, reason: str) -> Published:
    """Park the batch of one table."""
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


# Without a log to keep: the events of a batch are removed once their tables have them.
#
# They are committed to a log first, out of sight, because a batch that was half merged must be
# found again. What is removed belongs to batches that are settled and for which no table waits. A
# process that ends in between leaves a little more behind, which the next one removes.

_log = logging.getLogger(__name__)


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
        return found.lane == context.lane and found.batch <= settled and found.batch not in kept

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


# Tables that are made of a log catch up with it, many at once, each as one small task.
#
# No query plan of Spark is made for them. A table that cannot be merged is for the caller to
# park, alone: its log goes on, and `resume` merges what it has missed. Only what is strictly
# newer is applied, so that doing a batch again, or too much of a log, changes nothing.

DERIVED = (Role.MERGED, Role.HISTORY)
"""Tables that are made of a log."""
_LONGEST_ERROR = 500
_DONE, _LEFT = "merged", "left"
_NO_CDC = "the pipeline file has no section `cdc`"


def derived_entries(
    config: PipelineConfig,
    entries: Iterable[TableEntry],
    tables: Mapping[str, TablePlan],
    pending: Pending,
) -> tuple[TableEntry, ...]:
    """What a batch does to the tables that are made of the logs it speaks of."""
    if config.cdc is None:
        return ()
    logs = {entry.table.name: entry for entry in entries if entry.table.role is Role.LOG}
    return tuple(
        TableEntry(
            table=table,
            files=(),
            records=logs[log_of(name)].records,
            changes=tuple(pending.changes.get(name, ())),
            events=logs[log_of(name)].events,
        )
        for name, table in sorted(tables.items())
        if table.role in DERIVED and log_of(name) in logs
    )


def merge_of(
    config: PipelineConfig,
    cdc: Cdc,
    entry: TableEntry,
    mark: Mark,
    files: Sequence[str],
    *,
    undecided: Undecided = "refuse",
) -> MergeOrder:
    """Return what a merge needs to know about one table."""
    log = log_of(entry.table.name)
    arrival: Arrival = "partitions" if config.source.in_order else "files"
    if mark.app_id.endswith("/replay"):
        # dead letters that are sent again come late, whatever the source does
        arrival = "unknown"
    is_history = entry.table.role is Role.HISTORY
    return MergeOrder(
        table=entry.table.name,
        role=entry.table.role,
        path=entry.table.path,
        tombstones=layout.tombstones(config.lake.address, entry.table.name),
        files=tuple(files),
        columns=own_columns(entry.table),
        app_id=mark.app_id,
        batch=mark.batch,
        now_us=time.time_ns() // 1000,
        deletes=cdc.deletes,
        deletes_as=cdc.deletes_as,
        evolution=cdc.evolution,
        horizon=int(cdc.keep_tombstones.total_seconds()),
        source_hash=mark.source_hash,
        comment=entry.table.comment,
        log=table_folder(config, log) if cdc.log else "",
        current=table_folder(config, log.removesuffix(LOG)) if is_history else "",
        arrival=arrival,
        undecided=undecided,
    )


def merge_all(spark: SparkSession, lake: Lake, merges: Sequence[MergeOrder]) -> list[Published]:
    """Merge tables side by side; the results are in the merges' order.

    What only Spark may write is left to the driver.
    """
    if not merges:
        return []
    tasks = min(len(merges), parallelism(spark))
    shares = [merges[number::tasks] for number in range(tasks)]
    place, options = lake.address, lake.options

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        introduce(place, options)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield facts_batch(_told(order) for order in shares[number])

    facts = [body for kind, body in run_tasks(spark, tasks, task) if kind == _DONE]
    done = {b["table"]: Published(**b | {"outcome": Outcome(b["outcome"])}) for b in facts}
    return [done.get(order.table) or merged(order, spark=spark) for order in merges]


def _told(order: MergeOrder) -> tuple[str, str]:
    if _needs_spark(order):
        return _LEFT, json.dumps(order.table)
    return _DONE, json.dumps(asdict(merged(order)))


def _needs_spark(order: MergeOrder) -> bool:
    try:
        return order.role is Role.MERGED and needs_spark(order)
    except (DistributaryError, OSError):
        # the merge itself will say what is wrong with the table
        return False


def merged(order: MergeOrder, *, spark: SparkSession | None = None) -> Published:
    """Merge one table, by Spark if it is given; one that fails is for the caller to park."""
    try:
        if order.role is Role.HISTORY:
            result = merge_history(order)
        elif spark is None:
            result = merge_in_order(order)
        else:
            result = merge_table_with_spark(spark, order)
        outcome = Outcome.SKIPPED if result.skipped else Outcome.PUBLISHED
        return Published(result.table, outcome, result.version if result.version >= 0 else None)
    except DistributaryError as error:
        text = f"{error.code}: {error.evidence or error.what}"
        passing = isinstance(error, PublishError) and may_pass(error)
    except Exception as error:
        # a defect in one table's data must not stop the merges of all others
        text, passing = f"{type(error).__name__}: {error}", False
    return Published(order.table, Outcome.PARKED, error=text[:_LONGEST_ERROR], may_pass=passing)


def publish_waiting(
    publisher: Publisher,
    config: PipelineConfig,
    entry: TableEntry,
    mark: Mark,
    *,
    spark: SparkSession | None = None,
    undecided: Undecided = "refuse",
) -> Published:
    """Commit the files of an entry that waits, or merge the batch of its log.

    With a session, tables that only Spark may write are merged, too.
    """
    if entry.table.role not in DERIVED:
        return publisher.publish(entry, mark)
    name, log = entry.table.name, log_of(entry.table.name)
    path, cdc = table_folder(config, log), config.cdc
    if cdc is None:
        raise PublishError(
            f"table {name} is made of change data, and nothing says how any more",
            where="cdc",
            evidence=_NO_CDC,
            next_step=f"put `cdc` back into the file, then `distributary resume {name}`",
        )
    known = publisher.committed(path, mark)
    if known is None or known.batch < mark.batch:
        raise PublishError(
            f"table {name} waits for batch {mark.batch} of its log",
            where=path,
            evidence=f"the newest batch of {log} is {'none' if known is None else known.batch}",
            next_step=f"`distributary resume {log}` comes first",
        )
    # a table without any batch of this life may lack what an earlier one has left in the log
    first = publisher.committed(entry.table.path, mark) is None
    files = log_files(path, None if first else mark.batch)
    order = merge_of(config, cdc, entry, mark, files, undecided=undecided)
    result = merged(order, spark=spark if _needs_spark(order) else None)
    if result.outcome is Outcome.PARKED:
        raise PublishError(
            f"table {name} could not be merged",
            where=entry.table.path,
            evidence=result.error,
            next_step=f"fix it, then `distributary resume {name}`; {log} is complete",
        )
    return result


# Step `publish`, second half, for change data: a log is committed, then its tables follow it.


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
    merges: list[MergeOrder] = []
    cdc = context.config.cdc
    for name, entry in entries.items():
        if entry.table.role not in DERIVED:
            continue
        log = log_of(name)
        if cdc is None or name in queued or results[log].outcome is Outcome.PARKED:
            why = BEHIND_OTHERS if name in queued else f"waits for {log}" if cdc else _NO_CDC
            park(entry, mark, folder=context.parking, reason=why)
            results[name] = Published(name, Outcome.PARKED, error=why)
            continue
        whole = log in behind
        files = _files(context, entries[log], mark, results[log], whole=whole, fresh=fresh)
        if files:
            merges.append(merge_of(context.config, cdc, entry, mark, files))
    current = [order for order in merges if order.role is not Role.HISTORY]
    for result in _merged(context, current, manifest.batch):
        results[result.table] = _kept(context, entries[result.table], mark, result)
    # a history asks its table which incarnations of the source there are
    histories = []
    for order in merges:
        table = log_of(order.table).removesuffix(LOG)
        if order.role is Role.HISTORY and results[table].outcome is Outcome.PARKED:
            waits = Published(order.table, Outcome.PARKED, error=f"waits for {table}")
            results[order.table] = _kept(context, entries[order.table], mark, waits)
        elif order.role is Role.HISTORY:
            histories.append(order)
    for result in _merged(context, histories, manifest.batch):
        results[result.table] = _kept(context, entries[result.table], mark, result)
    context.followed.update(_written(entries.values(), results))
    return tuple(results[entry.table.name] for entry in manifest.tables)


def _kept(context: RunContext, entry: TableEntry, mark: Mark, result: Published) -> Published:
    """Park a table that could not be merged, and return its result."""
    if result.outcome is not Outcome.PARKED:
        return result
    return park_failed(context, entry, mark, result.error)


def _merged(context: RunContext, merges: list[MergeOrder], batch: int) -> list[Published]:
    if not merges:
        return []
    context.claim.check()
    reached(Moment.BEFORE_MERGE, batch)

    def some(chosen: Sequence[MergeOrder]) -> list[Published]:
        with named(context.spark, pipeline=context.config.name, batch=batch, step="merge"):
            done = merge_all(context.spark, context.config.lake, chosen)
        if len(chosen) == len(merges):
            _log_is_there(done)
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
        moves = context.config.tables.publisher == "spark"
        if not moves or all(at(path).look(file.path) for file in log.files):
            return [f"{path}/{file.path}" for file in log.files]
        # Spark's writer has put the rows into files of its own
        return files_of_commit(path, published.version or 0) or log_files(path, mark.batch)
    # decided by another process: what was staged then may lie in other files by now, and what an
    # older copy of the checkpoint has brought already is not staged again
    known = context.publisher.committed(path, mark)
    return log_files(path, mark.batch) if known and known.batch >= mark.batch else []


def _log_is_there(results: list[Published]) -> None:
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
    # from its first commit on, a batch must be found again even if the checkpoint is lost
    text = context.manifests.text(manifest.batch)
    context.manifest_copy.write(text or manifest.to_json().encode())
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    queued = {p.table for p in parked(context.parking)}
    behind: set[str] = set()
    commits = itertools.count(1)
    by_spark = context.config.tables.publisher == "spark"

    def publish(entry: TableEntry) -> Published:
        if not by_spark:
            # no job of Spark's: a name for each of a thousand commits would cost as much as they
            return context.publisher.publish(entry, mark)
        name, batch = context.config.name, manifest.batch
        with named(context.spark, pipeline=name, batch=batch, step=f"publish {entry.table.name}"):
            return context.publisher.publish(entry, mark)

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
            result = publish(entry)
            if result.outcome is Outcome.SKIPPED and entry.table.name not in context.marked:
                # it could not be asked before: its records must not be taken for written
                _refuse_foreign_mark(context, entry, mark, fresh=fresh)
        except StagedFileError:
            raise
        except PublishError as error:
            return error
        except DivergedError as error:
            return PublishError(error.what, code=error.code, evidence=error.evidence)
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
    return derive(context, manifest, published, queued=queued, behind=behind, fresh=fresh)


def _each(
    context: RunContext,
    entries: Sequence[TableEntry],
    mark: Mark,
    one: Callable[[TableEntry], Published | DistributaryError],
) -> list[Published | DistributaryError]:
    """Every entry, in the quickest way: prepared and then one by one, or in parallel."""
    threads = context.config.publish_threads
    known: dict[str, Published | DistributaryError] = {}
    if len(entries) >= _MANY and isinstance(context.publisher, DirectPublisher):
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


def refuse_foreign_marks(context: RunContext, manifest: Manifest, *, fresh: bool) -> None:
    """Raise DivergedError where a table has, or waits for, other records under this batch's number.

    That is so when the checkpoint is older than the tables. It is asked before a batch is decided
    and before a decided one is published, so that nothing of a refused batch is ever done. A table
    that was found behind this batch need not be asked again: only the owner of the claim writes
    these marks.
    """
    mark = Mark(context.app_id, manifest.batch, manifest.source_hash)
    for waiting in parked(context.parking):
        ours = waiting.mark.app_id == mark.app_id and waiting.mark.batch >= mark.batch
        if ours and waiting.mark != mark:
            raise _diverged(context, waiting.table, mark, f"batch {waiting.mark.batch} is parked")
    for entry in manifest.tables:
        name = entry.table.name
        known_behind = fresh and context.marked.get(name, mark.batch) < mark.batch
        if known_behind or entry.table.role in DERIVED:
            continue
        # a table that cannot be asked now is asked again when it is published
        with suppress(PublishError):
            _refuse_foreign_mark(context, entry, mark, fresh=fresh)


def _refuse_foreign_mark(
    context: RunContext, entry: TableEntry, mark: Mark, *, fresh: bool
) -> None:
    committed = context.publisher.committed(entry.table.path, mark)
    newest = -1 if committed is None else committed.batch
    context.marked[entry.table.name] = newest
    if committed is None or newest < mark.batch or committed.source_hash == mark.source_hash:
        return
    # a log that was cleaned up no longer tells of which records its newest mark is
    if fresh or committed.source_hash is not None:
        raise _diverged(context, entry.table.name, mark, f"its newest mark is batch {newest}")


def _diverged(context: RunContext, table: str, mark: Mark, evidence: str) -> DivergedError:
    return DivergedError(
        f"table {table} has batch {mark.batch} already, with other records",
        where=context.checkpoint.store.address,
        evidence=evidence,
        next_step="nothing of this batch was written. The checkpoint is older than the table: put "
        "the newest copy back. If this lake is a copy that was made while the pipeline ran, "
        "`distributary backup FILE PLACE` and `distributary restore PLACE` into an empty lake take "
        "all tables back to the last batch that they have in common; `distributary reset` starts "
        "a new life",
    )
