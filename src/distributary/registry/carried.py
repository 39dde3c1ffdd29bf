"""Schemas that records carry with them, in JSON of Kafka Connect: kept once, known by their text.

They are found by the first half of a digest of their text, as those of change files are, and have
ids above any that a registry gives.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from distributary.errors import SchemaNotFoundError
from distributary.model.schema import Format, WriterSchema
from distributary.registry.file_schemas import guid_of, keep_schema, read_schema
from distributary.registry.inferred import FIRST_ID


class CarriedSchemas:
    """Such schemas in a folder of the checkpoint; with `trial`, in memory only."""

    def __init__(self, folder: Path, *, trial: bool = False) -> None:
        self._folder = folder
        self._trial = trial
        self._known: dict[UUID, WriterSchema] = {}

    def keep(self, text: str) -> None:
        """Write a schema down, unless it is there."""
        guid = guid_of(text.encode())
        if guid not in self._known:
            if not self._trial:
                keep_schema(self._folder, text.encode())
            self._known[guid] = _schema(guid, text)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """A schema that came with a record before."""
        if guid not in self._known:
            text = read_schema(self._folder, guid)
            if text is None:
                raise SchemaNotFoundError(
                    "no record has brought such a schema",
                    where=str(guid),
                    next_step="the folder of schemas is part of the checkpoint: restore it whole",
                )
            self._known[guid] = _schema(guid, text)
        return self._known[guid]


def _schema(guid: UUID, text: str) -> WriterSchema:
    # 62 bits of a digest, beyond the ids that are counted from one
    number = FIRST_ID + (guid.int >> 66 | 1 << 40)
    return WriterSchema(number, Format.JSON, text.encode(), "event")
