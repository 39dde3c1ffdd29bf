"""The types in the registry, with the columns that all of their versions need.

A streaming table of a declarative pipeline has fixed columns while an update runs. So they are
computed before it starts, from every registered version, oldest first: a version that is registered
later only adds columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from distributary.config.load import load
from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.formats import FORMATS
from distributary.engine.planning.declarative_fit import unfit_for_flows
from distributary.engine.planning.planner import Planner
from distributary.engine.seams import make_registry
from distributary.errors import ConfigError, ErrorCode, InvalidSchemaError
from distributary.model.record import WriterSchema
from distributary.model.routing import Route, RouteKey
from distributary.model.table import TablePlan
from distributary.registry.base import SchemaRegistry
from distributary.registry.message_choice import ANY, AUTO, own_subject, topic_verdict
from distributary.stage.job import Unresolved
from distributary.stage.task_plan import TaskPlan
from distributary.store.base import absolute

_NO_LIMIT = 1 << 31
_VALUE = "-value"


class KnownType(NamedTuple):
    """A type of record and the name of its table."""

    name: str
    table: str


@dataclass(frozen=True, slots=True)
class KnownTypes:
    """A plan of all types as of one moment."""

    plan: TaskPlan
    tables: Mapping[str, TablePlan]
    """The tables by type."""

    @property
    def types(self) -> tuple[KnownType, ...]:
        """Return the types in the order of their names."""
        return tuple(KnownType(name, self.tables[name].name) for name in sorted(self.tables))

    def only(self, type_: str) -> KnownTypes:
        """Return the part for one type of records with an envelope, as its flow needs it."""
        plan = self.plan
        routes = {key: route for key, route in plan.routing.routes.items() if key.claim == type_}
        ids = {route.schema_id for route in routes.values() if isinstance(route, Route)}
        table = self.tables[type_]
        schemas = {number: plan.routing.schemas[number] for number in ids}
        part = replace(
            plan,
            routing=replace(plan.routing, routes=routes, schemas=schemas),
            output=replace(plan.output, tables={table.name: table}),
        )
        return KnownTypes(part, {type_: table})

    def shape(self) -> dict[str, list[str]]:
        """Return the columns of every type, as text that can be compared later."""
        return {
            name: [f"{column.name} {column.type}" for column in table.columns]
            for name, table in self.tables.items()
        }


def types(file: str | os.PathLike[str]) -> tuple[KnownType, ...]:
    """Return the types that the registry of a pipeline file has now.

    Raises ConfigError when the file is invalid, or does not map subjects to types.
    """
    return known(settings(file)).types


def settings(file: str | os.PathLike[str]) -> PipelineConfig:
    """Read a pipeline file, reduced to the settings that apply here.

    ConfigError if it cannot be used.
    """
    config = load(Path(file)).config
    unfit = unfit_for_flows(config)
    if unfit:
        raise ConfigError(
            f"a declarative pipeline cannot be made of this file: {unfit}",
            code=ErrorCode.CONFIG_INVALID,
            where=str(file),
            next_step="run it with `distributary run`, which supports this",
        )
    tables, source = config.tables, config.source
    # Spark numbers its batches itself
    unknown = {"batch", *source.unknown_in_flows}
    evolution: dict[str, object] = {"max_new_tables_per_batch": _NO_LIMIT}
    if config.evolution.wider_type == "widen":
        # the columns of a streaming table never change their type
        evolution |= {"wider_type": "side_column"}
    changes: dict[str, object] = {
        "evolution": config.evolution.model_copy(update=evolution),
        "expectations": (),
        "lineage": None,
        "tables": tables.model_copy(
            update={
                "bronze": None,
                "unified": None,
                "partition_by": (),
                "metadata": tuple(name for name in tables.metadata if name not in unknown),
            }
        ),
    }
    return _absolute(config.model_copy(update=changes))


def known(config: PipelineConfig) -> KnownTypes:
    """Ask the registry for all types."""
    planner = new_planner(config)
    registry = make_registry(config)
    if registry is None:
        raise ConfigError("a declarative pipeline needs a registry", where="registry")
    keys = dict.fromkeys(_keys(config, registry))
    planner.resolve([Unresolved(key, place) for place, key in enumerate(keys)])
    plan = planner.task_plan()
    routes = [route for route in plan.routing.routes.values() if isinstance(route, Route)]
    return KnownTypes(plan, {route.type: plan.output.tables[route.table] for route in routes})


def new_planner(config: PipelineConfig) -> Planner:
    """Return a planner without any schemas, and without the tables of a lake."""
    return Planner(config, registry=make_registry(config), publisher=None)


def _absolute(config: PipelineConfig) -> PipelineConfig:
    """Return the settings with absolute paths, which mean the same in every process."""
    lake, registry, source = config.lake, config.registry, config.source
    places = {"path": absolute(lake.path), "checkpoint": absolute(lake.checkpoint)}
    changes: dict[str, object] = {"lake": lake.model_copy(update=places)}
    if registry is not None and registry.path is not None:
        whole = {"path": str(Path(registry.path).absolute())}
        changes["registry"] = registry.model_copy(update=whole)
    changes["source"] = source.absolute()
    return config.model_copy(update=changes)


def _keys(config: PipelineConfig, registry: SchemaRegistry) -> Iterator[RouteKey]:
    """Yield the keys that records of every version would have, the oldest version first."""
    framed = config.records.framing != "none"
    for claim, subject in _homes(config, registry):
        for version in registry.versions(subject):
            try:
                schema = registry.version(subject, version)
            except InvalidSchemaError:
                # a schema that cannot be compiled has no columns; its records are dead letters
                continue
            for index in _indexes(
                schema, framed=framed, bare=config.records.framing != "confluent"
            ):
                yield RouteKey(claim, schema.id, index)


def _homes(config: PipelineConfig, registry: SchemaRegistry) -> Iterable[tuple[str, str]]:
    """Return claims with the subjects that hold their schemas."""
    rule = config.records.subject
    subjects = registry.subjects()
    if config.envelope is not None:
        own = config.envelope.subject
        pairs = ((_type_of(subject, rule), subject) for subject in subjects if subject != own)
        return [(type_, subject) for type_, subject in pairs if type_]
    topics = _topics(config, subjects)
    if rule == ANY:
        return [(topic, own_subject(topic)) for topic in topics]
    return [
        (topic, subject)
        for topic in topics
        for subject in subjects
        if topic_verdict(topic, _records(registry, subject), [subject], rule=rule) is None
    ]


def _topics(config: PipelineConfig, subjects: Iterable[str]) -> tuple[str, ...]:
    named = (s.removesuffix(_VALUE) for s in subjects if s.endswith(_VALUE))
    return config.source.topics_among(named)


def _type_of(subject: str, rule: str) -> str:
    """Return the type that a subject belongs to; empty if it is none."""
    if rule == AUTO:
        return subject.removesuffix(_VALUE)
    before, _, after = rule.partition("{type}")
    fits = subject.startswith(before) and subject.endswith(after)
    return subject[len(before) : len(subject) - len(after)] if fits else ""


def _records(registry: SchemaRegistry, subject: str) -> tuple[str, ...]:
    try:
        return registry.latest(subject).messages
    except InvalidSchemaError:
        return ()


def _indexes(schema: WriterSchema, *, framed: bool, bare: bool) -> Iterator[tuple[int, ...]]:
    """Yield the message indexes that records of a schema may have."""
    format = FORMATS[schema.format]
    if format.many_messages and framed:
        yield from ((index,) for index in range(len(schema.messages)))
        if bare:
            yield ()
        return
    yield ()
    yield from ((branch,) for branch in format.branches(schema))


# The columns that an update assumed, so that they can be checked after a failure. Spark's client
# does not report why a task failed. So the definitions of a project write the columns that they
# fixed into a file that the supervised update names. When the update has failed, the registry is
# asked again; if the columns would be different now, that is the reason.

VARIABLE = "DISTRIBUTARY_PIPELINES_ASSUMED"
Shape = Mapping[str, list[str]]


def assume(file: str | os.PathLike[str], shape: Shape) -> None:
    """Write the columns of a file's types into the file that the supervisor named, if any."""
    book = os.environ.get(VARIABLE)
    if book:
        line = json.dumps({"file": str(Path(file).absolute()), "shape": dict(shape)})
        with Path(book).open("a", encoding="utf-8") as written:
            written.write(f"{line}\n")


def grown(book: Path) -> list[str]:
    """Return the changes since the columns were written down, a line for each type."""
    assumed = _read(book)
    news: dict[str, None] = {}
    for file in dict.fromkeys(assumption["file"] for assumption in assumed):
        now = known(settings(file)).shape()
        for assumption in assumed:
            if assumption["file"] == file:
                news |= dict.fromkeys(_news(assumption["shape"], now))
    return list(news)


def _news(before: Shape, now: Shape) -> list[str]:
    lines = []
    for name, columns in now.items():
        if name not in before:
            lines.append(f"+ type {name}")
        elif columns != before[name]:
            more = [column for column in columns if column not in before[name]]
            lines.append(f"{name}: + {', '.join(more) or 'other columns'}")
    return lines


def _read(book: Path) -> list[dict[str, Any]]:
    try:
        lines = book.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
