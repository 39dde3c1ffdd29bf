"""Erased records in both hops: records that are read again are dropped, and new ones reported.

Hop one drops records that were erased, by their coordinates, before bronze has them. Hop two drops
records with an erased value, which are new: bronze has their bytes until `maintain` or `erase`
removes them, for which the tasks report their coordinates to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.delta.removal.erased_records import ErasedRecord, KnownErased, RowPlaces
from distributary.evolve.types import is_side_name
from distributary.model.facts import Fact, RecordsErased, RecordsSkipped
from distributary.stage.decoding import DecodedPart
from distributary.stage.exchange import combinations
from distributary.stage.rows.partitions import COORDINATES
from distributary.stage.task_plan import TaskPlan

_IN_SOURCE = RowPlaces("topic", "partition", "offset", "timestamp")


def without_erased(batch: pa.RecordBatch, plan: TaskPlan) -> pa.RecordBatch:
    """Return the records of a batch that were not erased."""
    gone = plan.erased.known().at_places(batch, _IN_SOURCE)
    return batch.filter(pa.array(~gone)) if gone.any() else batch


def without_erased_values(
    parts: Sequence[DecodedPart], plan: TaskPlan
) -> tuple[list[DecodedPart], list[Fact]]:
    """Return the parts without records that have an erased value, and facts about these."""
    known = plan.erased.known()
    if not known.values:
        return list(parts), []
    kept, facts = [], list[Fact]()
    for part in parts:
        gone = _whole_records(part, known)
        if not gone.any():
            kept.append(part)
            continue
        records = _records(part.raw.filter(pa.array(gone)))
        stay = pa.array(~gone)
        kept.append(
            replace(
                part,
                batch=part.batch.filter(stay),
                raw=part.raw.filter(stay),
                records=part.records - len(records),
            )
        )
        facts += [RecordsSkipped(len(records)), RecordsErased(records)]
    return kept, facts


def _whole_records(part: DecodedPart, known: KnownErased) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of all records of which a row has an erased value."""
    schema = part.batch.schema
    names = {name.lower(): (name,) for name in schema.names}
    names |= {fill.target.lower(): (fill.source,) for fill in part.fills}
    for name in {name for group in known.values for name in group} & names.keys():
        names[name] += tuple(f.name for f in schema if is_side_name(f.name, name, f.type))
    found = known.with_values(pa.Table.from_batches([part.batch]), names)
    if found.any():
        numbers = combinations(part.raw.column(name) for name in COORDINATES)[1]
        found = np.isin(numbers, numbers[found])
    return found


def _records(raw: pa.Table) -> tuple[ErasedRecord, ...]:
    times = raw.column("timestamp").cast(pa.int64()).to_pylist()
    places = (raw.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return tuple(dict.fromkeys(zip(*places, times, strict=True)))
