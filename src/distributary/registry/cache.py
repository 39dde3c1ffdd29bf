"""Remembers what a registry said: an id for ever, the newest version for a while.

<folder>/00000042.json              the schema with id 42
<folder>/guid-<guid>.json           the id of a GUID
<folder>/latest-<subject>.json      the id that was a subject's newest when last asked
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
from distributary.model.names import folder_name, printable
from distributary.model.record import Format, SubjectVersion, WriterSchema
from distributary.registry.base import SchemaRegistry, context_of
from distributary.registry.folder import encoded, read_json
from distributary.store.base import at

_ASK_AGAIN_SECONDS = 10.0
_log = logging.getLogger(__name__)


class CachedRegistry:
    """A registry in front of a slower one; docs/decisions/registry.md says what it remembers.

    With a folder, which belongs to one context of one registry, what is known outlives the process.
    While the registry does not answer, the newest version that was known before is given, however
    old, and the log says so.
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
        """The schema with this id, from memory, the folder or the registry."""
        known = self._known(schema_id)
        return self._keep(self._inner.by_id(schema_id)) if known is None else known

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID, from memory, the folder or the registry."""
        name = f"guid-{guid}"
        schema_id = self._guids.get(guid, self._pointed(name, str(guid)))
        if schema_id is None:
            schema_id = self._keep(self._inner.by_guid(guid)).id
            self._point(name, str(guid), schema_id)
        self._guids[guid] = schema_id
        return self.by_id(schema_id)

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject, as of a moment ago or, in an outage, of the last one."""
        return self._for_a_while((subject, None), lambda: self._inner.latest(subject))

    def version(self, subject: str, version: int) -> WriterSchema:
        """One version of a subject, as of a moment ago."""
        return self._for_a_while((subject, version), lambda: self._inner.version(subject, version))

    def versions(self, subject: str) -> tuple[int, ...]:
        """The versions of a subject, asked every time."""
        return self._inner.versions(subject)

    def subjects(self) -> tuple[str, ...]:
        """All subjects, asked every time."""
        return self._inner.subjects()

    def _for_a_while(
        self, key: tuple[str, int | None], ask: Callable[[], WriterSchema]
    ) -> WriterSchema:
        now = self._clock()
        until, known = self._versions.get(key, (0.0, None))
        if known is not None and now < until:
            return known
        seconds = self._latest_seconds
        try:
            found = ask()
        except RegistryUnavailableError as error:
            stale = known
            if stale is None and key[1] is None:
                # the newest version when the registry last answered
                schema_id = self._pointed(_latest_name(key[0]), key[0])
                stale = None if schema_id is None else self._known(schema_id)
            if stale is None:
                raise
            found, seconds = stale, min(seconds, _ASK_AGAIN_SECONDS)
            _log.warning(
                "%s: %s; going on with %s, which may not be the newest",
                *(error.code, error.what, printable(found.label())),
            )
        else:
            # an id of another context is somebody else's here
            if key[1] is None and found != known and context_of(key[0]) is None:
                self._point(_latest_name(key[0]), key[0], self._keep(found).id)
        self._versions[key] = (now + seconds, found)
        return found

    def _keep(self, found: WriterSchema) -> WriterSchema:
        self._by_id[found.id] = found
        self._write(f"{found.id:08d}", _encoded(found))
        return found

    def _known(self, schema_id: int) -> WriterSchema | None:
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
        """What was written; empty for anything else."""
        if self._store is None:
            return {}
        try:
            content = read_json(self._store, f"{name}.json") or {}
            digest = content.pop("digest", None)
            return content if digest == _digest(content) else {}
        except (OSError, RegistryUnavailableError, ValueError):
            # damaged or out of reach: the registry knows better, and its answer fixes the file
            return {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self._store is not None:
            # a cache that cannot be written is a slow start, not a failure
            with suppress(OSError):
                whole = {**content, "digest": _digest(content)}
                self._store.write(f"{name}.json", encoded(whole), durable=False)


def _latest_name(subject: str) -> str:
    return f"latest-{folder_name(subject)}"


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
    """Raises ValueError, KeyError or TypeError for anything but what `_encoded` gave."""
    if content["id"] != schema_id:
        raise ValueError("the file is that of another id")
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
