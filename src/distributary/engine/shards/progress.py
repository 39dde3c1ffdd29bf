"""The division of a stream among jobs that share its types, and its changes over time.

<lake>/_distributary/pipelines/<name>/shards/000000.json       {"shards": 2}
                                             000000.at.json    {"version": 17}
                                             000001.json       {"shards": 3}
                                             000001.at.json    {"version": 40}

From version 17 of the bronze table on, two jobs share the types; from version 40 on, three. Both
files of a cut are created exclusively and never changed. A writer first announces the number of
shards, then looks up the newest version and places the cut after it. A reader first looks up the
newest version, then the cuts. Without an announcement, a later cut will be placed after everything
that the reader has seen; with an announcement without a place, the reader waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.shard import Part, job_name
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.engine.planning.table_book import table_folder
from distributary.engine.progress.checkpoint import Checkpoint, Manifests
from distributary.errors import CheckpointError, ConfigError
from distributary.model import layout
from distributary.model.deadletter import DeadLetterStatus
from distributary.observe.deadletters import DeadLetters
from distributary.publish.parking import parked
from distributary.source.base import Position
from distributary.source.delta.source import DeltaSource
from distributary.source.delta.source_log import DeltaLog
from distributary.store.base import Store, at, introduce, reaching
from distributary.store.seal import seal, unseal

_NAME = re.compile(r"[0-9]{6}\.json")
_CUT_BACK = "restore the file from a copy: it says which job has which records"


@dataclass(frozen=True, slots=True)
class Epoch:
    """A range of versions of the bronze table with one number of shards."""

    shards: int
    first: int
    """The first version of the bronze table."""
    last: int | None = None
    """The first version of the next epoch; None for the current epoch."""

    def takes(self, part: int | str) -> bool:
        """Return whether a job has work in this epoch."""
        return part == "unified" or (isinstance(part, int) and part < self.shards)

    def is_before(self, position: Position | None) -> bool:
        """Return whether a job at `position` is past the whole epoch."""
        return position is not None and self.last is not None and place(position) >= (self.last, 0)

    def begin(self, position: Position | None) -> Position:
        """Return the position at which a job at `position` starts reading.

        Row counts belong to each job: a job that begins here begins with zero.
        """
        if position is None:
            return {"version": self.first, "index": 0, "rows": 0}
        if place(position) >= (self.first, 0):
            return position
        return {**position, "version": self.first, "index": 0}

    def end(self, until: Position | None = None) -> Position:
        """Return the end of the epoch, or `until` if that comes first."""
        if self.last is not None and (until is None or place(until) > (self.last, 0)):
            return {"version": self.last, "index": 0, "rows": -1}
        if until is None:
            raise AssertionError("an epoch that continues has no end")
        return until


@dataclass(frozen=True, slots=True)
class Division:
    """The known epochs of a stream."""

    epochs: tuple[Epoch, ...] = ()
    announced: int | None = None
    """The announced number of shards of a cut without a place."""

    @property
    def shards(self) -> int:
        """Return the current number of shards; 0 if the stream is not divided."""
        return self.announced or (self.epochs[-1].shards if self.epochs else 0)

    @property
    def most(self) -> int:
        """Return the largest number of shards in any epoch."""
        return max((epoch.shards for epoch in self.epochs), default=0)


@dataclass(frozen=True, slots=True)
class StreamCuts:
    """The cuts of one pipeline's stream, in a folder."""

    store: Store
    _known: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The cuts that were read; they never change, and reading costs requests in a bucket."""

    @classmethod
    def of(cls, lake: str, pipeline: str) -> StreamCuts:
        """Return the cuts of a pipeline in a lake."""
        return cls(at(layout.pipeline(lake, pipeline)).below("shards"))

    def read(self) -> Division:
        """Read all epochs, the oldest first."""
        with reaching(self.store.address):
            names = {file.name for file in self.store.files()}
        announced = sorted(name for name in names if _NAME.fullmatch(name))
        # a cut is announced only when all earlier cuts have places
        placed = [_place(n) for n in range(len(announced))]
        placed = placed if not placed or placed[-1] in names else placed[:-1]
        numbers = [self._number(name, "shards") for name in announced]
        places = [self._number(name, "version") for name in placed]
        ends = [*places[1:], None]
        epochs = tuple(map(Epoch, numbers, places, ends))
        return Division(epochs, numbers[-1] if len(places) < len(numbers) else None)

    def divide(self, shards: int, newest: Callable[[], int]) -> Division:
        """Divide the stream among this many jobs, starting after the `newest` version.

        A second call changes nothing; it completes a cut that a crash interrupted.
        """
        found = self.read()
        if found.announced is not None:
            self._create(_place(len(found.epochs)), {"version": newest() + 1})
            found = self.read()
        if found.shards != shards:
            number = len(found.epochs)
            self._create(f"{number:06d}.json", {"shards": shards})
            self._create(_place(number), {"version": newest() + 1})
        return self.read()

    def _create(self, name: str, content: Mapping[str, int]) -> None:
        with reaching(self.store.address):
            self.store.create(name, seal(json.dumps(content).encode()))

    def _number(self, name: str, key: str) -> int:
        try:
            if name not in self._known:
                where = f"{self.store.address}/{name}"
                text = unseal(self.store.read(name), where=where, next_step=_CUT_BACK)
                self._known[name] = int(json.loads(text)[key])
            return self._known[name]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a cut of the stream cannot be read",
                where=f"{self.store.address}/{name}",
                evidence=f"{type(error).__name__}: {error}",
                next_step=_CUT_BACK,
            ) from error


def _place(number: int) -> str:
    return f"{number:06d}.at.json"


def place(position: Position) -> tuple[int, int]:
    """Return the comparable part of a position."""
    return int(position["version"]), int(position["index"])


# The progress of the jobs that share a pipeline's types, from their checkpoints.


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the jobs of one pipeline."""

    config: PipelineConfig
    """The settings of any of the jobs; lake and checkpoint are the same for all."""
    of: str

    def behind(self, table: DeltaSource, part: Part, epochs: Sequence[Epoch]) -> str:
        """Return the reason why a job has not finished these ended epochs; empty if it has."""
        position = self.settled(part)
        for epoch in epochs:
            if not epoch.takes(part) or epoch.is_before(position):
                continue
            begin, end = epoch.begin(position), epoch.end()
            if place(begin) < place(end) and table.advance(begin, end) is not None:
                return f"has finished what comes before version {place(begin)[0]}"
        if parked(self.config.lake.parking_of(job_name(self.of, part))):
            return "has parked tables: `distributary resume` them"
        return ""

    def settled(self, part: Part) -> Position | None:
        """Return the position after the newest settled batch of a job; None if it never began."""
        checkpoint = at(self.config.lake.checkpoint_of(job_name(self.of, part)))
        manifests = Manifests(checkpoint.below("manifests"))
        newest = manifests.settled()
        manifest = manifests.read(newest) if newest >= 0 else None
        if manifest is not None:
            return manifest.source_state
        return Checkpoint(checkpoint, "").known_first_position()


# The steps for shards that the owner of a checkpoint does before its first batch.


def divide(config: PipelineConfig, *, lake: str, manifests: Manifests, parking: str) -> None:
    """Cut the stream if the number of shards changed; refuse a file that would write rows twice.

    Called under the claim of the checkpoint, so that no other process writes bronze meanwhile.
    """
    cuts = StreamCuts.of(lake, config.name)
    shard = config.shard
    if shard is None:
        if shards := cuts.read().shards:
            raise ConfigError(
                f"the types of pipeline {config.name} are spread over jobs of their own",
                where=cuts.store.address,
                evidence=f"{shards} shards",
                next_step=f"run the files that `install --shards {shards}` writes beside this one",
            )
    elif shard.shards is not None:
        if not cuts.read().epochs:
            _refuse_unfinished(config, manifests, parking)
        cuts.divide(shard.shards, lambda: _newest(config))


def family(config: PipelineConfig, *, lake: str) -> tuple[str, ...]:
    """Return the pipelines that share types with a pipeline, including itself."""
    shard = config.shard
    if shard is None or not isinstance(shard.part, int):
        return (config.name,)
    others = range(StreamCuts.of(lake, shard.of).read().most)
    return (shard.of, *(job_name(shard.of, n) for n in {*others, shard.part}))


def _refuse_unfinished(config: PipelineConfig, manifests: Manifests, parking: str) -> None:
    """Raise if a job without shards has decided batches that are not settled yet."""
    half_done = manifests.newest() > manifests.settled()
    if half_done or parked(parking):
        raise CheckpointError(
            "the pipeline has unfinished work from before its types were divided among jobs",
            where=manifests.store.address,
            evidence="a batch is decided and not finished" if half_done else "tables are parked",
            next_step=f"run the file of {config.name} itself once more, or `distributary resume` "
            "its tables; then start this job again",
        )


def _newest(config: PipelineConfig) -> int:
    """Return the newest version of the bronze table; -1 if there is none."""
    bronze = config.tables.bronze
    if bronze is None:
        return -1
    table = table_folder(config, bronze)
    with reaching(table):
        if not at(table).exists("_delta_log"):
            return -1
    log = DeltaLog(table, value="payload", storage_options=config.lake.options)
    return log.newest_version()


def is_retired(config: PipelineConfig, number: int) -> bool:
    """Return whether a shard has finished, according to the lake.

    `config` is that of the whole pipeline; if its lake cannot be read from here, the answer is no.
    """
    bronze = config.tables.bronze
    if bronze is None or not is_seen(config):
        return False
    division = StreamCuts.of(config.lake.address, config.name).read()
    if division.announced is not None or not division.epochs or division.epochs[-1].takes(number):
        return False
    whole = DeltaSourceConfig(type="delta", path=table_folder(config, bronze), value="payload")
    table = DeltaSource(whole, storage_options=config.lake.options)
    return not Progress(config, config.name).behind(table, number, division.epochs[:-1])


def has_letters(config: PipelineConfig, number: int) -> bool:
    """Return whether dead letters of a shard are open: its file is needed to replay them."""
    folder = table_folder(config, config.tables.dead_letters)
    if not is_seen(config) or not at(folder).exists("_delta_log"):
        return False
    letters = DeadLetters(folder)
    counts = letters.count_by_status(pipeline=job_name(config.name, number))
    return counts[DeadLetterStatus.OPEN] > 0


def is_seen(config: PipelineConfig) -> bool:
    """Return whether the lake can be read from here."""
    introduce(config.lake.address, config.lake.options)
    introduce(config.lake.checkpoint, config.lake.options)
    try:
        return at(config.lake.address).exists()
    except OSError:
        return False


def refuse_replay(config: PipelineConfig) -> None:
    """Raise ConfigError for a replay in the bronze job, which has no table for records."""
    if config.shard is not None and config.shard.lands:
        raise ConfigError(
            f"pipeline {config.name} only writes bronze and cannot replay dead letters",
            where="shard.part",
            next_step="dead letters of a shard: --pipeline NAME-shard-N; those from before the "
            "types were spread: --file with the file of the pipeline itself",
        )
