"""The newest records of one subject that the source still has, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from distributary.errors import (
    CheckpointError,
    DistributaryError,
    EvolutionError,
    LakeUnavailableError,
    SourceError,
)
from distributary.model.plan import Route, RouteKey
from distributary.model.schema import WriterSchema
from distributary.run.checkpoint import Checkpoint
from distributary.run.parts import make_source
from distributary.run.pipeline import Pipeline
from distributary.run.planner import Planner
from distributary.run.proposal_subject import Belongs
from distributary.source.base import Position, Source
from distributary.stage.group import positions
from distributary.stage.unwrap import unwrap
from distributary.stage.unwrapped import Rows

MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class Slice:
    """Records with one key."""

    key: RouteKey
    route: Route
    schema: WriterSchema
    """What they were written with."""
    rows: Rows
    """Their places in the raw batch they came in."""
    payloads: pa.BinaryArray
    places: pa.RecordBatch
    """Topic, partition and offset."""

    def place(self, index: int) -> str:
        """`wrapper/0/42`, as `trace` takes it."""
        row = self.places.slice(index, 1).to_pylist()[0]
        return f"{row['topic']}/{row['partition']}/{row['offset']}"

    def since(self, row: int) -> Slice:
        """Those from a row of the raw batch on."""
        keep = np.flatnonzero(self.rows >= row)
        chosen = pa.array(keep)
        return replace(
            self,
            rows=self.rows[keep],
            payloads=self.payloads.take(chosen),
            places=self.places.take(chosen),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """What was found."""

    slices: tuple[Slice, ...] = ()
    read: int = 0
    """Records that were looked at, of any type."""
    untried: str = ""
    """Why there are none, or not all, where that is the source's fault."""


def take_sample(
    pipeline: Pipeline, planner: Planner, belongs: Belongs, *, most: int = MOST_RECORDS
) -> Sample:
    """The newest records that belong, of the last batch and what follows, one batch at most.

    The planner learns every schema in it, as in a run.
    """
    kept: list[list[Slice]] = []
    read, untried = 0, ""
    try:
        for raw in _since_last_batch(pipeline):
            read += raw.num_rows
            kept.append(_belonging(raw, planner, belongs))
            kept = _newest(kept, most)
    except (SourceError, CheckpointError, LakeUnavailableError, EvolutionError) as error:
        untried = _reason(error)
    except OSError as error:
        untried = f"the source cannot be read: {error.strerror or type(error).__name__}"
    return Sample(tuple(s for batch in kept for s in batch if len(s.rows)), read, untried)


def _since_last_batch(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    source = make_source(pipeline.config)
    yield from source.peek(_start(pipeline, source))


def _start(pipeline: Pipeline, source: Source) -> Position:
    """Where the last batch began; where there is none, where the first one will."""
    checkpoint = Checkpoint.find(pipeline.checkpoint_folder, pipeline=pipeline.config.name)
    if checkpoint is None:
        return source.first()
    manifests = checkpoint.manifests()
    newest = manifests.newest()
    last = manifests.read(newest) if newest >= 0 else None
    before = manifests.read(newest - 1) if newest > 0 else None
    if before is not None:
        return before.source_state
    if last is not None and newest > 0:
        # the manifest before it is gone: what follows it is all whose place is known
        return last.source_state
    return checkpoint.known_first_position() or source.first()


def _belonging(raw: pa.RecordBatch, planner: Planner, belongs: Belongs) -> list[Slice]:
    unwrapped = unwrap(raw, planner.catalog())
    groups = planner.groups(raw, unwrapped)
    catalog = planner.catalog()
    places = raw.select(["topic", "partition", "offset"])
    found = []
    for key, members in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        route = catalog.routes.get(key)
        if not isinstance(route, Route) or not belongs(key, catalog.schemas[route.schema_id]):
            continue
        rows = unwrapped.rows[members]
        payloads = unwrapped.payloads.take(pa.array(members))
        schema = catalog.schemas[route.schema_id]
        found.append(Slice(key, route, schema, rows, payloads, places.take(pa.array(rows))))
    return found


def _newest(batches: list[list[Slice]], most: int) -> list[list[Slice]]:
    """So many records, the oldest dropped first."""
    kept: list[list[Slice]] = []
    for batch in reversed(batches):
        size = sum(len(s.rows) for s in batch)
        if size > most:
            rows = np.sort(np.concatenate([s.rows for s in batch]))
            batch = [s.since(int(rows[-most])) for s in batch] if most else []
            size = most
        most -= size
        if batch:
            kept.append(batch)
    return kept[::-1]


def _reason(error: DistributaryError) -> str:
    return f"{error.code}: {error.what}"
