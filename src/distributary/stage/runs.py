"""Sorted runs: what travels between the two hops of a stage.

Hop one sorts its records by key and writes them as one Arrow file; hop two maps the file into
memory and takes slices of it, which copies nothing. Spark's own shuffle would carry every record
twice between Python and the JVM. The files lie in the checkpoint, which all workers see, and are
gone when the stage is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.model.compact_json import compact, parsed
from distributary.model.plan import RouteKey
from distributary.model.record import RAW

SORTED = RAW.append(pa.field("payload", pa.binary()))
"""A raw record and the payload that was found in it."""

FACT_DDL = "kind string, body string"
_FACT = pa.schema([pa.field("kind", pa.string()), pa.field("body", pa.string())])


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows of a run that have one key."""

    key: RouteKey
    start: int
    count: int
    first_offset: int
    newest: int = 0
    """Of change data: when the newest of these records was made, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Run:
    """A file of records sorted by key."""

    path: str
    ranges: tuple[KeyRange, ...]

    def as_json(self) -> str:
        """For the way from a task to the driver."""
        ranges = [[*r.key, r.start, r.count, r.first_offset, r.newest] for r in self.ranges]
        return compact([self.path, ranges])

    @classmethod
    def of(cls, body: Any) -> Run:
        """The inverse of `as_json`, after the JSON has been parsed."""
        path, ranges = body
        return cls(path, tuple(KeyRange(RouteKey(*r[:-4]), *r[-4:]) for r in ranges))


def write_run(batch: pa.RecordBatch, folder: str) -> str:
    """Write a batch as a file of its own; returns its path."""
    # where the folder is gone, nobody waits for it
    path = Path(folder) / f"{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return str(path)


def open_run(path: str) -> pa.RecordBatch:
    """The batch of a file, mapped into memory."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).get_batch(0)


def facts_batch(facts: Iterable[tuple[str, str]]) -> pa.RecordBatch:
    """What a task tells the driver: kinds and JSON documents."""
    listed = list(facts)
    kinds, bodies = [f[0] for f in listed], [f[1] for f in listed]
    return pa.RecordBatch.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(bodies, pa.string())], schema=_FACT
    )


def facts_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Any]]:
    """The inverse of `facts_batch`, with the documents parsed."""
    for batch in batches:
        kinds, bodies = (batch.column(i).to_pylist() for i in (0, 1))
        yield from zip(kinds, map(parsed, bodies), strict=True)
