"""The lookup of schemas by the keys of records, done by the driver.

A record names its schema by id or by GUID. Without a name, the newest schema of its subject
applies; for records without any schema, the schema inferred from records of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

import pyarrow as pa

from distributary.config.message import Envelope
from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.base import DecodeLimits
from distributary.decode.formats import FORMATS, decoder_for
from distributary.decode.json.infer import NOTHING, grown
from distributary.decode.json.kinds import Learner, mended
from distributary.engine.planning.strategies import strategy_of
from distributary.errors import (
    ConfigError,
    ErrorCode,
    InvalidSchemaError,
    RegistryError,
    SchemaNotFoundError,
)
from distributary.model.record import WriterSchema
from distributary.model.routing import UNFRAMED, EnvelopePlan, Rejected, RouteKey
from distributary.model.table import Column
from distributary.registry.base import SchemaRegistry
from distributary.registry.message_choice import (
    choose_message,
    own_subject,
    subject_verdict,
    topic_verdict,
)
from distributary.registry.record_schemas import CarriedSchemas, InferredSchemas


class SchemaLookup:
    """The lookup of the schemas of one pipeline's records."""

    def __init__(
        self,
        config: PipelineConfig,
        registry: SchemaRegistry | None,
        inferred: InferredSchemas | None,
        carried: CarriedSchemas | None = None,
    ) -> None:
        envelope = config.envelope
        self._enveloped = envelope is not None
        self._named = envelope is not None and envelope.schema_id is not None
        """Whether every record names its schema, so that newest versions are not needed."""
        self._inside = envelope is not None and envelope.payload is not None
        format_ = strategy_of(config).format
        self._images = None if format_ is None else format_.images
        self._evolution = config.evolution
        self._payload = config.records
        self._registry = registry
        self._inferred = inferred
        self._carried = carried
        # a folder has no other nodes that could have newer ids
        settings = config.registry
        remote = settings is not None and settings.path is None
        self._grace = settings.unknown_id_grace.total_seconds() if settings and remote else 0.0
        self._waited: set[int] = set()

    def latest(self, subject: str) -> WriterSchema:
        """Return the newest version of a subject."""
        return self._server(subject).latest(subject)

    def history(self, subject: str) -> Iterator[WriterSchema]:
        """Return all readable versions of a subject, the oldest first."""
        for version in self.versions(subject):
            with suppress(InvalidSchemaError):
                yield self._server(subject).version(subject, version)

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the version numbers of a subject."""
        return self._server(subject).versions(subject)

    def of(self, key: RouteKey) -> WriterSchema:
        """Return the schema that records with a key were written with."""
        if key.guid:
            guid = UUID(key.guid)
            if self._carried is not None:
                return self._carried.by_guid(guid)
            return self._server(key.guid).by_guid(guid)
        if self._follows_newest(key):
            if self._inferred is not None:
                return self._newest_seen(key.claim, self._inferred)
            subject = own_subject(key.claim, rule=self._payload.subject)
            return self._server(subject).latest(subject)
        return self.by_id(key.schema_id)

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with an id."""
        return self._server(f"id {schema_id}").by_id(schema_id)

    def of_keys(self, key: RouteKey) -> WriterSchema | None:
        """Return the schema that the Kafka keys of change events were written with."""
        return self.by_id(key.key_schema) if key.key_schema != UNFRAMED else None

    def outdated(self, key: RouteKey, schema_id: int) -> bool:
        """Return whether a key that follows the newest schema now has another one."""
        return self._follows_newest(key) and self.of(key).id != schema_id

    def learn(self, shapes: Mapping[str, Any]) -> list[str]:
        """Extend the inferred schemas by observed shapes; return the claims with a new schema."""
        if self._inferred is None:
            return []
        self._inferred.load(shapes)
        wider: dict[str, Any] = {}
        doubts: dict[str, list[dict[str, Any]]] = {}
        later: dict[str, Mapping[str, Mapping[str, int]]] = {}
        for claim, shape in shapes.items():
            known = self._inferred.document(claim)
            old = NOTHING if known is None else known
            if self._images is not None:
                new = grown(old, shape, images=self._images)
            else:
                learner = Learner(self._evolution, table=claim)
                new = learner.extended(old, shape)
                doubts[claim] = [asdict(each) for each in learner.doubts]
                later[claim] = learner.later
            if new != old:
                wider[claim] = new
        self._inferred.add(wider)
        self._inferred.note_doubts(doubts, later)
        return list(wider)

    def recalled(self) -> dict[str, bytes]:
        """Return the inferred schemas of earlier runs, by claim."""
        found: dict[str, bytes] = {}
        inferred = self._inferred
        if inferred is None:
            return found
        recalled = inferred.recalled()
        with suppress(RegistryError):
            inferred.load(recalled)
        for claim in recalled:
            # a damaged schema is reported when records need it
            with suppress(RegistryError):
                schema, known = inferred.newest(claim), inferred.document(claim)
                if known is not None and known == self._mended(known):
                    found[claim] = schema.body
        return found

    def _mended(self, known: dict[str, Any]) -> dict[str, Any]:
        if self._images is None:
            return mended(known)
        return grown(known, NOTHING, images=self._images)

    def note(self, keys: Iterable[RouteKey]) -> None:
        """Record the last schema carried by the records of a claim, for records without one."""
        if self._carried is not None:
            for key in keys:
                if key.guid:
                    self._carried.note(key.claim, UUID(key.guid))

    def carry(self, texts: Iterable[str]) -> None:
        """Store schemas that records carried."""
        if self._carried is not None:
            for text in texts:
                self._carried.keep(text)

    def wait_for_new_ids(self, ids: Collection[int]) -> None:
        """Wait once for new ids, which may arrive before all nodes of the registry know them."""
        if not self._grace:
            # a folder has no nodes to wait for
            return
        patience = time.monotonic() + self._grace
        unknown = {i for i in set(ids) - self._waited if not self._is_known(i)}
        self._waited |= set(ids)
        while unknown and time.monotonic() < patience:
            time.sleep(0.2)
            unknown = {i for i in unknown if not self._is_known(i)}

    def message(self, key: RouteKey, schema: WriterSchema) -> str | Rejected:
        """Return the message or record of the schema for a key."""
        if not key.message_index:
            # a subject with a dot may be named after the record
            subjects = (s.subject for s in schema.subjects if "." in s.subject)
            names = (key.claim, *subjects)
            return choose_message(schema, wanted=self._payload.message, names=names)
        return FORMATS[schema.format].message_at(schema, key.message_index)

    def is_raw(self, key: RouteKey, schema: WriterSchema) -> bool:
        """Return whether payloads are Avro bytes without their length.

        The registry's serializers write a schema of just bytes this way behind their header.
        """
        if not schema.message or schema.message != FORMATS[schema.format].bare_bytes:
            return False
        if self._inside:
            return self._payload.framing == "confluent"
        return bool(key.guid) or key.schema_id != UNFRAMED

    def wrong_subject(
        self, key: RouteKey, schema: WriterSchema, types: Collection[str]
    ) -> Rejected | None:
        """Return the reason why records with this key may not use this schema; None if they may."""
        code = self._subject_verdict(key, schema, types)
        if code is not None and self._registry is not None:
            # the id may have got another subject since it was cached
            with suppress(SchemaNotFoundError, InvalidSchemaError):
                schema = self._registry.by_id_now(schema.id)
                code = self._subject_verdict(key, schema, types)
        if code is None:
            return None
        subjects = ", ".join(place.subject for place in schema.subjects)
        return Rejected(code, f"schema {schema.id} belongs to {subjects or 'no subject'}")

    def _subject_verdict(
        self, key: RouteKey, schema: WriterSchema, types: Collection[str]
    ) -> ErrorCode | None:
        subjects = [place.subject for place in schema.subjects]
        registry = self._registry
        if self._enveloped and registry is not None:
            return subject_verdict(
                key.claim,
                subjects,
                lambda subject: bool(registry.versions(subject)),
                rule=self._payload.subject,
                known_types=types,
            )
        if self._payload.validation == "registry":
            return topic_verdict(key.claim, schema.messages, subjects, rule=self._payload.subject)
        return None

    def _follows_newest(self, key: RouteKey) -> bool:
        return key.schema_id == UNFRAMED and not self._named and not key.guid

    def _newest_seen(self, claim: str, inferred: InferredSchemas) -> WriterSchema:
        """Return the inferred schema of a claim, or the schema that its records came with."""
        if self._carried is not None and inferred.document(claim) is None:
            return self._carried.newest(claim)
        return inferred.newest(claim)

    def _server(self, wanted: str) -> SchemaRegistry:
        if self._registry is None:
            raise SchemaNotFoundError(
                "the record names a schema, but the pipeline has no registry",
                evidence=wanted,
                next_step="set registry.url or registry.path in the pipeline file",
            )
        return self._registry

    def _is_known(self, schema_id: int) -> bool:
        try:
            self.by_id(schema_id)
        except SchemaNotFoundError:
            return False
        except InvalidSchemaError:
            return True
        return True


def choose_envelope(envelope: Envelope, schema: WriterSchema) -> str | Rejected:
    """Return the message of the envelope in its schema, or the reason why there is none."""
    return choose_message(
        schema,
        wanted=envelope.message,
        names=((envelope.subject or "").removesuffix("-value"),),
        fields=[path.partition(".")[0] for path in envelope.fields],
        setting="envelope.message",
    )


def envelope_plan(envelope: Envelope, lookup: SchemaLookup, limits: DecodeLimits) -> EnvelopePlan:
    """Return the plan for opening envelopes; ConfigError if it is ambiguous or impossible."""
    plan = EnvelopePlan(
        format=envelope.format,
        framing=envelope.framing,
        type_field=envelope.type or "",
        schema_id_field=envelope.schema_id or "",
        payload_field=envelope.payload or "",
        base64=envelope.encoding == "base64",
    )
    if not envelope.has_schema:
        return plan
    schema = lookup.latest(envelope.subject or "")
    if schema.format != envelope.format:
        raise ConfigError(
            "the envelope's schema is of another format",
            where="envelope.format",
            evidence=f"{schema.label()} is {schema.format}",
            next_step=f"set envelope.format to {schema.format}, or another subject",
        )
    message = envelope_message(envelope, schema)
    if not FORMATS[schema.format].is_row(schema):
        raise ConfigError(
            "the envelope's schema is not a record",
            where="envelope.subject",
            evidence=schema.label(),
            next_step="name the subject of a schema that is a record",
        )
    _check_fields(envelope, decoder_for(schema, message, limits).columns, schema)
    schemas = envelope_versions(envelope, lookup) if FORMATS[envelope.format].needs_writer else {}
    return replace(plan, schema=schema, message=message, schemas=schemas)


def envelope_versions(envelope: Envelope, lookup: SchemaLookup) -> dict[int, WriterSchema]:
    """Return the versions of an Avro envelope's schema that are records, by id."""
    versions = lookup.history(envelope.subject or "")
    return {each.id: each for each in versions if FORMATS[each.format].is_row(each)}


def envelope_message(envelope: Envelope, schema: WriterSchema) -> str:
    """Return the message of the envelope in its schema; ConfigError if it is ambiguous."""
    found = choose_envelope(envelope, schema)
    if isinstance(found, Rejected):
        raise ConfigError(
            "the schema has several messages, and none is named as the envelope",
            code=found.code,
            where="envelope.message",
            evidence=found.message,
            next_step="set envelope.message to one of the messages",
        )
    return found


def _check_fields(envelope: Envelope, columns: Sequence[Column], schema: WriterSchema) -> None:
    """Raise ConfigError if a field of the envelope is missing or has an unusable type."""
    types = {column.name: column.type for column in columns}
    for setting in ("type", "schema_id", "payload"):
        path = getattr(envelope, setting)
        if path not in envelope.fields:
            continue
        found: pa.DataType | None = pa.struct(list(types.items()))
        for name in path.split("."):
            inside = isinstance(found, pa.StructType) and found.get_field_index(name) >= 0
            found = found.field(name).type if inside and found is not None else None
        if found is None or not _FITS[setting](found):
            raise ConfigError(
                f"the envelope has no field for its {setting}",
                where=f"envelope.{setting}",
                evidence=f"{path} is {found or 'not a field'} of {schema.label()}, "
                f"which has {', '.join(types)}"[:500],
                next_step="name another field, or a path such as event.name",
            )


_FITS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "type": pa.types.is_string,
    "schema_id": lambda kind: (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or (pa.types.is_decimal(kind) and not kind.scale)
    ),
    "payload": lambda kind: pa.types.is_binary(kind) or pa.types.is_string(kind),
}
