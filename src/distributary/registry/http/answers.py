"""The shapes that a registry's answers must have; whatever has another is not believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    InvalidSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.model.names import printable
from distributary.model.record import Format
from distributary.registry.base import Reference
from distributary.registry.compatibility.levels import Level
from distributary.registry.http.transport import Answer, Silence

MAX_ID = 2**31 - 1
"""Registries count in Java's `int`; a record can claim up to twice as much."""

Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Number = Annotated[int, Field(ge=1, le=MAX_ID)]

_FORMATS = {str(format).upper(): format for format in Format}
# newer registries say more than is asked for here
_STRICT = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Shape(BaseModel):
    model_config = _STRICT


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
        given = self.given or ()
        return tuple(Reference(name=r.name, subject=r.subject, version=r.version) for r in given)


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
    guid: str | None = None


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


def sent(text: str, format: Format, references: Iterable[Reference]) -> dict[str, Any]:
    """A schema as a registry wants to be told it."""
    return {
        "schema": text,
        "schemaType": format.upper(),
        "references": [reference.as_dict() for reference in references],
    }


SCHEMA = TypeAdapter(SchemaShape)
VERSION = TypeAdapter(VersionShape)
LISTED = TypeAdapter(list[ListedShape])
PLACES = TypeAdapter(list[PlaceShape])
REGISTERED = TypeAdapter(RegisteredShape)
CONTEXTS = TypeAdapter(list[ContextShape])
LEVEL = TypeAdapter(LevelShape)
VERDICT = TypeAdapter(VerdictShape)
ERROR = TypeAdapter(ErrorShape)
NUMBERS = TypeAdapter(list[Number], config=_STRICT)
NAMES = TypeAdapter(list[str], config=_STRICT)
ANYTHING = TypeAdapter(dict[str, object], config=_STRICT)


# The errors of a registry that is asked over HTTP, each in words of its own.


def garbage(answer: Answer, error: ValidationError, *, shown: Callable[[str], str]) -> Silence:
    """An answer of the wrong shape; its content is told by its size only."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    where = f" at {place}" if place else ""
    evidence = f"status {answer.status}, {len(answer.body)} bytes: {first['type']}{where}"
    return Silence(
        "the answer is not that of a schema registry",
        shown(evidence),
        "check registry.url, and what stands between here and the registry",
        code=ErrorCode.REGISTRY_GARBAGE,
    )


def busy(answer: Answer, refusal: Refusal | None) -> Silence:
    """An answer that says: not now."""
    what = "the registry is asked too much" if answer.status == 429 else "the registry fails"
    return Silence(what, _said(answer, refusal), retry_after=answer.retry_after)


def denied(address: str, answer: Answer, refusal: Refusal | None) -> RegistryError:
    """An answer that says: not you."""
    who = "proxy before the registry" if answer.status == 407 else "registry"
    allowed = "does not let us do this" if answer.status == 403 else "does not know us"
    return RegistryError(
        f"the {who} {allowed}",
        code=ErrorCode.REGISTRY_AUTH,
        where=address,
        evidence=_said(answer, refusal),
        next_step="check registry.username and password, token, oauth or certificate, and rights",
    )


def line(address: str, silence: Silence) -> str:
    """One address and its silence, for people."""
    return f"{address}: {silence.what}" + (f" ({silence.evidence})" if silence.evidence else "")


def unanswered(silences: Mapping[str, Silence]) -> DistributaryError:
    """Nobody gave an answer: never a reason to dead-letter a record."""
    last = list(silences.values())[-1]
    whats, codes = {s.what for s in silences.values()}, {s.code for s in silences.values()}
    what = last.what if len(whats) == 1 else "no address of the registry gives an answer"
    several = "; ".join(line(*entry) for entry in silences.items())
    evidence = several if len(silences) > 1 else last.evidence
    where, next_step = ", ".join(silences), last.next_step
    if codes == {ErrorCode.CONFIG_INVALID}:
        return ConfigError(what, where=f"registry: {where}", evidence=evidence, next_step=next_step)
    spoke = codes <= {ErrorCode.CONFIG_INVALID, ErrorCode.REGISTRY_GARBAGE}
    code = ErrorCode.REGISTRY_GARBAGE if spoke else ErrorCode.REGISTRY_UNAVAILABLE
    return RegistryUnavailableError(
        what, code=code, where=where, evidence=evidence, next_step=next_step
    )


def refused(refusal: Refusal, *, what: str, name: str) -> RegistryError:
    """The registry's own no: that there is no such thing, or that it will not do it."""
    if refusal.missing:
        return SchemaNotFoundError(
            f"the registry has no {what} {printable(name)}",
            where=printable(name),
            evidence=refusal.message,
            next_step="register it, or check the name",
        )
    return RegistryError(
        f"the registry refuses a question about a {what}",
        code=ErrorCode.REGISTRY_REFUSED,
        where=printable(name),
        evidence=f"{refusal.code}: {refusal.message}",
        next_step="see what the registry says",
    )


def no_guids(refusal: Refusal, guid: UUID) -> SchemaNotFoundError:
    """The registry knows no GUIDs at all, so it has no schema with this one."""
    return SchemaNotFoundError(
        "this registry cannot be asked for a schema by GUID",
        where=str(guid),
        evidence=refusal.message,
        next_step="let producers write the schema's id, or use a registry that has GUIDs",
    )


def unknown_type(shown: str, schema_id: int) -> InvalidSchemaError:
    """A schema in a language that nobody here speaks."""
    return InvalidSchemaError(
        "a schema is of a type that is not known",
        where=f"schema id {schema_id}",
        evidence=f"schemaType {shown}",
        next_step=f"register it as one of {', '.join(Format)}",
    )


def dangling(reference: Reference) -> InvalidSchemaError:
    """A schema imports what is not there: the schema is at fault, not the registry."""
    return InvalidSchemaError(
        "a reference leads nowhere",
        where=printable(reference.name),
        evidence=printable(f"no version {reference.version} of subject {reference.subject}"),
        next_step="register the referenced schema again",
    )


def _said(answer: Answer, refusal: Refusal | None) -> str:
    return f"status {answer.status}" + (f": {refusal.message}" if refusal is not None else "")
