"""Step `plan`: the plan for tasks, and the routes of keys that tasks could not resolve.

The planner lives as long as the run. Only the planner sends requests to the registry.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.config.base import placeholders
from distributary.config.cdc import Cdc
from distributary.config.lake import Evolution
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.shape import raw_layers
from distributary.decode.base import DecodeLimits
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.decode.formats import FORMATS, change_decoder_for, decoder_for
from distributary.delta.log import snapshot_of
from distributary.delta.log_reading import BrokenLogError
from distributary.delta.removal.erased_records import ErasedPlan, erased_plan
from distributary.delta.skipping import microseconds
from distributary.engine.planning.aggregate_plan import AggregatePlan
from distributary.engine.planning.key_plan import KeyPlan
from distributary.engine.planning.schema_lookup import (
    SchemaLookup,
    envelope_plan,
    envelope_versions,
)
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import (
    HISTORY,
    LOG,
    TableBook,
    derived_columns,
    fixed_tables,
    qualified,
    source_columns,
    source_table,
    spoken,
    table_folder,
)
from distributary.engine.planning.table_names import Names, WantedName
from distributary.errors import (
    DecodeError,
    ErrorCode,
    InvalidSchemaError,
    RegistryError,
    SchemaNotFoundError,
)
from distributary.evolve.merge import merge
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import MAY_HEAL
from distributary.model.names import propose, refused_type_name, spelled_record, spelled_type
from distributary.model.record import WriterSchema
from distributary.model.routing import UNFRAMED, EnvelopePlan, Rejected, Route, RouteKey
from distributary.model.rules.expectation import type_spellings
from distributary.model.rules.shape_rule import ShapeRule
from distributary.model.table import Column, Role
from distributary.publish.base import Publisher
from distributary.registry.base import SchemaRegistry
from distributary.registry.record_schemas import FIRST_ID, CarriedSchemas, InferredSchemas
from distributary.shape.function import with_source
from distributary.shape.resolve import Resolved, ShapeError, resolve
from distributary.stage.decoding import SHARD
from distributary.stage.exchange import RecordGroups, group
from distributary.stage.job import Unresolved
from distributary.stage.sort import BAD_NAME, joined, shapes
from distributary.stage.task_outputs import DATE
from distributary.stage.task_plan import OutputPlan, RecordsPlan, Routing, TaskPlan
from distributary.stage.unwrap import Unwrapped

# Planning of change data: a log for each source table, its merged table and its history.

_NEVER = -(2**63)


class ChangePlan:
    """The planner of change data: logs for keys of events, and columns of merged tables."""

    def __init__(
        self,
        config: PipelineConfig,
        cdc: Cdc,
        settings: ChangeSettings,
        *,
        lookup: SchemaLookup,
        book: TableBook,
        limits: DecodeLimits,
    ) -> None:
        self._config = config
        self._cdc = cdc
        self._settings = settings
        self._format = CHANGE_FORMATS[settings.format]
        self._lookup = lookup
        self._book = book
        self._limits = limits
        self._given: dict[RouteKey, tuple[Column, ...]] = {}
        """The columns of the events with a key."""
        self._newest: dict[str, int] = {}
        """The source's time of the newest event whose columns the merged tables have, by log."""

    def place(
        self, key: RouteKey, schema: WriterSchema
    ) -> tuple[Route, tuple[WriterSchema, ...]] | Rejected:
        """Find the log for events of a key, add their columns, and return the route."""
        try:
            claim, is_heartbeat = self._format.subject(schema, key.claim)
            if claim is None:
                return Rejected(
                    ErrorCode.NO_SOURCE_METADATA,
                    "no change of a row",
                    passed_over=True,
                    heartbeat=is_heartbeat,
                )
            source = source_table(self._config.tables, claim, reserved=fixed_tables(self._config))
            keys = self._lookup.of_keys(key)
            decoder = change_decoder_for(schema, self._settings, self._limits, keys=keys)
        except SchemaNotFoundError as error:
            return Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, error.what)
        except (DecodeError, InvalidSchemaError) as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        columns = (*decoder.columns, SHARD) if source.shard else decoder.columns
        label = f"since {schema.label()}"
        columns = tuple(replace(c, comment=f"{c.comment}; {label}".lstrip("; ")) for c in columns)
        if self._book.origins is not None:
            # where the schema names the table, the key has the topic
            topic = key.claim if key.claim != claim else ""
            columns = tuple(qualified(columns, topic=topic, inside=spoken(claim)))
        type_name = source.wanted.type
        name = self._book.name(source.wanted, ending=LOG)
        if isinstance(name, Rejected):
            return name
        log = name + LOG
        refused = self._book.evolve(log, type_name, schema, columns, role=Role.LOG)
        if refused is not None:
            return refused
        self._given[key] = columns
        self._follow(log, type_name, columns)
        route = Route(
            log,
            type_name,
            schema.id,
            schema.message,
            shard=source.shard,
            key_schema_id=UNFRAMED if keys is None else keys.id,
        )
        return route, (schema, *([] if keys is None else [keys]))

    def follow_newest(
        self, times: Mapping[RouteKey, int], routes: Mapping[RouteKey, Route | Rejected]
    ) -> bool:
        """Give tables the columns of their newest events, if the settings say so.

        Files arrive in any order: the source's time of the newest event of each key decides. Return
        True if a table changed.
        """
        if self._cdc.evolution != "overwriteSchema":
            return False
        changed = False
        for key, newest in sorted(times.items(), key=lambda item: (item[1], item[0])):
            route = routes.get(key)
            if not isinstance(route, Route) or newest < self._seen_until(route.table):
                continue
            self._newest[route.table] = newest
            changed |= self._overwrite(route.table, route.type, self._given.get(key, ()))
        return changed

    def _follow(self, log: str, type_name: str, columns: tuple[Column, ...]) -> None:
        """Plan the tables that are merged from a log, with their columns."""
        table = log.removesuffix(LOG)
        everything = self._book.tables[log].columns
        known = self._book.planned(table, Role.MERGED, type_name)
        if known is None and self._cdc.evolution == "overwriteSchema":
            self._overwrite(log, type_name, columns)
        elif known is None or self._cdc.evolution == "mergeSchema":
            self._give(table, Role.MERGED, type_name, everything)
        if not self._cdc.history:
            return
        known = self._book.planned(table + HISTORY, Role.HISTORY, type_name)
        if known is None or self._cdc.evolution != "none":
            # a history keeps the columns that its table has lost
            self._give(table + HISTORY, Role.HISTORY, type_name, everything)

    def _overwrite(self, log: str, type_name: str, columns: tuple[Column, ...]) -> bool:
        """Return the columns of the log that a schema contributes to."""
        have = self._book.tables[log].columns
        fills = merge(have, columns, self._config.evolution).fills
        own = {fill.target for fill in fills}
        wanted = tuple(column for column in have if column.name in own)
        return self._give(log.removesuffix(LOG), Role.MERGED, type_name, wanted)

    def _give(self, name: str, role: Role, type_name: str, columns: Iterable[Column]) -> bool:
        metadata = {column.name for column in (*self._book.metadata, DATE)}
        source = source_columns(tuple(columns), metadata)
        return self._book.follow(
            name, role, type_name, derived_columns(source, name, role, self._cdc)
        )

    def _seen_until(self, log: str) -> int:
        if log not in self._newest:
            self._newest[log] = _newest_row(table_folder(self._config, log.removesuffix(LOG)))
        return self._newest[log]


def _newest_row(path: str) -> int:
    """Return the time of the newest row of a merged table, by its log; the lowest time if none."""
    try:
        table = snapshot_of(path)
    except (BrokenLogError, OSError, ValueError):
        return _NEVER
    files = () if table is None else table.files.values()
    ends = [microseconds(file.bounds("_source_ts")[1]) for file in files]
    return max((end for end in ends if end is not None), default=_NEVER)


_RECHECK_SECONDS = 5.0
_MOST_RECHECKED = 1000
_ALL_VERSIONS = Evolution()
"""The evolution policy that joins all versions of one type for the unified table."""


class Planner:
    """Keeps the plan, and extends it when a batch brings something new."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        registry: SchemaRegistry | None,
        publisher: Publisher | None,
        names: Names | None = None,
        types: Iterable[str] = (),
        inferred: InferredSchemas | None = None,
        carried: CarriedSchemas | None = None,
        folder: Path | None = None,
    ) -> None:
        # `folder` is that of the pipeline file, whose functions may be beside it
        self._config = config
        self._payload = config.records
        self._lookup = SchemaLookup(config, registry, inferred, carried)
        self._infers = inferred is not None
        self._recalled = self._lookup.recalled()
        self._changes = strategy_of(config).changes
        self._shapes = tuple(_loaded(shape.rule(), folder) for shape in config.shape)
        self._rules = tuple(expectation.rule() for expectation in config.expectations)
        self._columns_of_type: dict[str, tuple[Column, ...]] = dict.fromkeys(types, ())
        self._schemas: dict[int, WriterSchema] = {}
        self._routes: dict[RouteKey, Route | Rejected] = {}
        self._asked: dict[RouteKey, float] = {}
        self._unions: set[RouteKey] = set()
        self._envelope: EnvelopePlan | None = None
        self._versions: tuple[int, ...] = ()
        """The versions of an Avro envelope's schema at the last request."""
        self._snapshot: TaskPlan | None = None
        self._erased: ErasedPlan | None = None
        """The erased records, read once: `erase` refuses while a pipeline runs."""
        self._limits = DecodeLimits(
            max_payload_bytes=config.limits.max_payload_bytes,
            max_decoded_bytes=config.limits.max_decoded_bytes,
            max_depth=config.limits.max_depth,
            recursion_depth=config.limits.recursion_depth,
            drop_unknown_fields=self._payload.unknown_fields == "drop",
        )
        self.book = TableBook(config, publisher, names=names or Names())
        self._keys = KeyPlan(config, self.book)
        self._aggregates = AggregatePlan(config, self.book)
        self._change_plan: ChangePlan | None = None
        if config.cdc is not None and self._changes is not None:
            self._change_plan = ChangePlan(
                config,
                config.cdc,
                self._changes,
                lookup=self._lookup,
                book=self.book,
                limits=self._limits,
            )

    def schema(self, schema_id: int) -> WriterSchema:
        """Return the schema with an id, for messages that the driver reads itself."""
        return self._lookup.by_id(schema_id)

    def task_plan(self) -> TaskPlan:
        """Return the current plan; the same object until something changes."""
        if self._snapshot is None:
            if self._erased is None:
                self._erased = erased_plan(self._config.lake.address)
            tables = self._config.tables
            skips = self._changes is not None or self._config.source.skips_tombstones
            self._snapshot = TaskPlan(
                RecordsPlan(
                    self._payload.format,
                    self._payload.framing,
                    envelope=self._envelope_plan(),
                    limits=self._limits,
                    skip_tombstones=skips,
                    keep_tombstones=any(entry.rule.tombstones for entry in self._config.keys),
                    from_files=self._config.source.brings_files,
                    strict_names=tables.names == "strict",
                    max_type_name=self._config.limits.max_type_name,
                ),
                Routing(
                    schemas=dict(self._schemas),
                    routes=dict(self._routes),
                    unions=frozenset(self._unions),
                    infer=self._infers,
                    recalled=self._recalled,
                ),
                OutputPlan(
                    tables=dict(self.book.tables),
                    each=tables.each is not None,
                    bronze=tables.bronze or "",
                    whole=self._config.shard is not None and self._config.shard.lands,
                    unified=tables.unified.name if tables.unified else "",
                    dead_letters=tables.dead_letters,
                    raw_records=self._config.raw_records,
                    metadata=tuple(tables.metadata),
                    evolution=self._config.evolution,
                    expectations=self._rules,
                    keys=dict(self._keys.rules),
                ),
                changes=self._changes,
                erased=self._erased,
            )
        return self._snapshot

    def begin_batch(self) -> None:
        """Drop the state of the previous batch, and forget refusals that may no longer hold."""
        again = self.book.begin_batch()
        self.follow_envelope()
        now = time.monotonic()
        for key, route in list(self._routes.items()):
            if isinstance(route, Route):
                if route.table in again or self._lookup.outdated(key, route.schema_id):
                    self._forget(key)
            elif route.code is ErrorCode.TOO_MANY_TYPES or route.passed_over:
                self._forget(key)
            elif route.code in MAY_HEAL and now - self._asked.get(key, 0) > _RECHECK_SECONDS:
                self._recheck(key)
        if again:
            self._aggregates.follow()

    def resolve(self, unresolved: Sequence[Unresolved]) -> None:
        """Find a route for every key, or a reason to dead-letter its records."""
        self._lookup.wait_for_new_ids(
            {i.key.schema_id for i in unresolved if 0 <= i.key.schema_id < FIRST_ID}
        )
        self._lookup.note(item.key for item in unresolved)
        self.book.names.think()
        try:
            self._find_routes(item.key for item in unresolved)
        finally:
            self._write_names()
        self.book.evolve_unified(self._columns_of_type)
        self._recalled, self._snapshot = {}, None

    def _write_names(self) -> None:
        """Write the names of new tables; replace names that were taken meanwhile."""
        overtaken, error = self.book.names.write()
        lost = self.book.discard(overtaken)
        routes = self._routes.items()
        again = [key for key, route in routes if isinstance(route, Route) and route.table in lost]
        for key in again:
            self._forget(key)
        if error is not None:
            raise error
        self._find_routes(again)

    def _find_routes(self, keys: Iterable[RouteKey]) -> None:
        for key in keys:
            answer = self._answer(key)
            if answer is not None:
                self._routes[key] = answer
        self._aggregates.follow()

    def groups(self, raw: pa.RecordBatch, unwrapped: Unwrapped) -> RecordGroups:
        """Group records by key and resolve each key, as a stage does, in this process."""
        offsets = raw.column("offset").to_numpy()
        while True:
            plan = self.task_plan()
            groups = group(unwrapped, plan.routing.unions)
            if plan.routing.infer:
                found = shapes(unwrapped, groups, plan)
                self.learn(joined(found), unwrapped.carried.values())
                plan = self.task_plan()
            places = zip(groups.keys, groups.first_rows(), strict=True)
            first = {key: int(offsets[unwrapped.rows[row]]) for key, row in places}
            new = [Unresolved(k, first[k]) for k in first if k not in plan.routing.routes]
            if not new:
                return groups
            self.resolve(sorted(new, key=lambda item: (item.offset, item.key)))

    def committed(self, names: Iterable[str]) -> None:
        """Note that tables were committed as planned."""
        if self.book.committed(names):
            self._snapshot = None

    def reread(self, names: Iterable[str]) -> None:
        """Read tables again that were committed as an earlier process had planned them."""
        self.book.reread(names)
        self._snapshot = None

    def _envelope_plan(self) -> EnvelopePlan | None:
        envelope = self._config.envelope
        if envelope is not None and self._envelope is None:
            self._envelope = envelope_plan(envelope, self._lookup, self._limits)
        return self._envelope

    def follow_envelope(self) -> None:
        """Add new versions of an Avro envelope's schema, if the registry answers."""
        envelope = self._config.envelope
        if envelope is None or self._envelope is None or self._envelope.schema is None:
            return
        if not FORMATS[envelope.format].needs_writer:
            return
        try:
            versions = self._lookup.versions(envelope.subject or "")
            if versions != self._versions:
                # a newest version that is no envelope must not end a run
                schemas = envelope_versions(envelope, self._lookup)
                self._envelope = replace(self._envelope, schemas=schemas)
                self._versions, self._snapshot = versions, None
        except RegistryError:
            # envelopes of known versions can still be read
            return

    def _forget(self, key: RouteKey) -> None:
        self._routes.pop(key, None)
        self._asked.pop(key, None)
        self._snapshot = None

    def _recheck(self, key: RouteKey) -> None:
        """Resolve refused keys again; if they are too many, wait until they come again."""
        if len(self._asked) > _MOST_RECHECKED:
            self._forget(key)
            return
        answer = self._answer(key)
        if isinstance(answer, Route):
            self._routes[key] = answer
            self._aggregates.follow()
            self.book.evolve_unified(self._columns_of_type)
            self._snapshot = None

    def _answer(self, key: RouteKey) -> Route | Rejected | None:
        """Return a route or a refusal; None if the key needs more detail."""
        self._asked[key] = time.monotonic()
        if self._config.envelope is not None:
            strict = self._config.tables.names == "strict"
            longest = self._config.limits.max_type_name
            code = refused_type_name(key.claim, strict=strict, longest=longest)
            if code is not None:
                return Rejected(code, BAD_NAME)
        try:
            schema = self._lookup.of(key)
        except SchemaNotFoundError as error:
            # the table never existed, so there is no row to delete
            return Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, error.what, passed_over=key.tombstone)
        except InvalidSchemaError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        if schema.format is not FORMATS[self._payload.format].language:
            text = f"schema {schema.id} is {schema.format}, payload.format {self._payload.format}"
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, text)
        if self._change_plan is not None:
            placed = self._change_plan.place(key, schema)
            if isinstance(placed, Rejected):
                return placed
            route, schemas = placed
            self._schemas |= {each.id: each for each in schemas}
            return route
        if key.tombstone:
            return self._place_tombstones(key, schema)
        if self._needs_branch(key, schema):
            return None
        types = self._columns_of_type
        return self._lookup.wrong_subject(key, schema, types) or self._place(key, schema)

    def _needs_branch(self, key: RouteKey, schema: WriterSchema) -> bool:
        """Return whether a key's schema is a union, so that its records need separate keys."""
        if key.message_index or not FORMATS[schema.format].is_union(schema):
            return False
        self._unions.add(key)
        return True

    def _place_tombstones(self, key: RouteKey, schema: WriterSchema) -> Route | Rejected:
        """Find the table whose rows records without a value delete."""
        message = self._lookup.message(key, schema)
        if isinstance(message, Rejected):
            return message
        type_name = key.claim if self._is_inferred(key) else message
        table = self._table_name(type_name, key, message)
        if isinstance(table, Rejected):
            return table
        if self._keys.deletes_by_tombstones(table):
            return self._place(key, schema)
        skips = self._config.source.skips_tombstones
        return Rejected(ErrorCode.NULL_VALUE, "the value is null", passed_over=skips)

    def _place(self, key: RouteKey, schema: WriterSchema) -> Route | Rejected:
        """Find the table of a key, and add the columns of its schema."""
        message = self._lookup.message(key, schema)
        if isinstance(message, Rejected):
            return message
        try:
            columns = decoder_for(schema, message, self._limits).columns
        except DecodeError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        columns = tuple(replace(c, comment=f"{c.comment}; since {schema.label()}") for c in columns)
        if self.book.origins is not None:
            # with an envelope, a type may come from any of several topics, and only the type
            # distinguishes messages of one name
            bare = self._config.envelope is None
            place = {"topic": key.claim} if bare else {"inside": key.claim}
            columns = tuple(qualified(columns, **place))
        named = self._config.envelope is None and not self._is_inferred(key)
        type_name = message if named else key.claim
        name = self._table_name(type_name, key, message)
        if isinstance(name, Rejected):
            return name
        shaped = self.shaped(name, type_name, columns)
        if isinstance(shaped, Rejected):
            return shaped
        columns, notes = shaped.columns, shaped.notes()
        inferred = self._is_inferred(key)
        name, refused = self._keys.place(
            name, type_name, schema, columns, inferred=inferred, notes=notes
        )
        if refused is not None:
            return refused
        self._schemas[schema.id] = schema
        known = self._columns_of_type.get(type_name, ())
        self._columns_of_type[type_name] = merge(known, columns, _ALL_VERSIONS).columns
        raw = self._lookup.is_raw(key, schema)
        return Route(name, type_name, schema.id, message, raw_bytes=raw, shapes=shaped.shapes)

    def shaped(
        self, table: str, type_name: str, columns: tuple[Column, ...]
    ) -> Resolved | Rejected:
        """Return the columns after `shape` was applied to those of a schema."""
        rules = [r for r in self._shapes if r.is_for((table,), type_spellings(type_name))]
        if not rules:
            return Resolved(columns=columns)
        if self._keys.of(table) is None:
            planned = self.book.planned(table, Role.EACH, type_name)
        else:
            planned = self.book.planned(table + LOG, Role.LOG, type_name)
        try:
            known = () if planned is None else planned.columns
            raw_in = ", ".join(raw_layers(self._config.tables, self._config.masking))
            return resolve(rules, columns, known, name=table, raw_in=raw_in)
        except ShapeError as error:
            return Rejected(ErrorCode.SHAPE_FAILED, str(error))

    def follow_newest(self, times: Mapping[RouteKey, int]) -> None:
        """Note the times of the newest records of some keys."""
        if self._change_plan is not None and self._change_plan.follow_newest(times, self._routes):
            self._snapshot = None

    def learn(self, shapes: Mapping[str, Any], carried: Iterable[str] = ()) -> None:
        """Store schemas that records carried, and extend the inferred schemas."""
        self._lookup.carry(carried)
        grown = set(self._lookup.learn(shapes))
        for key in [k for k in self._routes if k.claim in grown and self._is_inferred(k)]:
            self._forget(key)

    def _is_inferred(self, key: RouteKey) -> bool:
        return self._infers and key.schema_id == UNFRAMED and not key.guid

    def _table_name(self, type_name: str, key: RouteKey, message: str) -> str | Rejected:
        tables = self._config.tables
        if tables.each is None:
            return ""
        asked = placeholders(tables.each)
        if not asked:
            return f"{tables.prefix}{tables.each}"
        wrapped = self._config.envelope is not None
        exact: dict[str, Any] = {"type": type_name, "record": message, "topic": key.claim}
        spelled = exact | {
            "type": type_name if wrapped else spelled_type(type_name),
            "record": spelled_record(message),
        }
        # the full name distinguishes two records of one name in different namespaces
        fields = [spelled, spelled | {"record": message}] if "record" in asked else [spelled]
        reserved = fixed_tables(self._config)
        wanted = WantedName(
            type_name,
            {field: exact[field] for field in asked},
            tuple(
                propose(tables.each, prefix=tables.prefix, reserved=reserved, **each)
                for each in fields
            ),
        )
        if self._config.keys and self._keys.of(self.book.names.likely(wanted)) is not None:
            # the suffixes of its log and its history
            endings = (LOG, HISTORY)
            proposals = tuple(
                propose(
                    tables.each, prefix=tables.prefix, reserved=reserved, endings=endings, **each
                )
                for each in fields
            )
            wanted = replace(wanted, proposals=proposals, endings=("", *endings))
            return self.book.name(wanted, ending=LOG)
        return self.book.name(wanted)


def _loaded(rule: ShapeRule, folder: Path | None) -> ShapeRule:
    """Return an entry of `shape` with the text of its function."""
    if rule.function is None:
        return rule
    return replace(rule, function=with_source(rule.function, folder))
