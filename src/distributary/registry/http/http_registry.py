"""A schema registry over HTTP: Confluent's, or any server with its API."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from distributary.config.registry import RegistryConfig
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
    HttpRefusal,
    LevelShape,
    ListedShape,
    Number,
    PlaceShape,
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
    """A registry that is read and written over HTTP; every request may safely be repeated."""

    def __init__(
        self,
        config: RegistryConfig,
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
        """The context of the subjects and ids of this registry."""
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
        """Count every request in `calls` from now on."""
        self._client.calls = calls

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def within(self, context: str) -> Self:
        """Return the same registry for another of its contexts."""
        other = copy.copy(self)
        other.context = named(context)
        return other

    def contexts(self) -> tuple[str, ...]:
        """Return all contexts of the registry; only the default one if it has no contexts."""
        names = self._listing("contexts", shape=list[str], optional=True)
        return tuple(sorted({DEFAULT, *map(named, names)}))

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, with every place where it is or was registered."""
        path = ("schemas", "ids", schema_id)
        return self._writer(self._schema(schema_id), schema_id, path, context=self.context)

    def by_id_now(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, requested every time."""
        return self.by_id(schema_id)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return the schema with this GUID and the id that it has in this context."""
        path = ("schemas", "guids", str(guid))
        answer = self._about_guid(guid, *path, shape=SchemaShape)
        ids = self._about_guid(guid, *path, "ids", shape=list[ContextShape])
        # ids of other contexts belong to other schemas here
        schema_id = next((entry.id for entry in ids if named(entry.context) == self.context), None)
        if schema_id is None:
            refusal = HttpRefusal(404, 40403, f"the schema has no id in context {self.context}")
            raise refusal.error("schema with GUID", str(guid))
        return self._writer(answer, schema_id, path, context=self.context)

    def latest(self, subject: str) -> WriterSchema:
        """Return the newest version of a subject."""
        return self._version(subject, "latest", what="subject")

    def version(self, subject: str, version: int) -> WriterSchema:
        """Return one version of a subject, unless it was deleted."""
        return self._version(subject, version, what=f"version {version} of subject")

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject that were not deleted, oldest first."""
        path, shape = ("GET", subject, "versions"), list[Number]
        numbers = _paged(
            lambda page: self._about(*path, shape=shape, query=page), "subject", subject
        )
        return tuple(sorted(numbers))

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects with a version that was not deleted, sorted.

        In a context, these are its own subjects, by their local names. In the default context,
        subjects of other contexts are included where the registry lists them, with their context
        before the name.
        """
        prefix = prefix_of(self.context)
        query = {"subjectPrefix": prefix} if prefix else {}
        names = self._listing("subjects", shape=list[str], query=query)
        # not every registry filters by prefix
        return tuple(sorted(local(name, self.context) for name in names if name.startswith(prefix)))

    def schemas(self) -> Iterator[ListedShape]:
        """Yield every version of every subject, page by page, or nothing if a registry lists none.

        In a context, subjects have their local names. The schemas are not compiled yet.
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
        """Compile a listed version; of its places it has only the one in the list."""
        context = context_of(listed.subject) or self.context
        path = ("subjects", qualified(listed.subject, context), "versions", listed.version)
        place = SubjectVersion(listed.subject, listed.version)
        return self._writer(listed, listed.id, path, context=context, places=(place,))

    def text(self, schema_id: int) -> str:
        """Return the schema's text as it was registered, or as the registry stores it."""
        return self._schema(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """Return the references of a schema, as they were registered."""
        return self._schema(schema_id).references

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Append a version to a subject, unless it has this schema already; return the id."""
        body = _body(text, format, references)
        answer = self._about("POST", subject, "versions", shape=RegisteredShape, body=body)
        if not isinstance(answer, HttpRefusal):
            return answer.id
        if answer.status == _INCOMPATIBLE:
            raise IncompatibleSchemaError(
                "the new version is not compatible",
                where=f"subject {printable(subject)}",
                evidence=answer.message,
                next_step="change the schema, register it under a new subject, or relax the level",
            )
        raise _invalid(answer, subject)

    def check(
        self,
        subject: str,
        text: str,
        references: References = (),
        *,
        format: Format = Format.PROTOBUF,
    ) -> list[str]:
        """Return the reasons for which `register` would refuse this schema as incompatible."""
        body = _body(text, format, references)
        verdict = self._verdict(body, subject, "versions")
        if isinstance(verdict, HttpRefusal) and verdict.unknown:
            # older registries compare with one version at a time
            verdict = self._verdict(body, subject, "versions", "latest")
        if isinstance(verdict, HttpRefusal):
            # a first version has nothing to be incompatible with
            if verdict.missing:
                return []
            raise _invalid(verdict, subject)
        if verdict.is_compatible:
            return []
        reasons = [self._client.shown(message) for message in verdict.messages or ()]
        return reasons or ["the registry calls the schema incompatible without a reason"]

    def compatibility(self, subject: str | None = None) -> Level:
        """Return the level of a subject; without a subject, the level for all."""
        subject = subject if subject is not None else self._whole()
        subject_level = self._level(subject) if subject is not None else None
        return subject_level or self._level(None) or Level.BACKWARD

    def set_compatibility(self, subject: str | None, level: Level | str | None) -> None:
        """Set the level of a subject, or of all if it is None; no level restores the default."""
        chosen = Level.of(level) if isinstance(level, str) else level
        body = None if chosen is None else {"compatibility": str(chosen)}
        method = "DELETE" if chosen is None else "PUT"
        subject = subject if subject is not None else self._whole()
        answer = self._config(method, subject, shape=dict[str, object], body=body)
        # removing a level that was never set is no error
        if isinstance(answer, HttpRefusal) and not (chosen is None and _no_level(answer)):
            raise answer.error("subject", subject or "all subjects")

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[int, ...]:
        """Delete every version of a subject; return the deleted versions.

        Their ids stay readable, and so does data written with them. With `permanent`, schemas that
        only this subject had are lost for ever.
        """
        answer = self._about("DELETE", subject, shape=list[Number])
        if permanent and (isinstance(answer, list) or answer.code == _ALREADY_DELETED):
            query = {"permanent": "true"}
            answer = self._about("DELETE", subject, shape=list[Number], query=query)
        if isinstance(answer, HttpRefusal):
            raise answer.error("subject", subject)
        return tuple(sorted(answer))

    def _whole(self) -> str | None:
        """Return the name for all subjects of this context, or None for the default context."""
        return prefix_of(self.context) or None

    def _verdict(
        self, body: Mapping[str, Any], subject: str, *behind: str
    ) -> VerdictShape | HttpRefusal:
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
        answer = self._config("GET", subject, shape=LevelShape, query=query)
        if not isinstance(answer, HttpRefusal):
            return answer.read or answer.written
        if _no_level(answer):
            return None
        raise answer.error("subject", subject or "all subjects")

    def _config(
        self,
        method: str,
        subject: str | None,
        *,
        shape: type[T],
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> T | HttpRefusal:
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
        """Yield the entries of a listing, page by page; none if an optional one does not exist."""

        def ask(page: Mapping[str, str]) -> list[T] | HttpRefusal:
            page_query = {**(query or {}), **page}
            return self._client.ask("GET", path, shape=shape, query=page_query, optional=optional)

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
    ) -> T | HttpRefusal:
        """Send a request about a subject; a name that the server cannot look up counts as missing.

        Names come from outside, and each is one segment of the path. A name that the server, or a
        proxy before it, does not accept in a path cannot be one of its subjects.
        """
        no_subject = HttpRefusal(404, 40401, "a subject cannot have this name here")
        if not subject:
            return no_subject
        subject = qualified(subject, self.context)
        plain = _PLAIN.fullmatch(subject) is not None
        if not plain and len(quote(subject, errors="surrogatepass")) > _LONGEST_NAME:
            return no_subject
        answer = self._client.ask(
            method,
            *(*before, subject, *behind),
            shape=shape,
            query=query,
            body=body,
            optional=optional or not plain,
        )
        return (
            no_subject
            if not plain and isinstance(answer, HttpRefusal) and answer.unknown
            else answer
        )

    def _about_guid(self, guid: UUID, *path: str, shape: type[T]) -> T:
        answer = self._client.ask("GET", *path, shape=shape, optional=True)
        if not isinstance(answer, HttpRefusal):
            return answer
        if not answer.unknown:
            raise answer.error("schema with GUID", str(guid))
        raise SchemaNotFoundError(
            "this registry cannot look up a schema by GUID",
            where=str(guid),
            evidence=answer.message,
            next_step="let producers write the schema's id, or use a registry that has GUIDs",
        )

    def _schema(self, schema_id: int) -> SchemaShape:
        # a server takes a larger number for a mistake in the path, not for an id
        answer: SchemaShape | HttpRefusal = HttpRefusal(404, 40403, f"ids go from 0 to {MAX_ID}")
        if 0 <= schema_id <= MAX_ID:
            path, query = ("schemas", "ids", schema_id), _scope(self.context)
            answer = self._client.ask("GET", *path, shape=SchemaShape, query=query)
        if isinstance(answer, HttpRefusal):
            raise answer.error("schema with id", str(schema_id))
        return answer

    def _version(self, subject: str, version: int | str, *, what: str) -> WriterSchema:
        answer: VersionShape | HttpRefusal = HttpRefusal(404, 40402, "versions begin with 1")
        # the number -1 is another name of the newest version
        if version == "latest" or (isinstance(version, int) and 0 < version <= MAX_ID):
            answer = self._about("GET", subject, "versions", version, shape=VersionShape)
        context = context_of(subject) or self.context
        # an answer without a subject comes from a registry without contexts
        if isinstance(answer, VersionShape) and answer.subject is not None:
            if (context_of(answer.subject) or DEFAULT) != context:
                answer = HttpRefusal(
                    404, 40401, f"the subject is in another context: {answer.subject}"
                )
        if isinstance(answer, HttpRefusal):
            raise answer.error(what, subject)
        path = ("subjects", qualified(subject, context), "versions", version)
        return self._writer(answer, answer.id, path, context=context)

    def _writer(
        self,
        answer: SchemaShape,
        schema_id: int,
        path: tuple[str | int, ...],
        *,
        context: str,
        places: tuple[SubjectVersion, ...] | None = None,
    ) -> WriterSchema:
        format = answer.format
        if format is None:
            raise InvalidSchemaError(
                "a schema has an unknown type",
                where=f"schema id {schema_id}",
                evidence=f"schemaType {self._client.shown(answer.type or '')}",
                next_step=f"register it as one of {', '.join(Format)}",
            )
        compiled = self._compiled(answer, format, path, context=context)
        if places is None:
            body = sent(answer.text, format, answer.references)
            places = self._places(body, schema_id, context=context)
        return compiled.writer(schema_id, format, places)

    def _compiled(
        self, answer: SchemaShape, format: Format, path: tuple[str | int, ...], *, context: str
    ) -> Compiled:
        """Compile a schema's text; if that fails, compile the registry's own serialized form."""
        try:
            return self._compile(answer, format, context=context, serialized=False)
        except InvalidSchemaError:
            # some registries print protobuf in a form that no compiler accepts
            if format is not Format.PROTOBUF:
                raise
            query = {**_SERIALIZED, **(_scope(context) if "ids" in path[:2] else {})}
            serialized_answer = self._client.ask("GET", *path, shape=SchemaShape, query=query)
            if isinstance(serialized_answer, HttpRefusal) or serialized_answer.text == answer.text:
                raise
            try:
                return self._compile(serialized_answer, format, context=context, serialized=True)
            except InvalidSchemaError:
                pass
            raise

    def _compile(
        self, answer: SchemaShape, format: Format, *, context: str, serialized: bool
    ) -> Compiled:
        def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
            # a reference without a context is to the schema's own context
            qualified_reference = replace(reference, subject=qualified(reference.subject, context))
            schema = self._reference(qualified_reference, serialized=serialized)
            return schema.text, schema.references

        imports = gather(answer.references, fetch=fetch)
        return compile_schema(answer.text, format=format, imports=imports)

    def _reference(self, reference: Reference, *, serialized: bool) -> SchemaShape:
        """Return a referenced schema; it is cached, because many schemas import the same few."""
        key, now = (reference, serialized), self._clock()
        expires, cached = self._referenced.get(key, (now, None))
        if cached is not None and now < expires:
            return cached
        subject = reference.subject
        version = "latest" if reference.version == LATEST else reference.version
        # deleted versions count, because schemas that were accepted with them must stay readable
        query = {**_EVEN_DELETED, **(_SERIALIZED if serialized else {})}
        answer = self._about("GET", subject, "versions", version, shape=SchemaShape, query=query)
        if isinstance(answer, HttpRefusal):
            if answer.missing or answer.code == _NO_SUCH_NUMBER:
                raise dangling(reference, again=True)
            raise answer.error("subject", subject)
        if len(self._referenced) >= _MOST_REFERENCES:
            self._referenced.clear()
        self._referenced[key] = (now + self._reference_seconds, answer)
        return answer

    def _places(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """Return the places where a schema is or was registered, existing ones first."""
        path, scope = ("schemas", "ids", schema_id, "versions"), _scope(context)
        shape, query = list[PlaceShape], {**_EVEN_DELETED, **scope}
        all_places = self._client.ask("GET", *path, shape=shape, query=query, optional=True)
        if isinstance(all_places, HttpRefusal):
            if all_places.unknown:
                return self._places_by_subject(body, schema_id, context=context)
            if all_places.missing:
                return ()
            raise all_places.error("schema with id", str(schema_id))
        existing: list[PlaceShape] | HttpRefusal = all_places
        if len(all_places) > 1:
            existing = self._client.ask("GET", *path, shape=shape, query=scope, optional=True)
        live = existing if isinstance(existing, list) else []
        return in_order(
            (place not in live, local(place.subject, self.context), place.version)
            for place in all_places
        )

    def _places_by_subject(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """Return the places of a schema from a registry that lists subjects without versions."""
        path, scope = ("schemas", "ids", schema_id, "subjects"), _scope(context)
        names = self._client.ask("GET", *path, shape=list[str], query=scope, optional=True)
        places = []
        for name in () if isinstance(names, HttpRefusal) else names:
            entry = self._about("POST", name, shape=RegisteredShape, body=body)
            if isinstance(entry, RegisteredShape) and entry.version is not None:
                places.append((False, local(name, self.context), entry.version))
        return in_order(places)


def _scope(context: str) -> dict[str, str]:
    """Return the query by which an id is looked up in a context."""
    return {"subject": prefix_of(context)} if context != DEFAULT else {}


def _paged(
    ask: Callable[[Mapping[str, str]], list[T] | HttpRefusal],
    what: str,
    name: str,
    *,
    key: Callable[[T], Hashable] = lambda entry: entry,
) -> Iterator[T]:
    def page(offset: int, limit: int) -> list[T]:
        answer = ask({"offset": str(offset), "limit": str(limit)})
        if not isinstance(answer, HttpRefusal):
            return answer
        if answer.unknown or answer.missing:
            return []
        raise answer.error(what, name)

    return listed(page, key=key)


def _no_level(refusal: HttpRefusal) -> bool:
    return refusal.missing or refusal.code == _NO_LEVEL


def _body(text: str, format: Format, references: References) -> dict[str, Any]:
    return sent(text, format, map(Reference.of, references))


def _invalid(refusal: HttpRefusal, subject: str) -> RegistryError:
    if not refusal.missing and refusal.code not in _UNUSABLE:
        return refusal.error("subject", subject)
    return InvalidSchemaError(
        "the registry cannot use this schema",
        where=f"subject {printable(subject)}",
        evidence=refusal.message,
        next_step="fix the schema, its references or the subject's name",
    )
