"""Rows of a bronze table as the records that they once were, each with whether it is ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.model.record import RAW
from distributary.route.shards import shard_of
from distributary.source.delta import SourceFile
from distributary.stage.bronze import WHOLE
from distributary.stage.share import MARKED

_ROWS_PER_ARROW_BATCH = 65_536
_COLUMNS = (
    *("type", "payload", WHOLE.name, "key", "headers"),
    *("_topic", "_partition", "_offset", "_timestamp"),
)
_shard_of = lru_cache(maxsize=100_000)(shard_of)


@dataclass(frozen=True, slots=True)
class BronzeReader:
    """Opens a task's files of the bronze table; satisfies `Reader`.

    Coordinates, key, headers and value are those of the record at its first source: a table or a
    dead letter does not show that its record took a detour.
    """

    tasks: Sequence[Sequence[SourceFile]]
    part: int | str
    shards: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each incoming row is the number of a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in self.tasks[number] if self.tasks else ():
                    yield from self.read(file)

    def read(self, file: SourceFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file."""
        with pq.ParquetFile(file.path) as parquet:
            for rows in parquet.iter_batches(_ROWS_PER_ARROW_BATCH, columns=list(_COLUMNS)):
                yield self._marked(rows)

    def _marked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            rows.column("key"),
            pc.coalesce(rows.column(WHOLE.name), rows.column("payload")),
            rows.column("headers"),
            *(rows.column(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")),
        ]
        raw = [array.cast(field.type) for array, field in zip(arrays, RAW, strict=True)]
        mine = self._mine(rows.column("type"))
        return pa.RecordBatch.from_arrays([*raw, mine], schema=MARKED)

    def _mine(self, types: pa.StringArray) -> pa.BooleanArray:
        """A record that names no type has no table: the first shard says what is wrong with it."""
        if self.part == "unified":
            return types.is_valid()
        encoded = types.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        mine = pa.array([_shard_of(name, self.shards) == self.part for name in names], pa.bool_())
        taken: pa.BooleanArray = mine.take(encoded.indices)
        return pc.fill_null(taken, fill_value=self.part == 0)
