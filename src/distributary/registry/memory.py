"""A registry that lives as long as the object: for tests, demos and trying things out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from distributary.model.schema import SubjectVersion
from distributary.registry.compatibility import Level
from distributary.registry.local import LocalRegistry
from distributary.registry.store import StoredSchema, StoredVersion, in_order


class MemoryStore:
    """Keeps everything in dictionaries whose values are replaced whole, so readers need no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: dict[int, StoredSchema] = {}
        self._ids: dict[StoredSchema, int] = {}
        self._subjects: dict[str, tuple[StoredVersion, ...]] = {}
        self._homes: dict[int, frozenset[str]] = {}
        self._levels: dict[str | None, Level] = {}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds off every other writer."""
        with self._lock:
            yield

    def schema(self, schema_id: int) -> StoredSchema | None:
        """The schema with an id."""
        return self._schemas.get(schema_id)

    def ids(self) -> list[int]:
        """Every id, lowest first."""
        return sorted(self._schemas)

    def id_of(self, schema: StoredSchema) -> int | None:
        """The id of an equal schema."""
        return self._ids.get(schema)

    def add_schema(self, schema: StoredSchema) -> int:
        """Keep a schema under a new id."""
        schema_id = len(self._schemas) + 1
        self._schemas[schema_id] = schema
        self._ids[schema] = schema_id
        return schema_id

    def subjects(self) -> tuple[str, ...]:
        """Every subject that has or had a version."""
        return tuple(self._subjects)

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        """Every version that a subject has or had, oldest first."""
        return self._subjects.get(subject, ())

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
        return in_order(
            (subject, version)
            for subject in self._homes.get(schema_id, ())
            for version in self.versions(subject)
            if version.schema_id == schema_id
        )

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        """Append a version."""
        self._subjects[subject] = (*self.versions(subject), StoredVersion(version, schema_id))
        self._homes[schema_id] = self._homes.get(schema_id, frozenset()) | {subject}

    def delete_version(self, subject: str, *, version: int) -> None:
        """Mark a version as deleted."""
        self._subjects[subject] = tuple(
            replace(v, deleted=True) if v.version == version else v for v in self.versions(subject)
        )

    def level(self, subject: str | None) -> Level | None:
        """The compatibility level set for a subject, or for all when it is None."""
        return self._levels.get(subject)

    def set_level(self, subject: str | None, level: Level | None) -> None:
        """Set a level, or forget it."""
        if level is None:
            self._levels.pop(subject, None)
        else:
            self._levels[subject] = level


class MemoryRegistry(LocalRegistry):
    """A registry in memory; behaves as `FileRegistry` does."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
