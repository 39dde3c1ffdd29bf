"""A schema registry over HTTP: Confluent's, or any server that speaks its API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from distributary.errors import IncompatibleSchemaError, InvalidSchemaError, RegistryError
from distributary.model.names import printable
from distributary.model.record import Format, SubjectVersion, WriterSchema
from distributary.registry.base import (
    DEFAULT,
    LATEST,
    Reference,
    context_of,
    gather,
    local,
    named,
    prefix_of,
    qualified,
)
from distributary.registry.compatibility.levels import Level
from distributary.registry.compile.formats import Compiled, compile_schema
from distributary.registry.http.answers import (
    ANYTHING,
    CONTEXTS,
    LEVEL,
    LISTED,
    MAX_ID,
    NAMES,
    NUMBERS,
    PLACES,
    REGISTERED,
    SCHEMA,
    VERDICT,
    VERSION,
    ListedShape,
    PlaceShape,
    Refusal,
    RegisteredShape,
    SchemaShape,
    VerdictShape,
    VersionShape,
    dangling,
    no_guids,
    refused,
    sent,
    unknown_type,
)
from distributary.registry.http.client import HttpQuestions
from distributary.registry.local import References, StoredVersion, in_order

# Reading schemas from a server that speaks the Confluent schema registry's API.

_MOST_REFERENCES = 10_000
_GUID = "schema with GUID"
_NO_SUCH_NUMBER = 42202
_EVEN_DELETED = {"deleted": "true"}
_SERIALIZED = {"format": "serialized"}
_EVERY_CONTEXT = ":*:"


@dataclass(frozen=True, slots=True)
class Listed:
    """A version of a subject in a list of all; not compiled yet."""

    subject: str
    version: int
    id: int
    found: SchemaShape


class HttpReader(HttpQuestions):
    """The reading half of `HttpRegistry`."""

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with every place where it is or was registered."""
        found, path = self._schema(schema_id), ("schemas", "ids", schema_id)
        return self._writer(found, schema_id, path, context=self._context)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID and the id that it has in this context."""
        path, name = ("schemas", "guids", str(guid)), str(guid)
        found = self._client.ask("GET", *path, shape=SCHEMA, optional=True)
        if isinstance(found, Refusal):
            raise no_guids(found, guid) if found.unknown else refused(found, what=_GUID, name=name)
        ids = self._client.ask("GET", *path, "ids", shape=CONTEXTS, optional=True)
        if isinstance(ids, Refusal):
            raise no_guids(ids, guid) if ids.unknown else refused(ids, what=_GUID, name=name)
        # each context counts for itself: an id of another one is somebody else's here
        own = next((entry.id for entry in ids if named(entry.context) == self._context), None)
        if own is None:
            no = Refusal(404, 40403, f"it has no id in context {self._context}")
            raise refused(no, what=_GUID, name=name)
        return self._writer(found, own, path, context=self._context)

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject."""
        return self._version(subject, "latest", what="subject")

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, unless it was deleted."""
        return self._version(subject, version, what=f"version {version} of subject")

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject that were not deleted, oldest first."""
        return tuple(sorted(self._numbers(subject)))

    def each_subject(self) -> Iterator[str]:
        """The subjects with a version that was not deleted, page by page, in any order.

        In a context those of this one alone, by their names there. In the default context also
        those of others where the registry lists them, each with its context before its name.
        """
        prefix = prefix_of(self._context)
        query = {"subjectPrefix": prefix} if prefix else None
        for name in self._listing("subjects", shape=NAMES, query=query):
            # not every registry knows prefixes
            if name.startswith(prefix):
                yield local(name, self._context)

    def subjects(self) -> tuple[str, ...]:
        """The same, sorted."""
        return tuple(sorted(self.each_subject()))

    def schemas(self) -> Iterator[Listed]:
        """Every version of every subject, page by page; nothing where a registry lists no schemas.

        One question for a thousand versions, where asking for each would be a thousand.
        """
        prefix = prefix_of(self._context)
        query = {"subjectPrefix": prefix or _EVERY_CONTEXT}
        found = self._listing("schemas", shape=LISTED, query=query, key=_place, optional=True)
        for entry in found:
            if entry.subject.startswith(prefix):
                name = local(entry.subject, self._context)
                yield Listed(name, entry.version, entry.id, entry)

    def compiled(self, listed: Listed) -> WriterSchema:
        """A version of such a list, ready for use; of its places only the one it was found at."""
        context = context_of(listed.subject) or self._context
        path = ("subjects", qualified(listed.subject, context), "versions", listed.version)
        place = SubjectVersion(listed.subject, listed.version)
        return self._writer(listed.found, listed.id, path, context=context, places=(place,))

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it, or as the registry keeps it."""
        return self._schema(schema_id).text

    def references(self, schema_id: int) -> tuple[Reference, ...]:
        """What the schema imports, as it was registered."""
        return self._schema(schema_id).references

    def _schema(self, schema_id: int) -> SchemaShape:
        # a server takes a larger number for a mistake in the path, not for an id
        found: SchemaShape | Refusal = Refusal(404, 40403, f"ids go from 0 to {MAX_ID}")
        if 0 <= schema_id <= MAX_ID:
            path, query = ("schemas", "ids", schema_id), self._scope(self._context)
            found = self._client.ask("GET", *path, shape=SCHEMA, query=query)
        if isinstance(found, Refusal):
            raise refused(found, what="schema with id", name=str(schema_id))
        return found

    def _version(self, subject: str, version: int | str, *, what: str) -> WriterSchema:
        found: VersionShape | Refusal = Refusal(404, 40402, "versions begin with 1")
        # -1 is a server's other word for the newest version
        if version == "latest" or (isinstance(version, int) and 0 < version <= MAX_ID):
            found = self._about("GET", subject, "versions", version, shape=VERSION)
        context = context_of(subject) or self._context
        if isinstance(found, VersionShape) and not _within(found.subject, context):
            found = Refusal(404, 40401, f"it is in another context: {found.subject}")
        if isinstance(found, Refusal):
            raise refused(found, what=what, name=subject)
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
            raise unknown_type(self._client.shown(found.type or ""), schema_id)
        compiled = self._compiled(found, format, path, context=context)
        if places is None:
            body = sent(found.text, format, found.references)
            places = self._places(body, schema_id, context=context)
        return WriterSchema(
            id=schema_id,
            format=format,
            body=compiled.body,
            message=compiled.message,
            messages=compiled.messages,
            subjects=places,
        )

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
            query = {**_SERIALIZED, **(self._scope(context) if "ids" in path[:2] else {})}
            again = self._client.ask("GET", *path, shape=SCHEMA, query=query)
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
        kept = self._referenced.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        version = "latest" if reference.version == LATEST else reference.version
        # deleted versions count: what was accepted with them has to stay readable
        query = {**_EVEN_DELETED, **(_SERIALIZED if serialized else {})}
        found = self._about(
            "GET", reference.subject, "versions", version, shape=SCHEMA, query=query
        )
        if isinstance(found, Refusal):
            if found.missing or found.code == _NO_SUCH_NUMBER:
                raise dangling(reference)
            raise refused(found, what="subject", name=reference.subject)
        if len(self._referenced) >= _MOST_REFERENCES:
            self._referenced.clear()
        self._referenced[key] = (now + self._reference_seconds, found)
        return found

    def _places(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
        path, scope = ("schemas", "ids", schema_id, "versions"), self._scope(context)
        query = {**_EVEN_DELETED, **scope}
        every = self._client.ask("GET", *path, shape=PLACES, query=query, optional=True)
        if isinstance(every, Refusal):
            if every.unknown:
                return self._places_by_subject(body, schema_id, context=context)
            if every.missing:
                return ()
            raise refused(every, what="schema with id", name=str(schema_id))
        standing: list[PlaceShape] | Refusal = every
        if len(every) > 1:
            standing = self._client.ask("GET", *path, shape=PLACES, query=scope, optional=True)
        live = standing if isinstance(standing, list) else []
        return in_order(
            (
                local(p.subject, self._context),
                StoredVersion(p.version, schema_id, deleted=p not in live),
            )
            for p in every
        )

    def _places_by_subject(
        self, body: Mapping[str, Any], schema_id: int, *, context: str
    ) -> tuple[SubjectVersion, ...]:
        """The long way, for registries that tell the subjects of an id without the versions."""
        path = ("schemas", "ids", schema_id, "subjects")
        scope = self._scope(context)
        names = self._client.ask("GET", *path, shape=NAMES, query=scope, optional=True)
        if isinstance(names, Refusal):
            return ()
        places = []
        for name in names:
            entry = self._about("POST", name, shape=REGISTERED, body=body)
            if isinstance(entry, RegisteredShape) and entry.version is not None:
                name = local(name, self._context)
                places.append((name, StoredVersion(entry.version, schema_id)))
        return in_order(places)


def _place(entry: ListedShape) -> tuple[str, int]:
    return entry.subject, entry.version


def _within(subject: str | None, context: str) -> bool:
    """Whether what was found is where it was looked for; who says nothing knows no contexts."""
    return subject is None or (context_of(subject) or DEFAULT) == context


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
