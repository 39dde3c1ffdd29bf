"""What the registry knows now: every type, and the columns that all of its versions need.

A streaming table of a declarative pipeline has fixed columns while an update runs. So they are
worked out before it starts, from every version that is registered, oldest first: a version that is
registered later only adds to them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from distributary.config.kafka import KafkaSource
from distributary.config.load import load
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource
from distributary.engine.parts import make_registry
from distributary.engine.plan import Planner
from distributary.errors import ConfigError, ErrorCode, InvalidSchemaError
from distributary.model.plan import Route, RouteKey
from distributary.model.record import Format, WriterSchema
from distributary.model.table import TablePlan
from distributary.registry.base import SchemaRegistry
from distributary.registry.messages import ANY, AUTO, own_subject, topic_verdict
from distributary.stage.catalog import Catalog
from distributary.stage.job import Unresolved
from distributary.store.base import absolute

_NO_LIMIT = 1 << 31
_VALUE = "-value"


class KnownType(NamedTuple):
    """A type of record, and what its table is to be called."""

    name: str
    table: str


@dataclass(frozen=True, slots=True)
class Known:
    """A plan of all types as of one moment."""

    catalog: Catalog
    tables: Mapping[str, TablePlan]
    """By type."""

    @property
    def types(self) -> tuple[KnownType, ...]:
        """In the order of their names."""
        return tuple(KnownType(name, self.tables[name].name) for name in sorted(self.tables))

    def only(self, type_: str) -> Known:
        """The part about one type of records with an envelope, which is all that its flow needs."""
        catalog = self.catalog
        routes = {key: route for key, route in catalog.routes.items() if key.claim == type_}
        ids = {route.schema_id for route in routes.values() if isinstance(route, Route)}
        table = self.tables[type_]
        part = replace(
            catalog,
            routes=routes,
            schemas={number: catalog.schemas[number] for number in ids},
            tables={table.name: table},
        )
        return Known(part, {type_: table})

    def shape(self) -> dict[str, list[str]]:
        """The columns of every type, as text that can be compared later."""
        return {
            name: [f"{column.name} {column.type}" for column in table.columns]
            for name, table in self.tables.items()
        }


def types(file: str | os.PathLike[str]) -> tuple[KnownType, ...]:
    """The types that the registry of a pipeline file knows now.

    Raises ConfigError when the file is wrong, or does not tell which subject is which type.
    """
    return known(settings(file)).types


def settings(file: str | os.PathLike[str]) -> PipelineConfig:
    """A pipeline file, as far as it means something here; ConfigError if it cannot be used."""
    config = load(Path(file)).config
    unfit = _unfit(config)
    if unfit:
        raise ConfigError(
            f"a declarative pipeline cannot be made of this file: {unfit}",
            code=ErrorCode.CONFIG_INVALID,
            where=str(file),
            next_step="run it with `distributary run`, which can",
        )
    tables, source = config.tables, config.source
    # Spark numbers its batches itself, and its Delta stream does not tell where a row stood
    unknown = {"batch", *(("partition", "offset") if isinstance(source, DeltaSource) else ())}
    evolution: dict[str, object] = {"max_new_tables_per_batch": _NO_LIMIT}
    if config.evolution.wider_type == "widen":
        # columns of a streaming table are never given another type
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


def known(config: PipelineConfig) -> Known:
    """Ask the registry for everything that it has."""
    planner = new_planner(config)
    registry = make_registry(config)
    if registry is None:
        raise ConfigError("a declarative pipeline needs a registry", where="registry")
    keys = dict.fromkeys(_keys(config, registry))
    planner.resolve([Unresolved(key, place) for place, key in enumerate(keys)])
    catalog = planner.catalog()
    routes = [route for route in catalog.routes.values() if isinstance(route, Route)]
    return Known(catalog, {route.type: catalog.tables[route.table] for route in routes})


def new_planner(config: PipelineConfig) -> Planner:
    """A planner that knows nothing yet, and no table of any lake."""
    return Planner(config, registry=make_registry(config), publisher=None)


def _absolute(config: PipelineConfig) -> PipelineConfig:
    """The same with paths that mean the same in every process, whatever folder it works in."""
    lake, registry, source = config.lake, config.registry, config.source
    places = {"path": absolute(lake.path), "checkpoint": absolute(lake.checkpoint)}
    changes: dict[str, object] = {"lake": lake.model_copy(update=places)}
    if registry is not None and registry.path is not None:
        whole = {"path": str(Path(registry.path).absolute())}
        changes["registry"] = registry.model_copy(update=whole)
    if isinstance(source, DeltaSource):
        # its last part names the topic
        where = {"path": absolute(source.path), "topic": source.topic_name}
        changes["source"] = source.model_copy(update=where)
    return config.model_copy(update=changes)


def _unfit(config: PipelineConfig) -> str:
    if config.cdc is not None or not isinstance(config.source, KafkaSource | DeltaSource):
        return "it is about change data"
    if config.registry is None or config.infers:
        return "its records have no schemas in a registry"
    each = config.tables.each or ""
    if "{type}" not in each and "{record}" not in each:
        return "it has no table for each type (tables.each)"
    if config.envelope is not None and config.envelope.schema_id is None:
        return "its records do not name their schemas (envelope.schema_id)"
    if config.envelope is not None and config.records.subject == ANY:
        return "with payload.subject: any no subject says which type it is of"
    return ""


def _keys(config: PipelineConfig, registry: SchemaRegistry) -> Iterator[RouteKey]:
    """What records of every version would say about themselves, the oldest version first."""
    framed = config.records.framing != "none"
    for claim, subject in _homes(config, registry):
        for version in registry.versions(subject):
            try:
                schema = registry.version(subject, version)
            except InvalidSchemaError:
                # what cannot be compiled has no columns; its records are dead letters
                continue
            for index in _indexes(
                schema, framed=framed, bare=config.records.framing != "confluent"
            ):
                yield RouteKey(claim, schema.id, index)


def _homes(config: PipelineConfig, registry: SchemaRegistry) -> Iterable[tuple[str, str]]:
    """Claims, and the subjects in which their schemas are."""
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
    source = config.source
    if not isinstance(source, KafkaSource) or source.topic_pattern is None:
        return config.topics
    named = [s.removesuffix(_VALUE) for s in subjects if s.endswith(_VALUE)]
    return tuple(topic for topic in named if re.fullmatch(source.topic_pattern, topic))


def _type_of(subject: str, rule: str) -> str:
    """The type whose home a subject is; empty if it is none."""
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
    """How records may say which message of a schema they are."""
    if schema.format is Format.PROTOBUF and framed:
        yield from ((index,) for index in range(len(schema.messages)))
        if bare:
            yield ()
        return
    yield ()
    if schema.format is Format.AVRO and len(schema.messages) > 1:
        yield from ((branch,) for branch, name in enumerate(schema.messages) if name)


# What an update took for granted, so that it can be told afterwards whether it still holds.
#
# Spark's client does not say why a task failed. So the definitions of a project write down the
# columns they fixed, into a file that the supervised update names; when the update has failed,
# the registry is asked again, and if the columns would be others now, that is why.

VARIABLE = "DISTRIBUTARY_PIPELINES_ASSUMED"
Shape = Mapping[str, list[str]]


def assume(file: str | os.PathLike[str], shape: Shape) -> None:
    """Write down the columns of a pipeline file's types, where somebody wants to know."""
    book = os.environ.get(VARIABLE)
    if book:
        line = json.dumps({"file": str(Path(file).absolute()), "shape": dict(shape)})
        with Path(book).open("a", encoding="utf-8") as written:
            written.write(f"{line}\n")


def grown(book: Path) -> list[str]:
    """What has changed since it was written down, a line for each type; none if nothing has."""
    assumed = _read(book)
    news: dict[str, None] = {}
    for file in dict.fromkeys(each["file"] for each in assumed):
        now = known(settings(file)).shape()
        for each in assumed:
            if each["file"] == file:
                news |= dict.fromkeys(_news(each["shape"], now))
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
