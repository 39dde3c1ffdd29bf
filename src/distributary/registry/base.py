"""The seam between the engine and whatever keeps the schemas."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from distributary.errors import SchemaNotFoundError
from distributary.model.schema import WriterSchema


class SchemaRegistry(Protocol):
    """Asked by the driver only. Ids are immutable: an answer may be cached for ever."""

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this global id, compiled, with all its subjects and versions.

        Raises SchemaNotFoundError when the registry says that there is none, InvalidSchemaError
        when its text does not compile, RegistryUnavailableError when the registry does not answer.
        """
        ...

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID, which is as immutable as an id, with its id.

        Raises as `by_id`; SchemaNotFoundError also where a registry cannot be asked by GUID.
        """
        ...

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject; SchemaNotFoundError when the subject does not exist."""
        ...

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject."""
        ...

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject, oldest first; empty when the subject does not exist."""
        ...

    def subjects(self) -> tuple[str, ...]:
        """All subjects, sorted."""
        ...

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it."""
        ...


def has_schema(registry: SchemaRegistry, schema_id: int) -> bool:
    """Whether a registry knows an id. Raises if it does not answer."""
    try:
        registry.by_id(schema_id)
    except SchemaNotFoundError:
        return False
    return True
