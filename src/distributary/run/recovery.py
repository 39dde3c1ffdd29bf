"""A checkpoint that is lost: noticed, and made anew from what the lake knows.

The lake keeps a copy of the newest manifest, which names the life of the checkpoint, the batch and
where the source was. Lakes of the version before have none: there the ledger's ranges say how far
the source was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from distributary.config.source import FilesSource
from distributary.errors import CheckpointError, DistributaryError, ErrorCode
from distributary.model.manifest import Counts, Manifest, SourceRange
from distributary.run.checkpoint import Checkpoint, ManifestCopy
from distributary.run.claim import Claim
from distributary.run.parts import make_source
from distributary.run.removal import finish_removal
from distributary.run.writing import replace_atomically
from distributary.source.base import Position

if TYPE_CHECKING:
    from distributary.observe.rows import BatchRow
    from distributary.run.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a checkpoint is made anew from."""

    life: str
    batch: int
    """The newest batch that was decided."""
    settled: bool
    """Whether all tables have it; the next run finishes it where they do not."""
    position: Position
    """Where the next batch begins."""
    known_by: str
    """`manifest` or `ledger`."""


def refuse_lost(pipeline: Pipeline) -> None:
    """Raise if there is no checkpoint, and the lake knows of batches that one has decided."""
    if _is_there(pipeline):
        return
    last = _last_settled(pipeline)
    copy = ManifestCopy(pipeline.lake, pipeline.config.name).read()
    if last is None and copy is None:
        return
    batch, life = (copy.batch, copy.life) if copy else (last.batch, last.life) if last else (0, "")
    raise CheckpointError(
        "the checkpoint is lost: without it every record would be read and written again",
        code=ErrorCode.CHECKPOINT_LOST,
        where=str(pipeline.checkpoint_folder),
        evidence=f"the lake has batches up to {batch} of life {life}, and this folder has none",
        next_step="put the checkpoint back from a copy, of any age; without one, `distributary "
        "recover FILE` takes its position up from the lake; `distributary reset FILE` begins anew",
    )


def plan_recovery(pipeline: Pipeline) -> Recovery | None:
    """What `recover` would do; None where nothing is lost."""
    if _is_there(pipeline):
        return None
    return _recovery(pipeline)[0]


def recover(pipeline: Pipeline) -> Recovery | None:
    """Make the checkpoint anew, so that the next run goes on where the lake is."""
    finish_removal(pipeline)
    if _is_there(pipeline):
        return None
    claim = Claim.take(pipeline.checkpoint_folder, lease=pipeline.config.run.lease.total_seconds())
    try:
        found, manifest = _recovery(pipeline)
        folder, name = pipeline.checkpoint_folder, pipeline.config.name
        first = manifest.source_start or manifest.source_state
        replace_atomically(folder / "first.json", json.dumps(first))
        checkpoint = Checkpoint(folder, found.life)
        checkpoint.manifests().adopt(manifest)
        if found.settled:
            checkpoint.manifests().settle(manifest.batch)
        # last: with it, the checkpoint is there
        Checkpoint.begin(folder, pipeline=name, life=found.life)
    finally:
        claim.release()
    return found


def _is_there(pipeline: Pipeline) -> bool:
    folder, name = pipeline.checkpoint_folder, pipeline.config.name
    return Checkpoint.find(folder, pipeline=name) is not None


def _recovery(pipeline: Pipeline) -> tuple[Recovery, Manifest]:
    name, folder = pipeline.config.name, pipeline.checkpoint_folder
    if isinstance(pipeline.config.source, FilesSource):
        raise CheckpointError(
            "the checkpoint of a pipeline of files also numbers them, which only it knew",
            code=ErrorCode.CHECKPOINT_LOST,
            where=str(folder),
            next_step="`distributary reset FILE` and run: all files are read again, and events "
            "that the logs have already are dropped",
        )
    last = _last_settled(pipeline)
    copy = ManifestCopy(pipeline.lake, name).read()
    if copy is not None and (last is None or (copy.life, copy.batch) >= (copy.life, last.batch)):
        settled = last is not None and (last.life, last.batch) == (copy.life, copy.batch)
        found = Recovery(copy.life, copy.batch, settled, copy.source_state, "manifest")
        return found, copy
    if last is None:
        raise DistributaryError(
            f"the lake knows nothing of a pipeline {name}",
            code=ErrorCode.NOT_FOUND,
            where=pipeline.lake,
            next_step="`distributary run` begins it",
        )
    manifest = _from_ledger(pipeline, last)
    return Recovery(last.life, last.batch, True, manifest.source_state, "ledger"), manifest


def _from_ledger(pipeline: Pipeline, last: BatchRow) -> Manifest:
    """A manifest that says no more than how far the source was read."""
    name = pipeline.config.name
    read = pipeline.ledger().read_ranges(name, life=last.life).to_pylist()
    ranges = tuple(
        SourceRange(r["topic"], r["partition"], r["first"], r["end"], r["records"]) for r in read
    )
    source = make_source(pipeline.config)
    return Manifest(
        pipeline=name,
        life=last.life,
        batch=last.batch,
        epoch=0,
        ranges=pipeline.ledger().settled_ranges(name, last.life, "stream", last.batch) or (),
        tables=(),
        counts=Counts(),
        dead_letters={},
        schemas=(),
        created_at=datetime.now(UTC).isoformat(),
        source_state=dict(source.retrace(source.first(), ranges)),
    )


def _last_settled(pipeline: Pipeline) -> BatchRow | None:
    rows = pipeline.ledger().batches(pipeline.config.name, lane="stream", last=1)
    return rows[-1] if rows else None
