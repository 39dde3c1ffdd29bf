"""A merged table made anew from its log: all of its rows are replaced by one commit."""

from __future__ import annotations

import time
from dataclasses import replace

from distributary.merge.apply import open_target
from distributary.merge.commit import Changeset, commit
from distributary.merge.definitions import PROPERTY, to_text
from distributary.merge.order import MergeCounts, MergeOrder, MergeResult
from distributary.merge.replay import replay
from distributary.merge.rewrite import written
from distributary.merge.tombstones import replace_all
from distributary.merge.usable import folder_of, merging
from distributary.publish.races import OvertakenError

ATTEMPTS = 3


def rebuild(log_path: str, order: MergeOrder, *, as_of_us: int | None = None) -> MergeResult:
    """Make the order's table what its log says, or said at a moment. Raises PublishError.

    The files of the order are not looked at, and no mark is set: batches that the log has and the
    table had not yet find nothing to do when they are merged later. Readers see the old table up
    to the moment at which they see the new one.
    """
    started = time.perf_counter()
    with merging(order.path, doing="rebuild a table"):
        for _ in range(ATTEMPTS - 1):
            try:
                result = _attempt(log_path, order, as_of_us)
                break
            except OvertakenError:
                continue
        else:
            result = _attempt(log_path, order, as_of_us)
    return replace(result, seconds=time.perf_counter() - started)


def _attempt(log_path: str, order: MergeOrder, as_of_us: int | None) -> MergeResult:
    before, columns = open_target(order)
    replayed = replay(log_path, order, columns, as_of_us=as_of_us)
    rows = replayed.rows.num_rows
    if before is None and rows == 0:
        return MergeResult(order.table, -1)
    folder = folder_of(order.path)
    added = written(replayed.gather(columns.schema), folder=folder)
    # first: a row that is gone without a memory could come back
    replace_all(folder_of(order.tombstones), replayed.tombstones, table=order.table)
    change = Changeset(
        "REBUILD",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties={PROPERTY: to_text(replayed.spans)} if replayed.spans else {},
        removed=() if before is None else before.files,
        added=added,
        metrics={"numOutputRows": rows, "numFiles": len(added)},
    )
    version = commit(folder, before, change)
    return MergeResult(order.table, version, MergeCounts(inserted=rows))
