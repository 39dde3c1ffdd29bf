"""Remembers what a registry said: an id for ever, the newest version for a while."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributary.errors import RegistryUnavailableError
from distributary.model.schema import Format, SubjectVersion, WriterSchema
from distributary.registry.base import SchemaRegistry
from distributary.registry.writing import read_json, replace_file


class CachedRegistry:
    """A registry in front of a slower one.

    With a folder, ids outlive the process: a start needs no registry for schemas it has met. The
    folder belongs to one registry, because another one gives the same ids to other schemas. That
    something does not exist is never remembered: it may exist a moment later.
    """

    def __init__(
        self,
        inner: SchemaRegistry,
        *,
        folder: Path | None = None,
        latest_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._folder = folder
        self._latest_seconds = latest_seconds
        self._clock = clock
        self._by_id: dict[int, WriterSchema] = {}
        self._texts: dict[int, str] = {}
        self._versions: dict[tuple[str, int | None], tuple[float, WriterSchema]] = {}

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id, from memory, the folder or the registry."""
        known = self._by_id.get(schema_id) or self._load(schema_id)
        if known is None:
            return self.refresh(schema_id)
        self._by_id[schema_id] = known
        return known

    def refresh(self, schema_id: int) -> WriterSchema:
        """Ask again: the schema is the same for ever, but it may have got another subject."""
        found = self._inner.by_id(schema_id)
        self._by_id[schema_id] = found
        self._save(found)
        return found

    def latest(self, subject: str) -> WriterSchema:
        """The newest version of a subject, as of a moment ago."""
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

    def text(self, schema_id: int) -> str:
        """The schema as its author wrote it."""
        if schema_id not in self._texts:
            self._texts[schema_id] = self._inner.text(schema_id)
        return self._texts[schema_id]

    def _for_a_while(
        self, key: tuple[str, int | None], ask: Callable[[], WriterSchema]
    ) -> WriterSchema:
        now = self._clock()
        known = self._versions.get(key)
        if known is not None and now < known[0]:
            return known[1]
        found = ask()
        self._versions[key] = (now + self._latest_seconds, found)
        return found

    def _path(self, schema_id: int) -> Path | None:
        return self._folder / f"{schema_id:08d}.json" if self._folder is not None else None

    def _load(self, schema_id: int) -> WriterSchema | None:
        path = self._path(schema_id)
        if path is None:
            return None
        try:
            content = read_json(path)
            return _decoded(content, schema_id) if content is not None else None
        except (OSError, RegistryUnavailableError, KeyError, TypeError, ValueError):
            # damaged or out of reach: the registry knows better, and its answer mends the file
            return None

    def _save(self, schema: WriterSchema) -> None:
        path = self._path(schema.id)
        if path is not None:
            # a cache that cannot be written is a slow start, not a failure
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, _encoded(schema), durable=False)


def _encoded(schema: WriterSchema) -> dict[str, Any]:
    content = {
        "id": schema.id,
        "format": str(schema.format),
        "message": schema.message,
        "messages": list(schema.messages),
        "subjects": [[place.subject, place.version] for place in schema.subjects],
        "body": base64.b64encode(schema.body).decode(),
    }
    return {**content, "digest": _digest(content)}


def _decoded(content: dict[str, Any], schema_id: int) -> WriterSchema:
    """Raises ValueError, KeyError or TypeError for anything but what `_encoded` gave."""
    digest = content.pop("digest")
    if digest != _digest(content) or content["id"] != schema_id:
        raise ValueError("the file is not what was written")
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
