"""Step `plan`: what executors are told, and the answers to the keys they could not place.

The planner lives as long as the run. It asks the registry, which executors never do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from distributary.config.evolution import Evolution
from distributary.config.pipeline import PipelineConfig
from distributary.config.text import placeholders
from distributary.decode.base import DecodeLimits
from distributary.decode.cache import decoder_for
from distributary.errors import (
    DecodeError,
    ErrorCode,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from distributary.evolve.merge import merge
from distributary.model.deadletter import MAY_HEAL
from distributary.model.plan import (
    TOMBSTONE,
    UNFRAMED,
    Catalog,
    EnvelopePlan,
    Rejected,
    Route,
    RouteKey,
)
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Column
from distributary.publish.base import Publisher
from distributary.registry.base import SchemaRegistry
from distributary.registry.carried import CarriedSchemas
from distributary.registry.inferred import FIRST_ID, InferredSchemas
from distributary.route.naming import propose
from distributary.route.record_names import spelled_record, spelled_type
from distributary.route.type_names import refused_type_name
from distributary.run.change_plan import ChangePlan
from distributary.run.change_tables import change_settings
from distributary.run.names import Names, Wanted
from distributary.run.origins import qualified
from distributary.run.schema_lookup import SchemaLookup, envelope_message
from distributary.run.tables import TableBook, fixed_tables
from distributary.stage.group import Groups, group
from distributary.stage.job import Unresolved
from distributary.stage.shapes import joined, shapes
from distributary.stage.sort import BAD_NAME
from distributary.stage.unwrapped import Unwrapped

_RECHECK_SECONDS = 5.0
_MOST_RECHECKED = 1000
_ALL_VERSIONS = Evolution()
"""How the versions of one type come together for the unified table."""


class Planner:
    """Keeps the catalog, and extends it when a batch brings something new."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        registry: SchemaRegistry | None,
        publisher: Publisher,
        names: Names | None = None,
        types: Iterable[str] = (),
        inferred: InferredSchemas | None = None,
        carried: CarriedSchemas | None = None,
    ) -> None:
        self._config = config
        self._payload = config.records
        self._lookup = SchemaLookup(config, registry, inferred, carried)
        self._infers = inferred is not None
        self._changes = change_settings(config)
        self._rules = tuple(expectation.rule() for expectation in config.expectations)
        self._columns_of_type: dict[str, tuple[Column, ...]] = dict.fromkeys(types, ())
        self._schemas: dict[int, WriterSchema] = {}
        self._routes: dict[RouteKey, Route | Rejected] = {}
        self._asked: dict[RouteKey, float] = {}
        self._unions: set[RouteKey] = set()
        self._envelope: EnvelopePlan | None = None
        self._version = 0
        self._snapshot: Catalog | None = None
        self._limits = DecodeLimits(
            max_payload_bytes=config.limits.max_payload_bytes,
            max_decoded_bytes=config.limits.max_decoded_bytes,
            max_depth=config.limits.max_depth,
            recursion_depth=config.limits.recursion_depth,
            drop_unknown_fields=self._payload.unknown_fields == "drop",
        )
        self.book = TableBook(config, publisher, names=names or Names())
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

    def catalog(self) -> Catalog:
        """The plan as it stands; the same object until something changes."""
        if self._snapshot is None:
            self._version += 1
            tables = self._config.tables
            self._snapshot = Catalog(
                version=self._version,
                envelope=self._envelope_plan(),
                payload_format=Format(self._payload.format),
                payload_framing=self._payload.framing,
                schemas=dict(self._schemas),
                routes=dict(self._routes),
                tables=dict(self.book.tables),
                unions=frozenset(self._unions),
                each=tables.each is not None,
                bronze=tables.bronze or "",
                whole=self._config.shard is not None and self._config.shard.lands,
                unified=tables.unified.name if tables.unified else "",
                unified_mode=tables.unified.mode if tables.unified else "shared",
                dead_letters=tables.dead_letters,
                metadata=tuple(tables.metadata),
                evolution=self._config.evolution.model_dump(),
                max_payload_bytes=self._limits.max_payload_bytes,
                max_decoded_bytes=self._limits.max_decoded_bytes,
                max_depth=self._limits.max_depth,
                recursion_depth=self._limits.recursion_depth,
                drop_unknown_fields=self._limits.drop_unknown_fields,
                strict_names=tables.names == "strict",
                changes=self._changes,
                infer=self._infers,
                skip_tombstones=self._changes is not None
                or getattr(self._config.source, "tombstones", "") == "skip",
                expectations=self._rules,
            )
        return self._snapshot

    def begin_batch(self) -> None:
        """Forget what held for one batch only, and ask again for what may have healed."""
        again = self.book.begin_batch()
        now = time.monotonic()
        for key, route in list(self._routes.items()):
            if isinstance(route, Route):
                if route.table in again or self._lookup.outdated(key, route.schema_id):
                    self._forget(key)
            elif route.code is ErrorCode.TOO_MANY_TYPES or route.passed_over:
                self._forget(key)
            elif route.code in MAY_HEAL and now - self._asked.get(key, 0) > _RECHECK_SECONDS:
                self._recheck(key)

    def resolve(self, unresolved: Sequence[Unresolved]) -> None:
        """Find an answer for every key: a route, or a reason to dead-letter its records."""
        self._lookup.wait_for_new_ids(
            {i.key.schema_id for i in unresolved if 0 <= i.key.schema_id < FIRST_ID}
        )
        self._lookup.note(item.key for item in unresolved)
        for item in unresolved:
            answer = self._answer(item.key)
            if answer is not None:
                self._routes[item.key] = answer
        self.book.evolve_unified(self._columns_of_type)
        self._snapshot = None

    def groups(self, raw: pa.RecordBatch, unwrapped: Unwrapped) -> Groups:
        """The records by key, each key with an answer: what a stage does, in this process."""
        offsets = raw.column("offset").to_numpy()
        while True:
            catalog = self.catalog()
            groups = group(unwrapped, catalog.unions)
            if catalog.infer:
                found = shapes(unwrapped, groups, changes=self._changes is not None)
                self.learn(joined(found), unwrapped.carried.values())
                catalog = self.catalog()
            places = zip(groups.keys, groups.first_rows(), strict=True)
            first = {key: int(offsets[unwrapped.rows[row]]) for key, row in places}
            new = [Unresolved(k, first[k]) for k in first if k not in catalog.routes]
            if not new:
                return groups
            self.resolve(sorted(new, key=lambda item: (item.offset, item.key)))

    def committed(self, names: Iterable[str]) -> None:
        """These tables exist now as planned."""
        if self.book.committed(names):
            self._snapshot = None

    def reread(self, names: Iterable[str]) -> None:
        """These tables were committed as an earlier process had planned them."""
        self.book.reread(names)
        self._snapshot = None

    def _envelope_plan(self) -> EnvelopePlan | None:
        envelope = self._config.envelope
        if envelope is not None and self._envelope is None:
            schema = self._lookup.latest(envelope.subject or "")
            self._envelope = EnvelopePlan(
                schema=schema,
                message=envelope_message(envelope, schema),
                framing=envelope.framing,
                type_field=envelope.type,
                schema_id_field=envelope.schema_id,
                payload_field=envelope.payload,
            )
        return self._envelope

    def _forget(self, key: RouteKey) -> None:
        self._routes.pop(key, None)
        self._asked.pop(key, None)
        self._snapshot = None

    def _recheck(self, key: RouteKey) -> None:
        """Ask again, unless there are so many that it is cheaper to meet them anew."""
        if len(self._asked) > _MOST_RECHECKED:
            self._forget(key)
            return
        answer = self._answer(key)
        if isinstance(answer, Route):
            self._routes[key] = answer
            self.book.evolve_unified(self._columns_of_type)
            self._snapshot = None

    def _answer(self, key: RouteKey) -> Route | Rejected | None:
        """A route or a refusal; None when the key does not say enough to tell."""
        self._asked[key] = time.monotonic()
        if self._config.envelope is not None:
            strict = self._config.tables.names == "strict"
            code = refused_type_name(key.claim, strict=strict)
            if code is not None:
                return Rejected(code, BAD_NAME)
        try:
            schema = self._lookup.of(key)
        except SchemaNotFoundError as error:
            # the table never had a row that could be gone
            silent = key.message_index == TOMBSTONE
            return Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, error.what, passed_over=silent)
        except InvalidSchemaError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        if schema.format is not Format(self._payload.format):
            text = f"schema {schema.id} is {schema.format}, payload.format {self._payload.format}"
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, text)
        if self._change_plan is not None:
            return self._place_changes(key, schema, self._change_plan)
        if self._needs_branch(key, schema):
            return None
        types = self._columns_of_type
        return self._lookup.wrong_subject(key, schema, types) or self._place(key, schema)

    def _needs_branch(self, key: RouteKey, schema: WriterSchema) -> bool:
        """Whether records with this key must be told apart once more: the schema is a union."""
        if schema.format is not Format.AVRO or len(schema.messages) < 2 or key.message_index:
            return False
        self._unions.add(key)
        return True

    def _place(self, key: RouteKey, schema: WriterSchema) -> Route | Rejected:
        """Find the table and make room in it."""
        message = self._lookup.message(key, schema)
        if isinstance(message, Rejected):
            return message
        try:
            columns = decoder_for(schema, message, self._limits).columns
        except DecodeError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        columns = tuple(replace(c, comment=f"{c.comment}; since {schema.label()}") for c in columns)
        if self.book.origins is not None:
            # behind an envelope nobody knows by which of several topics a type comes, and only
            # the type tells messages of one name apart
            bare = self._config.envelope is None
            place = {"topic": key.claim} if bare else {"inside": key.claim}
            columns = tuple(qualified(columns, **place))
        named = self._config.envelope is None and not self._is_inferred(key)
        type_name = message if named else key.claim
        name = self._table_name(type_name, key, message)
        if isinstance(name, Rejected):
            return name
        refused = self.book.evolve(name, type_name, schema, columns) if name else None
        if refused is not None:
            return refused
        self._schemas[schema.id] = schema
        known = self._columns_of_type.get(type_name)
        if known is not None:
            columns = merge(known, columns, _ALL_VERSIONS).columns
        self._columns_of_type[type_name] = columns
        raw = self._lookup.is_raw(key, schema)
        return Route(name, type_name, schema.id, message, raw_bytes=raw)

    def _place_changes(
        self, key: RouteKey, schema: WriterSchema, changes: ChangePlan
    ) -> Route | Rejected:
        placed = changes.place(key, schema)
        if isinstance(placed, Rejected):
            return placed
        route, schemas = placed
        self._schemas.update({schema.id: schema for schema in schemas})
        return route

    def follow_newest(self, times: Mapping[RouteKey, int]) -> None:
        """Take in when the newest records of some keys were made."""
        if self._change_plan is not None and self._change_plan.follow_newest(times, self._routes):
            self._snapshot = None

    def learn(self, shapes: Mapping[str, Any], carried: Iterable[str] = ()) -> None:
        """Take in schemas that came with the records, and what records without any look like."""
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
        # the second for two records of one name in different namespaces
        fields = [spelled, spelled | {"record": message}] if "record" in asked else [spelled]
        reserved = fixed_tables(self._config)
        wanted = Wanted(
            type_name,
            {field: exact[field] for field in asked},
            tuple(
                propose(tables.each, prefix=tables.prefix, reserved=reserved, **each)
                for each in fields
            ),
        )
        return self.book.name(wanted)
