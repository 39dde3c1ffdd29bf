"""A cache in front of a registry: an id is kept for ever, the newest version for a while.

Subjects that an id got after it was kept are requested when a record claims one of them.

<folder>/00000042.json              the schema with id 42
<folder>/guid-<guid>.json           the id of a GUID
<folder>/latest-<subject>.json      the id of a subject's newest version at the last request
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from distributary.errors import RegistryUnavailableError
from distributary.model.names import printable, subject_folder
from distributary.model.record import Format, SubjectVersion, WriterSchema
from distributary.registry.base import SchemaRegistry, context_of
from distributary.registry.folder_files import encoded, read_json
from distributary.store.base import at

_ASK_AGAIN_SECONDS = 10.0
_log = logging.getLogger(__name__)


class CachedRegistry:
    """A cache in front of a slower registry, described in docs/decisions/registry.md.

    With a folder, which belongs to one context of one registry, the cache outlives the process.
    While the registry does not answer, the last known newest version is returned, however old, and
    a warning is logged.
    """

    def __init__(
        self,
        inner: SchemaRegistry,
        *,
        folder: str | Path | None = None,
        latest_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._store = None if folder is None else at(folder)
        self._latest_seconds = latest_seconds
        self._clock = clock
        self._by_id: dict[int, WriterSchema] = {}
        self._guids: dict[UUID, int] = {}
        self._versions: dict[tuple[str, int | None], tuple[float, WriterSchema]] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, from memory, the folder or the registry."""
        cached = self._cached(schema_id)
        return self._keep(self._inner.by_id(schema_id)) if cached is None else cached

    def by_id_now(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id as the registry has it now, and keep that."""
        return self._keep(self._inner.by_id_now(schema_id))

    def by_guid(self, guid: UUID) -> WriterSchema:
        """Return the schema with this GUID, from memory, the folder or the registry."""
        name = f"guid-{guid}"
        schema_id = self._guids.get(guid, self._pointed(name, str(guid)))
        if schema_id is None:
            schema_id = self._keep(self._inner.by_guid(guid)).id
            self._point(name, str(guid), schema_id)
        self._guids[guid] = schema_id
        return self.by_id(schema_id)

    def latest(self, subject: str) -> WriterSchema:
        """Return a subject's newest version as of a moment ago; in an outage, the last known."""
        return self._for_a_while((subject, None), lambda: self._inner.latest(subject))

    def version(self, subject: str, version: int) -> WriterSchema:
        """Return one version of a subject, as of a moment ago."""
        return self._for_a_while((subject, version), lambda: self._inner.version(subject, version))

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject, requested every time."""
        return self._inner.versions(subject)

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects, requested every time."""
        return self._inner.subjects()

    def _for_a_while(
        self, key: tuple[str, int | None], ask: Callable[[], WriterSchema]
    ) -> WriterSchema:
        now = self._clock()
        expires, cached = self._versions.get(key, (0.0, None))
        if cached is not None and now < expires:
            return cached
        seconds = self._latest_seconds
        try:
            schema = ask()
        except RegistryUnavailableError as error:
            stale = cached
            if stale is None and key[1] is None:
                # the newest version when the registry last answered
                schema_id = self._pointed(_latest_name(key[0]), key[0])
                stale = None if schema_id is None else self._cached(schema_id)
            if stale is None:
                raise
            schema, seconds = stale, min(seconds, _ASK_AGAIN_SECONDS)
            _log.warning(
                "%s: %s; going on with %s, which may not be the newest",
                *(error.code, error.what, printable(schema.label())),
            )
        else:
            # an id of another context belongs to another schema here
            if key[1] is None and schema != cached and context_of(key[0]) is None:
                self._point(_latest_name(key[0]), key[0], self._keep(schema).id)
        self._versions[key] = (now + seconds, schema)
        return schema

    def _keep(self, schema: WriterSchema) -> WriterSchema:
        self._by_id[schema.id] = schema
        self._write(f"{schema.id:08d}", _encoded(schema))
        return schema

    def _cached(self, schema_id: int) -> WriterSchema | None:
        if schema_id not in self._by_id:
            try:
                self._by_id[schema_id] = _decoded(self._read(f"{schema_id:08d}"), schema_id)
            except (KeyError, TypeError, ValueError):
                return None
        return self._by_id[schema_id]

    def _point(self, name: str, meaning: str, schema_id: int) -> None:
        self._write(name, {"of": meaning, "id": schema_id})

    def _pointed(self, name: str, meaning: str) -> int | None:
        content = self._read(name)
        schema_id = content.get("id")
        return schema_id if content.get("of") == meaning and isinstance(schema_id, int) else None

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a cache file, or an empty object if it is missing or damaged."""
        if self._store is None:
            return {}
        try:
            content = read_json(self._store, f"{name}.json") or {}
            digest = content.pop("digest", None)
            return content if digest == _digest(content) else {}
        except (OSError, RegistryUnavailableError, ValueError):
            # the registry's answer replaces a file that is damaged or out of reach
            return {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self._store is not None:
            # a cache that cannot be written only makes the next start slow
            with suppress(OSError):
                whole = {**content, "digest": _digest(content)}
                self._store.write(f"{name}.json", encoded(whole), durable=False)


def _latest_name(subject: str) -> str:
    return f"latest-{subject_folder(subject)}"


def _encoded(schema: WriterSchema) -> dict[str, Any]:
    return {
        "id": schema.id,
        "format": str(schema.format),
        "message": schema.message,
        "messages": list(schema.messages),
        "subjects": [[place.subject, place.version] for place in schema.subjects],
        "body": base64.b64encode(schema.body).decode(),
    }


def _decoded(content: dict[str, Any], schema_id: int) -> WriterSchema:
    """Build a schema from the result of `_encoded`.

    Raises ValueError, KeyError or TypeError for any other content.
    """
    if content["id"] != schema_id:
        raise ValueError("the file belongs to another id")
    return WriterSchema(
        id=schema_id,
        format=Format(content["format"]),
        body=base64.b64decode(content["body"], validate=True),
        message=content["message"],
        messages=tuple(content["messages"]),
        subjects=tuple(SubjectVersion(subject, number) for subject, number in content["subjects"]),
    )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
