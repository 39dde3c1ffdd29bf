"""The seam between the engine and whatever keeps the schemas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from pydantic import TypeAdapter

from distributary.errors import InvalidSchemaError, SchemaNotFoundError
from distributary.model.names import printable
from distributary.model.record import SubjectVersion, WriterSchema
from distributary.registry.compile.protobuf import MAX_FILES, is_bundled


class SchemaRegistry(Protocol):
    """Asked by the driver only. Ids are immutable: an answer may be cached for ever."""

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this global id, compiled, with all its subjects and versions.

        Raises SchemaNotFoundError when the registry says that there is none, InvalidSchemaError
        when its text does not compile, RegistryUnavailableError when the registry does not answer.
        """

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID, which is as immutable as an id, with its id.

        Raises as `by_id`; SchemaNotFoundError also where a registry cannot be asked by GUID.
        """

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject; SchemaNotFoundError when the subject does not exist."""

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject."""

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject, oldest first; empty when the subject does not exist."""

    def subjects(self) -> tuple[str, ...]:
        """All subjects, sorted."""


def has_schema(registry: SchemaRegistry, schema_id: int) -> bool:
    """Whether a registry knows an id. Raises if it does not answer."""
    try:
        registry.by_id(schema_id)
    except SchemaNotFoundError:
        return False
    return True


# References: how one schema names another, and how all that it needs is gathered.

LATEST = -1
"""A reference's version that stands for the newest one."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema of the registry under the name that another schema imports it by."""

    name: str
    subject: str
    version: int

    @classmethod
    def of(cls, given: Reference | Mapping[str, Any]) -> Reference:
        """From `{name, subject, version}`, as it stands in a registry's answers."""
        if isinstance(given, Reference):
            return given
        try:
            return _REFERENCE.validate_python(dict(given))
        except (TypeError, ValueError):
            raise InvalidSchemaError(
                "a reference is not complete",
                where="references",
                evidence=printable(repr(given)),
                next_step="give each reference a name, a subject and a version",
            ) from None


_REFERENCE = TypeAdapter(Reference)
References = Iterable[Reference | Mapping[str, Any]]


def not_found(what: str, name: str, *, evidence: str = "") -> SchemaNotFoundError:
    """A registry has no such schema, version or subject."""
    return SchemaNotFoundError(
        f"the registry has no {what} {printable(name)}",
        where=printable(name),
        evidence=evidence,
        next_step="register it, or check the name",
    )


def dangling(reference: Reference, *, again: bool = False) -> InvalidSchemaError:
    """A schema imports what is not there: the schema is at fault, not the registry."""
    return InvalidSchemaError(
        "a reference leads nowhere",
        where=printable(reference.name),
        evidence=printable(f"no version {reference.version} of subject {reference.subject}"),
        next_step=f"register the referenced schema {'again' if again else 'first'}",
    )


def in_order(found: Iterable[tuple[bool, str, int]]) -> tuple[SubjectVersion, ...]:
    """The places of a schema: deleted or not, subject, version.

    Deleted ones come last: the first is the one to show.
    """
    return tuple(SubjectVersion(subject, version) for _, subject, version in sorted(found))


Fetch = Callable[[Reference], tuple[str, Iterable[Reference]]]
"""A referenced schema's text, and the references it has itself."""


def gather(references: Iterable[Reference], *, fetch: Fetch) -> dict[str, str]:
    """The text of everything that a schema imports, directly or not, by import name.

    Of a name that is reached twice, the first in reading order counts, as in Confluent's clients.
    """
    found: dict[str, str] = {}
    waiting = list(references)[::-1]
    while waiting:
        reference = waiting.pop()
        if reference.name in found or is_bundled(reference.name):
            continue
        if len(found) == MAX_FILES:
            raise InvalidSchemaError(
                f"a schema pulls in more than {MAX_FILES} others",
                where=printable(reference.subject),
                next_step="reference fewer schemas",
            )
        text, further = fetch(reference)
        found[reference.name] = text
        waiting += list(further)[::-1]
    return found


# What a registry was asked, counted: how often, how it ended, how long it took.

OK, REFUSED, BUSY, SILENT = "ok", "refused", "busy", "silent"
"""How a question can end: answered, said no to, put off, not answered."""

_ENDPOINTS = frozenset(
    ("schemas/ids", "schemas/guids", "schemas/types", "subjects", "config", "compatibility")
)
OTHER = "other"


class RegistryCalls:
    """Counts that several threads add to, until somebody takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, path: str, *, status: int | None, seconds: float) -> None:
        """One question to a path; without a status nobody answered."""
        outcome = REFUSED
        if status is None:
            outcome = SILENT
        elif 200 <= status < 300:
            outcome = OK
        elif status in (408, 429) or status >= 500:
            outcome = BUSY
        kind = (endpoint(path), outcome)
        with self._lock:
            count, spent = self._sums.get(kind, (0, 0.0))
            self._sums[kind] = (count + 1, spent + seconds)

    def take(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Number and seconds by endpoint and outcome, since the last time; starts over."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return taken


def endpoint(path: str) -> str:
    """The kind of question: names and ids in a path are left out, there is no end to them."""
    first, second, *_ = (*path.strip("/").split("/"), "")
    return next((kind for kind in (f"{first}/{second}", first) if kind in _ENDPOINTS), OTHER)


# Contexts of a registry: each has subjects and ids of its own. `:.team:orders-value` is subject
# orders-value in context .team; without a prefix it is in the default one, which is called `.`.

DEFAULT = "."


def prefix_of(context: str) -> str:
    """What stands before the names of a context; nothing in the default one."""
    return "" if context == DEFAULT else f":{context}:"


def context_of(name: str) -> str | None:
    """The context that a subject's name says, None where it says none."""
    return name[1:].partition(":")[0] if name.startswith(":.") else None


def qualified(name: str, context: str) -> str:
    """A name as a registry must be asked for it; one that says its context keeps it."""
    return name if context_of(name) is not None else prefix_of(context) + name


def local(name: str, context: str) -> str:
    """A name as it is called within a context; that of another context stays as it is."""
    return name.removeprefix(prefix_of(context)) if context != DEFAULT else name


def named(text: str) -> str:
    """The name of a context however a registry spells it: `.team`, `:.team:` or nothing."""
    return text.removeprefix(":").removesuffix(":") or DEFAULT
