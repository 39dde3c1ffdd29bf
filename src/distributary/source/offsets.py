"""Spark's own record of where a batch begins and ends, read from its checkpoint."""

from __future__ import annotations

from pathlib import Path

from distributary.errors import CheckpointError
from distributary.source.base import Offsets

_HEADER_LINES = 2


def batch_offsets(checkpoint: Path, batch: int) -> Offsets:
    """The offsets of a batch; Spark writes them down before it runs the batch."""
    end = end_offset(checkpoint, batch)
    if end is None:
        raise CheckpointError(
            f"Spark's checkpoint has no offsets for batch {batch}",
            where=str(checkpoint / "offsets" / str(batch)),
            next_step="restore the checkpoint from a copy, or begin anew with `reset`",
        )
    return Offsets(end_offset(checkpoint, batch - 1), end)


def end_offset(checkpoint: Path, batch: int) -> str | None:
    """Where a batch ends, if Spark still remembers.

    The file has a version line, a line of metadata, then a line per source: ours is the only one.
    """
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except FileNotFoundError:
        return None
    return lines[_HEADER_LINES] if len(lines) > _HEADER_LINES else None
