"""The one Spark job of a batch: two hops, a shuffle of packets between them, facts back."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from distributary.model.manifest import StagedFile
from distributary.model.plan import Catalog, RouteKey, StageOrder
from distributary.stage.land import land
from distributary.stage.packets import FACT_DDL, PACKET_DDL
from distributary.stage.scatter import scatter


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A key that the catalog has no answer for, and where it was first seen."""

    key: RouteKey
    offset: int


@dataclass(slots=True)
class Staged:
    """What all tasks of a stage said."""

    seen: int = 0
    files: dict[str, list[StagedFile]] = field(default_factory=lambda: defaultdict(list))
    records: Counter[str] = field(default_factory=Counter)
    """Source records per table."""
    dead: Counter[str] = field(default_factory=Counter)
    """Dead-lettered records by error code."""
    unresolved: list[Unresolved] = field(default_factory=list)


Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run_stage(
    frame: DataFrame, reader: Reader, catalog: Broadcast[Catalog], order: StageOrder
) -> Staged:
    """Stage what `reader` makes of `frame`. Nothing it writes is visible to readers of a table."""
    sources = frame.rdd.getNumPartitions()

    def first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return scatter(reader(iter(batches)), catalog.value, order)

    def second(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return land(batches, catalog.value, order)

    def both(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return second(first(batches))

    if sources == 1:
        # one task reads everything: there is nobody to shuffle with
        facts = frame.mapInArrow(both, FACT_DDL)
    else:
        packets = frame.mapInArrow(first, PACKET_DDL)
        facts = packets.repartitionById(order.buckets, F.col("bucket")).mapInArrow(second, FACT_DDL)
    return gathered((row["kind"], json.loads(row["body"])) for row in facts.collect())


def gathered(facts: Iterable[tuple[str, Any]]) -> Staged:
    """What all tasks said, taken together."""
    staged = Staged()
    first_seen: dict[RouteKey, int] = {}
    for kind, body in facts:
        match kind:
            case "seen":
                staged.seen += body["records"]
            case "dead":
                staged.dead.update(body)
            case "unresolved":
                key = RouteKey(*body["key"])
                first_seen[key] = min(body["offset"], first_seen.get(key, body["offset"]))
            case "file":
                staged.records[body["table"]] += body["records"]
                if body["file"] is not None:
                    file = body["file"]
                    file["schema_ids"] = tuple(file["schema_ids"])
                    staged.files[body["table"]].append(StagedFile(**file))
    in_order = sorted(first_seen.items(), key=lambda item: (item[1], item[0]))
    staged.unresolved = [Unresolved(key, offset) for key, offset in in_order]
    return staged
