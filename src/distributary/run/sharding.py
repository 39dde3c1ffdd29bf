"""What the owner of a checkpoint does about shards before its first batch."""

from __future__ import annotations

from pathlib import Path

from distributary.config.pipeline import PipelineConfig
from distributary.config.shard import job_name
from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.errors import CheckpointError, ConfigError
from distributary.model.deadletter import DeadLetterStatus
from distributary.observe.deadletters import DeadLetters
from distributary.publish.parking import parked
from distributary.run.checkpoint import Manifests
from distributary.run.cuts import Cuts
from distributary.run.shard_progress import Progress
from distributary.run.tables import table_folder
from distributary.source.delta import DeltaSource
from distributary.source.delta_log import DeltaLog


def divide(config: PipelineConfig, *, lake: str, manifests: Manifests, parking: str) -> None:
    """Cut the stream where the number of shards changes; refuse a file that would write twice.

    Called with the claim of the checkpoint, so that nobody else lands records meanwhile.
    """
    if config.lake.local_path is None:
        return
    cuts = Cuts.of(lake, config.name)
    shard = config.shard
    if shard is None:
        if shards := cuts.read().shards:
            raise ConfigError(
                f"the types of pipeline {config.name} are spread over jobs of their own",
                where=str(cuts.folder),
                evidence=f"{shards} shards",
                next_step=f"run the files that `install --shards {shards}` writes beside this one",
            )
    elif shard.shards is not None:
        if not cuts.read().epochs:
            _refuse_unfinished(config, manifests, parking)
        cuts.divide(shard.shards, lambda: _newest(config))


def family(config: PipelineConfig, *, lake: str) -> tuple[str, ...]:
    """The pipelines whose types one job may be given: itself, and those it shares them with."""
    shard = config.shard
    if shard is None or not isinstance(shard.part, int):
        return (config.name,)
    others = range(Cuts.of(lake, shard.of).read().most)
    return (shard.of, *(job_name(shard.of, n) for n in {*others, shard.part}))


def _refuse_unfinished(config: PipelineConfig, manifests: Manifests, parking: str) -> None:
    """What one job alone has decided, it must bring to all of its tables first."""
    half_done = manifests.newest() > manifests.settled()
    if half_done or parked(parking):
        raise CheckpointError(
            "the pipeline has unfinished business from before it was spread",
            where=str(manifests.folder),
            evidence="a batch is decided and not settled" if half_done else "tables are parked",
            next_step=f"run the file of {config.name} itself once more, or `distributary resume` "
            "its tables; then start this job again",
        )


def _newest(config: PipelineConfig) -> int:
    """The newest version of the bronze table; -1 while there is none."""
    folder = config.lake.local_path
    table = config.tables.bronze
    if folder is None or table is None or not (folder / table / "_delta_log").exists():
        return -1
    return DeltaLog(table_folder(config, table), value="payload").newest_version()


def is_retired(config: PipelineConfig, number: int) -> bool:
    """Whether a shard has nothing left to do, by what the lake says.

    `config` is the one of the whole pipeline; where its lake is not to be seen, nobody knows.
    """
    folder, bronze = config.lake.local_path, config.tables.bronze
    if folder is None or bronze is None or not folder.is_dir():
        return False
    division = Cuts.of(str(folder), config.name).read()
    if division.announced is not None or not division.epochs or division.epochs[-1].takes(number):
        return False
    table = DeltaSource(_whole_table(config, bronze), storage_options=config.lake.options)
    return not Progress(config, config.name).behind(table, number, division.epochs[:-1])


def has_letters(config: PipelineConfig, number: int) -> bool:
    """Whether dead letters of a shard are open: its file says how they are sent again."""
    folder = Path(table_folder(config, config.tables.dead_letters))
    if not (folder / "_delta_log").is_dir():
        return False
    counts = DeadLetters(str(folder)).count_by_status(pipeline=job_name(config.name, number))
    return counts[DeadLetterStatus.OPEN] > 0


def refuse_replay(config: PipelineConfig) -> None:
    """The bronze job keeps no table that a letter could go to."""
    if config.shard is not None and config.shard.lands:
        raise ConfigError(
            f"pipeline {config.name} lands records and sends no dead letters again",
            where="shard.part",
            next_step="letters of a shard: --pipeline NAME-shard-N; letters from before the types "
            "were spread: --file with the file of the pipeline itself",
        )


def _whole_table(config: PipelineConfig, bronze: str) -> DeltaSourceConfig:
    return DeltaSourceConfig(type="delta", path=table_folder(config, bronze), value="payload")
