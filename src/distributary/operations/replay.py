"""Replays: dead letters go through the same batch code once more, exactly once.

A replay is a batch in a lane of its own. Its selection is first stored in a file beside the
checkpoint, so that a killed replay continues with the same records.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.engine.batch import run_batch
from distributary.engine.context import RunContext
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.removal import dead_letters_of
from distributary.engine.steps.hops import drop_files, mask_key, stage_records
from distributary.errors import ConfigError
from distributary.model.deadletter import (
    CONTENT,
    ENCRYPTED,
    MAY_HEAL,
    SECRETS,
    WITHHELD,
    content_keys,
)
from distributary.model.manifest import REPLAYS, Manifest, SourceRange
from distributary.model.record import RAW
from distributary.observe.deadletters import DeadLetters, ReplayFailure, unfinished
from distributary.registry.base import has_schema
from distributary.shape.raw_encryption import WrongKeyError, decrypted
from distributary.source.base import BatchInput
from distributary.stage.decoding import tried
from distributary.stage.land import sealed_letters
from distributary.stage.unwrap import decodable, unwrap
from distributary.store.base import Store, at, reaching

LANE = REPLAYS


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of replaying a selection of dead letters."""

    selected: int = 0
    replayed: int = 0
    failed_again: dict[str, int] = field(default_factory=dict)
    """The records that are still dead letters, by error code."""
    tables: dict[str, int] = field(default_factory=dict)
    """The number of records per table."""


@dataclass(frozen=True, slots=True)
class FrozenReader:
    """A reader of a stored selection, for a task."""

    folder: str
    name: str
    mask_key: bytes = field(default=b"", repr=False)
    """The key with which contents are encrypted; the selection is, too."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the selection for the one incoming row."""
        for batch in batches:
            if batch.num_rows:
                with at(self.folder).open(self.name) as file:
                    names = [*RAW.names, "note"]
                    for rows in pq.ParquetFile(file).iter_batches(columns=names):
                        letters = opened(pa.Table.from_batches([rows]), self.mask_key)
                        yield from letters.select(RAW.names).cast(RAW).to_batches()


def try_replay(context: RunContext, letters: pa.Table) -> ReplayResult:
    """Return the result of a replay without doing it; the context is used for nothing else."""
    if not letters.num_rows:
        return ReplayResult()
    context.planner.book.names.stop_taking()
    number = _next_number(context)
    name = _freeze(context, number, letters, kind="trial")
    try:
        staged = stage_records(context, number, _input(context, number, name)).staged
        drop_files(context, staged)
        planned = context.planner.book.tables
    finally:
        _place(context).remove(name)
    return ReplayResult(
        selected=letters.num_rows,
        replayed=letters.num_rows - sum(staged.dead.values()),
        failed_again=dict(staged.dead),
        tables={name: n for name, n in sorted(staged.records.items()) if n and planned[name].type},
    )


def replay(context: RunContext, dead_letters: DeadLetters, letters: pa.Table) -> ReplayResult:
    """Replay a selection, after finishing an earlier unfinished replay."""
    if finish(context, dead_letters):
        # the earlier replay may have included a part of the selection
        still = dead_letters.select(columns=["id"])["id"]
        letters = letters.filter(pc.is_in(letters["id"], still.combine_chunks()))
    if not letters.num_rows:
        return ReplayResult()
    number = _next_number(context)
    _freeze(context, number, letters)
    return _run(context, dead_letters, number)


def finish(context: RunContext, dead_letters: DeadLetters) -> list[ReplayResult]:
    """Complete unfinished replays."""
    return [
        _run(context, dead_letters, number)
        for number in unfinished(context.progress.checkpoint.store)
    ]


def _run(context: RunContext, dead_letters: DeadLetters, number: int) -> ReplayResult:
    name = f"selection-{number:08d}.parquet"
    settled = run_batch(context, number, _input(context, number, name))
    manifest = settled.manifest
    letters = _frozen(context, name, columns=["id", *CONTENT])
    ids = letters["id"].to_pylist()
    failed = failed_letters(manifest, letters)
    good = [i for i in ids if i not in failed]
    dead_letters.mark_replayed(good, replay=number)
    dead_letters.mark_failed_again(failed, at=datetime.fromisoformat(manifest.created_at))
    # the selection marks a replay as unfinished, so it is removed last
    _place(context).remove(name)
    return ReplayResult(
        selected=len(ids),
        replayed=len(good),
        failed_again=dict(Counter(failure.code for failure in failed.values())),
        tables={e.table.name: e.records for e in manifest.tables if e.table.type and e.records},
    )


def failed_letters(manifest: Manifest, letters: pa.Table) -> dict[str, ReplayFailure]:
    """Return the dead letters that failed again in a replay, by id."""
    failures = manifest.source_state.get("failed", {})
    failed: dict[str, ReplayFailure] = {}
    for letter, key in zip(letters["id"].to_pylist(), content_keys(letters), strict=True):
        # a replay of an earlier version names letters by id
        failure = failures.get(key) or failures.get(letter)
        if failure is not None:
            failed[letter] = ReplayFailure(*failure)
    return failed


def opened(letters: pa.Table, key: bytes) -> pa.Table:
    """Return letters with the contents of their records. Raises ConfigError for a wrong key."""
    flags = pc.fill_null(pc.equal(letters["note"], ENCRYPTED), False)
    if not pc.any(flags).as_py():
        return letters
    try:
        plain = decrypted(letters.filter(flags), SECRETS, key)
    except WrongKeyError as error:
        raise ConfigError(
            "dead letters are encrypted with another key",
            where="masking.key",
            evidence=f"{letters.num_rows:,} letters, some with the note: {ENCRYPTED}",
            next_step="set the key of the time when they were written, or read the records again: "
            "`distributary reset FILE`",
        ) from error
    place = plain.schema.get_field_index("note")
    type_ = plain.schema.field(place)
    plain = plain.set_column(place, type_, pa.nulls(plain.num_rows, type_.type))
    return pa.concat_tables([letters.filter(pc.invert(flags)), plain])


def _place(context: RunContext) -> Store:
    return context.progress.checkpoint.store.below(LANE)


def _next_number(context: RunContext) -> int:
    return max(context.progress.manifests.newest(), context.progress.newest_settled) + 1


def _freeze(context: RunContext, number: int, letters: pa.Table, *, kind: str = "selection") -> str:
    """Store the selection and return the name of its file.

    Raise ConfigError if the contents of a record were not kept.
    """
    withheld = pc.sum(pc.equal(letters["note"], WITHHELD)).as_py()
    if withheld:
        raise ConfigError(
            f"{withheld:,} of {letters.num_rows:,} dead letters have no record to replay",
            where="masking.raw",
            evidence=f"their note is: {WITHHELD}",
            next_step="select others, or read the records again: `distributary reset FILE`",
        )
    name = f"{kind}-{number:08d}.parquet"
    key = mask_key(context.config)
    letters = opened(letters, key)
    if context.config.raw_records == "encrypt":
        # a replay compares its dead letters, which it encrypts, with the selected ones
        letters = sealed_letters(letters, key)
    content = pa.BufferOutputStream()
    pq.write_table(letters, content)
    with reaching(_place(context).address):
        _place(context).write(name, content.getvalue().to_pybytes())
    return name


def _frozen(context: RunContext, name: str, *, columns: Sequence[str]) -> pa.Table:
    return pq.read_table(pa.BufferReader(_place(context).read(name)), columns=list(columns))


def _input(context: RunContext, number: int, name: str) -> BatchInput:
    decided = context.progress.manifests.read(number)
    return BatchInput(
        reader=FrozenReader(_place(context).address, name, mask_key(context.config)),
        ranges=decided.ranges if decided is not None else (_range(context, number, name),),
        end={},
    )


def _range(context: RunContext, number: int, file: str) -> SourceRange:
    """Return a selection as a source range.

    Another selection under this number has another name.
    """
    ids = _frozen(context, file, columns=["id"])["id"].to_pylist()
    name = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:8]
    return SourceRange(f"dead letters, replay {number}, {name}", 0, 0, len(ids), len(ids))


# Dead letters that would decode now, because their schema was registered.

_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class HealableLetters:
    """The number of open dead letters that would become rows now."""

    count: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)


def healable(pipeline: Pipeline) -> HealableLetters:
    """Decode a sample of each schema's dead letters, and extrapolate to all of that schema."""
    letters = dead_letters_of(pipeline)
    registry = pipeline.registry()
    counts: Counter[str] = Counter()
    for reason in sorted(MAY_HEAL):
        table = letters.select(reason=reason, pipeline=pipeline.config.name)
        for schema_id in table["schema_id"].unique().to_pylist():
            if schema_id is None or registry is None or not has_schema(registry, schema_id):
                continue
            same = table.filter(pa.compute.equal(table["schema_id"], schema_id))
            sample = same.slice(0, _SAMPLE)
            share = _decodes(pipeline, sample) / sample.num_rows
            counts[str(reason)] += round(same.num_rows * share)
    return HealableLetters(sum(counts.values()), {k: v for k, v in counts.items() if v})


def _decodes(pipeline: Pipeline, letters: pa.Table) -> int:
    letters = opened(letters, mask_key(pipeline.config))
    raw = letters.select(RAW.names).cast(RAW).combine_chunks().to_batches()[0]
    planner = pipeline.planner(trial=True)
    unwrapped = decodable(unwrap(raw, planner.task_plan()), planner.task_plan())
    groups = planner.groups(raw, unwrapped)
    trials = tried(raw, unwrapped, groups, planner.task_plan())
    return sum(trial.records - trial.failures.total() for trial in trials)
