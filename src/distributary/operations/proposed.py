"""A registry as it would be with one more schema; nothing is registered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.config.pipeline import PipelineConfig
from distributary.engine.monitor import unread
from distributary.engine.parts import make_ends, make_source
from distributary.engine.pipeline import Pipeline
from distributary.engine.plan import Planner
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.errors import (
    CheckpointError,
    ConfigError,
    EvolutionError,
    InvalidSchemaError,
    LakeUnavailableError,
    RegistryError,
    SourceError,
)
from distributary.model.expectation import Rule
from distributary.model.names import printable
from distributary.model.plan import Rejected, Route, RouteKey
from distributary.model.record import Format, SubjectVersion, WriterSchema
from distributary.model.table import Change, Role, TablePlan
from distributary.registry.base import Reference, gather
from distributary.registry.compile import compile_schema
from distributary.registry.compile.protobuf import is_bundled
from distributary.registry.folder import FileRegistry
from distributary.registry.http.registry import HttpRegistry
from distributary.registry.messages import (
    ANY,
    AUTO,
    choose_message,
    own_subject,
    subject_verdict,
    topic_verdict,
)
from distributary.source.base import Position, Source
from distributary.stage.exchange import positions
from distributary.stage.parts import failures
from distributary.stage.rules import unfit_rules
from distributary.stage.unwrap import Rows, unwrap

PROPOSED_ID = 2**31 - 1
"""What the schema goes by in plans: the last id there can be, which no registry will have given."""

Judge = FileRegistry | HttpRegistry
"""A registry that can say whether it would take a schema."""

_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)


def judge_of(config: PipelineConfig) -> Judge:
    """The pipeline's registry itself, without the copy on disk that a run keeps of it."""
    settings = config.registry
    if settings is None or config.cdc is not None:
        what = (
            "change data brings" if config.cdc is not None else "without a registry records bring"
        )
        raise ConfigError(
            f"{what} schemas along, and there is none to propose",
            where="cdc" if config.cdc is not None else "registry",
            next_step="use plan without --with-schema",
        )
    return HttpRegistry(settings) if settings.path is None else FileRegistry(settings.path)


@dataclass(frozen=True, slots=True)
class ProposedSchema:
    """A compiled schema that has no id yet."""

    schema: WriterSchema
    text: str
    references: tuple[Reference, ...]


def compile_proposed(registry: Judge, subject: str, text: str, format: Format) -> ProposedSchema:
    """Compile a text as the next version of a subject, which may be empty where none is known.

    It references what the newest version does; an import that is new is looked up under its own
    name, as serializers register it.

    Raises:
        InvalidSchemaError: When it does not compile.
    """
    known = registry.versions(subject) if subject else ()
    kept = registry.references(registry.latest(subject).id) if known else ()
    references = (*kept, *_by_name(registry, text, {r.name for r in kept}, format))

    def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
        found = registry.version(reference.subject, reference.version)
        return registry.text(found.id), registry.references(found.id)

    compiled = compile_schema(text, format=format, imports=gather(references, fetch=fetch))
    place = SubjectVersion(subject, known[-1] + 1 if known else 1)
    schema = WriterSchema(
        PROPOSED_ID, format, compiled.body, compiled.message, (place,), compiled.messages
    )
    return ProposedSchema(schema, text, references)


def _by_name(registry: Judge, text: str, known: set[str], format: Format) -> Iterator[Reference]:
    names = _IMPORT.findall(text) if format is Format.PROTOBUF else ()
    for name in dict.fromkeys(names):
        if name not in known and not is_bundled(name):
            versions = registry.versions(name)
            if versions:
                yield Reference(name, name, versions[-1])


@dataclass(frozen=True, slots=True)
class ProposedRegistry:
    """Knows the proposed schema by its id, and everything else as the registry does.

    The newest version is the one that is registered: no record was written with the proposed one.
    """

    registry: Judge
    proposed: WriterSchema

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id."""
        return self.proposed if schema_id == PROPOSED_ID else self.registry.by_id(schema_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


# Which subject a proposed schema is for, and which records belong to that subject.

_VALUE = "-value"
_MOST_ASKED = 100
"""Subjects whose newest version is looked at for its message's name."""
_MOST_LISTED = 10

Belongs = Callable[[RouteKey, WriterSchema], bool]


def choose_subject(
    registry: Judge, config: PipelineConfig, *, text: str, path: Path, type: str | None = None
) -> str:
    """The subject of a type; without one, the only subject that file or message are called after.

    Raises:
        ConfigError: When several are possible, or none.
    """
    if type is not None:
        return subject_of_type(registry, config, type)
    wrapper = config.envelope.subject if config.envelope else None
    subjects = [s for s in registry.subjects() if s != wrapper and not s.endswith("-key")]
    named = _named_after({path.stem, path.name}, subjects)
    found = named or _by_message(registry, config, text, subjects)
    if len(found) == 1:
        return found[0]
    shown = found or subjects
    more = f" and {len(shown) - _MOST_LISTED:,} more" if len(shown) > _MOST_LISTED else ""
    raise ConfigError(
        "which subject is the schema for?" if found else "the schema fits no subject by its name",
        where=str(path),
        evidence="; ".join(map(printable, shown[:_MOST_LISTED])) + more or "there are no subjects",
        next_step="say it with --subject, or say the type of record with --type",
    )


def subject_of_type(registry: Judge, config: PipelineConfig, type: str) -> str:
    """Where a type's schemas are registered, or would be."""
    usual = own_subject(type, rule=config.records.subject)
    homes = dict.fromkeys((usual, f"{type}{_VALUE}", type))
    return next((home for home in homes if registry.versions(home)), usual)


def types_of_subject(config: PipelineConfig, schema: WriterSchema, subject: str) -> tuple[str, ...]:
    """The claims that records of a subject make, guessed where no record is at hand."""
    rule = config.records.subject
    if config.envelope is None:
        topics = [t for t in config.topics if _by_topic(t, schema.messages, subject, rule)]
        return tuple(topics) or (subject.removesuffix(_VALUE),)
    if rule not in (AUTO, ANY):
        before, _, after = rule.partition("{type}")
        if subject.startswith(before) and subject.endswith(after):
            return (subject[len(before) : len(subject) - len(after)],)
    return (subject.removesuffix(_VALUE),)


def belonging(config: PipelineConfig, subject: str) -> Belongs:
    """Tells whether records with a key, written with a schema, would use this subject's next."""
    rule = config.records.subject

    def enveloped(key: RouteKey, schema: WriterSchema) -> bool:
        written = schema.version_in(subject) is not None
        if rule == ANY:
            return written
        home = subject_verdict(key.claim, (subject,), lambda _: True, rule=rule) is None
        places = [s.subject for s in schema.subjects]
        # two types may share a text and so an id: what is at home elsewhere is not meant
        elsewhere = subject_verdict(key.claim, places, lambda _: True, rule=rule) is None
        return home or (written and not elsewhere)

    def bare(key: RouteKey, schema: WriterSchema) -> bool:
        if rule == ANY:
            return schema.version_in(subject) is not None
        return _by_topic(key.claim, schema.messages, subject, rule)

    return bare if config.envelope is None else enveloped


def _by_topic(topic: str, messages: Collection[str], subject: str, rule: str) -> bool:
    if rule == ANY:
        return own_subject(topic) == subject
    return topic_verdict(topic, messages, (subject,), rule=rule) is None


def _named_after(names: Collection[str], subjects: Collection[str]) -> list[str]:
    folded = {name.casefold() for name in names}
    return [s for s in subjects if {s.casefold(), s.removesuffix(_VALUE).casefold()} & folded]


def _by_message(
    registry: Judge, config: PipelineConfig, text: str, subjects: Collection[str]
) -> list[str]:
    try:
        format = Format(config.records.format)
        schema = compile_proposed(registry, "", text, format).schema
    except InvalidSchemaError:
        # perhaps for lack of references, which only the subject knows
        return []
    message = _message_of(schema, config)
    if not message:
        return []
    short = message.rpartition(".")[2]
    named = _named_after({message, short}, subjects)
    named += [s for s in subjects if s.endswith(f"-{message}") and s not in named]
    if named or len(subjects) > _MOST_ASKED:
        return named
    return [s for s in subjects if _newest_message(registry, config, s) == message]


def _newest_message(registry: Judge, config: PipelineConfig, subject: str) -> str:
    try:
        return _message_of(registry.latest(subject), config)
    except RegistryError:
        return ""


def _message_of(schema: WriterSchema, config: PipelineConfig) -> str:
    found = choose_message(schema, wanted=config.records.message)
    return found if isinstance(found, str) else ""


# The newest records of one subject that the source still has, read without Spark.

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
        source = make_source(pipeline.config)
        for raw in source.peek(_start(pipeline, source, 1)):
            read += raw.num_rows
            kept.append(_belonging(raw, planner, belongs))
            kept = _newest(kept, most)
    except (SourceError, CheckpointError, LakeUnavailableError, EvolutionError) as error:
        untried = f"{error.code}: {error.what}"
    except OSError as error:
        untried = f"the source cannot be read: {error.strerror or type(error).__name__}"
    return Sample(tuple(s for batch in kept for s in batch if len(s.rows)), read, untried)


def _start(pipeline: Pipeline, source: Source, back: int) -> Position:
    """Where that batch ended; where there is none, where the first one begins."""
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=pipeline.config.name)
    if checkpoint is None:
        return source.first()
    manifests = checkpoint.manifests()
    newest = manifests.newest()
    if newest >= back:
        # where its manifest is gone, what follows the newest is all whose place is known
        found = manifests.read(newest - back) or manifests.read(newest)
        if found is not None:
            return found.source_state
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


# `plan`: the tables, columns and changes that a run would make, found without Spark.


@dataclass(frozen=True, slots=True)
class TablePreview:
    """What would happen to one table."""

    name: str
    role: Role
    new: bool
    records: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class UnfitRule:
    """A rule of `expectations` that could not be applied to a table, and why."""

    rule: str
    table: str
    why: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen if the pipeline ran now."""

    records: int = 0
    """How many were looked at: those of the next batch."""
    tables: tuple[TablePreview, ...] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Of these, the records that find no place or cannot be decoded, by error code; rules of
    `expectations` are not evaluated here."""
    unfit_rules: tuple[UnfitRule, ...] = ()
    """What would not be checked: columns that a rule names and a table does not have."""
    waiting: int | None = None
    """How many records the source holds beyond the pipeline's position; None: nobody counts."""

    @property
    def changes_something(self) -> bool:
        """Whether a table would be created or changed."""
        return any(table.new or table.changes for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "records": self.records,
            "waiting": self.waiting,
            "dead_letters": dict(self.dead_letters),
            "unfit_rules": [asdict(unfit) for unfit in self.unfit_rules],
            "tables": [
                {
                    "name": t.name,
                    "new": t.new,
                    "records": t.records,
                    "changes": [
                        {"kind": str(c.kind), "column": c.column, "before": c.before}
                        | {"after": c.after, "action": c.action, "text": c.describe()}
                        for c in t.changes
                    ],
                }
                for t in self.tables
            ],
        }


def preview(pipeline: Pipeline) -> Preview:
    """Look at what the source holds beyond the pipeline's position, as one batch would see it."""
    planner = pipeline.planner(trial=True)
    keys: Counter[RouteKey] = Counter()
    dead: Counter[str] = Counter()
    total = 0
    source = make_source(pipeline.config)
    start = _start(pipeline, source, 0)
    for raw in source.peek(start):
        total += raw.num_rows
        unwrapped = unwrap(raw, planner.catalog())
        dead.update(str(letter.code) for letter in unwrapped.letters)
        groups = planner.groups(raw, unwrapped)
        keys.update(dict(zip(groups.keys, groups.counts(), strict=True)))
        for key, _, codes in failures(raw, unwrapped, groups, planner.catalog()):
            dead.update(codes)
            keys[key] -= codes.total()
    return replace(
        _summary(planner, keys, dead, total), waiting=_waiting(pipeline.config, start, total)
    )


def _waiting(config: PipelineConfig, start: Position, looked_at: int) -> int | None:
    """Count the records of the source beyond a position."""
    ends = make_ends(config)
    if ends is None:
        return None
    # what came while records were looked at may be counted or not
    return max(looked_at, sum(unread(ends.ask(), ends.reached(start)).values()))


def _summary(planner: Planner, keys: Counter[RouteKey], dead: Counter[str], total: int) -> Preview:
    records: Counter[str] = Counter()
    catalog = planner.catalog()
    for key, count in keys.items():
        route = catalog.routes[key]
        if isinstance(route, Rejected):
            dead[str(route.code)] += count
        elif isinstance(route, Route):
            records[route.table] += count
    pending = planner.book.take_pending()
    names = sorted(set(records) | set(pending.changes) if total else set())
    tables = tuple(
        TablePreview(
            name=name,
            role=planner.book.tables[name].role,
            new=not planner.book.tables[name].exists,
            records=records[name],
            changes=tuple(pending.changes.get(name, ())),
        )
        for name in names
        if name
    )
    plans = [planner.book.tables[name] for name in names if name]
    return Preview(total, tables, dict(dead), tuple(_unfit(catalog.expectations, plans)))


def _unfit(rules: tuple[Rule, ...], tables: Iterable[TablePlan]) -> Iterator[UnfitRule]:
    for table in tables if rules else ():
        if table.role in (Role.EACH, Role.LOG):
            found = unfit_rules(rules, table)
            yield from (UnfitRule(rule, table.name, why) for rule, why in found.items())
