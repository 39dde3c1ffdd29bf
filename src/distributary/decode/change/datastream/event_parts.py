"""Events of Datastream in parts, as the readers of Avro and JSON pass them to the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import Mask, Positions

SKIPPED = ("uuid", "source_timestamp")
"""The fields that have columns of their own and are left out of the envelope column."""


@dataclass(frozen=True, slots=True)
class DatastreamEvents:
    """The parts of some events; every array has one element per event."""

    positions: Positions
    """The positions of the events among the payloads."""
    top: Mapping[str, pa.Array]
    """The fields of the envelope, without the three parts below."""
    sort_keys: pa.Array | None
    """The sort keys as JSON text."""
    metadata: Mapping[str, pa.Array]
    """The metadata of the source, by field."""
    payload: tuple[pa.Array, ...]
    """The columns of the payload, with the types of the lake."""
    has_source: Mask
    """A mask of the events with metadata of the source."""
    filled: Mask
    """A mask of the events with a payload."""
    unit: int = 1_000
    """The unit of numeric source timestamps, in microseconds."""
    envelope: pa.Array | None = None
    """The whole envelope as JSON, if it is known already."""
    lost: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    """The values that a column cannot hold, by column and row."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """The offset of a time's clock from UTC in milliseconds, by column and row."""

    def __len__(self) -> int:
        return len(self.positions)

    def only(self, kept: Mask) -> DatastreamEvents:
        """Return the events selected by `kept`."""
        mask = pa.array(kept)
        place = np.cumsum(kept) - 1
        return replace(
            self,
            positions=self.positions[kept],
            top={name: array.filter(mask) for name, array in self.top.items()},
            sort_keys=None if self.sort_keys is None else self.sort_keys.filter(mask),
            metadata={name: array.filter(mask) for name, array in self.metadata.items()},
            payload=tuple(array.filter(mask) for array in self.payload),
            has_source=self.has_source[kept],
            filled=self.filled[kept],
            envelope=None if self.envelope is None else self.envelope.filter(mask),
            lost=_moved(self.lost, kept, place),
            offsets=_moved(self.offsets, kept, place),
        )


def _moved(
    values: Mapping[str, Mapping[int, Any]], kept: Mask, place: Positions
) -> dict[str, dict[int, Any]]:
    return {
        name: {int(place[row]): value for row, value in rows.items() if kept[row]}
        for name, rows in values.items()
    }
