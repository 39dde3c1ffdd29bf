"""The records of a batch that are this job's own, where a source marks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.record import RAW

MINE = pa.field("mine", pa.bool_(), nullable=False)
MARKED = pa.schema([*RAW, MINE])
"""Raw records, and for each whether this job takes it; the others are another job's."""


class Share:
    """Passes on what is this job's own, and counts the rest."""

    def __init__(self) -> None:
        self.others = 0
        """Records of other jobs so far: read, and passed over."""

    def own(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raw records; batches without marks pass as they are."""
        for batch in batches:
            yield self._own(batch) if batch.num_columns == len(MARKED) else batch

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = batch.column(MINE.name)
        raw = batch.select(RAW.names)
        others = batch.num_rows - (pc.sum(mine).as_py() or 0)
        self.others += others
        return raw.filter(mine) if others else raw
