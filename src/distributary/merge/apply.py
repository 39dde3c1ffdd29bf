"""Bring a merged table up to date with a batch: read, decide, remember, commit.

Files in which no row changes stay as they are; the others are written again without the rows that
left them, and with those that came. It takes one commit, which also carries the mark of the batch.
A crash before it leaves files that no commit names, and tombstones of rows that are still there;
the next try finds both harmless. Running it again changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa

from distributary.merge.commit import Changeset, commit
from distributary.merge.definitions import PROPERTY, from_text, to_text
from distributary.merge.events import CHANGE_SCHEMA, read_events
from distributary.merge.order import MergeOrder, MergeResult
from distributary.merge.plan import Plan, plan
from distributary.merge.rewrite import rewrite
from distributary.merge.shape import Shape, shape
from distributary.merge.snapshot import Snapshot, load
from distributary.merge.target import Target
from distributary.merge.tombstones import open_tombstones, remember
from distributary.merge.usable import folder_of, merging, refuse_unusable
from distributary.publish.races import until_not_overtaken


def merge_table(order: MergeOrder) -> MergeResult:
    """Apply the events of an order's files to its table, once. Raises PublishError."""
    started = time.perf_counter()
    with merging(order.path, doing="merge into a table"):
        result = until_not_overtaken(lambda: _attempt(order))
    return replace(result, seconds=time.perf_counter() - started)


def open_target(order: MergeOrder) -> tuple[Snapshot | None, Shape]:
    """The table as it is, and its columns as they will be."""
    before, columns = look_at(order)
    if before is not None:
        refuse_unusable(before, order.table)
    return before, columns


def look_at(order: MergeOrder) -> tuple[Snapshot | None, Shape]:
    """The same for a table that another engine may have to change."""
    before = load(folder_of(order.path), app_id=order.app_id)
    wanted, payload = order.wanted(), len(order.columns)
    have = None if before is None else before.fields
    system = wanted[payload:]
    return before, shape(have, wanted[:payload], system=system, evolution=order.evolution)


def events_schema(columns: Shape) -> pa.Schema:
    """What to read of a log for a table with these columns, beside the change itself."""
    own = [field for field in columns.schema if field.name not in CHANGE_SCHEMA.names]
    return pa.schema(own)


def _attempt(order: MergeOrder) -> MergeResult:
    before, columns = open_target(order)
    if before is not None and before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    spans = from_text(before.property(PROPERTY)) if before else ()
    events = read_events(order.files, events_schema(columns))
    tombstones = open_tombstones(
        folder_of(order.tombstones),
        app_id=order.app_id,
        now_us=order.now_us,
        horizon=order.horizon,
    )
    target = Target(before, columns)
    made = plan(
        events,
        target,
        tombstones,
        shape=columns,
        spans=spans,
        soft=order.soft,
        now_us=order.now_us,
    )
    # first: a row that is gone without a memory could come back
    remember(tombstones, made.tombstones, table=order.table, mark=order.mark)
    version = _commit(order, target, columns, made, new_keys=made.spans != spans)
    return MergeResult(order.table, version, made.decision.counts)


def _commit(
    order: MergeOrder, target: Target, columns: Shape, made: Plan, *, new_keys: bool
) -> int:
    """Write what changes, if anything does; returns the table's newest version."""
    before = target.snapshot
    if before is None and made.winners.num_rows == 0:
        # nothing to put in a table: it may have no key, or its rows are all gone
        return -1
    changed = made.winners.num_rows or any(map(made.changed, made.parts))
    if before is not None and not (changed or columns.changed or new_keys):
        return before.version
    removed, added = rewrite(target, made, columns, folder=folder_of(order.path))
    counts = made.decision.counts
    change = Changeset(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties={PROPERTY: to_text(made.spans)} if new_keys else {},
        removed=removed,
        added=added,
        mark=order.mark,
        metrics={
            "numSourceRows": counts.events,
            "numTargetRowsInserted": counts.inserted,
            "numTargetRowsUpdated": counts.updated,
            "numTargetRowsDeleted": counts.deleted,
            "numTargetFilesAdded": len(added),
            "numTargetFilesRemoved": len(removed),
        },
    )
    return commit(folder_of(order.path), before, change)
