"""A schema registry without a server: the rules; where things are kept is the store's matter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import NAMESPACE_DNS, UUID, uuid5

from distributary.errors import IncompatibleSchemaError, InvalidSchemaError
from distributary.model.names import printable
from distributary.model.record import Compiled, Format, SubjectVersion, WriterSchema
from distributary.registry.base import LATEST, Reference, dangling, gather, not_found
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compile import compile_schema

# What a local registry keeps, and the seam behind which it keeps it.

_GUIDS = uuid5(NAMESPACE_DNS, "schemas.distributary")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema as it was registered; two that are equal share one id."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> UUID:
        """A name that every local registry gives to the same content; Confluent's give others."""
        references = [[r.name, r.subject, r.version] for r in self.references]
        return uuid5(_GUIDS, json.dumps([self.format, self.text, references]))


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a subject; a deleted one keeps its number and stays readable by id."""

    version: int
    schema_id: int
    deleted: bool = False


def in_order(found: Iterable[tuple[str, StoredVersion]]) -> tuple[SubjectVersion, ...]:
    """The places of a schema, deleted ones last: the first is the one to show."""
    ranked = sorted((v.deleted, subject, v.version) for subject, v in found)
    return tuple(SubjectVersion(subject, version) for _, subject, version in ranked)


class Store(Protocol):
    """Where a LocalRegistry keeps its schemas. Ids and versions are never changed or reused."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Holds off every other writer, of any thread or process; not to be entered twice."""

    def schema(self, schema_id: int) -> StoredSchema | None:
        """The schema with an id."""

    def ids(self) -> list[int]:
        """Every id, lowest first."""

    def id_of(self, schema: StoredSchema) -> int | None:
        """The id of an equal schema; asked inside `exclusive`."""

    def add_schema(self, schema: StoredSchema) -> int:
        """Keep a schema under a new id."""

    def subjects(self) -> tuple[str, ...]:
        """Every subject that has or had a version, in any order."""

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        """Every version that a subject has or had, oldest first."""

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        """Append a version."""

    def delete_version(self, subject: str, *, version: int) -> None:
        """Mark a version as deleted."""

    def level(self, subject: str | None) -> Level | None:
        """The compatibility level set for a subject, or for all when it is None."""

    def set_level(self, subject: str | None, level: Level | None) -> None:
        """Set a level, or forget it."""


References = Iterable[Reference | Mapping[str, Any]]


class LocalRegistry:
    """Subjects, versions, ids and compatibility with the behaviour of Confluent's registry."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._compiled: dict[int, WriterSchema] = {}
        self._guids: dict[UUID, int] = {}
        self._with_guid: set[int] = set()

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with every place where it is or was registered."""
        # places are asked every time: a schema can be registered under another subject later
        return replace(self._placeless(schema_id), subjects=self._store.places(schema_id))

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID, as `guid_of` gives it."""
        if guid not in self._guids:
            for schema_id in self._store.ids():
                if schema_id not in self._with_guid:
                    # the lowest id, where a merge of two copies brought a schema in twice
                    self._guids.setdefault(self.guid_of(schema_id), schema_id)
                    self._with_guid.add(schema_id)
        if guid not in self._guids:
            raise not_found("schema with GUID", str(guid))
        return self.by_id(self._guids[guid])

    def guid_of(self, schema_id: int) -> UUID:
        """The GUID of the schema with this id."""
        return self._stored(schema_id).guid

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject."""
        live = self._live(subject)
        if not live:
            raise not_found("subject", subject)
        return self.by_id(live[-1].schema_id)

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, unless it was deleted."""
        return self.by_id(self._found(subject, version).schema_id)

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject that were not deleted, oldest first."""
        return tuple(v.version for v in self._live(subject))

    def subjects(self) -> tuple[str, ...]:
        """All subjects with a version that was not deleted, sorted."""
        return tuple(sorted(s for s in self._store.subjects() if self._live(s)))

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it."""
        return self._stored(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """What the schema imports, as it was registered."""
        return self._stored(schema_id).references

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; gives the id.

        A schema that another subject has keeps that subject's id.
        """
        if not subject:
            raise InvalidSchemaError(
                "a subject needs a name",
                where="subject",
                evidence="the name is empty",
                next_step="name the subject, for example <topic>-value",
            )
        with self._store.exclusive():
            schema = self._schema(text, format, references)
            compiled = self._compile(schema)
            for version in self._live(subject):
                if self._stored(version.schema_id) == schema:
                    return version.schema_id
            if refused := self._problems(subject, schema, compiled):
                more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
                raise IncompatibleSchemaError(
                    "the new version is not compatible",
                    where=f"subject {printable(subject)}, level {self.compatibility(subject)}",
                    evidence="; ".join(map(printable, refused[:3])) + more,
                    next_step="change the schema, register it under a new subject, or relax the "
                    "level",
                )
            schema_id = self._store.id_of(schema)
            if schema_id is None:
                schema_id = self._store.add_schema(schema)
            last = max((v.version for v in self._store.versions(subject)), default=0)
            self._store.add_version(subject, version=last + 1, schema_id=schema_id)
            return schema_id

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Why `register` would refuse this schema as incompatible; empty when it would not."""
        schema = self._schema(text, format, references)
        return self._problems(subject, schema, self._compile(schema))

    def compatibility(self, subject: str | None = None) -> Level:
        """The level that holds for a subject; without one, the level that holds for all."""
        own = self._store.level(subject) if subject is not None else None
        return own or self._store.level(None) or Level.BACKWARD

    def set_compatibility(self, subject: str | None, level: Level | str | None) -> None:
        """Set the level of a subject, or of all when it is None; no level: back to the default."""
        chosen = Level.of(level) if isinstance(level, str) else level
        with self._store.exclusive():
            self._store.set_level(subject, chosen)

    def delete_version(self, subject: str, version: int) -> None:
        """Take a version out of the subject; its id can still be read, so old data can too."""
        with self._store.exclusive():
            self._found(subject, version)
            self._store.delete_version(subject, version=version)

    def delete_subject(self, subject: str) -> tuple[int, ...]:
        """Delete every version, and the subject's own compatibility level; gives the versions."""
        with self._store.exclusive():
            live = self.versions(subject)
            if not live:
                raise not_found("subject", subject)
            for version in live:
                self._store.delete_version(subject, version=version)
            self._store.set_level(subject, None)
            return live

    def _placeless(self, schema_id: int) -> WriterSchema:
        known = self._compiled.get(schema_id)
        if known is None:
            schema = self._stored(schema_id)
            known = self._compile(schema).writer(schema_id, schema.format)
            self._compiled[schema_id] = known
        return known

    def _live(self, subject: str) -> tuple[StoredVersion, ...]:
        return tuple(v for v in self._store.versions(subject) if not v.deleted)

    def _found(self, subject: str, version: int) -> StoredVersion:
        for candidate in self._live(subject):
            if candidate.version == version:
                return candidate
        raise not_found(f"version {version} of subject", subject)

    def _stored(self, schema_id: int) -> StoredSchema:
        schema = self._store.schema(schema_id)
        if schema is None:
            raise not_found("schema with id", str(schema_id))
        return schema

    def _schema(self, text: str, format: Format, references: References) -> StoredSchema:
        """The schema with its references pinned: `latest` must not move under a fixed id."""
        pinned = []
        for reference in map(Reference.of, references):
            live = self.versions(reference.subject)
            version = live[-1] if live and reference.version == LATEST else reference.version
            if version not in live:
                raise dangling(reference)
            pinned.append(replace(reference, version=version))
        return StoredSchema(format=format, text=text, references=tuple(pinned))

    def _compile(self, schema: StoredSchema) -> Compiled:
        imports = gather(schema.references, fetch=self._fetch)
        return compile_schema(schema.text, format=schema.format, imports=imports)

    def _fetch(self, reference: Reference) -> tuple[str, tuple[Reference, ...]]:
        # deleted versions count: what was accepted with them has to stay readable
        for version in self._store.versions(reference.subject):
            if version.version == reference.version:
                schema = self._stored(version.schema_id)
                return schema.text, schema.references
        raise dangling(reference)

    def _problems(self, subject: str, schema: StoredSchema, compiled: Compiled) -> list[str]:
        level = self.compatibility(subject)
        live = self._live(subject) if level is not Level.NONE else ()
        history = []
        for version in live if level.transitive else live[-1:]:
            old = self._placeless(version.schema_id)
            history.append(Version(version.version, old.format, old.body))
        return problems(compiled.body, format=schema.format, history=history, level=level)


# A registry that lives as long as the object: for tests, demos and trying things out.


class _MemoryStore:
    """Keeps everything in dictionaries whose values are replaced whole, so readers need no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: dict[int, StoredSchema] = {}
        self._ids: dict[StoredSchema, int] = {}
        self._subjects: dict[str, tuple[StoredVersion, ...]] = {}
        self._homes: dict[int, frozenset[str]] = {}
        self._levels: dict[str | None, Level] = {}

    def exclusive(self) -> AbstractContextManager[object]:
        return self._lock

    def schema(self, schema_id: int) -> StoredSchema | None:
        return self._schemas.get(schema_id)

    def ids(self) -> list[int]:
        return sorted(self._schemas)

    def id_of(self, schema: StoredSchema) -> int | None:
        return self._ids.get(schema)

    def add_schema(self, schema: StoredSchema) -> int:
        schema_id = len(self._schemas) + 1
        self._schemas[schema_id] = schema
        self._ids[schema] = schema_id
        return schema_id

    def subjects(self) -> tuple[str, ...]:
        return tuple(self._subjects)

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        return self._subjects.get(subject, ())

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        return in_order(
            (subject, version)
            for subject in self._homes.get(schema_id, ())
            for version in self.versions(subject)
            if version.schema_id == schema_id
        )

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        self._subjects[subject] = (*self.versions(subject), StoredVersion(version, schema_id))
        self._homes[schema_id] = self._homes.get(schema_id, frozenset()) | {subject}

    def delete_version(self, subject: str, *, version: int) -> None:
        self._subjects[subject] = tuple(
            replace(v, deleted=True) if v.version == version else v for v in self.versions(subject)
        )

    def level(self, subject: str | None) -> Level | None:
        return self._levels.get(subject)

    def set_level(self, subject: str | None, level: Level | None) -> None:
        if level is None:
            self._levels.pop(subject, None)
        else:
            self._levels[subject] = level


class MemoryRegistry(LocalRegistry):
    """A registry in memory; behaves as `FileRegistry` does."""

    def __init__(self) -> None:
        super().__init__(_MemoryStore())
