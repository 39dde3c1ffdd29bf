"""The errors of a registry that is asked over HTTP, each in words of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from pydantic import ValidationError

from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    InvalidSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.model.schema import Format
from distributary.registry.hostile import printable
from distributary.registry.http_answers import Refusal
from distributary.registry.http_transport import Answer, Silence
from distributary.registry.references import Reference


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
