"""The registry with one more, proposed schema; nothing is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.shape import raw_layers
from distributary.decode.formats import FORMATS
from distributary.engine.monitor import unread
from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.planner import Planner
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.seams import make_ends, make_source
from distributary.errors import (
    CheckpointError,
    ConfigError,
    ErrorCode,
    EvolutionError,
    InvalidSchemaError,
    LakeUnavailableError,
    RegistryError,
    SourceError,
)
from distributary.evolve.types import sql_name
from distributary.model.names import printable
from distributary.model.record import Format, SubjectVersion, WriterSchema
from distributary.model.routing import Rejected, Route, RouteKey
from distributary.model.rules.expectation import Rule
from distributary.model.table import ChangeKind, ColumnChange, Role, TablePlan
from distributary.operations.plan.shape_places import setting_place
from distributary.registry.base import Reference, gather
from distributary.registry.compile import compile_schema
from distributary.registry.compile.protobuf_compiler import is_bundled
from distributary.registry.folder import FileRegistry
from distributary.registry.http.http_registry import HttpRegistry
from distributary.registry.message_choice import (
    ANY,
    AUTO,
    choose_message,
    own_subject,
    subject_verdict,
    topic_verdict,
)
from distributary.source.base import Position, Source
from distributary.stage.decoding import tried
from distributary.stage.exchange import positions
from distributary.stage.rows.checking import unfit_rules
from distributary.stage.unwrap import Rows, decodable, unwrap

PROPOSED_ID = 2**31 - 1
"""The id of the proposed schema in plans: the largest possible id, which no registry uses."""

Judge = FileRegistry | HttpRegistry
"""A registry that can check the compatibility of a schema."""


def judge_of(config: PipelineConfig) -> Judge:
    """Return the pipeline's registry itself, without a run's cache on disk."""
    settings = config.registry
    why = strategy_of(config).unregistered
    if settings is None or why is not None:
        what, where = why or ("", "registry")
        raise ConfigError(
            f"{what} their own schemas, so none can be proposed",
            where=where,
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
    """Compile a text as the next version of a subject, which may be empty if none is known.

    It has the references of the newest version; a new import is looked up under its own name, as
    serializers register it.

    Raises:
        InvalidSchemaError: When it does not compile.
    """
    known = registry.versions(subject) if subject else ()
    kept = registry.references(registry.latest(subject).id) if known else ()
    references = (*kept, *_by_name(registry, text, {r.name for r in kept}, format))

    def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
        version = registry.version(reference.subject, reference.version)
        return registry.text(version.id), registry.references(version.id)

    compiled = compile_schema(text, format=format, imports=gather(references, fetch=fetch))
    place = SubjectVersion(subject, known[-1] + 1 if known else 1)
    schema = WriterSchema(
        PROPOSED_ID, format, compiled.body, compiled.message, (place,), compiled.messages
    )
    return ProposedSchema(schema, text, references)


def _by_name(registry: Judge, text: str, known: set[str], format: Format) -> Iterator[Reference]:
    for name in dict.fromkeys(FORMATS[format].imports(text)):
        if name not in known and not is_bundled(name):
            versions = registry.versions(name)
            if versions:
                yield Reference(name, name, versions[-1])


@dataclass(frozen=True, slots=True)
class ProposedRegistry:
    """A registry that adds the proposed schema by its id.

    The newest version is the registered one, because no record was written with the proposed
    schema.
    """

    registry: Judge
    proposed: WriterSchema

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id."""
        return self.proposed if schema_id == PROPOSED_ID else self.registry.by_id(schema_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


# The subject of a proposed schema, and the records that belong to the subject.

_VALUE = "-value"
_MOST_ASKED = 100
"""The largest number of subjects whose newest version is read for its message's name."""
_MOST_LISTED = 10

Belongs = Callable[[RouteKey, WriterSchema], bool]


def choose_subject(
    registry: Judge, config: PipelineConfig, *, text: str, path: Path, type: str | None = None
) -> str:
    """Return the subject of a type; without one, the only subject with the name of file or message.

    Raises:
        ConfigError: When several are possible, or none.
    """
    if type is not None:
        return subject_of_type(registry, config, type)
    wrapper = config.envelope.subject if config.envelope else None
    subjects = [s for s in registry.subjects() if s != wrapper and not s.endswith("-key")]
    named = _named_after({path.stem, path.name}, subjects)
    matches = named or _by_message(registry, config, text, subjects)
    if len(matches) == 1:
        return matches[0]
    shown = matches or subjects
    more = f" and {len(shown) - _MOST_LISTED:,} more" if len(shown) > _MOST_LISTED else ""
    raise ConfigError(
        "the schema's subject is ambiguous" if matches else "no subject has the schema's name",
        where=str(path),
        evidence="; ".join(map(printable, shown[:_MOST_LISTED])) + more or "there are no subjects",
        next_step="name the subject with --subject, or the type of record with --type",
    )


def subject_of_type(registry: Judge, config: PipelineConfig, type: str) -> str:
    """Return the subject in which a type's schemas are, or would be, registered."""
    usual = own_subject(type, rule=config.records.subject)
    homes = dict.fromkeys((usual, f"{type}{_VALUE}", type))
    return next((home for home in homes if registry.versions(home)), usual)


def types_of_subject(config: PipelineConfig, schema: WriterSchema, subject: str) -> tuple[str, ...]:
    """Return the claims of a subject's records, guessed without any record."""
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
    """Return a test whether records of a key and schema would use this subject's next version."""
    rule = config.records.subject

    def enveloped(key: RouteKey, schema: WriterSchema) -> bool:
        written = schema.version_in(subject) is not None
        if rule == ANY:
            return written
        home = subject_verdict(key.claim, (subject,), lambda _: True, rule=rule) is None
        places = [s.subject for s in schema.subjects]
        # two types may share a schema and so an id: records of another type's subject do not belong
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
        # perhaps references are missing, which only the subject has
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
    message = choose_message(schema, wanted=config.records.message)
    return message if isinstance(message, str) else ""


# The newest records of one subject in the source, read without Spark.

MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class KeySlice:
    """Records with one key."""

    key: RouteKey
    route: Route
    schema: WriterSchema
    """The schema that they were written with."""
    rows: Rows
    """Their rows in the raw batch."""
    payloads: pa.BinaryArray
    places: pa.RecordBatch
    """The topic, partition and offset of each record."""

    def place(self, index: int) -> str:
        """Return the coordinates of a record as `wrapper/0/42`, the form for `trace`."""
        row = self.places.slice(index, 1).to_pylist()[0]
        return f"{row['topic']}/{row['partition']}/{row['offset']}"

    def since(self, row: int) -> KeySlice:
        """Return the records from a row of the raw batch on."""
        keep = np.flatnonzero(self.rows >= row)
        chosen = pa.array(keep)
        return replace(
            self,
            rows=self.rows[keep],
            payloads=self.payloads.take(chosen),
            places=self.places.take(chosen),
        )


@dataclass(frozen=True, slots=True)
class RecordSample:
    """The sampled records."""

    slices: tuple[KeySlice, ...] = ()
    read: int = 0
    """Records that were looked at, of any type."""
    untried: str = ""
    """The reason why records are missing, if the source cannot be read."""


def take_sample(
    pipeline: Pipeline, planner: Planner, belongs: Belongs, *, most: int = MOST_RECORDS
) -> RecordSample:
    """Return the newest matching records of the last batch and later ones, one batch at most.

    The planner learns every schema in them, as in a run.
    """
    kept: list[list[KeySlice]] = []
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
    return RecordSample(tuple(s for batch in kept for s in batch if len(s.rows)), read, untried)


def _start(pipeline: Pipeline, source: Source, back: int) -> Position:
    """Return the end of an earlier batch, or else the first position."""
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=pipeline.config.name)
    if checkpoint is None:
        return source.first()
    manifests = checkpoint.manifests()
    newest = manifests.newest()
    if newest >= back:
        # if its manifest was pruned, only the end of the newest batch is known
        manifest = manifests.read(newest - back) or manifests.read(newest)
        if manifest is not None:
            return manifest.source_state
    return checkpoint.known_first_position() or source.first()


def _belonging(raw: pa.RecordBatch, planner: Planner, belongs: Belongs) -> list[KeySlice]:
    unwrapped = decodable(unwrap(raw, planner.task_plan()), planner.task_plan())
    groups = planner.groups(raw, unwrapped)
    plan = planner.task_plan()
    places = raw.select(["topic", "partition", "offset"])
    slices = []
    for key, members in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        route = plan.routing.routes.get(key)
        if not isinstance(route, Route) or not belongs(key, plan.routing.schemas[route.schema_id]):
            continue
        rows = unwrapped.rows[members]
        payloads = unwrapped.payloads.take(pa.array(members))
        schema = plan.routing.schemas[route.schema_id]
        slices.append(KeySlice(key, route, schema, rows, payloads, places.take(pa.array(rows))))
    return slices


def _newest(batches: list[list[KeySlice]], most: int) -> list[list[KeySlice]]:
    """Return the newest records, at most so many."""
    kept: list[list[KeySlice]] = []
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


# `plan`: the tables, columns and changes that a run would make, determined without Spark.


@dataclass(frozen=True, slots=True)
class TablePreview:
    """The changes of one table."""

    name: str
    role: Role
    new: bool
    records: int
    changes: tuple[ColumnChange, ...]
    shaped: tuple[tuple[str, str], ...] = ()
    """The columns that `shape` makes of the records' newest schema, with their types; of a new
    aggregate table its own."""
    masks: tuple[str, ...] = ()
    """The masks of columns and fields, such as `email by token`."""


@dataclass(frozen=True, slots=True)
class UnfitRule:
    """A rule of `expectations` that cannot be applied to a table, with the reason."""

    rule: str
    table: str
    why: str


@dataclass(frozen=True, slots=True)
class LimitedShape:
    """A setting of `shape` that meets a schema without a column which it names."""

    setting: str
    table: str
    why: str
    place: str = ""
    """File, line and column of the setting; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class RefusedShape:
    """A setting of `shape` for which all records of a schema would be dead letters."""

    setting: str
    type: str
    why: str
    place: str = ""
    """File, line and column of the setting; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects of a run that starts now."""

    records: int = 0
    """The number of sampled records, which are the next batch's."""
    tables: tuple[TablePreview, ...] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """The sampled records that cannot be routed or decoded, by error code.

    Rules of `expectations` are not evaluated here.
    """
    filtered: int = 0
    """The sampled records that conditions of `shape` keep out of their tables."""
    limited_shapes: tuple[LimitedShape, ...] = ()
    """Settings of `shape` that are not applied to some records, or read a column as null."""
    refused_shapes: tuple[RefusedShape, ...] = ()
    """Settings of `shape` that are wrong for the columns of a schema."""
    raw_layers: tuple[str, ...] = ()
    """The places in the lake that keep values which masks remove; empty without masks."""
    unfit_rules: tuple[UnfitRule, ...] = ()
    """Rules that would not be checked, because a table lacks their columns."""
    waiting: int | None = None
    """The number of records beyond the pipeline's position; None if the source cannot count them.
    """

    @property
    def changes_something(self) -> bool:
        """Return whether a table would be created or changed."""
        return any(table.new or table.changes for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the preview for `--json`."""
        return {
            "records": self.records,
            "waiting": self.waiting,
            "dead_letters": dict(self.dead_letters),
            "filtered": self.filtered,
            "limited_shapes": [asdict(limited) for limited in self.limited_shapes],
            "refused_shapes": [asdict(refused) for refused in self.refused_shapes],
            "raw_layers": list(self.raw_layers),
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
                    "shaped": [{"name": name, "type": type_} for name, type_ in t.shaped],
                    "masks": list(t.masks),
                }
                for t in self.tables
            ],
        }


def preview(pipeline: Pipeline) -> Preview:
    """Look at the records beyond the pipeline's position, as the next batch would read them."""
    planner = pipeline.planner(trial=True)
    keys: Counter[RouteKey] = Counter()
    dead: Counter[str] = Counter()
    total = filtered = 0
    source = make_source(pipeline.config)
    start = _start(pipeline, source, 0)
    for raw in source.peek(start):
        total += raw.num_rows
        unwrapped = decodable(unwrap(raw, planner.task_plan()), planner.task_plan())
        dead.update(str(letter.code) for letter in unwrapped.letters)
        groups = planner.groups(raw, unwrapped)
        keys.update(dict(zip(groups.keys, groups.counts(), strict=True)))
        for trial in tried(raw, unwrapped, groups, planner.task_plan()):
            dead.update(trial.failures)
            keys[trial.key] -= trial.failures.total() + trial.filtered
            filtered += trial.filtered
    waiting = _waiting(pipeline.config, start, total)
    found = replace(_summary(planner, keys, dead, total), waiting=waiting, filtered=filtered)
    config, loaded = pipeline.config, pipeline.loaded
    masks = any(entry.mask for entry in config.shape)
    return replace(
        found,
        limited_shapes=tuple(
            replace(one, place=setting_place(loaded, one.setting, table=one.table))
            for one in found.limited_shapes
        ),
        refused_shapes=tuple(
            replace(one, place=setting_place(loaded, one.setting, type_name=one.type))
            for one in found.refused_shapes
        ),
        raw_layers=raw_layers(config.tables, config.masking) if masks else (),
    )


def _waiting(config: PipelineConfig, start: Position, looked_at: int) -> int | None:
    """Count the records of the source beyond a position."""
    ends = make_ends(config)
    if ends is None:
        return None
    # records that arrived during the preview may be counted or not
    return max(looked_at, sum(unread(ends.ask(), ends.reached(start)).values()))


def _summary(planner: Planner, keys: Counter[RouteKey], dead: Counter[str], total: int) -> Preview:
    records: Counter[str] = Counter()
    refused: list[RefusedShape] = []
    plan = planner.task_plan()
    for key, count in keys.items():
        route = plan.routing.routes[key]
        if isinstance(route, Rejected):
            dead[str(route.code)] += count
            if route.code is ErrorCode.SHAPE_FAILED:
                setting, _, why = route.message.partition(": ")
                refused.append(RefusedShape(setting, key.claim, why))
        elif isinstance(route, Route):
            records[route.table] += count
    pending = planner.book.take_pending()
    routes = map(plan.routing.routes.get, keys)
    shaped = shaped_columns(route for route in routes if isinstance(route, Route))
    masks = {
        route.table: tuple(mask.describe() for shape in route.shapes for mask in shape.masks)
        for route in map(plan.routing.routes.get, keys)
        if isinstance(route, Route) and route.shapes
    }
    shaped |= {
        table.name: tuple((c.name, sql_name(c.type)) for c in table.columns if c.name[0] != "_")
        for table in planner.book.tables.values()
        if table.role is Role.AGGREGATE and not table.exists
    }
    names = sorted(set(records) | set(pending.changes) if total else set())
    tables = tuple(
        TablePreview(
            name=name,
            role=planner.book.tables[name].role,
            new=not planner.book.tables[name].exists,
            records=records[name],
            changes=tuple(pending.changes.get(name, ())),
            shaped=shaped.get(name, ()),
            masks=masks.get(name, ()),
        )
        for name in names
        if name
    )
    limited = dict.fromkeys(
        LimitedShape(change.column, use.table, change.after)
        for use in pending.uses
        for change in use.changes
        if change.kind is ChangeKind.SHAPE_LIMITED
    )
    plans = [planner.book.tables[name] for name in names if name]
    return Preview(
        total,
        tables,
        dict(dead),
        limited_shapes=tuple(limited),
        refused_shapes=tuple(dict.fromkeys(refused)),
        unfit_rules=tuple(_unfit(plan.output.expectations, plans)),
    )


def shaped_columns(routes: Iterable[Route]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return names and types of the columns that `shape` makes, by table."""
    return {
        route.table: tuple((c.name, sql_name(c.type)) for c in route.shapes[-1].columns)
        for route in routes
        if route.shapes
    }


def _unfit(rules: tuple[Rule, ...], tables: Iterable[TablePlan]) -> Iterator[UnfitRule]:
    for table in tables if rules else ():
        if table.role in (Role.EACH, Role.LOG):
            unfit = unfit_rules(rules, table)
            yield from (UnfitRule(rule, table.name, why) for rule, why in unfit.items())
