"""Dead letters through the same batch code once more, exactly once.

A replay is a batch of a lane of its own. What it will send is frozen first, in a file beside the
checkpoint, so that a replay which was killed goes on with the same records and no others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary import durable
from distributary.model.deadletter import CONTENT, content_keys
from distributary.model.manifest import Manifest, SourceRange
from distributary.model.record import RAW
from distributary.observe.deadletters import DeadLetters, Failure
from distributary.run.batch import run_batch
from distributary.run.context import RunContext
from distributary.run.staging import drop_files, stage_records
from distributary.source.base import BatchInput

LANE = "replay"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a selection of dead letters."""

    selected: int = 0
    replayed: int = 0
    failed_again: dict[str, int] = field(default_factory=dict)
    """Those that are dead letters still, by error code."""
    tables: dict[str, int] = field(default_factory=dict)
    """Records per table."""


@dataclass(frozen=True, slots=True)
class FrozenReader:
    """Reads a frozen selection in a task."""

    path: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The one incoming row only says: go."""
        for batch in batches:
            if batch.num_rows:
                with pq.ParquetFile(self.path) as file:
                    for rows in file.iter_batches(columns=RAW.names):
                        yield rows.select(RAW.names).cast(RAW)


def try_replay(context: RunContext, letters: pa.Table) -> Replayed:
    """What a replay would do: staged, counted, and dropped, with a context for nothing else."""
    if not letters.num_rows:
        return Replayed()
    context.planner.book.names.stop_taking()
    number = _next_number(context)
    path = _freeze(context, number, letters, name="trial")
    try:
        staged = stage_records(context, number, _input(context, number, path)).staged
        drop_files(context, staged)
        planned = context.planner.book.tables
    finally:
        path.unlink(missing_ok=True)
    return Replayed(
        selected=letters.num_rows,
        replayed=letters.num_rows - sum(staged.dead.values()),
        failed_again=dict(staged.dead),
        tables={name: n for name, n in sorted(staged.records.items()) if n and planned[name].type},
    )


def replay(context: RunContext, dead_letters: DeadLetters, letters: pa.Table) -> Replayed:
    """Send a selection again. An unfinished replay of before is finished first."""
    if finish(context, dead_letters):
        # some of the selection may have been in it
        still = dead_letters.select(columns=["id"])["id"]
        letters = letters.filter(pc.is_in(letters["id"], still.combine_chunks()))
    if not letters.num_rows:
        return Replayed()
    number = _next_number(context)
    _freeze(context, number, letters)
    return _run(context, dead_letters, number)


def finish(context: RunContext, dead_letters: DeadLetters) -> list[Replayed]:
    """Complete the replays that were begun and not ended."""
    pending = sorted(_folder(context).glob("selection-*.parquet"))
    return [_run(context, dead_letters, int(path.stem.split("-")[1])) for path in pending]


def _run(context: RunContext, dead_letters: DeadLetters, number: int) -> Replayed:
    path = _selection(context, number)
    settled = run_batch(context, number, _input(context, number, path))
    manifest = settled.manifest
    letters = pq.read_table(path, columns=["id", *CONTENT])
    ids = letters["id"].to_pylist()
    failed = failed_letters(manifest, letters)
    good = [i for i in ids if i not in failed]
    dead_letters.mark_replayed(good, replay=number)
    dead_letters.mark_failed_again(failed, at=datetime.fromisoformat(manifest.created_at))
    # the selection is what says that a replay is unfinished: it goes last
    path.unlink()
    return Replayed(
        selected=len(ids),
        replayed=len(good),
        failed_again=dict(Counter(failure.code for failure in failed.values())),
        tables={e.table.name: e.records for e in manifest.tables if e.table.type and e.records},
    )


def failed_letters(manifest: Manifest, letters: pa.Table) -> dict[str, Failure]:
    """The letters that failed again in a replay, by id."""
    told = manifest.source_state.get("failed", {})
    failed: dict[str, Failure] = {}
    for letter, key in zip(letters["id"].to_pylist(), content_keys(letters), strict=True):
        # a replay that the version before has decided names them by id
        found = told.get(key) or told.get(letter)
        if found is not None:
            failed[letter] = Failure(*found)
    return failed


def _folder(context: RunContext) -> Path:
    return context.checkpoint.folder / LANE


def _selection(context: RunContext, number: int) -> Path:
    return _folder(context) / f"selection-{number:08d}.parquet"


def _next_number(context: RunContext) -> int:
    return max(context.manifests.newest(), context.newest_settled) + 1


def _freeze(
    context: RunContext, number: int, letters: pa.Table, *, name: str = "selection"
) -> Path:
    folder = _folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{number:08d}.parquet"
    content = pa.BufferOutputStream()
    pq.write_table(letters, content)
    durable.replace(path, content.getvalue().to_pybytes())
    return path


def _input(context: RunContext, number: int, path: Path) -> BatchInput:
    decided = context.manifests.read(number)
    return BatchInput(
        frame=context.spark.range(0, 1, 1, 1),
        reader=FrozenReader(str(path)),
        ranges=decided.ranges if decided is not None else (_range(number, path),),
        end={},
    )


def _range(number: int, path: Path) -> SourceRange:
    """A selection as a stretch of a source: another one under this number has another name."""
    ids = pq.read_table(path, columns=["id"])["id"].to_pylist()
    name = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:8]
    return SourceRange(f"dead letters, replay {number}, {name}", 0, 0, len(ids), len(ids))
