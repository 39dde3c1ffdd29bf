"""Events of Datastream in parts, as the readers of Avro and JSON pass them to the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import Mask, Positions

SKIPPED = ("uuid", "source_timestamp")
"""What has a column of its own, and is not has_source again in the envelope."""


@dataclass(frozen=True, slots=True)
class DatastreamEvents:
    """Some events, part by part; every array has one element for each."""

    positions: Positions
    """Which payloads they are."""
    top: Mapping[str, pa.Array]
    """The envelope, but for the three parts below."""
    sort_keys: pa.Array | None
    """JSON text."""
    metadata: Mapping[str, pa.Array]
    """Of the source."""
    payload: tuple[pa.Array, ...]
    """One column after the other, as the lake has them."""
    has_source: Mask
    """Which have metadata of the source."""
    filled: Mask
    """Which have a payload."""
    unit: int = 1_000
    """Microseconds of one in a source timestamp that is a number."""
    envelope: pa.Array | None = None
    """The whole envelope as JSON, if it is known already."""
    lost: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    """By column, by row: values that the column cannot hold."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By column, by row: milliseconds that a moment's clock was east of UTC."""

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
