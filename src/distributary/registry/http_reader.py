"""Reading schemas from a server that speaks the Confluent schema registry's API."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import TypeAdapter

from distributary.config.registry import Registry
from distributary.errors import InvalidSchemaError
from distributary.model.schema import Format, SubjectVersion, WriterSchema
from distributary.registry.compile import Compiled, compile_schema
from distributary.registry.http_answers import (
    CONTEXTS,
    MAX_ID,
    NAMES,
    NUMBERS,
    PLACES,
    REGISTERED,
    SCHEMA,
    VERSION,
    PlaceShape,
    Refusal,
    RegisteredShape,
    SchemaShape,
    VersionShape,
    sent,
)
from distributary.registry.http_client import ATTEMPTS, RegistryClient
from distributary.registry.http_errors import dangling, no_guids, refused, unknown_type
from distributary.registry.http_transport import MAX_ANSWER
from distributary.registry.references import LATEST, Reference, gather
from distributary.registry.store import StoredVersion, in_order

_PLAIN = re.compile(r"[A-Za-z0-9:_-][A-Za-z0-9.:_-]{0,254}")
_LONGEST_NAME = 8000
_MOST_REFERENCES = 10_000
_GUID = "schema with GUID"
_NO_SUCH_NUMBER = 42202
_EVEN_DELETED = {"deleted": "true"}
_SERIALIZED = {"format": "serialized"}

T = TypeVar("T")


class HttpReader:
    """The reading half of `HttpRegistry`.

    Names are from outside: each is one segment of a path. What a server, or a proxy before it, will
    not even be asked about cannot be a subject of its either.
    """

    def __init__(
        self,
        config: Registry,
        *,
        attempts: int = ATTEMPTS,
        most_bytes: int = MAX_ANSWER,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = RegistryClient(config, attempts=attempts, most_bytes=most_bytes, sleep=sleep)
        self._clock = clock
        self._reference_seconds = config.cache_ttl.total_seconds()
        self._referenced: dict[tuple[Reference, bool], tuple[float, SchemaShape]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._client.addresses)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, with every place where it is or was registered."""
        return self._writer(self._schema(schema_id), schema_id, ("schemas", "ids", schema_id))

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID and the id that it has in the default context."""
        path, name = ("schemas", "guids", str(guid)), str(guid)
        found = self._client.ask("GET", *path, shape=SCHEMA, optional=True)
        if isinstance(found, Refusal):
            raise no_guids(found, guid) if found.unknown else refused(found, what=_GUID, name=name)
        ids = self._client.ask("GET", *path, "ids", shape=CONTEXTS, optional=True)
        if isinstance(ids, Refusal):
            raise no_guids(ids, guid) if ids.unknown else refused(ids, what=_GUID, name=name)
        # each context counts for itself: an id of another one is somebody else's here
        own = next((entry.id for entry in ids if entry.context in ("", ".")), None)
        if own is None:
            no = Refusal(404, 40403, "it has no id in the default context")
            raise refused(no, what=_GUID, name=name)
        return self._writer(found, own, path)

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject."""
        return self._version(subject, "latest", what="subject")

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, unless it was deleted."""
        return self._version(subject, version, what=f"version {version} of subject")

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject that were not deleted, oldest first."""
        found = self._about("GET", subject, "versions", shape=NUMBERS)
        if isinstance(found, Refusal):
            if found.missing:
                return ()
            raise refused(found, what="subject", name=subject)
        return tuple(sorted(found))

    def subjects(self) -> tuple[str, ...]:
        """All subjects with a version that was not deleted, sorted."""
        found = self._client.ask("GET", "subjects", shape=NAMES)
        if isinstance(found, Refusal):
            raise refused(found, what="list of subjects", name=repr(self))
        return tuple(sorted(found))

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it, or as the registry keeps it."""
        return self._schema(schema_id).text

    def _about(
        self,
        method: str,
        subject: str,
        *behind: str | int,
        shape: TypeAdapter[T],
        before: tuple[str, ...] = ("subjects",),
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        optional: bool = False,
    ) -> T | Refusal:
        """A question about a subject; a name that cannot be asked about is one that is missing."""
        nobody = Refusal(404, 40401, "a subject cannot have this name here")
        plain = _PLAIN.fullmatch(subject) is not None
        if not plain and not 0 < len(quote(subject, errors="surrogatepass")) <= _LONGEST_NAME:
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

    def _schema(self, schema_id: int) -> SchemaShape:
        # a server takes a larger number for a mistake in the path, not for an id
        found: SchemaShape | Refusal = Refusal(404, 40403, f"ids go from 0 to {MAX_ID}")
        if 0 <= schema_id <= MAX_ID:
            found = self._client.ask("GET", "schemas", "ids", schema_id, shape=SCHEMA)
        if isinstance(found, Refusal):
            raise refused(found, what="schema with id", name=str(schema_id))
        return found

    def _version(self, subject: str, version: int | str, *, what: str) -> WriterSchema:
        found: VersionShape | Refusal = Refusal(404, 40402, "versions begin with 1")
        # -1 is a server's other word for the newest version
        if version == "latest" or (isinstance(version, int) and 0 < version <= MAX_ID):
            found = self._about("GET", subject, "versions", version, shape=VERSION)
        if isinstance(found, Refusal):
            raise refused(found, what=what, name=subject)
        return self._writer(found, found.id, ("subjects", subject, "versions", version))

    def _writer(
        self, found: SchemaShape, schema_id: int, path: tuple[str | int, ...]
    ) -> WriterSchema:
        format = found.format
        if format is None:
            raise unknown_type(self._client.shown(found.type or ""), schema_id)
        compiled = self._compiled(found, format, path)
        return WriterSchema(
            id=schema_id,
            format=format,
            body=compiled.body,
            message=compiled.message,
            messages=compiled.messages,
            subjects=self._places(sent(found.text, format, found.references), schema_id),
        )

    def _compiled(
        self, found: SchemaShape, format: Format, path: tuple[str | int, ...]
    ) -> Compiled:
        """Compile the text; where that fails, what the registry itself made of it."""
        try:
            return self._compile(found, format, serialized=False)
        except InvalidSchemaError:
            # some registries print protobuf in a way that no compiler takes
            if format is not Format.PROTOBUF:
                raise
            again = self._client.ask("GET", *path, shape=SCHEMA, query=_SERIALIZED)
            if isinstance(again, Refusal) or again.text == found.text:
                raise
            try:
                return self._compile(again, format, serialized=True)
            except InvalidSchemaError:
                pass
            raise

    def _compile(self, found: SchemaShape, format: Format, *, serialized: bool) -> Compiled:
        def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
            schema = self._reference(reference, serialized=serialized)
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

    def _places(self, body: Mapping[str, Any], schema_id: int) -> tuple[SubjectVersion, ...]:
        """Where a schema is or was registered: what still stands first."""
        path = ("schemas", "ids", schema_id, "versions")
        every = self._client.ask("GET", *path, shape=PLACES, query=_EVEN_DELETED, optional=True)
        if isinstance(every, Refusal):
            if every.unknown:
                return self._places_by_subject(body, schema_id)
            if every.missing:
                return ()
            raise refused(every, what="schema with id", name=str(schema_id))
        standing: list[PlaceShape] | Refusal = every
        if len(every) > 1:
            standing = self._client.ask("GET", *path, shape=PLACES, optional=True)
        live = standing if isinstance(standing, list) else []
        return in_order(
            (p.subject, StoredVersion(p.version, schema_id, deleted=p not in live)) for p in every
        )

    def _places_by_subject(
        self, body: Mapping[str, Any], schema_id: int
    ) -> tuple[SubjectVersion, ...]:
        """The long way, for registries that tell the subjects of an id without the versions."""
        path = ("schemas", "ids", schema_id, "subjects")
        names = self._client.ask("GET", *path, shape=NAMES, optional=True)
        if isinstance(names, Refusal):
            return ()
        places = []
        for name in names:
            entry = self._about("POST", name, shape=REGISTERED, body=body)
            if isinstance(entry, RegisteredShape) and entry.version is not None:
                places.append((name, StoredVersion(entry.version, schema_id)))
        return in_order(places)
