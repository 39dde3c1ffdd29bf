"""What travels between the two hops of a stage: few rows, each a whole Arrow batch.

Rows of records would be turned from Arrow into Spark's rows and back again on the way through the
shuffle; a packet passes through as bytes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

PACKET_DDL = "bucket int, kind string, name string, body binary"
PACKET = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("name", pa.string()),
        pa.field("body", pa.binary()),
    ]
)
FACT_DDL = "kind string, body string"
FACT = pa.schema([pa.field("kind", pa.string()), pa.field("body", pa.string())])

ROWS = "rows"
"""Raw records for the table `name`."""
DEAD = "dead"
"""Rows for the dead-letter table."""
FACTS = "fact"
"""Something the driver wants to know, passed on as it is."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One row of the shuffle."""

    bucket: int
    kind: str
    name: str
    body: bytes | pa.Buffer


def to_batch(packets: Iterable[Packet]) -> pa.RecordBatch:
    """Packets as the Arrow batch that Spark shuffles."""
    listed = list(packets)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([p.bucket for p in listed], pa.int32()),
            pa.array([p.kind for p in listed], pa.string()),
            pa.array([p.name for p in listed], pa.string()),
            pa.array([_bytes(p.body) for p in listed], pa.binary()),
        ],
        schema=PACKET,
    )


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Packet]:
    """The inverse of `to_batch`, without copying the bodies."""
    for batch in batches:
        buckets, kinds, names = (batch.column(i).to_pylist() for i in range(3))
        bodies = batch.column(3)
        for i, kind in enumerate(kinds):
            yield Packet(buckets[i], kind, names[i], bodies[i].as_buffer())


def fact(kind: str, **content: Any) -> Packet:
    """Something for the driver; the bucket does not matter."""
    return Packet(0, FACTS, kind, json.dumps(content, separators=(",", ":")).encode())


def facts_batch(facts: Iterable[tuple[str, str]]) -> pa.RecordBatch:
    """What a task returns: kinds and JSON documents."""
    listed = list(facts)
    kinds, bodies = [f[0] for f in listed], [f[1] for f in listed]
    return pa.RecordBatch.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(bodies, pa.string())], schema=FACT
    )


def bucket_of(name: str, salt: int, *, buckets: int, spread: tuple[int, ...] | None) -> int:
    """The task that writes a table: one of its own, or one that its name is hashed to."""
    if spread:
        return spread[salt % len(spread)]
    return zlib.crc32(name.encode()) % buckets


def _bytes(body: bytes | pa.Buffer) -> bytes:
    return body if isinstance(body, bytes) else body.to_pybytes()
