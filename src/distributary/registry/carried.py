"""Schemas that records carry with them, in JSON of Kafka Connect: kept once, known by their text.

They are found by the first half of a digest of their text, as those of change files are, and have
ids above any that a registry gives.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from uuid import UUID

from distributary import durable
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
        self._newest: dict[str, UUID] = {}

    def keep(self, text: str) -> None:
        """Write a schema down, unless it is there."""
        guid = guid_of(text.encode())
        if guid not in self._known:
            if not self._trial:
                keep_schema(self._folder, text.encode())
            self._known[guid] = _schema(guid, text)

    def note(self, claim: str, guid: UUID) -> None:
        """Remember which schema the records of a claim came with last."""
        if self._newest.get(claim) != guid:
            self._newest[claim] = guid
            if not self._trial:
                self._folder.mkdir(parents=True, exist_ok=True)
                durable.replace(self._note(claim), guid.hex.encode())

    def newest(self, claim: str) -> WriterSchema:
        """The schema that the records of a claim came with last."""
        guid = self._newest.get(claim)
        if guid is None:
            try:
                guid = UUID(hex=self._note(claim).read_text("ascii"))
            except (OSError, ValueError):
                raise SchemaNotFoundError(
                    "no record has brought a schema for this table",
                    where=claim,
                    next_step="nothing, if the table never had a row",
                ) from None
            self._newest[claim] = guid
        return self.by_guid(guid)

    def _note(self, claim: str) -> Path:
        # names of tables may hold what names of files may not
        return self._folder / f"{hashlib.sha256(claim.encode()).hexdigest()}.newest"

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
