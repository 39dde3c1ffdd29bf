"""`plan --with-schema`: the effect of an unregistered schema on tables and records."""

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

from distributary.config.load import Loaded
from distributary.config.message import PayloadConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.base import DecodeLimits, Decoder
from distributary.decode.formats import FORMATS, decoder_for
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.planner import Planner
from distributary.engine.planning.table_book import LOG
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
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected, Route, RouteKey
from distributary.model.table import ChangeKind, Column, ColumnChange, Role
from distributary.operations.plan.shape_places import setting_place
from distributary.operations.plan.trial_registry import (
    MOST_RECORDS,
    PROPOSED_ID,
    Judge,
    KeySlice,
    Preview,
    ProposedRegistry,
    TablePreview,
    belonging,
    compile_proposed,
    shaped_columns,
    take_sample,
    types_of_subject,
)
from distributary.registry.compatibility.levels import Level
from distributary.registry.message_choice import choose_message
from distributary.shape.resolve import Resolved
from distributary.stage.job import Unresolved

# Payloads as their producer would have written them with another schema. Protobuf and JSON payloads
# name their fields, so their bytes stay unchanged. Avro's bytes cannot be read without their
# schema: each datum is read with its own schema and written with the proposed one.


def rewritten(
    payloads: pa.BinaryArray, written: WriterSchema, proposed: WriterSchema
) -> tuple[list[bytes | None], list[Failure]]:
    """Return each payload in the other schema; None for payloads that do not fit.

    All payloads must decode with their own schema: others are not safe to resolve.
    """
    values: list[bytes | None] = payloads.to_pylist()
    format = FORMATS[proposed.format]
    if not format.needs_writer or format.bare_bytes in (written.message, proposed.message):
        return values, []
    failures: list[Failure] = []
    renames = b'"aliases"' in proposed.body
    try:
        old, new = _plain(written), _plain(proposed)
    except Exception as error:
        # a schema that the other library refuses: no record can be checked
        why = f"not resolved: {type(error).__name__}"
        return [None] * len(values), [
            Failure(i, ErrorCode.UNUSABLE_SCHEMA, why) for i in range(len(values))
        ]
    for index, value in enumerate(values):
        try:
            values[index] = _written(value or b"", old, new, renames=renames)
        except Exception as error:
            # the library raises any kind of error; each means that the value does not fit
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
    """Return the schema without logical types: bytes are kept, whatever they mean."""
    return fastavro.parse_schema(_without_logical(json.loads(schema.body)))


def _without_logical(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_logical(item) for item in node]
    if not isinstance(node, dict):
        return node
    # a default is a value, not a schema
    kept = {key: value for key, value in node.items() if key != "logicalType"}
    return {
        key: value if key in ("default", "symbols") else _without_logical(value)
        for key, value in kept.items()
    }


# Comparison of two columns row by row, also with different types.

Indexes = npt.NDArray[np.int64]
_NONE: Indexes = np.zeros(0, np.int64)


def lost_and_changed(before: pa.Array, after: pa.Array | None) -> tuple[Indexes, Indexes]:
    """Return rows that lost their value, and rows whose value changed.

    None means no such column.
    """
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
    """Return the values cast to the other type, if it holds all of them unchanged."""
    if values.type == type or pa.types.is_string(type) or pa.types.is_binary(type):
        # any value can be cast to text, but it is not the same value then
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
        # NaN is not equal to itself
        return repr(one.as_py()) == repr(other.as_py())
    except (ValueError, OverflowError):
        # timestamps that Python cannot represent
        return False


# The trial of a proposed schema on records: broken records and changed values.

ROWS = "number of rows"
"""Stands for a field if a payload makes more or fewer rows than before."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """Records that would become dead letters for one reason."""

    code: str
    records: int
    example: str
    """The first of them, as `wrapper/0/42`."""
    message: str


@dataclass(frozen=True, slots=True)
class FieldLoss:
    """A field whose values would be lost or changed."""

    field: str
    vanished: int
    """The number of rows that would lose their value."""
    changed: int
    """The number of rows whose value would change."""
    example: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The results of the trial."""

    records: int = 0
    decoded: int = 0
    broken_now: int = 0
    """Records that do not decode with their own schema either."""
    untried: int = 0
    """Records for which the proposed schema has no message."""
    breakages: tuple[Breakage, ...] = ()
    losses: tuple[FieldLoss, ...] = ()

    @property
    def broken(self) -> int:
        """Return the number of records that decode now and would not."""
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
    slices: Sequence[KeySlice],
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
    tally: _Tally, one: KeySlice, schema: WriterSchema, route: Route, limits: DecodeLimits
) -> None:
    old = _decoder(one.schema, one.route, limits)
    before = old.decode(one.payloads)
    bad = {failure.index for failure in before.failed}
    tally.broken_now += len(bad)
    good = np.array([i for i in range(len(one.payloads)) if i not in bad], np.int64)
    values, refused = rewritten(one.payloads.take(pa.array(good)), one.schema, schema)
    fitting = [i for i, value in enumerate(values) if value is not None]
    # a field that the schema lacks is a loss, not a breakage
    new = _decoder(schema, route, replace(limits, drop_unknown_fields=True))
    after = new.decode(pa.array([values[i] for i in fitting], pa.binary()))
    failures = [*refused, *(replace(f, index=fitting[f.index]) for f in after.failed)]
    for failure in failures:
        _note_failure(tally, one, failure, int(good[failure.index]))
    tally.decoded += len(good) - len(failures)
    # positions in the slice, for both: a payload may make several rows, or none
    places = (_origins(before), good[np.array(fitting, np.int64)][_origins(after)])
    _compare(tally, one, (before, after), (old.columns, new.columns), places)


def _decoder(schema: WriterSchema, route: Route, limits: DecodeLimits) -> Decoder:
    return decoder_for(schema, route.message, replace(limits, raw_bytes=route.raw_bytes))


def _note_failure(tally: _Tally, one: KeySlice, failure: Failure, index: int) -> None:
    code = str(failure.code)
    tally.broken[code] += 1
    if code not in tally.first:
        tally.first[code] = (one.place(index), failure.message)


def _origins(decoded: Decoded) -> npt.NDArray[np.int64]:
    if decoded.origin is None:
        return np.arange(decoded.ok.num_rows)
    origins: npt.NDArray[np.int64] = decoded.origin.to_numpy(zero_copy_only=False)
    return origins


def _compare(
    tally: _Tally,
    one: KeySlice,
    decoded: tuple[Decoded, Decoded],
    columns: tuple[tuple[Column, ...], tuple[Column, ...]],
    places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    size = len(one.payloads)
    counts = [np.bincount(rows_of, minlength=size) for rows_of in places]
    tried = np.zeros(size, np.bool_)
    tried[places[1]] = True
    uneven = np.flatnonzero(tried & (counts[0] != counts[1]))
    if len(uneven):
        tally.changed[ROWS] += len(uneven)
        tally.seen.setdefault(ROWS, one.place(int(uneven[0])))
    even = tried & (counts[0] == counts[1])
    rows = [_rows_of(rows_of, even) for rows_of in places]
    before, after = (
        result.ok.take(pa.array(chosen)) for result, chosen in zip(decoded, rows, strict=True)
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
    """Return the column of the same field: by name, else by the rules for renamed fields."""
    by_name = {other.name: at for at, other in enumerate(others)}
    if column.name in by_name:
        return by_name[column.name]
    for at, other in enumerate(others):
        renamed = other.number is not None and other.number == column.number
        if renamed or column.name in other.aliases:
            return at
    return None


@dataclass(frozen=True, slots=True)
class ProposalRefusal:
    """Records of a type that would be refused."""

    type: str
    code: str
    message: str
    stops: bool = False
    """Whether the policy is `fail`, so that the pipeline would stop."""
    place: str = ""
    """File, line and column of the setting of `shape` that refuses them; empty for others."""


@dataclass(frozen=True, slots=True)
class SchemaProposal:
    """The effect of a proposed schema."""

    subject: str
    version: int
    """The version that the schema would get."""
    format: str
    message: str
    level: Level
    problems: tuple[str, ...]
    """The reasons why the registry would refuse it."""
    tables: tuple[TablePreview, ...]
    refusals: tuple[ProposalRefusal, ...]
    read: int
    """The number of records that were read, of any type."""
    trial: Trial
    untried: str = ""
    """The reason why not all records could be read."""

    @property
    def compatible(self) -> bool:
        """Return whether the registry would accept the schema."""
        return not self.problems

    @property
    def breaks(self) -> bool:
        """Return whether the schema or any records would be refused."""
        return bool(self.problems or self.refusals or self.trial.broken)

    def as_dict(self) -> dict[str, Any]:
        """Return the proposal for `--json`."""
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
) -> SchemaProposal:
    """Check a schema as the next version of a subject; nothing is registered or written.

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
    limits = planner.task_plan().records.limits
    return SchemaProposal(
        subject=subject,
        version=schema.version_in(subject) or 1,
        format=str(schema.format),
        message=_message(config, schema, subject, routes.values()),
        level=registry.compatibility(subject),
        problems=tuple(problems),
        tables=tables,
        refusals=tuple(_with_place(pipeline.loaded, refusal) for refusal in refusals),
        read=sample.read,
        trial=try_schema(sample.slices, schema, routes, limits),
        untried=sample.untried,
    )


def _with_place(loaded: Loaded, refusal: ProposalRefusal) -> ProposalRefusal:
    """Return a refusal with the place of the setting of `shape` that is its reason, if one is."""
    if refusal.code != ErrorCode.SHAPE_FAILED:
        return refusal
    setting = refusal.message.partition(": ")[0]
    return replace(refusal, place=setting_place(loaded, setting, type_name=refusal.type))


def _refuse_envelope(config: PipelineConfig, subject: str) -> None:
    if config.envelope is not None and subject == config.envelope.subject:
        raise ConfigError(
            "the subject belongs to the envelope, not to a type of record",
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
    slices: tuple[KeySlice, ...],
    newest: WriterSchema | None,
) -> tuple[tuple[TablePreview, ...], dict[RouteKey, Route], tuple[ProposalRefusal, ...]]:
    """Return the routes of the schema's records, and the changes of their tables."""
    # changes that existing records cause do not count for the proposal
    planner.book.take_pending()
    before = {name: table.columns for name, table in planner.book.tables.items()}
    keys: dict[RouteKey, RouteKey] = {one.key: _proposed_key(one.key, schema) for one in slices}
    if not keys:
        claims = types_of_subject(config, schema, subject)
        keys = {key: key for claim in claims for key in _keys_of(claim, schema, config.records)}
    answers = {key: _answer(planner, key) for key in dict.fromkeys(keys.values())}
    refusals = tuple(answer for answer in answers.values() if isinstance(answer, ProposalRefusal))
    routes = {key: answers[new] for key, new in keys.items()}
    valid_routes = {key: route for key, route in routes.items() if isinstance(route, Route)}
    pending = planner.book.take_pending().changes
    changes = {name: list(pending_changes) for name, pending_changes in pending.items()}
    messages = {route.table: route.message for route in valid_routes.values()}
    refused = {one.route.table: one.route.message for one in slices if one.key not in valid_routes}
    for name, message in (refused | messages).items():
        shaped = _shaped(planner, name, _columns(planner, schema, message))
        writer = shaped.columns
        # a table without sampled records was opened for the proposal
        planned = planner.book.tables.get(name)
        known = before.get(name) or (planned.columns if planned else ())
        own = changes.setdefault(name, [])
        own += _silent(config, known, writer, refused=name in refused)
        own += shaped.notes()
        if newest is not None and writer and not _created(own):
            was = _shaped(planner, name, _columns(planner, newest, message))
            own += missing(was.columns, writer)
    previews = _previews(planner, changes, slices, valid_routes.values())
    return previews, valid_routes, refusals


def _proposed_key(key: RouteKey, schema: WriterSchema) -> RouteKey:
    index = key.message_index
    format = FORMATS[schema.format]
    if format.unions and not format.is_union(schema):
        # the only schema replaces a branch of a union
        index = ()
    return key._replace(schema_id=PROPOSED_ID, guid="", message_index=index)


def _keys_of(claim: str, schema: WriterSchema, payload: PayloadConfig) -> Iterable[RouteKey]:
    format = FORMATS[schema.format]
    if format.many_messages and payload.framing == "confluent":
        # a header can name any message; without one, the likely message applies
        likely = choose_message(schema, names=(claim,))
        messages = [likely] if isinstance(likely, str) else list(schema.messages)
        indexes = ((schema.messages.index(name),) for name in messages)
        return [RouteKey(claim, PROPOSED_ID, index) for index in indexes]
    if format.is_union(schema):
        return [RouteKey(claim, PROPOSED_ID, (branch,)) for branch in format.branches(schema)]
    return [RouteKey(claim, PROPOSED_ID)]


def _answer(planner: Planner, key: RouteKey) -> Route | ProposalRefusal | None:
    try:
        planner.resolve([Unresolved(key, 0)])
    except EvolutionError as error:
        return ProposalRefusal(key.claim, str(error.code), error.evidence or error.what, stops=True)
    answer = planner.task_plan().routing.routes.get(key)
    if isinstance(answer, Rejected):
        return ProposalRefusal(key.claim, str(answer.code), answer.message)
    return answer


def _message(
    config: PipelineConfig, schema: WriterSchema, subject: str, routes: Iterable[Route]
) -> str:
    """Return the messages of the records; empty if unknown."""
    routed = {route.message for route in routes}
    if routed or not FORMATS[schema.format].many_messages:
        return ", ".join(sorted(routed)) or schema.message
    names = types_of_subject(config, schema, subject)
    message = choose_message(schema, wanted=config.records.message, names=names)
    return message if isinstance(message, str) else ""


def _columns(planner: Planner, schema: WriterSchema, message: str) -> tuple[Column, ...]:
    if FORMATS[schema.format].many_messages:
        # a message of another name applies if it is the only candidate
        message_name = choose_message(schema, wanted=message)
        wanted = (
            message_name
            if isinstance(message_name, str)
            else choose_message(schema, names=(message,))
        )
    else:
        wanted = message if message in schema.messages or not schema.messages else schema.message
    if isinstance(wanted, Rejected):
        return ()
    try:
        return decoder_for(schema, wanted, planner.task_plan().records.limits).columns
    except DecodeError:
        return ()


def _shaped(planner: Planner, table: str, columns: tuple[Column, ...]) -> Resolved:
    """Return what `shape` makes of columns; none if their records would be dead letters."""
    planned = planner.book.tables.get(table)
    if planned is not None and planned.role is Role.LOG:
        table = table.removesuffix(LOG)
    shaped = planner.shaped(table, "" if planned is None else planned.type, columns)
    return Resolved() if isinstance(shaped, Rejected) else shaped


def _silent(
    config: PipelineConfig, known: tuple[Column, ...], writer: tuple[Column, ...], *, refused: bool
) -> tuple[ColumnChange, ...]:
    """Return fields that a policy ignores or refuses, which do not change the table."""
    if not known or not writer:
        return ()
    merged = merge(known, writer, config.evolution)
    if merged.refused is not None:
        return merged.changes if refused else ()
    return ignored(writer, merged)


def _previews(
    planner: Planner,
    changes: Mapping[str, list[ColumnChange]],
    slices: tuple[KeySlice, ...],
    routes: Iterable[Route],
) -> tuple[TablePreview, ...]:
    previews = []
    shaped = shaped_columns(routes)
    for name in sorted(changes):
        if name in planner.book.tables:
            records = sum(len(one.rows) for one in slices if one.route.table == name)
            # a table that existing records will create does not count for the proposal
            new, role = _created(changes[name]), planner.book.tables[name].role
            own = tuple(changes[name])
            previews.append(
                TablePreview(name, role, new, records, own, shaped=shaped.get(name, ()))
            )
    return tuple(previews)


def _created(changes: Iterable[ColumnChange]) -> bool:
    return any(change.kind is ChangeKind.TABLE_CREATED for change in changes)
