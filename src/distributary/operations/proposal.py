"""`plan --with-schema`: what a schema that is not registered would do to tables and records."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config.pipeline import PipelineConfig
from distributary.config.source import Payload
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.formats import decoder_for
from distributary.engine.pipeline import Pipeline
from distributary.engine.plan import Planner
from distributary.errors import (
    ConfigError,
    DecodeError,
    ErrorCode,
    EvolutionError,
    SchemaNotFoundError,
)
from distributary.evolve.merge import ignored, merge, missing
from distributary.model.deadletter import Decoded, Failure
from distributary.model.names import printable
from distributary.model.plan import Rejected, Route, RouteKey
from distributary.model.record import Format, WriterSchema
from distributary.model.table import Change, ChangeKind, Column
from distributary.operations.proposed import (
    MOST_RECORDS,
    PROPOSED_ID,
    Judge,
    Preview,
    ProposedRegistry,
    Slice,
    TablePreview,
    belonging,
    compile_proposed,
    take_sample,
    types_of_subject,
)
from distributary.registry.compatibility.levels import Level
from distributary.registry.messages import choose_message
from distributary.stage.job import Unresolved

# Payloads as their writer would have written them with another schema.
#
# Protobuf and JSON name their fields, so that the bytes stay what they are. Avro's bytes mean
# nothing without their schema: each datum is read with the schema it was written with, and
# written with the other one.

_BARE = "bytes"


def rewritten(
    payloads: pa.BinaryArray, written: WriterSchema, proposed: WriterSchema
) -> tuple[list[bytes | None], list[Failure]]:
    """One payload for each, None for those that the other schema has no place for.

    Only payloads that their own schema decodes may be given: others are not safe to resolve.
    """
    values: list[bytes | None] = payloads.to_pylist()
    if proposed.format is not Format.AVRO or _BARE in (written.message, proposed.message):
        return values, []
    failures: list[Failure] = []
    renames = b'"aliases"' in proposed.body
    try:
        old, new = _plain(written), _plain(proposed)
    except Exception as error:
        # a schema that the other library refuses: nothing can be said of any record
        why = f"not resolved: {type(error).__name__}"
        return [None] * len(values), [
            Failure(i, ErrorCode.UNUSABLE_SCHEMA, why) for i in range(len(values))
        ]
    for index, value in enumerate(values):
        try:
            values[index] = _written(value or b"", old, new, renames=renames)
        except Exception as error:
            # the library raises whatever comes to its mind; each of them means: it does not fit
            why = f"its value does not fit the proposed schema: {type(error).__name__}"
            values[index] = None
            failures.append(Failure(index, ErrorCode.PAYLOAD_MISMATCH, why))
    return values, failures


def _written(value: bytes, old: Any, new: Any, *, renames: bool) -> bytes:
    """The datum in the new schema: as it is where it fits, else by Avro's resolution.

    Resolution alone would take the first branch of a union that a value can be promoted to, which
    no writer does; only it knows other names of a field.
    """
    # names of union branches are kept: records that look alike must not be taken for each other
    datum = fastavro.schemaless_reader(io.BytesIO(value), old, None, return_record_name=True)
    if renames or not fastavro.validate(datum, new, raise_errors=False):
        source = io.BytesIO(value)
        datum = fastavro.schemaless_reader(source, old, new, return_record_name=True)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, new, datum)
    return out.getvalue()


def _plain(schema: WriterSchema) -> Any:
    """The schema without logical types: bytes are carried over, whatever they stand for."""
    return fastavro.parse_schema(_without_logical(json.loads(schema.body)))


def _without_logical(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_logical(each) for each in node]
    if not isinstance(node, dict):
        return node
    # a default is a value, not a schema
    kept = {key: value for key, value in node.items() if key != "logicalType"}
    return {
        key: value if key in ("default", "symbols") else _without_logical(value)
        for key, value in kept.items()
    }


# Whether two columns hold the same values, row by row, also where their types differ.

Indexes = npt.NDArray[np.int64]
_NONE: Indexes = np.zeros(0, np.int64)


def lost_and_changed(before: pa.Array, after: pa.Array | None) -> tuple[Indexes, Indexes]:
    """Rows that had a value and have none, and rows that have another; None is: no such column."""
    had = pc.is_valid(before).to_numpy(zero_copy_only=False)
    if after is None:
        return np.flatnonzero(had), _NONE
    before = _as(before, after.type)
    if before.equals(after):
        return _NONE, _NONE
    has = pc.is_valid(after).to_numpy(zero_copy_only=False)
    both = np.flatnonzero(had & has).tolist()
    changed = [row for row in both if not _same(before[row], after[row])]
    return np.flatnonzero(had & ~has), np.array(changed, np.int64)


def _as(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The values as the other type, where that holds all of them as they are."""
    if values.type == type or pa.types.is_string(type) or pa.types.is_binary(type):
        # anything can be spelled as text, which does not make it the same value
        return values
    try:
        return values.cast(type)
    except pa.ArrowException:
        return values


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    if one.equals(other):
        return True
    if one.type != other.type:
        return False
    try:
        # what is not a number is not equal to itself
        return repr(one.as_py()) == repr(other.as_py())
    except (ValueError, OverflowError):
        # times that Python cannot hold
        return False


# Tries a proposed schema on records: what would break, and which values would be others.

ROWS = "number of rows"
"""In place of a field: a payload that becomes more or fewer rows than it did."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """Records that would be dead letters for one reason."""

    code: str
    records: int
    example: str
    """`wrapper/0/42`, the first of them."""
    message: str


@dataclass(frozen=True, slots=True)
class FieldLoss:
    """A field whose values would not come through as they do now."""

    field: str
    vanished: int
    """Rows that have a value now and would have none."""
    changed: int
    """Rows that would have another value."""
    example: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the records."""

    records: int = 0
    decoded: int = 0
    broken_now: int = 0
    """Records that their own schema does not decode either."""
    untried: int = 0
    """Records that the proposed schema has no message for."""
    breakages: tuple[Breakage, ...] = ()
    losses: tuple[FieldLoss, ...] = ()

    @property
    def broken(self) -> int:
        """Records that would break and do not now."""
        return sum(breakage.records for breakage in self.breakages)


@dataclass(slots=True)
class _Tally:
    decoded: int = 0
    broken_now: int = 0
    untried: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    vanished: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)


def try_schema(
    slices: Sequence[Slice],
    schema: WriterSchema,
    routes: Mapping[RouteKey, Route],
    limits: DecodeLimits,
) -> Trial:
    """Decode records as if they had been written with a schema, by the routes of their keys."""
    tally = _Tally()
    for one in slices:
        route = routes.get(one.key)
        if route is None:
            tally.untried += len(one.rows)
            continue
        _try_slice(tally, one, schema, route, limits)
    losses = sorted(tally.seen, key=lambda name: -tally.vanished[name] - tally.changed[name])
    return Trial(
        records=sum(len(one.rows) for one in slices),
        decoded=tally.decoded,
        broken_now=tally.broken_now,
        untried=tally.untried,
        breakages=tuple(
            Breakage(code, count, *tally.first[code]) for code, count in tally.broken.most_common()
        ),
        losses=tuple(
            FieldLoss(name, tally.vanished[name], tally.changed[name], tally.seen[name])
            for name in losses
        ),
    )


def _try_slice(
    tally: _Tally, one: Slice, schema: WriterSchema, route: Route, limits: DecodeLimits
) -> None:
    old = _decoder(one.schema, one.route, limits)
    before = old.decode(one.payloads)
    bad = {failure.index for failure in before.failed}
    tally.broken_now += len(bad)
    good = np.array([i for i in range(len(one.payloads)) if i not in bad], np.int64)
    values, refused = rewritten(one.payloads.take(pa.array(good)), one.schema, schema)
    fitting = [i for i, value in enumerate(values) if value is not None]
    # a field that the schema no longer has is a loss, not a break
    new = _decoder(schema, route, replace(limits, drop_unknown_fields=True))
    after = new.decode(pa.array([values[i] for i in fitting], pa.binary()))
    failures = [*refused, *(replace(f, index=fitting[f.index]) for f in after.failed)]
    for failure in failures:
        _note_failure(tally, one, failure, int(good[failure.index]))
    tally.decoded += len(good) - len(failures)
    # places in the slice, of both: a payload may be several rows, or none
    places = (_origins(before), good[np.array(fitting, np.int64)][_origins(after)])
    _compare(tally, one, (before, after), (old.columns, new.columns), places)


def _decoder(schema: WriterSchema, route: Route, limits: DecodeLimits) -> Decoder:
    return decoder_for(schema, route.message, replace(limits, raw_bytes=route.raw_bytes))


def _note_failure(tally: _Tally, one: Slice, failure: Failure, index: int) -> None:
    code = str(failure.code)
    tally.broken[code] += 1
    if code not in tally.first:
        tally.first[code] = (one.place(index), failure.message)


def _origins(decoded: Decoded) -> npt.NDArray[np.int64]:
    if decoded.origin is None:
        return np.arange(decoded.ok.num_rows)
    found: npt.NDArray[np.int64] = decoded.origin.to_numpy(zero_copy_only=False)
    return found


def _compare(
    tally: _Tally,
    one: Slice,
    decoded: tuple[Decoded, Decoded],
    columns: tuple[tuple[Column, ...], tuple[Column, ...]],
    places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    size = len(one.payloads)
    counts = [np.bincount(each, minlength=size) for each in places]
    tried = np.zeros(size, np.bool_)
    tried[places[1]] = True
    uneven = np.flatnonzero(tried & (counts[0] != counts[1]))
    if len(uneven):
        tally.changed[ROWS] += len(uneven)
        tally.seen.setdefault(ROWS, one.place(int(uneven[0])))
    even = tried & (counts[0] == counts[1])
    rows = [_rows_of(each, even) for each in places]
    before, after = (
        each.ok.take(pa.array(chosen)) for each, chosen in zip(decoded, rows, strict=True)
    )
    home = places[0][rows[0]]
    for at, column in enumerate(columns[0]):
        partner = _partner(column, columns[1])
        values = None if partner is None else after.column(partner)
        vanished, changed = lost_and_changed(before.column(at), values)
        tally.vanished[column.name] += len(vanished)
        tally.changed[column.name] += len(changed)
        if len(vanished) or len(changed):
            first = int(min([*vanished[:1], *changed[:1]]))
            tally.seen.setdefault(column.name, one.place(int(home[first])))


def _rows_of(places: npt.NDArray[np.int64], even: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(even[places])
    ordered: npt.NDArray[np.int64] = rows[np.argsort(places[rows], kind="stable")]
    return ordered


def _partner(column: Column, others: tuple[Column, ...]) -> int | None:
    """The column that holds the same field: by name, else by what makes it a rename."""
    by_name = {other.name: at for at, other in enumerate(others)}
    if column.name in by_name:
        return by_name[column.name]
    for at, other in enumerate(others):
        renamed = other.number is not None and other.number == column.number
        if renamed or column.name in other.aliases:
            return at
    return None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Records of a type that would find no place."""

    type: str
    code: str
    message: str
    stops: bool = False
    """A policy says `fail`: the pipeline would stop."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would happen if records came with the schema."""

    subject: str
    version: int
    """The version it would become."""
    format: str
    message: str
    level: Level
    problems: tuple[str, ...]
    """Why the registry would refuse it."""
    tables: tuple[TablePreview, ...]
    refusals: tuple[Refusal, ...]
    read: int
    """Records that were looked at, of any type."""
    trial: Trial
    untried: str = ""
    """Why records could not be read, or not all of them."""

    @property
    def compatible(self) -> bool:
        """Whether the registry would take it."""
        return not self.problems

    @property
    def breaks(self) -> bool:
        """Whether it is refused, or records would be."""
        return bool(self.problems or self.refusals or self.trial.broken)

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        trial = asdict(self.trial) | {"broken": self.trial.broken, "read": self.read}
        return {
            "subject": self.subject,
            "subject_version": self.version,
            "format": self.format,
            "message": self.message,
            "compatibility": str(self.level),
            "compatible": self.compatible,
            "problems": list(self.problems),
            "breaks": self.breaks,
            "tables": Preview(tables=self.tables).as_dict()["tables"],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "trial": trial | {"not_read": self.untried},
        }


def propose(
    pipeline: Pipeline, registry: Judge, *, subject: str, text: str, most: int = MOST_RECORDS
) -> Proposal:
    """Judge a schema as the next version of a subject; nothing is registered or written.

    Raises:
        InvalidSchemaError: When the text does not compile.
    """
    config = pipeline.config
    _refuse_envelope(config, subject)
    proposed = compile_proposed(registry, subject, text, Format(config.records.format))
    schema = proposed.schema
    problems = registry.check(subject, text, proposed.references, format=schema.format)
    planner = pipeline.planner(trial=True, registry=ProposedRegistry(registry, schema))
    sample = take_sample(pipeline, planner, belonging(config, subject), most=most)
    tables, routes, refusals = _placed(
        planner, config, schema, subject, sample.slices, _newest(registry, subject)
    )
    limits = planner.catalog().limits
    return Proposal(
        subject=subject,
        version=schema.version_in(subject) or 1,
        format=str(schema.format),
        message=_message(config, schema, subject, routes.values()),
        level=registry.compatibility(subject),
        problems=tuple(problems),
        tables=tables,
        refusals=refusals,
        read=sample.read,
        trial=try_schema(sample.slices, schema, routes, limits),
        untried=sample.untried,
    )


def _refuse_envelope(config: PipelineConfig, subject: str) -> None:
    if config.envelope is not None and subject == config.envelope.subject:
        raise ConfigError(
            "this is the subject of the envelope, not of a type of record",
            where="--subject",
            evidence=printable(subject),
            next_step=f"distributary schema diff {printable(subject)} --file SCHEMA",
        )


def _newest(registry: Judge, subject: str) -> WriterSchema | None:
    try:
        return registry.latest(subject)
    except SchemaNotFoundError:
        return None


def _placed(
    planner: Planner,
    config: PipelineConfig,
    schema: WriterSchema,
    subject: str,
    slices: tuple[Slice, ...],
    newest: WriterSchema | None,
) -> tuple[tuple[TablePreview, ...], dict[RouteKey, Route], tuple[Refusal, ...]]:
    """The way of the schema's records, and what their tables go through to take them."""
    # what the records that are there do to the tables is not the proposal's doing
    planner.book.take_pending()
    before = {name: table.columns for name, table in planner.book.tables.items()}
    keys: dict[RouteKey, RouteKey] = {one.key: _proposed_key(one.key, schema) for one in slices}
    if not keys:
        claims = types_of_subject(config, schema, subject)
        keys = {key: key for claim in claims for key in _keys_of(claim, schema, config.records)}
    answers = {key: _answer(planner, key) for key in dict.fromkeys(keys.values())}
    refusals = tuple(each for each in answers.values() if isinstance(each, Refusal))
    routes = {key: answers[new] for key, new in keys.items()}
    found = {key: route for key, route in routes.items() if isinstance(route, Route)}
    pending = planner.book.take_pending().changes
    changes = {name: list(each) for name, each in pending.items()}
    messages = {route.table: route.message for route in found.values()}
    refused = {one.route.table: one.route.message for one in slices if one.key not in found}
    for name, message in (refused | messages).items():
        writer = _columns(planner, schema, message)
        # a table that no record at hand goes to was opened for the proposal
        planned = planner.book.tables.get(name)
        known = before.get(name) or (planned.columns if planned else ())
        own = changes.setdefault(name, [])
        own += _silent(config, known, writer, refused=name in refused)
        if newest is not None and writer and not _created(own):
            own += missing(_columns(planner, newest, message), writer)
    return _previews(planner, changes, slices), found, refusals


def _proposed_key(key: RouteKey, schema: WriterSchema) -> RouteKey:
    index = key.message_index
    if schema.format is Format.AVRO and len(schema.messages) < 2:
        # what was a branch of a union is all there is
        index = ()
    return key._replace(schema_id=PROPOSED_ID, guid="", message_index=index)


def _keys_of(claim: str, schema: WriterSchema, payload: Payload) -> Iterable[RouteKey]:
    if schema.format is Format.PROTOBUF and payload.framing == "confluent":
        # a frame names any of them; the likely one where that can be told
        likely = choose_message(schema, names=(claim,))
        messages = [likely] if isinstance(likely, str) else list(schema.messages)
        indexes = ((schema.messages.index(name),) for name in messages)
        return [RouteKey(claim, PROPOSED_ID, index) for index in indexes]
    if schema.format is Format.AVRO and len(schema.messages) > 1:
        branches = ((at,) for at, name in enumerate(schema.messages) if name)
        return [RouteKey(claim, PROPOSED_ID, branch) for branch in branches]
    return [RouteKey(claim, PROPOSED_ID)]


def _answer(planner: Planner, key: RouteKey) -> Route | Refusal | None:
    try:
        planner.resolve([Unresolved(key, 0)])
    except EvolutionError as error:
        return Refusal(key.claim, str(error.code), error.evidence or error.what, stops=True)
    answer = planner.catalog().routes.get(key)
    if isinstance(answer, Rejected):
        return Refusal(key.claim, str(answer.code), answer.message)
    return answer


def _message(
    config: PipelineConfig, schema: WriterSchema, subject: str, routes: Iterable[Route]
) -> str:
    """The messages that records are, or would be; empty if nobody knows."""
    routed = {route.message for route in routes}
    if schema.format is not Format.PROTOBUF or routed:
        return ", ".join(sorted(routed)) or schema.message
    names = types_of_subject(config, schema, subject)
    found = choose_message(schema, wanted=config.records.message, names=names)
    return found if isinstance(found, str) else ""


def _columns(planner: Planner, schema: WriterSchema, message: str) -> tuple[Column, ...]:
    if schema.format is Format.PROTOBUF:
        # a message of another name is still the only one that it could be
        found = choose_message(schema, wanted=message)
        wanted = found if isinstance(found, str) else choose_message(schema, names=(message,))
    else:
        wanted = message if message in schema.messages or not schema.messages else schema.message
    if isinstance(wanted, Rejected):
        return ()
    try:
        return decoder_for(schema, wanted, planner.catalog().limits).columns
    except DecodeError:
        return ()


def _silent(
    config: PipelineConfig, known: tuple[Column, ...], writer: tuple[Column, ...], *, refused: bool
) -> tuple[Change, ...]:
    """What is not a change of the table: fields that a policy ignores or refuses."""
    if not known or not writer:
        return ()
    merged = merge(known, writer, config.evolution)
    if merged.refused is not None:
        return merged.changes if refused else ()
    return ignored(writer, merged)


def _previews(
    planner: Planner, changes: Mapping[str, list[Change]], slices: tuple[Slice, ...]
) -> tuple[TablePreview, ...]:
    found = []
    for name in sorted(changes):
        if name in planner.book.tables:
            records = sum(len(one.rows) for one in slices if one.route.table == name)
            # a table that the records at hand will make is not the proposal's doing
            new, role = _created(changes[name]), planner.book.tables[name].role
            found.append(TablePreview(name, role, new, records, tuple(changes[name])))
    return tuple(found)


def _created(changes: Iterable[Change]) -> bool:
    return any(change.kind is ChangeKind.TABLE_CREATED for change in changes)
