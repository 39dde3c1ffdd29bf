"""The step `publish` of aggregate tables, which follow the tables whose rows they group.

The driver updates them in parallel, after all tables of the batch were committed and merged. An
aggregate table that fails is parked alone; if its source table is parked, it waits too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from distributary.changes.aggregate_tables import AggregateOrder, merge_aggregates, origin_of
from distributary.changes.merge_order import MergeResult
from distributary.changes.small_aggregates import merge_together
from distributary.config.pipeline_config import PipelineConfig
from distributary.delta.tables import reaching_table
from distributary.engine.context import RunContext
from distributary.engine.kill_points import KillPoint
from distributary.engine.planning.aggregate_plan import SOURCES, entry_of
from distributary.engine.planning.table_book import Pending, merge_config, table_folder
from distributary.engine.steps.merges import failed, in_tasks, write_derived
from distributary.engine.steps.unwritable import BEHIND_OTHERS, park_failed
from distributary.errors import ConfigError, DistributaryError, PublishError
from distributary.model.cache import Cache
from distributary.model.manifest import Manifest, Mark, TableEntry
from distributary.model.rules.aggregate_rule import AggregateRule
from distributary.model.table import Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import park, parked

_log = logging.getLogger(__name__)
_RULES: Cache[AggregateRule] = Cache(1_000)
_NO_ENTRY = "the pipeline file has no entry in `aggregates` for it"


def aggregate_entries(
    entries: Iterable[TableEntry], tables: Mapping[str, TablePlan], pending: Pending
) -> tuple[TableEntry, ...]:
    """Return the entries of the tables that group rows of a batch's tables."""
    sources = {entry.table.name: entry for entry in entries if entry.table.role in SOURCES}
    return tuple(
        TableEntry(
            table=table,
            files=(),
            records=sources[table.source].records,
            changes=tuple(pending.changes.get(name, ())),
        )
        for name, table in sorted(tables.items())
        if table.role is Role.AGGREGATE and table.source in sources
    )


def order_of(
    config: PipelineConfig,
    table: TablePlan,
    role: Role,
    mark: Mark | None = None,
    *,
    whole: bool = False,
) -> AggregateOrder:
    """Return what a merge needs to know about an aggregate table. Raises PublishError."""
    entry = entry_of(config, table)
    if entry is None:
        raise PublishError(
            f"table {table.name} follows table {table.source}, but its entry is gone",
            where="aggregates",
            evidence=_NO_ENTRY,
            next_step=f"put the entry back into the file, then `distributary resume {table.name}`",
        )
    return AggregateOrder(
        table=table.name,
        path=table.path,
        source=table.source,
        source_path=table_folder(config, table.source),
        role=role,
        rule=_RULES.of((entry,), entry.rule),
        mark=mark,
        comment=table.comment,
        vectors=entry.deletes_as == "vectors",
        whole=whole,
    )


def follow_tables(
    context: RunContext,
    manifest: Manifest,
    published: tuple[Published, ...],
    *,
    queued: set[str],
) -> tuple[Published, ...]:
    """Bring the aggregate tables of a batch up to date; the results are in its order."""
    mark = Mark(context.progress.app_id, manifest.batch, manifest.source_hash)
    entries = {e.table.name: e for e in manifest.tables}
    results = {result.table: result for result in published}
    orders: list[AggregateOrder] = []
    for name, entry in entries.items():
        if entry.table.role is not Role.AGGREGATE:
            continue
        source = entry.table.source
        waits = results[source].outcome is Outcome.PARKED
        gone = entry_of(context.config, entry.table) is None
        if name in queued or waits or gone:
            why = BEHIND_OTHERS if name in queued else f"waits for {source}" if waits else _NO_ENTRY
            park(entry, mark, folder=context.publishing.parking, reason=why)
            results[name] = Published(name, Outcome.PARKED, error=why)
            continue
        orders.append(order_of(context.config, entry.table, entries[source].table.role, mark))
    for result in _followed(context, orders, manifest.batch):
        results[result.table] = result
        if result.outcome is Outcome.PARKED:
            entry = entries[result.table]
            results[result.table] = park_failed(context, entry, mark, result.error)
    return tuple(results[entry.table.name] for entry in manifest.tables)


def _followed(context: RunContext, orders: list[AggregateOrder], batch: int) -> list[Published]:
    def follow(chosen: Sequence[AggregateOrder]) -> list[Published]:
        done = in_tasks(context.spark, context.config.lake, chosen, all_followed)
        return [done[order.table] for order in chosen]

    before = KillPoint.BEFORE_AGGREGATES
    return write_derived(context, orders, follow, batch=batch, step="aggregate", before=before)


def all_followed(orders: Sequence[AggregateOrder]) -> Iterator[Published]:
    """Bring aggregate tables up to date: small ones together, then the others one by one."""
    together = merge_together(orders)
    for order in orders:
        result = together.get(order.table)
        yield followed(order) if result is None else _published(result)


def followed(order: AggregateOrder) -> Published:
    """Bring one aggregate table up to date; the outcome of a failure is PARKED."""
    try:
        return _published(merge_aggregates(order))
    except Exception as error:
        return failed(order.table, error)


def _published(result: MergeResult) -> Published:
    version = result.version if result.version >= 0 else None
    return Published(result.table, Outcome.PUBLISHED, version)


def publish_waiting_aggregate(config: PipelineConfig, entry: TableEntry, mark: Mark) -> Published:
    """Bring an aggregate table up to date that waits. Raises PublishError."""
    name, source = entry.table.name, entry.table.source
    waiting = parked(config.lake.parking_of(config.name), table=source)
    if any(one.mark.app_id == mark.app_id and one.mark.batch <= mark.batch for one in waiting):
        raise PublishError(
            f"table {name} waits for table {source}",
            where=entry.table.path,
            evidence=f"batch {mark.batch} of {source} is parked",
            next_step=f"`distributary resume {source}` comes first",
        )
    result = followed(order_of(config, entry.table, source_role(config, source), mark))
    if result.outcome is Outcome.PARKED:
        raise PublishError(
            f"table {name} could not be brought up to date",
            where=entry.table.path,
            evidence=result.error,
            next_step=f"fix it, then `distributary resume {name}`; {source} is complete",
        )
    return result


def listed_order(
    config: PipelineConfig, table: TableSummary, *, whole: bool = False
) -> AggregateOrder:
    """Return the order for an aggregate table of the ledger. Raises DistributaryError."""
    with reaching_table(table.path):
        origin = origin_of(table_folder(config, table.table))
    if origin is None:
        raise ConfigError(
            f"table {table.table} is not an aggregate table, or is gone",
            where=table.path,
            evidence="it does not name the table that it follows",
            next_step="the next batch of that table makes it again, once its folder is moved away",
        )
    source, entry = origin
    plan = TablePlan(
        name=table.table,
        role=Role.AGGREGATE,
        type=table.type,
        path=table_folder(config, table.table),
        columns=(),
        source=source,
        aggregate=entry,
    )
    return order_of(config, plan, source_role(config, source), whole=whole)


def follow_now(config: PipelineConfig, ledger: Ledger, source: str) -> None:
    """Update the aggregate tables of a table that was changed outside of a batch.

    An aggregate table that fails keeps its last version: the next batch tries it again.
    """
    if not config.aggregates:
        return
    for table in ledger.tables(config.name, schema_ids=False):
        if table.role != Role.AGGREGATE:
            continue
        try:
            order = listed_order(config, table)
        except DistributaryError as error:
            _log.warning("table %s does not follow: %s", table.table, error)
            continue
        if order.source == source and (result := followed(order)).error:
            _log.warning("table %s does not follow: %s", table.table, result.error)


def source_role(config: PipelineConfig, source: str) -> Role:
    """Return the role of the source table of an aggregate table."""
    return Role.EACH if merge_config(config, source) is None else Role.MERGED
