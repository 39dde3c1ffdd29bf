"""How far the jobs that share a pipeline's types have come, by their own checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distributary.config.lake import local_path
from distributary.config.pipeline import PipelineConfig
from distributary.config.shard import Part, job_name
from distributary.observe import layout
from distributary.publish.parking import parked
from distributary.run.checkpoint import Checkpoint, Manifests
from distributary.run.cuts import Epoch, place
from distributary.source.base import Position


class Table(Protocol):
    """The bronze table, as far as progress is concerned."""

    def advance(self, start: Position, until: Position) -> Position | None:
        """Where a batch that starts at `start` ends; None if there is nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """The jobs of one pipeline."""

    config: PipelineConfig
    """Of any of them: lake and checkpoint are the same for all."""
    of: str

    def behind(self, table: Table, part: Part, epochs: Sequence[Epoch]) -> str:
        """Why a job is not done with these epochs, which have ended; empty if it is."""
        position = self.settled(part)
        for epoch in epochs:
            if not epoch.takes(part) or epoch.is_before(position):
                continue
            begin, end = epoch.begin(position), epoch.end()
            if place(begin) < place(end) and table.advance(begin, end) is not None:
                return f"has settled what comes before version {place(begin)[0]}"
        if parked(layout.parked(self._lake, job_name(self.of, part))):
            return "has parked tables: `distributary resume` them"
        return ""

    def settled(self, part: Part) -> Position | None:
        """Behind the newest batch that a job has settled; None if it never began."""
        folder = self._checkpoint(part)
        manifests = Manifests(folder / "manifests")
        newest = manifests.settled()
        manifest = manifests.read(newest) if newest >= 0 else None
        if manifest is not None:
            return manifest.source_state
        return Checkpoint(folder, "").known_first_position()

    def _checkpoint(self, part: Part) -> Path:
        path = self.config.lake.checkpoint_of(job_name(self.of, part))
        return local_path(path) or Path(path)

    @property
    def _lake(self) -> str:
        return self.config.lake.address
