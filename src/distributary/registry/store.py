"""What a local registry keeps, and the seam behind which it keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import NAMESPACE_DNS, UUID, uuid5

from distributary.model.schema import Format, SubjectVersion
from distributary.registry.compatibility import Level
from distributary.registry.references import Reference

_GUIDS = uuid5(NAMESPACE_DNS, "schemas.distributary")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema as it was registered; two that are equal share one id."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> UUID:
        """A name that every local registry gives to the same content, whatever its id there.

        It is a name-based UUID over format, text and references. Confluent's servers have a recipe
        of their own, so that one schema has another GUID there.
        """
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

    def exclusive(self) -> AbstractContextManager[None]:
        """Holds off every other writer, of any thread or process; not to be entered twice."""
        ...

    def schema(self, schema_id: int) -> StoredSchema | None:
        """The schema with an id."""
        ...

    def ids(self) -> list[int]:
        """Every id, lowest first."""
        ...

    def id_of(self, schema: StoredSchema) -> int | None:
        """The id of an equal schema; asked inside `exclusive`."""
        ...

    def add_schema(self, schema: StoredSchema) -> int:
        """Keep a schema under a new id."""
        ...

    def subjects(self) -> tuple[str, ...]:
        """Every subject that has or had a version, in any order."""
        ...

    def versions(self, subject: str) -> tuple[StoredVersion, ...]:
        """Every version that a subject has or had, oldest first."""
        ...

    def places(self, schema_id: int) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
        ...

    def add_version(self, subject: str, *, version: int, schema_id: int) -> None:
        """Append a version."""
        ...

    def delete_version(self, subject: str, *, version: int) -> None:
        """Mark a version as deleted."""
        ...

    def level(self, subject: str | None) -> Level | None:
        """The compatibility level set for a subject, or for all when it is None."""
        ...

    def set_level(self, subject: str | None, level: Level | None) -> None:
        """Set a level, or forget it."""
        ...
