"""Gaps in the ledger: batches that are missing between others, records that no batch has read.

The batches of a lane are numbered from 0 within a life of the checkpoint, and each one begins where
the one before it ended. A ledger that was put back from an older copy, or a position that is not
the one that was written, breaks one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.observe.ledger import Ledger
from distributary.observe.rows import flat_ranges
from distributary.observe.verify import Finding

NEWEST = 1000
"""Batches of a pipeline whose ranges are compared, unless all are asked for."""
_SHOWN = 5
_PARTITION = ["topic", "partition"]


@dataclass(frozen=True, slots=True)
class LaneCheck:
    """The numbers and ranges of the batches of one lane of one life."""

    pipeline: str
    life: str
    lane: str
    batches: int
    """Batches that the ledger has of it."""
    findings: tuple[Finding, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether no batch and no record is missing."""
        return not self.findings


def check_lanes(
    ledger: Ledger, pipelines: Sequence[str], *, every_range: bool
) -> tuple[LaneCheck, ...]:
    """Look for gaps in what the ledger says of these pipelines.

    Numbers are compared for all batches: that takes one narrow query. Ranges are compared for the
    newest batches, or with `every_range` for all of them.
    """
    checks = []
    for row in ledger.numbering():
        if row["pipeline"] not in pipelines:
            continue
        lane = (row["pipeline"], row["life"], row["lane"])
        missing = row["newest"] + 1 - row["batches"]
        findings = [_missing_batches(ledger, lane, missing)] if missing else []
        if row["lane"] == "stream":
            last = None if every_range else NEWEST
            holes = list(_holes(ledger.ranges(*lane[:2], last=last)))
            findings += [_unread(lane[0], holes)] if holes else []
        checks.append(LaneCheck(*lane, row["batches"], tuple(findings)))
    return tuple(checks)


def _missing_batches(ledger: Ledger, lane: tuple[str, str, str], missing: int) -> Finding:
    if missing < 0:
        return Finding(
            "batch_gap",
            f"batches that the ledger has more than once: {-missing:,}",
            f"pipeline {lane[0]}, lane {lane[2]}, life {lane[1]}",
            "put the lake's folder _distributary/ledger back from a copy",
        )
    numbers = ledger.batch_numbers(*lane)
    steps = np.flatnonzero(np.diff(numbers, prepend=-1) > 1)[:_SHOWN]
    gaps = [(int(numbers[at - 1]) + 1 if at else 0, int(numbers[at]) - 1) for at in steps]
    spelled = ", ".join(
        str(first) if first == last else f"{first} to {last}" for first, last in gaps
    )
    return Finding(
        "batch_gap",
        f"batches that are missing between others in the ledger: {missing:,}",
        f"pipeline {lane[0]}, lane {lane[2]}, life {lane[1]}: batches {spelled or 'of a sum'}",
        "put the newest copy of the lake back; if there is none, their records are in no table: "
        "`distributary reset FILE --with-tables` reads the source again",
    )


def _unread(pipeline: str, holes: Sequence[tuple[str, int, int, int]]) -> Finding:
    told = [f"{topic}/{partition}: {start} to {end - 1}" for topic, partition, start, end in holes]
    return Finding(
        "range_gap",
        f"stretches of the source that no batch has read: {len(holes):,}",
        f"pipeline {pipeline}: " + "; ".join(told[:_SHOWN]),
        "where `source.fail_on_data_loss: false` or `source.on_replaced: read` is set, the source "
        "had lost these records; else they are in no table, and `distributary reset FILE "
        "--with-tables` reads the source again",
    )


def _holes(batches: pa.Table) -> Iterator[tuple[str, int, int, int]]:
    """Find the offsets between the first and the last range of a partition that no range covers."""
    ranges = flat_ranges(batches).sort_by([(name, "ascending") for name in (*_PARTITION, "start")])
    if not len(ranges):
        return
    starts, ends = (ranges[name].to_numpy() for name in ("start", "end"))
    keys = ranges.select(_PARTITION).to_pylist()
    first = 0
    while first < len(keys):
        last = _end_of_group(keys, first)
        reached = np.maximum.accumulate(ends[first:last])
        for at in np.flatnonzero(starts[first + 1 : last] > reached[:-1]):
            hole = int(reached[at]), int(starts[first + 1 + at])
            yield keys[first]["topic"], keys[first]["partition"], *hole
        first = last


def _end_of_group(keys: Sequence[dict[str, Any]], first: int) -> int:
    last = first + 1
    while last < len(keys) and keys[last] == keys[first]:
        last += 1
    return last
