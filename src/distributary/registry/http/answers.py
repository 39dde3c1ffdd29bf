"""The shapes that a registry's answers must have; whatever has another is not believed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from distributary.errors import ErrorCode, RegistryError
from distributary.model.names import printable
from distributary.model.record import Format
from distributary.registry.base import Reference, not_found
from distributary.registry.compatibility.levels import Level

MAX_ID = 2**31 - 1
"""Registries count in Java's `int`; a record can claim up to twice as much."""

Id = Annotated[int, Field(ge=0, le=MAX_ID, strict=True)]
Number = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]

_FORMATS = {str(format).upper(): format for format in Format}


class _Shape(BaseModel):
    # newer registries say more than is asked for here
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class ReferenceShape(_Shape):
    """A schema that another one imports."""

    name: str
    subject: str
    version: int


class SchemaShape(_Shape):
    """A schema, asked for by id, by GUID, or as a version of a subject."""

    text: str = Field(alias="schema")
    type: str | None = Field(default=None, alias="schemaType")
    given: list[ReferenceShape] | None = Field(default=None, alias="references")

    @property
    def format(self) -> Format | None:
        """Its format; AVRO where nothing is said, because there was nothing else once."""
        return _FORMATS.get((self.type or "AVRO").upper())

    @property
    def references(self) -> tuple[Reference, ...]:
        """What it imports."""
        return tuple(Reference(r.name, r.subject, r.version) for r in self.given or ())


class VersionShape(SchemaShape):
    """A schema as a version of a subject."""

    id: Id
    version: Number
    subject: str | None = None
    """Where it was found: some registries look into other contexts, too."""


class ListedShape(VersionShape):
    """A schema in a list of all."""

    subject: str


class PlaceShape(_Shape):
    """Where a schema is registered."""

    subject: str
    version: Number


class RegisteredShape(_Shape):
    """What a registration or a search for a text gives; only newer registries say all of it."""

    id: Id
    version: Number | None = None


class ContextShape(_Shape):
    """The id that a GUID has in one context of a registry."""

    id: Id
    context: str = ""


class LevelShape(_Shape):
    """A compatibility level, under either of its two names."""

    read: Level | None = Field(default=None, alias="compatibilityLevel")
    written: Level | None = Field(default=None, alias="compatibility")


class VerdictShape(_Shape):
    """Whether a schema would be accepted."""

    is_compatible: bool
    messages: list[str] | None = None


class ErrorShape(_Shape):
    """How a registry says no."""

    error_code: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The registry's own no; what it means depends on the question."""

    status: int
    code: int
    """Confluent's code; 0 where a registry does not know the question."""
    message: str

    @property
    def missing(self) -> bool:
        """Whether it says that there is no such subject, version or schema, or no longer."""
        return self.code in (40401, 40402, 40403, 40404, 40406)

    @property
    def unknown(self) -> bool:
        """Whether the registry does not know the question."""
        return self.code == 0

    def error(self, what: str, name: str) -> RegistryError:
        """The error for people: that there is no such thing, or that it will not do it."""
        if self.missing:
            return not_found(what, name, evidence=self.message)
        return RegistryError(
            f"the registry refuses a question about a {what}",
            code=ErrorCode.REGISTRY_REFUSED,
            where=printable(name),
            evidence=f"{self.code}: {self.message}",
            next_step="see what the registry says",
        )


def sent(text: str, format: Format, references: Iterable[Reference]) -> dict[str, Any]:
    """A schema as a registry wants to be told it."""
    return {
        "schema": text,
        "schemaType": format.upper(),
        "references": [reference.as_dict() for reference in references],
    }
