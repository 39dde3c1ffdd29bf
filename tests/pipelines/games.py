"""A pipeline file, its registry and its source, with games in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from distributary.model.record import RAW
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

FILE = """
name: games
source: {type: delta, path: wrapper, value: wrapper}
registry: {path: schemas}
envelope: {format: protobuf, subject: wrapper-value, type: game_name}
payload: {format: protobuf, framing: auto}
tables: {each: "silver_{type}"}
lake: {path: lake}
"""


@dataclass
class Games:
    """A folder with a pipeline file and a registry; records are given out, not written."""

    folder: Path
    text: str = FILE

    def __post_init__(self) -> None:
        self.file = self.folder / "games.yaml"
        self.file.write_text(self.text)
        self.registry = FileRegistry(self.folder / "schemas", durable=False)

    def send(self, plan: GamesPlan) -> pa.RecordBatch:
        """Register the plan's versions; its records, raw."""
        found = [
            message
            for each in stream_rounds(plan, registry=self.registry)
            for message in each.messages()
        ]
        return raw([message.value for message in found])


def raw(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, RAW.field("headers").type),
        "topic": pa.array(["wrapper"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.nulls(count, RAW.field("timestamp").type),
    }
    return pa.RecordBatch.from_arrays([columns[f.name] for f in RAW], schema=RAW)


def as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A reader of records that are raw already."""
    return batches
