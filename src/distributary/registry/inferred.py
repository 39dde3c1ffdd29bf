"""Schemas that nobody wrote: what records of one kind have looked like so far, kept durably.

Each is a JSON Schema that only grows. The folder is a registry like any other, so that rows can
name the version they were decoded with; its ids lie above those that a record can carry, so that
they never meet the ids of a server.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributary.errors import SchemaNotFoundError
from distributary.model.schema import Format, WriterSchema
from distributary.registry.compatibility import Level
from distributary.registry.files import FileRegistry
from distributary.registry.local import LocalRegistry
from distributary.registry.memory import MemoryRegistry

FIRST_ID = 2**32
"""A record's header holds 32 bits."""
_TRIALS = 2**31


class InferredSchemas:
    """The schemas of a pipeline's records that came without any, by what the records claim."""

    def __init__(self, folder: Path, *, trial: bool = False) -> None:
        """With `trial` nothing is written: what is learnt is forgotten with this object."""
        self._folder = folder
        self._kept = FileRegistry(folder)
        self._registry: LocalRegistry = MemoryRegistry() if trial else self._kept
        self._first = FIRST_ID + _TRIALS if trial else FIRST_ID
        self._newest: dict[str, tuple[WriterSchema, dict[str, Any]]] = {}

    def newest(self, claim: str) -> WriterSchema:
        """The schema by now; raises SchemaNotFoundError when no such record was ever seen."""
        if self.document(claim) is None:
            raise SchemaNotFoundError(
                "no record has shown yet what those of its table look like",
                where=claim,
                next_step="replay the letters once the table has rows",
            )
        return self._known(claim)[0]

    def document(self, claim: str) -> dict[str, Any] | None:
        """The schema as JSON, or None."""
        if claim not in self._newest and not self._is_kept(claim):
            return None
        return self._known(claim)[1]

    def add(self, claim: str, document: dict[str, Any]) -> None:
        """What holds from now on; the older ones stay what they were."""
        # a schema that only grows is compatible with what came before in its own way
        self._registry.set_compatibility(claim, Level.NONE)
        text = json.dumps(document, ensure_ascii=False, sort_keys=True)
        schema_id = self._registry.register(claim, text, format=Format.JSON)
        while self._registry.latest(claim).id != schema_id:
            # it held before, until records of several kinds spoiled what came after it
            self._registry.delete_version(claim, self._registry.versions(claim)[-1])
        self._newest[claim] = self._read(self._registry, claim, self._first)

    def claims(self) -> tuple[str, ...]:
        """Everything that has a schema."""
        return self._kept.subjects() if self._folder.is_dir() else ()

    def forget(self, claim: str) -> None:
        """Have no schema for a claim any more; rows that name one can still be told by it."""
        self._kept.delete_subject(claim)
        self._newest.pop(claim, None)

    def _is_kept(self, claim: str) -> bool:
        # the folder is made with the first schema
        return self._folder.is_dir() and bool(self._kept.versions(claim))

    def _known(self, claim: str) -> tuple[WriterSchema, dict[str, Any]]:
        found = self._newest.get(claim)
        if found is None:
            found = self._newest[claim] = self._read(self._kept, claim, FIRST_ID)
        return found

    @staticmethod
    def _read(
        registry: LocalRegistry, claim: str, first: int
    ) -> tuple[WriterSchema, dict[str, Any]]:
        schema = registry.latest(claim)
        return replace(schema, id=first + schema.id), json.loads(registry.text(schema.id))
