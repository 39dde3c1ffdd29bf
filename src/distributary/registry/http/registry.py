"""A schema registry over HTTP: Confluent's, or any server that speaks its API."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from distributary.config.kafka import Registry
from distributary.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryError,
    SchemaNotFoundError,
)
from distributary.model.names import printable
from distributary.model.record import Compiled, Format, SubjectVersion, WriterSchema
from distributary.registry.base import (
    DEFAULT,
    LATEST,
    Reference,
    References,
    RegistryCalls,
    context_of,
    dangling,
    gather,
    in_order,
    local,
    named,
    prefix_of,
    qualified,
)
from distributary.registry.compatibility.levels import Level
from distributary.registry.compile import compile_schema
from distributary.registry.http.client import (
    ATTEMPTS,
    MAX_ID,
    ContextShape,
    LevelShape,
    ListedShape,
    Number,
    PlaceShape,
    Refusal,
    RegisteredShape,
    RegistryClient,
    SchemaShape,
    VerdictShape,
    VersionShape,
    listed,
    sent,
)
from distributary.registry.http.transport import MAX_ANSWER

_MOST_REFERENCES = 10_000
_EVEN_DELETED = {"deleted": "true"}
_SERIALIZED = {"format": "serialized"}
_EVERY_CONTEXT = ":*:"
_PLAIN = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,254}")
_LONGEST_NAME = 8000
_INCOMPATIBLE = 409
_ALREADY_DELETED, _NO_LEVEL, _NO_SUCH_NUMBER = 40404, 40408, 42202
_UNUSABLE = (42201, 42202, 422)

T = TypeVar("T")


class HttpRegistry:
    """Reads and writes; every question may be repeated by itself when the answer gets lost."""

    def __init__(
        self,
        config: Registry,
        *,
        attempts: int = ATTEMPTS,
        most_bytes: int = MAX_ANSWER,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = RegistryClient(
            config, attempts=attempts, most_bytes=most_bytes, sleep=sleep, clock=clock
        )
        self._clock = clock
        self.context = config.context or DEFAULT
        """The context whose subjects and ids these are."""
        self._reference_seconds = config.cache_ttl.total_seconds()
        self._referenced: dict[tuple[Reference, bool], tuple[float, SchemaShape]] = {}

    def __repr__(self) -> str:
        context = () if self.context == DEFAULT else (f"context {self.context}",)
        return f"{type(self).__name__}({', '.join((*self._client.addresses, *context))})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count_in(self, calls: RegistryCalls) -> None:
        """From now on, count every question there."""
        self._client.calls = calls

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    def within(self, context: str) -> Self:
        """The same registry, asked about another of its contexts."""
        other = copy.copy(self)
        other.context = named(context)
        return other

    def contexts(self) -> tuple[str, ...]:
        """All contexts that the registry has; the default one alone where it knows none."""
        found = self._listing("contexts", shape=list[str], optional=True)
        return tuple(sorted({DEFAULT, *map(named, found)}))

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with every place where it is or was registered."""
        path = ("schemas", "ids", schema_id)
        return self._writer(self._schema(schema_id), schema_id, path, context=self.context)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID and the id that it has in this context."""
        path = ("schemas", "guids", str(guid))
        found = self._about_guid(guid, *path, shape=SchemaShape)
        ids = self._about_guid(guid, *path, "ids", shape=list[ContextShape])
        # each context counts for itself: an id of another one is somebody else's here
        own = next((entry.id for entry in ids if named(entry.context) == self.context), None)
        if own is None:
            no = Refusal(404, 40403, f"it has no id in context {self.context}")
            raise no.error("schema with GUID", str(guid))
        return self._writer(found, own, path, context=self.context)

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject."""
        return self._version(subject, "latest", what="subject")

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, unless it was deleted."""
        return self._version(subject, version, what=f"version {version} of subject")

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject that were not deleted, oldest first."""
        path, shape = ("GET", subject, "versions"), list[Number]
        found = _paged(lambda page: self._about(*path, shape=shape, query=page), "subject", subject)
        return tuple(sorted(found))

    def subjects(self) -> tuple[str, ...]:
        """All subjects with a version that was not deleted, sorted.

        In a context those of this one alone, by their names there. In the default context also
        those of others where the registry lists them, each with its context before its name.
        """
        prefix = prefix_of(self.context)
        query = {"subjectPrefix": prefix} if prefix else {}
        found = self._listing("subjects", shape=list[str], query=query)
        # not every registry knows prefixes
        return tuple(sorted(local(name, self.context) for name in found if name.startswith(prefix)))

    def schemas(self) -> Iterator[ListedShape]:
        """Every version of every subject, page by page; nothing where a registry lists none.

        In a context, subjects have their names there. Nothing is compiled yet.
        """
        prefix = prefix_of(self.context)
        for entry in self._listing(
            "schemas",
            shape=list[ListedShape],
            query={"subjectPrefix": prefix or _EVERY_CONTEXT},
            key=lambda entry: (entry.subject, entry.version),
            optional=True,
        ):
            if entry.subject.startswith(prefix):
                yield entry.model_copy(update={"subject": local(entry.subject, self.context)})

    def compiled(self, listed: ListedShape) -> WriterSchema:
        """A version of such a list, ready for use; of its places only the one it was found at."""
        context = context_of(listed.subject) or self.context
        path = ("subjects", qualified(listed.subject, context), "versions", listed.version)
        place = SubjectVersion(listed.subject, listed.version)
        return self._writer(listed, listed.id, path, context=context, places=(place,))

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it, or as the registry keeps it."""
        return self._schema(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """What the schema imports, as it was registered."""
        return self._schema(schema_id).references

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; gives the id."""
        body = _body(text, format, references)
        found = self._about("POST", subject, "versions", shape=RegisteredShape, body=body)
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

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Why `register` would refuse this schema as incompatible; empty when it would not."""
        body = _body(text, format, references)
        found = self._verdict(body, subject, "versions")
        if isinstance(found, Refusal) and found.unknown:
            # older registries compare with one version at a time
            found = self._verdict(body, subject, "versions", "latest")
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
        found = self._config(method, subject, shape=dict[str, object], body=body)
        # a level that was never set is as good as one that was taken away
        if isinstance(found, Refusal) and not (chosen is None and _no_level(found)):
            raise found.error("subject", subject or "all subjects")

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[int, ...]:
        """Delete every version; gives the versions.

        Their ids can still be read, so old data can too, unless it is permanent: then what only
        this subject had is gone for ever.
        """
        found = self._about("DELETE", subject, shape=list[Number])
        if permanent and (isinstance(found, list) or found.code == _ALREADY_DELETED):
            query = {"permanent": "true"}
            found = self._about("DELETE", subject, shape=list[Number], query=query)
        if isinstance(found, Refusal):
            raise found.error("subject", subject)
        return tuple(sorted(found))

    def _whole(self) -> str | None:
        """What "all subjects" means: those of this context, by the name that stands for them."""
        return prefix_of(self.context) or None

    def _verdict(
        self, body: Mapping[str, Any], subject: str, *behind: str
    ) -> VerdictShape | Refusal:
        return self._about(
            *("POST", subject, *behind),
            before=("compatibility", "subjects"),
            shape=VerdictShape,
            query={"verbose": "true"},
            body=body,
            optional=True,
        )

    def _level(self, subject: str | None) -> Level | None:
        query = {} if subject is None else {"defaultToGlobal": "true"}
        found = self._config("GET", subject, shape=LevelShape, query=query)
        if not isinstance(found, Refusal):
            return found.read or found.written
        if _no_level(found):
            return None
        raise found.error("subject", subject or "all subjects")

    def _config(
        self,
        method: str,
        subject: str | None,
        *,
        shape: type[T],
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> T | Refusal:
        if subject is None:
            return self._client.ask(method, "config", shape=shape, query=query, body=body)
        before = ("config",)
        return self._about(method, subject, before=before, shape=shape, query=query, body=body)

    def _listing(
        self,
        path: str,
        *,
        shape: type[list[T]],
        query: Mapping[str, str] | None = None,
        key: Callable[[T], Hashable] = lambda entry: entry,
        optional: bool = False,
    ) -> Iterator[T]:
        """What a registry lists, page by page; nothing if it need not know the question."""

        def ask(page: Mapping[str, str]) -> list[T] | Refusal:
            asked = {**(query or {}), **page}
            return self._client.ask("GET", path, shape=shape, query=asked, optional=optional)

        return _paged(ask, f"list of {path}", repr(self), key=key)

    def _about(
        self,
        method: str,
        subject: str,
        *behind: str | int,
        shape: type[T],
        before: tuple[str, ...] = ("subjects",),
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | Refusal:
        """A question about a subject; a name that cannot be asked about is one that is missing.

        Names are from outside: each is one segment of a path. What a server, or a proxy before it,
        will not even be asked about cannot be a subject of its either.
        """
        nobody = Refusal(404, 40401, "a subject cannot have this name here")
        if not subject:
            return nobody
        subject = qualified(subject, self.context)
        plain = _PLAIN.fullmatch(subject) is not None
        if not plain and len(quote(subject, errors="surrogatepass")) > _LONGEST_NAME:
            return nobody
        found = self._client.ask(
            method,
            *(*before, subject, *behind),
            shape=shape,
            query=query,
            body=body,
            optional=optional or not plain,
        )
        return nobody if not plain and isinstance(found, Refusal) and found.unknown else found

    def _about_guid(self, guid: UUID, *path: str, shape: type[T]) -> T:
        found = self._client.ask("GET", *path, shape=shape, optional=True)
        if not isinstance(found, Refusal):
            return found
        if not found.unknown:
            raise found.error("schema with GUID", str(guid))
        raise SchemaNotFoundError(
            "this registry cannot be asked for a schema by GUID",
            where=str(guid),
            evidence=found.message,
            next_step="let producers write the schema's id, or use a registry that has GUIDs",
        )

    def _schema(self, schema_id: int) -> SchemaShape:
        # a server takes a larger number for a mistake in the path, not for an id
        found: SchemaShape | Refusal = Refusal(404, 40403, f"ids go from 0 to {MAX_ID}")
        if 0 <= schema_id <= MAX_ID:
            path, query = ("schemas", "ids", schema_id), _scope(self.context)
            found = self._client.ask("GET", *path, shape=SchemaShape, query=query)
        if isinstance(found, Refusal):
            raise found.error("schema with id", str(schema_id))
        return found

    def _version(self, subject: str, version: int | str, *, what: str) -> WriterSchema:
        found: VersionShape | Refusal = Refusal(404, 40402, "versions begin with 1")
        # -1 is a server's other word for the newest version
        if version == "latest" or (isinstance(version, int) and 0 < version <= MAX_ID):
            found = self._about("GET", subject, "versions", version, shape=VersionShape)
        context = context_of(subject) or self.context
        # who says no subject knows no contexts
        if isinstance(found, VersionShape) and found.subject is not None:
            if (context_of(found.subject) or DEFAULT) != context:
                found = Refusal(404, 40401, f"it is in another context: {found.subject}")
        if isinstance(found, Refusal):
            raise found.error(what, subject)
        path = ("subjects", qualified(subject, context), "versions", version)
        return self._writer(found, found.id, path, context=context)

    def _writer(
        self,
        found: SchemaShape,
        schema_id: int,
        path: tuple[str | int, ...],
        *,
        context: str,
        places: tuple[SubjectVersion, ...] | None = None,
    ) -> WriterSchema:
        format = found.format
        if format is None:
            raise InvalidSchemaError(
                "a schema is of a type that is not known",
                where=f"schema id {schema_id}",
                evidence=f"schemaType {self._client.shown(found.type or '')}",
                next_step=f"register it as one of {', '.join(Format)}",
            )
        compiled = self._compiled(found, format, path, context=context)
        if places is None:
            body = sent(found.text, format, found.references)
            places = self._places(body, schema_id, context=context)
        return compiled.writer(schema_id, format, places)

    def _compiled(
        self, found: SchemaShape, format: Format, path: tuple[str | int, ...], *, context: str
    ) -> Compiled:
        """Compile the text; where that fails, what the registry itself made of it."""
        try:
            return self._compile(found, format, context=context, serialized=False)
        except InvalidSchemaError:
            # some registries print protobuf in a way that no compiler takes
            if format is not Format.PROTOBUF:
                raise
            query = {**_SERIALIZED, **(_scope(context) if "ids" in path[:2] else {})}
            again = self._client.ask("GET", *path, shape=SchemaShape, query=query)
            if isinstance(again, Refusal) or again.text == found.text:
                raise
            try:
                return self._compile(again, format, context=context, serialized=True)
            except InvalidSchemaError:
                pass
            raise

    def _compile(
        self, found: SchemaShape, format: Format, *, context: str, serialized: bool
    ) -> Compiled:
        def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
            # a schema refers to its own context, unless it says otherwise
            named = replace(reference, subject=qualified(reference.subject, context))
            schema = self._reference(named, serialized=serialized)
            return schema.text, schema.references

        imports = gather(found.references, fetch=fetch)
        return compile_schema(found.text, format=format, imports=imports)

    def _reference(self, reference: Reference, *, serialized: bool) -> SchemaShape:
        """A referenced schema; kept a while, because many schemas import the same few."""
        key, now = (reference, serialized), self._clock()
        until, kept = self._referenced.get(key, (now, None))
        if kept is not None and now < until:
            return kept
        subject = reference.subject
        version = "latest" if reference.version == LATEST else reference.version
        # deleted versions count: what was accepted with them has to stay readable
        query = {**_EVEN_DELETED, **(_SERIALIZED if serialized else {})}
        found = self._about("GET", subject, "versions", version, shape=SchemaShape, query=query)
        if isinstance(found, Refusal):
            if found.missing or found.code == _NO_SUCH_NUMBER:
                raise dangling(reference, again=True)
            raise found.error("subject", subject)
        if len(self._referenced) >= _MOST_REFERENCES:
            self._referenced.clear()
        self._referenced[key] = (now + self._reference_seconds, found)
        return found

    def _places(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
        path, scope = ("schemas", "ids", schema_id, "versions"), _scope(context)
        shape, query = list[PlaceShape], {**_EVEN_DELETED, **scope}
        every = self._client.ask("GET", *path, shape=shape, query=query, optional=True)
        if isinstance(every, Refusal):
            if every.unknown:
                return self._places_by_subject(body, schema_id, context=context)
            if every.missing:
                return ()
            raise every.error("schema with id", str(schema_id))
        standing: list[PlaceShape] | Refusal = every
        if len(every) > 1:
            standing = self._client.ask("GET", *path, shape=shape, query=scope, optional=True)
        live = standing if isinstance(standing, list) else []
        return in_order((p not in live, local(p.subject, self.context), p.version) for p in every)

    def _places_by_subject(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """The long way, for registries that tell the subjects of an id without the versions."""
        path, scope = ("schemas", "ids", schema_id, "subjects"), _scope(context)
        names = self._client.ask("GET", *path, shape=list[str], query=scope, optional=True)
        places = []
        for name in () if isinstance(names, Refusal) else names:
            entry = self._about("POST", name, shape=RegisteredShape, body=body)
            if isinstance(entry, RegisteredShape) and entry.version is not None:
                places.append((False, local(name, self.context), entry.version))
        return in_order(places)


def _scope(context: str) -> dict[str, str]:
    """What an id needs to be looked up in a context."""
    return {"subject": prefix_of(context)} if context != DEFAULT else {}


def _paged(
    ask: Callable[[Mapping[str, str]], list[T] | Refusal],
    what: str,
    name: str,
    *,
    key: Callable[[T], Hashable] = lambda entry: entry,
) -> Iterator[T]:
    def page(offset: int, limit: int) -> list[T]:
        found = ask({"offset": str(offset), "limit": str(limit)})
        if not isinstance(found, Refusal):
            return found
        if found.unknown or found.missing:
            return []
        raise found.error(what, name)

    return listed(page, key=key)


def _no_level(refusal: Refusal) -> bool:
    return refusal.missing or refusal.code == _NO_LEVEL


def _body(text: str, format: Format, references: References) -> dict[str, Any]:
    return sent(text, format, map(Reference.of, references))


def _invalid(refusal: Refusal, subject: str) -> RegistryError:
    if not refusal.missing and refusal.code not in _UNUSABLE:
        return refusal.error("subject", subject)
    return InvalidSchemaError(
        "the registry cannot use this schema",
        where=f"subject {printable(subject)}",
        evidence=refusal.message,
        next_step="fix the schema, its references or the subject's name",
    )
