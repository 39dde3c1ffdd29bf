"""`plan --with-schema`: what a schema that is not registered would do to tables and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distributary.config.message import Payload
from distributary.config.pipeline import PipelineConfig
from distributary.decode.cache import decoder_for
from distributary.errors import ConfigError, DecodeError, EvolutionError, SchemaNotFoundError
from distributary.evolve.merge import ignored, merge, missing
from distributary.model.plan import Rejected, Route, RouteKey
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Change, ChangeKind, Column
from distributary.registry.compatibility import Level
from distributary.registry.hostile import printable
from distributary.registry.messages import choose_message
from distributary.run.pipeline import Pipeline
from distributary.run.planner import Planner
from distributary.run.preview import Preview, TablePreview
from distributary.run.proposal_registry import (
    PROPOSED_ID,
    Judge,
    ProposedRegistry,
    compile_proposed,
)
from distributary.run.proposal_sample import MOST_RECORDS, Slice, take_sample
from distributary.run.proposal_subject import belonging, types_of_subject
from distributary.run.proposal_trial import Trial, try_schema
from distributary.stage.job import Unresolved
from distributary.stage.unwrap import limits_of


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
    limits = limits_of(planner.catalog())
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
        index = ""
    return key._replace(schema_id=PROPOSED_ID, guid="", message_index=index)


def _keys_of(claim: str, schema: WriterSchema, payload: Payload) -> Iterable[RouteKey]:
    if schema.format is Format.PROTOBUF and payload.framing == "confluent":
        # a frame names any of them; the likely one where that can be told
        likely = choose_message(schema, names=(claim,))
        messages = [likely] if isinstance(likely, str) else list(schema.messages)
        indexes = (str(schema.messages.index(name)) for name in messages)
        return [RouteKey(claim, PROPOSED_ID, index) for index in indexes]
    if schema.format is Format.AVRO and len(schema.messages) > 1:
        branches = (str(at) for at, name in enumerate(schema.messages) if name)
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
        return decoder_for(schema, wanted, limits_of(planner.catalog())).columns
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
            new = _created(changes[name])
            found.append(TablePreview(name, new, records, tuple(changes[name])))
    return tuple(found)


def _created(changes: Iterable[Change]) -> bool:
    return any(change.kind is ChangeKind.TABLE_CREATED for change in changes)
