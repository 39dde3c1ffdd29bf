"""A schema registry over HTTP: Confluent's, or any server that speaks its API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributary.errors import IncompatibleSchemaError, InvalidSchemaError, RegistryError
from distributary.model.schema import Format
from distributary.registry.compatibility import Level
from distributary.registry.contexts import prefix_of
from distributary.registry.hostile import printable
from distributary.registry.http_answers import (
    ANYTHING,
    LEVEL,
    NUMBERS,
    REGISTERED,
    VERDICT,
    Refusal,
    VerdictShape,
    sent,
)
from distributary.registry.http_errors import refused
from distributary.registry.http_reader import HttpReader
from distributary.registry.local import References
from distributary.registry.references import Reference

_INCOMPATIBLE = 409
_UNUSABLE = (42201, 42202, 422)
_NO_LEVEL = 40408
_ALREADY_DELETED = 40404


@dataclass(frozen=True, slots=True)
class Registered:
    """Where a registry has a schema."""

    id: int
    version: int | None
    """None where the registry does not say it."""
    guid: str | None
    """None for registries without GUIDs."""


class HttpRegistry(HttpReader):
    """Reads and writes; every question may be repeated by itself when the answer gets lost.

    Raises for whatever is asked:
        RegistryUnavailableError: Nobody answered, or not as a registry does.
        RegistryError: The credentials, or what is asked for, were not accepted.
        ConfigError: There is no registry at the address.
    """

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; gives the id.

        Raises:
            InvalidSchemaError: The registry cannot use the text, a reference or the name.
            IncompatibleSchemaError: The subject's compatibility level refuses it.
        """
        body = _body(text, format, references)
        found = self._about("POST", subject, "versions", shape=REGISTERED, body=body)
        if not isinstance(found, Refusal):
            return found.id
        if found.status == _INCOMPATIBLE:
            raise IncompatibleSchemaError(
                "the new version is not compatible",
                where=f"subject {printable(subject)}",
                evidence=found.message,
                next_step="change the schema, register it under a new subject, or relax the level",
            )
        raise _invalid(found, subject)

    def lookup(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> Registered:
        """Where a subject has exactly this schema; SchemaNotFoundError when it has not."""
        body = _body(text, format, references)
        found = self._about("POST", subject, shape=REGISTERED, body=body)
        if isinstance(found, Refusal):
            what = "version with this schema under subject"
            raise refused(found, what=what, name=subject)
        return Registered(id=found.id, version=found.version, guid=found.guid)

    def id_of(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """The id under which a subject has exactly this schema."""
        return self.lookup(subject, text, format=format, references=references).id

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Why `register` would refuse this schema as incompatible; empty when it would not."""
        found = self._verdict(_body(text, format, references), subject, "versions")
        if isinstance(found, Refusal) and found.unknown:
            # older registries compare with one version at a time
            found = self._verdict(_body(text, format, references), subject, "versions", "latest")
        if isinstance(found, Refusal):
            # there is nothing yet that a first version could contradict
            if found.missing:
                return []
            raise _invalid(found, subject)
        if found.is_compatible:
            return []
        said = [self._client.shown(message) for message in found.messages or ()]
        return said or ["the registry finds it incompatible and does not say why"]

    def compatibility(self, subject: str | None = None) -> Level:
        """The level that holds for a subject; without one, the level that holds for all."""
        subject = subject if subject is not None else self._whole()
        own = self._level(subject) if subject is not None else None
        return own or self._level(None) or Level.BACKWARD

    def set_compatibility(self, subject: str | None, level: Level | str | None) -> None:
        """Set the level of a subject, or of all when it is None; no level: back to the default."""
        chosen = Level.of(level) if isinstance(level, str) else level
        body = None if chosen is None else {"compatibility": str(chosen)}
        method = "DELETE" if chosen is None else "PUT"
        subject = subject if subject is not None else self._whole()
        if subject is None:
            found = self._client.ask(method, "config", shape=ANYTHING, body=body)
        else:
            found = self._about(method, subject, before=("config",), shape=ANYTHING, body=body)
        # a level that was never set is as good as one that was taken away
        if isinstance(found, Refusal) and not (chosen is None and _no_level(found)):
            raise refused(found, what="subject", name=subject or "all subjects")

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[int, ...]:
        """Delete every version; gives the versions.

        Their ids can still be read, so old data can too, unless it is permanent: then what only
        this subject had is gone for ever.
        """
        found = self._about("DELETE", subject, shape=NUMBERS)
        if permanent and (isinstance(found, list) or found.code == _ALREADY_DELETED):
            found = self._about("DELETE", subject, shape=NUMBERS, query={"permanent": "true"})
        if isinstance(found, Refusal):
            raise refused(found, what="subject", name=subject)
        return tuple(sorted(found))

    def _whole(self) -> str | None:
        """What "all subjects" means: those of this context, by the name that stands for them."""
        return prefix_of(self._context) or None

    def _verdict(
        self, body: Mapping[str, Any], subject: str, *behind: str
    ) -> VerdictShape | Refusal:
        return self._about(
            *("POST", subject, *behind),
            before=("compatibility", "subjects"),
            shape=VERDICT,
            query={"verbose": "true"},
            body=body,
            optional=True,
        )

    def _level(self, subject: str | None) -> Level | None:
        if subject is None:
            found = self._client.ask("GET", "config", shape=LEVEL)
        else:
            query = {"defaultToGlobal": "true"}
            found = self._about("GET", subject, before=("config",), shape=LEVEL, query=query)
        if isinstance(found, Refusal):
            if _no_level(found):
                return None
            raise refused(found, what="subject", name=subject or "all subjects")
        return found.read or found.written


def _no_level(refusal: Refusal) -> bool:
    return refusal.missing or refusal.code == _NO_LEVEL


def _body(text: str, format: Format, references: References) -> dict[str, Any]:
    return sent(text, format, map(Reference.of, references))


def _invalid(refusal: Refusal, subject: str) -> RegistryError:
    if not refusal.missing and refusal.code not in _UNUSABLE:
        return refused(refusal, what="subject", name=subject)
    return InvalidSchemaError(
        "the registry cannot use this schema",
        where=f"subject {printable(subject)}",
        evidence=refusal.message,
        next_step="mend the schema, its references or the subject's name",
    )
