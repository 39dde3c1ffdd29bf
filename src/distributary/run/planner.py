"""Step `plan`: what executors are told, and the answers to the keys they could not place.

The planner lives as long as the run. It asks the registry, which executors never do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distributary.config.evolution import Evolution
from distributary.config.pipeline import PipelineConfig
from distributary.decode.base import DecodeLimits
from distributary.decode.cache import decoder_for
from distributary.errors import (
    ConfigError,
    DecodeError,
    ErrorCode,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from distributary.evolve.merge import merge
from distributary.model.deadletter import MAY_HEAL
from distributary.model.plan import Catalog, EnvelopePlan, Rejected, Route, RouteKey
from distributary.model.schema import Format, WriterSchema
from distributary.model.table import Column
from distributary.publish.base import Publisher
from distributary.registry.base import SchemaRegistry
from distributary.registry.wire import message_by_index
from distributary.route.naming import table_name
from distributary.route.subjects import subject_verdict
from distributary.route.type_names import casefold_key
from distributary.run.tables import TableBook, fixed_tables
from distributary.stage.job import Unresolved

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
        registry: SchemaRegistry,
        publisher: Publisher,
        known_types: Iterable[str] = (),
    ) -> None:
        if config.payload is None:
            raise ConfigError("a pipeline without payload has nothing to decode")
        self._config = config
        self._payload = config.payload
        # a folder has no other nodes that could know more
        registered = config.registry
        remote = registered is not None and registered.path is None
        self._grace = registered.unknown_id_grace.total_seconds() if registered and remote else 0.0
        self._registry = registry
        self._types = {casefold_key(name): name for name in known_types}
        self._columns_of_type: dict[str, tuple[Column, ...]] = dict.fromkeys(
            self._types.values(), ()
        )
        self._schemas: dict[int, WriterSchema] = {}
        self._routes: dict[RouteKey, Route | Rejected] = {}
        self._asked: dict[RouteKey, float] = {}
        self._waited: set[int] = set()
        self._envelope: EnvelopePlan | None = None
        self._version = 0
        self._snapshot: Catalog | None = None
        self._limits = DecodeLimits(
            max_payload_bytes=config.limits.max_payload_bytes,
            max_depth=config.limits.max_depth,
            recursion_depth=config.limits.recursion_depth,
        )
        self.book = TableBook(config, publisher)

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
                each=tables.each is not None,
                bronze=tables.bronze or "",
                unified=tables.unified.name if tables.unified else "",
                unified_mode=tables.unified.mode if tables.unified else "shared",
                dead_letters=tables.dead_letters,
                metadata=tuple(tables.metadata),
                evolution=self._config.evolution.model_dump(),
                max_payload_bytes=self._limits.max_payload_bytes,
                max_depth=self._limits.max_depth,
                recursion_depth=self._limits.recursion_depth,
                strict_names=tables.names == "strict",
            )
        return self._snapshot

    def begin_batch(self) -> None:
        """Forget what held for one batch only, and ask again for what may have healed."""
        again = self.book.begin_batch()
        now = time.monotonic()
        for key, route in list(self._routes.items()):
            if isinstance(route, Route):
                if route.table in again:
                    self._forget(key)
            elif route.code is ErrorCode.TOO_MANY_TYPES:
                self._forget(key)
            elif route.code in MAY_HEAL and now - self._asked.get(key, 0) > _RECHECK_SECONDS:
                self._recheck(key)

    def resolve(self, unresolved: Sequence[Unresolved]) -> None:
        """Find an answer for every key: a route, or a reason to dead-letter its records."""
        self._wait_for_new_ids({item.key.schema_id for item in unresolved})
        for item in unresolved:
            self._routes[item.key] = self._answer(item.key)
        self.book.evolve_unified(self._columns_of_type)
        self._snapshot = None

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
            schema = self._registry.latest(envelope.subject or "")
            self._envelope = EnvelopePlan(
                schema=schema,
                message=envelope.message or schema.message,
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

    def _wait_for_new_ids(self, ids: set[int]) -> None:
        """An id may reach us before every node of the registry knows it: one moment, once."""
        patience = time.monotonic() + self._grace
        unknown = {i for i in ids - self._waited if not self._is_known(i)}
        self._waited |= ids
        while unknown and time.monotonic() < patience:
            time.sleep(0.2)
            unknown = {i for i in unknown if not self._is_known(i)}

    def _is_known(self, schema_id: int) -> bool:
        try:
            self._registry.by_id(schema_id)
        except SchemaNotFoundError:
            return False
        except InvalidSchemaError:
            return True
        return True

    def _answer(self, key: RouteKey) -> Route | Rejected:
        self._asked[key] = time.monotonic()
        if self._config.envelope is not None and self._config.tables.names == "strict":
            known = self._types.get(casefold_key(key.claim), key.claim)
            if known != key.claim:
                text = "the type's name differs only in case from another type's"
                return Rejected(ErrorCode.TYPE_NAME_CASE_CLASH, text)
        try:
            schema = self._registry.by_id(key.schema_id)
        except SchemaNotFoundError:
            text = f"the registry knows no schema with id {key.schema_id}"
            return Rejected(ErrorCode.UNKNOWN_SCHEMA_ID, text)
        except InvalidSchemaError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        return self._wrong_subject(key, schema) or self._place(key, schema)

    def _wrong_subject(self, key: RouteKey, schema: WriterSchema) -> Rejected | None:
        if self._config.envelope is None:
            return None
        subjects = [s.subject for s in schema.subjects]
        code = subject_verdict(
            key.claim,
            subjects,
            lambda subject: bool(self._registry.versions(subject)),
            rule=self._payload.subject,
            known_types=self._types.values(),
        )
        if code is None:
            return None
        return Rejected(
            code, f"schema {schema.id} belongs to {', '.join(subjects) or 'no subject'}"
        )

    def _place(self, key: RouteKey, schema: WriterSchema) -> Route | Rejected:
        """Find the table and make room in it."""
        message: str | None = self._payload.message or schema.message
        if key.message_index:
            message = message_by_index(
                schema.body, tuple(int(i) for i in key.message_index.split(","))
            )
        if message is None:
            text = f"schema {schema.id} has no message at index {key.message_index}"
            return Rejected(ErrorCode.BAD_MESSAGE_INDEX, text)
        try:
            columns = decoder_for(schema, message, self._limits).columns
        except DecodeError as error:
            return Rejected(ErrorCode.UNUSABLE_SCHEMA, error.what)
        columns = tuple(replace(c, comment=f"{c.comment}; since {schema.label()}") for c in columns)
        type_name = key.claim if self._config.envelope is not None else message
        name = self._table_name(type_name, key, message)
        refused = self.book.evolve(name, type_name, schema, columns) if name else None
        if refused is not None:
            return refused
        self._schemas[schema.id] = schema
        self._types.setdefault(casefold_key(type_name), type_name)
        known = self._columns_of_type.get(type_name)
        if known is not None:
            columns = merge(known, columns, _ALL_VERSIONS).columns
        self._columns_of_type[type_name] = columns
        return Route(name, type_name, schema.id, message)

    def _table_name(self, type_name: str, key: RouteKey, message: str) -> str:
        tables = self._config.tables
        if tables.each is None:
            return ""
        fields = {"type": type_name, "record": message, "topic": key.claim}
        wanted: dict[str, Any] = {k: v for k, v in fields.items() if "{" + k + "}" in tables.each}
        if not wanted:
            return f"{tables.prefix}{tables.each}"
        return table_name(
            tables.each, prefix=tables.prefix, reserved=fixed_tables(self._config), **wanted
        )


def spread_tables(records: Mapping[str, int], buckets: int) -> dict[str, tuple[int, ...]]:
    """Tables to tasks by what they had in the batch before: heavy ones get several tasks."""
    total = sum(records.values())
    load = [0.0] * buckets
    spread: dict[str, tuple[int, ...]] = {}
    for name, count in sorted(records.items(), key=lambda item: (-item[1], item[0])):
        shares = min(buckets, max(1, round(count * buckets / total))) if total else 1
        lightest = sorted(range(buckets), key=lambda b: (load[b], b))[:shares]
        for bucket in lightest:
            load[bucket] += count / shares
        spread[name] = tuple(lightest)
    return spread
