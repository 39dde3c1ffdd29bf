"""The entry of Google Cloud's Datastream: events in files of Avro, JSON or Parquet."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.decode.base import DecodeLimits
from distributary.decode.change.base import (
    ChangeDecoder,
    ChangeFormat,
    Recognized,
    Sampled,
    claim_parts,
)
from distributary.decode.change.datastream.decoder import DatastreamDecoder
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema


class Datastream(ChangeFormat):
    """Events name their table, and the reader of files writes it into the key of each record."""

    name = "datastream"
    label = "Datastream"
    images = ("payload",)
    decoded_together = True

    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for a schema; events have their keys in them."""
        del keys
        return DatastreamDecoder(schema, settings, limits)

    def names_in_records(self, payload: Format) -> bool:
        """Return true: the reader of files names the table of an event in Avro, too."""
        return True

    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Recognise events of Datastream by the tables that the reader of files has found."""
        claims = {record.key for record in records if record.key}
        tables = [parts for claim in claims if (parts := claim_parts(claim))]
        if not tables:
            return None
        each = "{schema}_{table}" if any(parts[1] for parts in tables) else "{database}_{table}"
        names = frozenset(".".join(filter(None, parts)) for parts in tables)
        return Recognized("Change events of Datastream", names, each, {"format": self.name})
