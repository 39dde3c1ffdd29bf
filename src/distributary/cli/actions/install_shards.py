"""`install --shards`: which types get another job, and which jobs may not go yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.cli.output import Paper
from distributary.cli.words import counted
from distributary.config.pipeline import PipelineConfig
from distributary.config.shard import job_name
from distributary.deploy.pipeline_file import Installable
from distributary.deploy.shard_files import numbers_in, shards_folder
from distributary.deploy.shards import ShardsTarget, installed_shards, spread_target
from distributary.deploy.targets import TargetName
from distributary.route.shards import Move, moves

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Spread:
    """The jobs of a pipeline, and what changes for its types."""

    place: ShardsTarget
    pipeline: str
    shards: int
    before: int
    """The number of shards so far; 0 for none."""
    moves: tuple[Move, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "shards": self.shards,
            "shards_before": self.before,
            "moves": [{"type": m.type, "from": m.before, "to": m.after} for m in self.moves],
            "kept": list(self.place.kept),
        }

    def draw(self, paper: Paper) -> None:
        """What moves, and what is left to do."""
        for move in self.moves[:_MOST_SHOWN]:
            there = job_name(self.pipeline, move.after)
            paper.line(f"moves  {move.type}  {job_name(self.pipeline, move.before)} -> {there}")
        if len(self.moves) > _MOST_SHOWN:
            paper.line(f"       and {counted(len(self.moves) - _MOST_SHOWN, 'more type')}")
        if self.before not in (0, self.shards):
            paper.line(f"then   restart {self.pipeline}: it divides the stream where it stands")
        for name in self.place.kept:
            paper.line(f"kept   {name}, until it has settled what is its own; then install again")


def plan_spread(
    name: TargetName, pipeline: Installable, *, shards: int, out: Path | None
) -> Spread:
    """Look at what is installed and at the lake, and say what would be."""
    config = pipeline.loaded.config if pipeline.loaded is not None else None

    # it takes Spark's classes to ask, and nobody asks when the number grows
    def is_done(number: int) -> bool:
        from distributary.run.sharding import is_retired

        return config is not None and is_retired(config, number)

    def letters(number: int) -> bool:
        from distributary.run.sharding import has_letters

        return config is not None and has_letters(config, number)

    place = spread_target(
        name, pipeline, shards=shards, out=out, is_done=is_done, has_letters=letters
    )
    before = installed_shards(pipeline)
    known = _types(config, pipeline) if config is not None and before else []
    moved = moves(known, before, shards) if before else ()
    return Spread(place, pipeline.name, shards, before, moved)


def _types(config: PipelineConfig, pipeline: Installable) -> list[str]:
    """The types that have tables in the lake, where it is to be seen."""
    from distributary.observe.ledger import Ledger

    lake = config.lake.local_path
    if lake is None or not lake.is_dir():
        return []
    numbers = numbers_in(shards_folder(pipeline), config.name)
    names = {config.name, *(job_name(config.name, number) for number in numbers)}
    ledger = Ledger(str(lake), storage_options=config.lake.options or None)
    known = ledger.tables(schema_ids=False)
    return sorted({t.type for t in known if t.type and t.pipeline in names})
