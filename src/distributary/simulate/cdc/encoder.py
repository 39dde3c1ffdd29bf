"""Events to the bytes of a file, in the format of the plan."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.simulate.cdc.avro_files import AvroSchema
from distributary.simulate.cdc.changes import Change
from distributary.simulate.cdc.envelope import Envelopes, Event
from distributary.simulate.cdc.json_files import json_event, json_file
from distributary.simulate.cdc.plan import CdcFormat, CdcPlan
from distributary.simulate.cdc.shapes import Shape

_SUFFIXES = {CdcFormat.AVRO: ".avro", CdcFormat.JSON: ".jsonl", CdcFormat.JSON_ARRAY: ".json"}


class FileEncoder:
    """Writes files of events; knows the schema of each shape that a table ever had."""

    def __init__(self, plan: CdcPlan) -> None:
        self._plan = plan
        self._envelopes = Envelopes(plan)
        self._schemas: dict[Shape, AvroSchema] = {}

    @property
    def suffix(self) -> str:
        """What names of files end with."""
        return _SUFFIXES[self._plan.format] + (".gz" if self._plan.gzip else "")

    def schema(self, shape: Shape) -> AvroSchema:
        """The schema of a table's files; files in JSON name it, too."""
        if shape not in self._schemas:
            self._schemas[shape] = AvroSchema(shape)
        return self._schemas[shape]

    def read_method(self, change: Change) -> str:
        """How an event was read."""
        return self._envelopes.read_method(change)

    def file(self, events: Sequence[Event], shape: Shape, *, name: str) -> bytes:
        """A whole file."""
        schema = self.schema(shape)
        built = [self._envelopes.build(event, schema_key=schema.key) for event in events]
        if self._plan.format is CdcFormat.AVRO:
            return schema.file(built, name=name)
        lines = [
            json_event(envelope, shape, time_style=event.time_style)
            for envelope, event in zip(built, events, strict=True)
        ]
        return json_file(lines, self._plan)
