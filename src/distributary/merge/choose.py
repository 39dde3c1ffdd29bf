"""Which way a table is merged: in one process, or by Spark."""

from __future__ import annotations

import os
from typing import Literal

from distributary.merge.order import MergeOrder
from distributary.merge.snapshot import load
from distributary.merge.usable import folder_of, merging, unusable

LARGE_TABLE = 4 * 2**30
"""Bytes in a table's files: up to this one process is faster than MERGE on two cores, five times
so with 5 million rows; beyond it, a cluster's many cores are."""
LARGE_BATCH = 256 * 2**20
"""Bytes in a batch's files: their events are in memory all at once, several times larger."""


def choose(order: MergeOrder, size: int | None = None) -> Literal["arrow", "spark"]:
    """The way for an order into a table of a size in bytes, which is looked up if not given."""
    if sum(os.path.getsize(file) for file in order.files) > LARGE_BATCH:
        return "spark"
    if size is None:
        with merging(order.path, doing="look at a table"):
            snapshot = load(folder_of(order.path), app_id=order.app_id)
        if snapshot is None:
            return "arrow"
        if unusable(snapshot):
            return "spark"
        size = snapshot.size
    return "spark" if size > LARGE_TABLE else "arrow"
