"""Dead letters through the same batch code once more, exactly once.

A replay is a batch of a lane of its own. What it will send is frozen first, in a file beside the
checkpoint, so that a replay which was killed goes on with the same records and no others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.decode.formats import VIEWS
from distributary.engine.batch import run_batch
from distributary.engine.parts import RunContext
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import REPLAY, unfinished_replays
from distributary.engine.progress.removal import dead_letters_of
from distributary.engine.schemas import SchemaLookup, choose_envelope
from distributary.engine.stage import drop_files, stage_records
from distributary.errors import RegistryError
from distributary.model.deadletter import CONTENT, MAY_HEAL, content_keys
from distributary.model.manifest import Manifest, SourceRange
from distributary.model.plan import Rejected, Route
from distributary.model.record import RAW, Format, WriterSchema
from distributary.observe.deadletters import DeadLetters, Failure
from distributary.registry.base import SchemaRegistry, has_schema
from distributary.registry.wire import Framed, parse
from distributary.source.base import BatchInput
from distributary.stage.exchange import group, positions
from distributary.stage.parts import failures
from distributary.stage.unwrap import Unwrapped, unwrap
from distributary.store.base import Store, at, reaching

LANE = REPLAY


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

    folder: str
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The one incoming row only says: go."""
        for batch in batches:
            if batch.num_rows:
                with at(self.folder).open(self.name) as file:
                    for rows in pq.ParquetFile(file).iter_batches(columns=RAW.names):
                        yield rows.select(RAW.names).cast(RAW)


def try_replay(context: RunContext, letters: pa.Table) -> Replayed:
    """What a replay would do: staged, counted, and dropped, with a context for nothing else."""
    if not letters.num_rows:
        return Replayed()
    context.planner.book.names.stop_taking()
    number = _next_number(context)
    name = _freeze(context, number, letters, kind="trial")
    try:
        staged = stage_records(context, number, _input(context, number, name)).staged
        drop_files(context, staged)
        planned = context.planner.book.tables
    finally:
        _place(context).remove(name)
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
    return [
        _run(context, dead_letters, number)
        for number in unfinished_replays(context.checkpoint.store)
    ]


def _run(context: RunContext, dead_letters: DeadLetters, number: int) -> Replayed:
    name = f"selection-{number:08d}.parquet"
    settled = run_batch(context, number, _input(context, number, name))
    manifest = settled.manifest
    letters = _frozen(context, name, columns=["id", *CONTENT])
    ids = letters["id"].to_pylist()
    failed = failed_letters(manifest, letters)
    good = [i for i in ids if i not in failed]
    dead_letters.mark_replayed(good, replay=number)
    dead_letters.mark_failed_again(failed, at=datetime.fromisoformat(manifest.created_at))
    # the selection is what says that a replay is unfinished: it goes last
    _place(context).remove(name)
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


def _place(context: RunContext) -> Store:
    return context.checkpoint.store.below(LANE)


def _next_number(context: RunContext) -> int:
    return max(context.manifests.newest(), context.newest_settled) + 1


def _freeze(context: RunContext, number: int, letters: pa.Table, *, kind: str = "selection") -> str:
    """Keep what is sent again; the name of its file."""
    name = f"{kind}-{number:08d}.parquet"
    content = pa.BufferOutputStream()
    pq.write_table(letters, content)
    with reaching(_place(context).address):
        _place(context).write(name, content.getvalue().to_pybytes())
    return name


def _frozen(context: RunContext, name: str, *, columns: Sequence[str]) -> pa.Table:
    return pq.read_table(pa.BufferReader(_place(context).read(name)), columns=list(columns))


def _input(context: RunContext, number: int, name: str) -> BatchInput:
    decided = context.manifests.read(number)
    return BatchInput(
        reader=FrozenReader(_place(context).address, name),
        ranges=decided.ranges if decided is not None else (_range(context, number, name),),
        end={},
    )


def _range(context: RunContext, number: int, file: str) -> SourceRange:
    """A selection as a stretch of a source: another one under this number has another name."""
    ids = _frozen(context, file, columns=["id"])["id"].to_pylist()
    name = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:8]
    return SourceRange(f"dead letters, replay {number}, {name}", 0, 0, len(ids), len(ids))


# Dead letters that would decode now, because the schema they waited for has appeared.

_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class Healing:
    """How many open dead letters would be rows now."""

    count: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)


def healable(pipeline: Pipeline) -> Healing:
    """Try a sample of each schema's letters; count all of a schema whose sample decodes."""
    letters = dead_letters_of(pipeline)
    registry = pipeline.registry()
    found: Counter[str] = Counter()
    for reason in sorted(MAY_HEAL):
        table = letters.select(reason=reason, pipeline=pipeline.config.name)
        for schema_id in table["schema_id"].unique().to_pylist():
            if schema_id is None or registry is None or not has_schema(registry, schema_id):
                continue
            same = table.filter(pa.compute.equal(table["schema_id"], schema_id))
            sample = same.slice(0, _SAMPLE)
            share = _decodes(pipeline, sample) / sample.num_rows
            found[str(reason)] += round(same.num_rows * share)
    return Healing(sum(found.values()), {k: v for k, v in found.items() if v})


def _decodes(pipeline: Pipeline, letters: pa.Table) -> int:
    raw = letters.select(RAW.names).cast(RAW).combine_chunks().to_batches()[0]
    planner = pipeline.planner(trial=True)
    unwrapped = unwrap(raw, planner.catalog())
    groups = planner.groups(raw, unwrapped)
    catalog = planner.catalog()
    records = 0
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        route = catalog.routes[key]
        if isinstance(route, Route):
            payloads = unwrapped.payloads.take(pa.array(rows))
            same = pa.Table.from_batches([raw.take(pa.array(unwrapped.rows[rows]))])
            records += len(rows) - failures(payloads, same, route, catalog)
    return records


# What can be read in a record that could not be ingested.

_MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Insight:
    """A record's schema, payload and text, as far as they could be found."""

    schema: str = ""
    """`12 (chess_game-value v3)`."""
    payload_start: int | None = None
    """Where the payload begins in the value."""
    mark: int | None = None
    """The byte of the value at which decoding failed."""
    label: str = ""
    text: str = ""


def look_inside(pipeline: Pipeline | None, letter: Mapping[str, Any]) -> Insight:
    """As much as can be found out; without a pipeline the bytes must do."""
    value: bytes = letter["value"] or b""
    registry = pipeline.registry() if pipeline is not None else None
    if pipeline is None or registry is None:
        return _without_schemas(value, letter)
    schema = _schema(registry, letter["schema_id"])
    found = _unwrapped(pipeline, letter) if value else None
    payload = found.payloads[0].as_py() if found is not None and len(found.rows) else None
    start = value.rfind(payload) if payload else _after_frame(value)
    writer = schema if payload else _envelope(pipeline, registry)
    message: str | Rejected = ""
    if writer is not None and payload and found is not None:
        lookup = SchemaLookup(pipeline.config, registry, None)
        message = lookup.message(group(found).keys[0], writer)
    elif writer is not None and pipeline.config.envelope is not None:
        message = choose_envelope(pipeline.config.envelope, writer)
    text = _readable(writer, message, payload or value[start:]) if value else ""
    position = letter["error_position"]
    return Insight(
        schema=_named(letter["schema_id"], schema),
        payload_start=start if payload else None,
        mark=None if position is None or not value else start + position,
        label=""
        if position is None
        else f"byte {position} of the {'payload' if payload else 'message'}",
        text=text[:_MOST_CHARACTERS],
    )


def _readable(writer: WriterSchema | None, message: str | Rejected, payload: bytes) -> str:
    if writer is None or (isinstance(message, Rejected) and writer.format is Format.PROTOBUF):
        return _without_schema(payload)
    view = VIEWS.get(writer.format)
    name = writer.message if isinstance(message, Rejected) else message
    return view(writer.body, name, payload) if view else ""


def _without_schema(payload: bytes) -> str:
    """JSON as it is; anything else as protobuf, whose fields have numbers without a schema, too."""
    text = payload.lstrip()[:1] in (b"{", b"[")
    return VIEWS[Format.JSON if text else Format.PROTOBUF](None, "", payload)


def _without_schemas(value: bytes, letter: Mapping[str, Any]) -> Insight:
    start, position = _after_frame(value), letter["error_position"]
    known = letter["stage"] == "unwrap" and position is not None and value
    schema_id = letter["schema_id"]
    return Insight(
        schema="unknown" if schema_id is None else str(schema_id),
        mark=start + position if known else None,
        label=f"byte {position} of the message" if known else "",
        text=_without_schema(value[start:])[:_MOST_CHARACTERS] if value else "",
    )


def _unwrapped(pipeline: Pipeline, letter: Mapping[str, Any]) -> Unwrapped:
    raw = pa.RecordBatch.from_pylist([{name: letter[name] for name in RAW.names}], schema=RAW)
    return unwrap(raw, pipeline.planner().catalog())


def _after_frame(value: bytes) -> int:
    framed = parse(value)
    return framed.payload_start if isinstance(framed, Framed) else 0


def _schema(registry: SchemaRegistry, schema_id: int | None) -> WriterSchema | None:
    try:
        return None if schema_id is None else registry.by_id(schema_id)
    except RegistryError:
        return None


def _envelope(pipeline: Pipeline, registry: SchemaRegistry) -> WriterSchema | None:
    envelope = pipeline.config.envelope
    try:
        return registry.latest(envelope.subject) if envelope and envelope.subject else None
    except RegistryError:
        return None


def _named(schema_id: int | None, schema: WriterSchema | None) -> str:
    if schema_id is None:
        return "unknown"
    return f"{schema_id} ({schema.label()})" if schema else f"{schema_id} (not in the registry)"
