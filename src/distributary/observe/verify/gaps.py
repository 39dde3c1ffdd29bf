"""Gaps in the ledger: batches that are missing, records that no batch has read.

The batches of a lane are numbered from 0 within a life of the checkpoint, and each one begins where
the one before it ended. A ledger that was put back from an older copy, or a position that is not
the one that was written, breaks one of the two. A batch is in the ledger before the checkpoint
marks it as settled: a checkpoint that is ahead has an older copy of its lake. Batches that wait for
a table are in the ledger and in the parking folder: where the folder lacks one, its records are in
no table and never will be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.errors import LakeUnavailableError
from distributary.model import layout
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import TableRow, flat_ranges
from distributary.observe.ledger.recording import batch_key
from distributary.observe.verify.row_counts import TableFinding
from distributary.publish.parking import parked
from distributary.store.base import at, reaching
from distributary.store.seal import unseal

NEWEST = 1000
"""Batches of a pipeline whose ranges are compared, unless all are asked for."""
_SHOWN = 5
_COPY = "decided-stream.json"
_PUT_BACK = "put the file back from a copy"
_PARTITION = ["topic", "partition"]


@dataclass(frozen=True, slots=True)
class LaneCheck:
    """The numbers and ranges of the batches of one lane of one life."""

    pipeline: str
    life: str
    lane: str
    batches: int
    """Batches that the ledger has of it."""
    findings: tuple[TableFinding, ...] = ()

    @property
    def agrees(self) -> bool:
        """Return whether no batch and no record is missing."""
        return not self.findings


def current_life(lake: str, pipeline: str) -> str:
    """Return the life that the lake's copy of the newest manifest is of; empty without one.

    A reset removes the copy, and what waited in the life that it ends.
    """
    store = at(layout.pipeline(lake, pipeline))
    try:
        with reaching(store.address):
            text = unseal(store.read(_COPY), where=f"{store.address}/{_COPY}", next_step=_PUT_BACK)
        return str(json.loads(text)["life"])
    except (FileNotFoundError, LakeUnavailableError, ValueError, KeyError, TypeError):
        return ""


def lost_parking(
    ledger: Ledger, pipeline: str, folder: str, *, life: str | None = None
) -> list[TableRow]:
    """Find the batches that are parked by the ledger and missing in the parking folder.

    What was accepted since by `reset --table` is not lost any more.
    """
    waiting = [row for row in ledger.parked(pipeline) if life in (None, row.life)]
    if not waiting or not folder:
        return []
    there = {(p.table, *batch_key(p.mark.app_id, p.mark.batch)) for p in parked(folder)}
    lost = [row for row in waiting if (row.table, *row.key) not in there]
    if not lost:
        return []
    taken = {
        (commit.table, commit.life, commit.lane): commit.accepted
        for commit in ledger.last_commits(pipeline)
        if commit.accepted is not None
    }
    return [row for row in lost if row.batch > taken.get((row.table, row.life, row.lane), -1)]


def check_lanes(
    ledger: Ledger,
    pipelines: Sequence[str],
    *,
    every_range: bool,
    parking: Mapping[str, str] | None = None,
    settled: Mapping[tuple[str, str, str], int] | None = None,
) -> tuple[LaneCheck, ...]:
    """Look for gaps in the ledger's batches of these pipelines.

    `parking` has the folder of each pipeline in which batches wait for tables, `settled` the newest
    settled batch of each lane by the checkpoints, which were read before.

    Numbers are compared for all batches: that takes one narrow query. Ranges are compared for the
    newest batches, or with `every_range` for all of them.
    """
    checks = []
    lost = {
        name: lost_parking(ledger, name, folder, life=current_life(ledger.lake, name))
        for name, folder in (parking or {}).items()
        if name in pipelines
    }
    ahead = dict(settled or {})
    for row in ledger.numbering():
        if row["pipeline"] not in pipelines:
            continue
        lane = (row["pipeline"], row["life"], row["lane"])
        last_settled = ahead.pop(lane, -1)
        missing = row["newest"] + 1 - row["batches"]
        findings = [_missing_batches(ledger, lane, missing)] if missing else []
        if last_settled > row["newest"]:
            findings.append(_behind(lane, row["newest"], last_settled))
        if row["lane"] == "stream":
            last = None if every_range else NEWEST
            holes = list(_holes(ledger.ranges(*lane[:2], last=last)))
            findings += [_unread(lane[0], holes)] if holes else []
        gone = [p for p in lost.get(lane[0], ()) if (p.life, p.lane) == lane[1:]]
        findings += [_lost(lane[0], gone)] if gone else []
        checks.append(LaneCheck(*lane, row["batches"], tuple(findings)))
    for lane, last_settled in ahead.items():
        if last_settled >= 0:
            checks.append(LaneCheck(*lane, 0, (_behind(lane, -1, last_settled),)))
    return tuple(checks)


def _behind(lane: tuple[str, str, str], newest: int, settled: int) -> TableFinding:
    return TableFinding(
        "behind_checkpoint",
        f"batches that the checkpoint has finished and the ledger lacks: {settled - newest:,}",
        f"pipeline {lane[0]}, lane {lane[2]}, life {lane[1]}: batches {newest + 1} to {settled}",
        "put the newest copy of the lake back; without one, `distributary recover FILE` takes the "
        "checkpoint back to where the lake is, and the next run reads their records again",
    )


def _missing_batches(ledger: Ledger, lane: tuple[str, str, str], missing: int) -> TableFinding:
    if missing < 0:
        return TableFinding(
            "batch_gap",
            f"batches that the ledger has more than once: {-missing:,}",
            f"pipeline {lane[0]}, lane {lane[2]}, life {lane[1]}",
            "put the lake's folder _distributary/ledger back from a copy",
        )
    numbers = ledger.batch_numbers(*lane)
    steps = np.flatnonzero(np.diff(numbers, prepend=-1) > 1)[:_SHOWN]
    gaps = [(int(numbers[step - 1]) + 1 if step else 0, int(numbers[step]) - 1) for step in steps]
    spelled = ", ".join(
        str(first) if first == last else f"{first} to {last}" for first, last in gaps
    )
    return TableFinding(
        "batch_gap",
        f"batches that are missing between others in the ledger: {missing:,}",
        f"pipeline {lane[0]}, lane {lane[2]}, life {lane[1]}: batches {spelled or 'of a sum'}",
        "put the newest copy of the lake back; if there is none, their records are in no table: "
        "`distributary reset FILE --with-tables` reads the source again",
    )


def _lost(pipeline: str, rows: Sequence[TableRow]) -> TableFinding:
    records = sum(row.records for row in rows)
    examples = [f"{row.table}: batch {row.batch}, {row.records:,} records" for row in rows]
    return TableFinding(
        "parked_lost",
        f"batches that waited for a table and are gone: {len(rows):,}, with {records:,} records",
        f"pipeline {pipeline}: " + "; ".join(examples[:_SHOWN]),
        "put the parking folder back from a copy; if there is none, `distributary reset FILE "
        f"--table {rows[0].table}` takes the table as it is: what it lacks is then in no table",
    )


def _unread(pipeline: str, holes: Sequence[tuple[str, int, int, int]]) -> TableFinding:
    examples = [
        f"{topic}/{partition}: {start} to {end - 1}" for topic, partition, start, end in holes
    ]
    return TableFinding(
        "range_gap",
        f"stretches of the source that no batch has read: {len(holes):,}",
        f"pipeline {pipeline}: " + "; ".join(examples[:_SHOWN]),
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
        for step in np.flatnonzero(starts[first + 1 : last] > reached[:-1]):
            hole = int(reached[step]), int(starts[first + 1 + step])
            yield keys[first]["topic"], keys[first]["partition"], *hole
        first = last


def _end_of_group(keys: Sequence[dict[str, Any]], first: int) -> int:
    last = first + 1
    while last < len(keys) and keys[last] == keys[first]:
        last += 1
    return last
