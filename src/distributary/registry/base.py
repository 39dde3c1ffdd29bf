"""The protocol of schema registries, and the parts that all registries share."""

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
from distributary.registry.compile.protobuf_compiler import MAX_FILES, is_bundled


class SchemaRegistry(Protocol):
    """A schema registry, used by the driver only.

    The text of an id is immutable, so schemas may be cached. Its subjects are not: the same text
    may be registered under another subject later, and has the same id there.
    """

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this global id, compiled, with all its subjects and versions.

        Raises SchemaNotFoundError if the registry has no such schema, InvalidSchemaError if its
        text does not compile, RegistryUnavailableError if the registry does not answer.
        """

    def by_id_now(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id and the subjects that it has now, past any cache."""

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return the schema with this GUID, which is as immutable as an id.

        Raises the errors of `by_id`, and SchemaNotFoundError also if the registry has no lookup by
        GUID.
        """

    def latest(self, subject: str) -> WriterSchema:
        """Return the newest version of a subject, or raise SchemaNotFoundError."""

    def version(self, subject: str, version: int) -> WriterSchema:
        """Return one version of a subject."""

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject, oldest first; empty if the subject does not exist."""

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects, sorted."""


def has_schema(registry: SchemaRegistry, schema_id: int) -> bool:
    """Return True if a registry has an id; raise if it does not answer."""
    try:
        registry.by_id(schema_id)
    except SchemaNotFoundError:
        return False
    return True


# References from one schema to others, and the collection of all that a schema needs.

LATEST = -1
"""The version in a reference that means the newest one."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema of the registry, under the name by which another schema imports it."""

    name: str
    subject: str
    version: int

    @classmethod
    def of(cls, content: Reference | Mapping[str, Any]) -> Reference:
        """Build a reference from `{name, subject, version}`, as in a registry's answers."""
        if isinstance(content, Reference):
            return content
        try:
            return _REFERENCE.validate_python(dict(content))
        except (TypeError, ValueError):
            raise InvalidSchemaError(
                "a reference is not complete",
                where="references",
                evidence=printable(repr(content)),
                next_step="give each reference a name, a subject and a version",
            ) from None


_REFERENCE = TypeAdapter(Reference)
References = Iterable[Reference | Mapping[str, Any]]


def not_found(what: str, name: str, *, evidence: str = "") -> SchemaNotFoundError:
    """Build the error for a missing schema, version or subject."""
    return SchemaNotFoundError(
        f"the registry has no {what} {printable(name)}",
        where=printable(name),
        evidence=evidence,
        next_step="register it, or check the name",
    )


def dangling(reference: Reference, *, again: bool = False) -> InvalidSchemaError:
    """Build the error for a schema that references a missing one; the registry works."""
    return InvalidSchemaError(
        "a reference names a schema that does not exist",
        where=printable(reference.name),
        evidence=printable(f"no version {reference.version} of subject {reference.subject}"),
        next_step=f"register the referenced schema {'again' if again else 'first'}",
    )


def in_order(places: Iterable[tuple[bool, str, int]]) -> tuple[SubjectVersion, ...]:
    """Sort the places of a schema, given as deleted or not, subject and version.

    Deleted places come last, so that the first place is the one to show.
    """
    return tuple(SubjectVersion(subject, version) for _, subject, version in sorted(places))


Fetch = Callable[[Reference], tuple[str, Iterable[Reference]]]
"""Returns the text and the references of a referenced schema."""


def gather(references: Iterable[Reference], *, fetch: Fetch) -> dict[str, str]:
    """Return the texts of all schemas that a schema imports, directly or not, by import name.

    If a name is reached twice, the first in reading order counts, as in Confluent's clients.
    """
    texts: dict[str, str] = {}
    pending = list(references)[::-1]
    while pending:
        reference = pending.pop()
        if reference.name in texts or is_bundled(reference.name):
            continue
        if len(texts) == MAX_FILES:
            raise InvalidSchemaError(
                f"a schema imports more than {MAX_FILES} others",
                where=printable(reference.subject),
                next_step="reference fewer schemas",
            )
        text, further = fetch(reference)
        texts[reference.name] = text
        pending += list(further)[::-1]
    return texts


# Counts of requests to a registry: how many, with which outcome, and how long they took.

OK, REFUSED, BUSY, SILENT = "ok", "refused", "busy", "silent"
"""The outcomes of a request: answered, refused, postponed, not answered."""

_ENDPOINTS = frozenset(
    ("schemas/ids", "schemas/guids", "schemas/types", "subjects", "config", "compatibility")
)
OTHER = "other"


class RegistryCalls:
    """Counts of requests, to which several threads add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, path: str, *, status: int | None, seconds: float) -> None:
        """Count one request to a path; without a status the registry did not answer."""
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
        """Return number and seconds by endpoint and outcome since the last call, and reset them."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return taken


def endpoint(path: str) -> str:
    """Return the endpoint of a path without names and ids, to keep the number of metrics small."""
    first, second, *_ = (*path.strip("/").split("/"), "")
    return next((kind for kind in (f"{first}/{second}", first) if kind in _ENDPOINTS), OTHER)


# Contexts of a registry, each with its own subjects and ids. `:.team:orders-value` is the subject
# orders-value in context .team; a name without a prefix is in the default context, called `.`.

DEFAULT = "."


def prefix_of(context: str) -> str:
    """Return the prefix of names in a context, which is empty for the default context."""
    return "" if context == DEFAULT else f":{context}:"


def context_of(name: str) -> str | None:
    """Return the context in a subject's name, or None if it has none."""
    return name[1:].partition(":")[0] if name.startswith(":.") else None


def qualified(name: str, context: str) -> str:
    """Return a name with its context as a registry expects it; a given context is kept."""
    return name if context_of(name) is not None else prefix_of(context) + name


def local(name: str, context: str) -> str:
    """Return a name without the prefix of its own context; names of other contexts stay."""
    return name.removeprefix(prefix_of(context)) if context != DEFAULT else name


def named(text: str) -> str:
    """Return the name of a context, which registries spell `.team`, `:.team:` or empty."""
    return text.removeprefix(":").removesuffix(":") or DEFAULT
