"""A ledger as a pipeline leaves it after many batches, without the batches.

The newest batches are recorded one by one, by the ledger itself. Those before them go through its
writer too, a thousand batches a commit: that is how its own compaction leaves them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from distributary.model.manifest import Counts, Manifest, SourceRange, StagedFile, TableEntry
from distributary.model.table import Column, Role, TablePlan
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import (
    BATCHES,
    BatchTimes,
    batch_key,
    batch_row,
    table_rows,
)
from distributary.publish.base import Outcome, Published

PIPELINE, LIFE, TOPIC = "aged", "life1", "events"
RECORDS_PER_TABLE = 5
_PARTITIONS = 4
_PAUSE = timedelta(seconds=5)
_CHUNK = 1_000
_ONE_BY_ONE = 30
_COLUMNS = tuple(Column(f"c{i}", pa.string()) for i in range(8))


def grow_ledger(lake: str, *, batches: int, tables: int) -> Ledger:
    """Write the accounts of so many batches, each with a row for each of the tables."""
    ledger = Ledger(lake)
    first = datetime.now(UTC) - batches * _PAUSE
    plans = [
        TablePlan(f"t{n}", Role.EACH, f"t{n}", f"{lake}/t{n}", _COLUMNS, exists=True)
        for n in range(tables)
    ]
    # of an age that is no multiple of a compaction: what is left over is read too
    bulk = max(0, batches - _ONE_BY_ONE)
    for start in range(0, bulk, _CHUNK):
        _append(ledger, range(start, min(start + _CHUNK, bulk)), plans, first)
    # as the last of its own compactions would have left it
    ledger.tidy()
    for number in range(bulk, batches):
        manifest, results, times = _batch(number, plans, first)
        ledger.record(manifest, results, times=times, counts=manifest.counts)
    return ledger


def _append(ledger: Ledger, numbers: range, plans: list[TablePlan], first: datetime) -> None:
    rows, sums = [], []
    for manifest, results, times in (_batch(number, plans, first) for number in numbers):
        at = times.finished_at or first
        pairs = list(zip(manifest.tables, results, strict=True))
        key = batch_key(manifest.app_id, manifest.batch)
        rows.append(table_rows(key, pairs, at=at, counted=manifest.primary_role))
        row = batch_row(manifest, pairs, times=times, finished_at=at)
        counts = manifest.counts
        row |= {name: getattr(counts, name) for name in counts.__dataclass_fields__}
        sums.append(row | {"lag_records": 0, "lag_seconds": 1.0, "stages": 1})
    mark = {"app_id": manifest.app_id, "version": manifest.batch}
    # the ledger takes one batch at a time from everybody else
    ledger._tables.append_once(pa.concat_tables(rows), **mark)  # noqa: SLF001
    ledger._batches.append_once(  # noqa: SLF001
        pa.Table.from_pylist(sums, schema=BATCHES), **mark
    )


def _batch(
    number: int, plans: list[TablePlan], first: datetime
) -> tuple[Manifest, list[Published], BatchTimes]:
    entries = tuple(_entries(number, plans))
    read = RECORDS_PER_TABLE * len(plans)
    share = read // _PARTITIONS
    ranges = tuple(
        SourceRange(TOPIC, p, number * share, (number + 1) * share, share)
        for p in range(_PARTITIONS)
    )
    at = first + number * _PAUSE
    manifest = Manifest(
        pipeline=PIPELINE,
        life=LIFE,
        batch=number,
        epoch=1,
        ranges=ranges,
        tables=entries,
        counts=Counts(read, read),
        dead_letters={},
        schemas=(),
        created_at=at.isoformat(),
        lane="stream",
    )
    results = [Published(p.name, Outcome.PUBLISHED, version=number) for p in plans]
    return manifest, results, BatchTimes(at, 0.1, 1.0, 0.1, 1.0, at + _PAUSE)


def _entries(number: int, plans: list[TablePlan]) -> Iterator[TableEntry]:
    low = number * RECORDS_PER_TABLE * len(plans) // _PARTITIONS
    high = low + RECORDS_PER_TABLE * len(plans) // _PARTITIONS
    for plan in plans:
        name = f"part-{number:08d}-{uuid.uuid4().hex}.parquet"
        file = StagedFile(
            name,
            size=10_000,
            rows=RECORDS_PER_TABLE,
            first_offset=low,
            last_offset=high - 1,
            schema_ids=(1 + number % 3,),
        )
        yield TableEntry(plan, (file,), RECORDS_PER_TABLE)
