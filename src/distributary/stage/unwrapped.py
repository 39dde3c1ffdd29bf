"""What hop one has found out about a batch of raw records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.stage.letters import Letter

Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class Unwrapped:
    """The records of a raw batch that could be unwrapped, column-wise, and the others."""

    rows: Rows
    """Positions in the raw batch; all columns below have this length and order."""
    claims: pa.StringArray
    schema_ids: pa.Int64Array
    marks: pa.StringArray | None
    """What else tells records apart: `message_index@guid@key_schema`; parts may be missing."""
    payloads: pa.BinaryArray
    letters: list[Letter] = field(default_factory=list)
    skipped: int = 0
    """Records to pass over: tombstones, where a policy says so, and what is no change of a row."""
    carried: dict[str, str] = field(default_factory=dict)
    """Schemas that came with the records themselves, by GUID."""


def only(unwrapped: Unwrapped, keep: Rows) -> Unwrapped:
    """These records, by their places; letters and counts stay."""
    chosen = pa.array(keep)
    marks = unwrapped.marks
    return replace(
        unwrapped,
        rows=unwrapped.rows[keep],
        claims=unwrapped.claims.take(chosen),
        schema_ids=unwrapped.schema_ids.take(chosen),
        marks=None if marks is None else marks.take(chosen),
        payloads=unwrapped.payloads.take(chosen),
    )
