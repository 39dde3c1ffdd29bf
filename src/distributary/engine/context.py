"""Everything a batch works with, gathered once per run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from distributary.config.pipeline import PipelineConfig
from distributary.engine.monitor import Lag, Monitor, lag_without_asking
from distributary.engine.plan import Planner
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy, Manifests
from distributary.engine.progress.claim import Claim
from distributary.engine.registrar import Registrar
from distributary.model.manifest import SourceRange, app_id
from distributary.model.table import TablePlan
from distributary.observe.cards import CatalogState
from distributary.observe.events import Asked, EventBus, RegistryAsked
from distributary.observe.ledger.ledger import Ledger
from distributary.publish.base import Publisher
from distributary.registry.base import RegistryCalls
from distributary.source.base import BatchInput
from distributary.stage.job import TaskPlanFile
from distributary.stage.task_plan import TaskPlan
from distributary.store.base import at, reaching


@dataclass(slots=True)
class LaneProgress:
    """How far one lane of a pipeline has come: the stream itself, or a replay of dead letters."""

    pipeline: str
    lake: str
    checkpoint: Checkpoint
    claim: Claim
    ledger: Ledger
    lane: str = "stream"
    newest_settled: int = -1
    """By the ledger, at the start: up to here batches may only be repeated, not replaced."""
    manifests: Manifests = field(init=False)
    """The decided batches of this lane."""

    def __post_init__(self) -> None:
        self.manifests = self.checkpoint.manifests(self.lane, owned=True)

    @property
    def app_id(self) -> str:
        """Return the name by which this lane signs its commits."""
        return app_id(self.pipeline, self.checkpoint.life, self.lane)

    @property
    def manifest_copy(self) -> ManifestCopy:
        """Return the place of the newest decided batch in the lake."""
        return ManifestCopy(self.lake, self.pipeline, self.lane)

    def settled_ranges(self, batch: int) -> tuple[SourceRange, ...] | None:
        """Return what a batch covered that was settled before, in this life; None if it was not."""
        if batch > self.newest_settled:
            return None
        return self.ledger.settled_ranges(self.pipeline, self.checkpoint.life, self.lane, batch)


@dataclass(slots=True)
class PublishState:
    """The publisher of a run's tables, and what the run knows of their commits."""

    publisher: Publisher
    parking: str
    """Folder for the files of parked tables."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while tables are committed: a batch and a `resume` must not overtake each other."""
    marked: dict[str, int] = field(default_factory=dict)
    """By table, the newest batch of this lane in the table's own log, when it was last read."""
    followed: set[str] = field(default_factory=set)
    """Logs of change data whose tables have everything that was there when this run began."""


@dataclass(slots=True)
class StageState:
    """What the two hops of a stage share from batch to batch: their exchange and their plan."""

    folder: str
    """The folder in the lake for the plans of this lane."""
    exchange: str = "disk"
    """How records travel between the two hops: by a `disk` that all workers see, or `spark`."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Records per table of the batch before."""
    _sent: tuple[TaskPlan, TaskPlanFile] | None = None

    def sent(self, plan: TaskPlan) -> TaskPlanFile:
        """Send the plan to the executors, unless they have this one already."""
        if self._sent is None or self._sent[0] is not plan:
            self.forget_sent()
            with reaching(self.folder):
                self._sent = (plan, TaskPlanFile.send(plan, self.folder))
            # what is known of a thousand tables stays: to walk over it again and again, looking
            # for garbage, costs more than the facts of a batch that set the collector off
            gc.collect()
            gc.freeze()
        return self._sent[1]

    def forget_older_sent(self) -> None:
        """Remove the plans of processes that were killed; only this process owns the lane."""
        with suppress(OSError):
            at(self.folder).remove_folder()

    def forget_sent(self) -> None:
        """Remove the plan that was sent, if one was."""
        if self._sent is not None:
            with suppress(OSError):
                self._sent[1].remove()
            self._sent = None


@dataclass(slots=True)
class RunReports:
    """What a run publishes about itself: events, registry requests and the lag."""

    pipeline: str
    bus: EventBus
    calls: RegistryCalls = field(default_factory=RegistryCalls)
    """Requests to the registry that no event has reported yet."""
    monitor: Monitor | None = None
    """Measures the lag beside the batches of a stream."""

    def lag(self, source: BatchInput, newest_us: int | None) -> Lag:
        """Return how far behind its source a batch is that is settled now."""
        if self.monitor is None:
            return lag_without_asking(source, newest_us)
        return self.monitor.lag(source, newest_us)

    def publish_registry_calls(self) -> None:
        """Publish the requests to the registry since the last time."""
        calls = tuple(Asked(*kind, *sums) for kind, sums in self.calls.take().items())
        if calls:
            self.bus.publish(RegistryAsked(pipeline=self.pipeline, calls=calls))


@dataclass(slots=True)
class RunContext:
    """One run of one lane of a pipeline."""

    config: PipelineConfig
    spark: SparkSession
    planner: Planner
    ledger: Ledger
    progress: LaneProgress
    publishing: PublishState
    staging: StageState
    reports: RunReports
    registrar: Registrar | None = None
    """Keeps the catalog in line with the tables, where they are registered in one."""

    def register(self, tables: Iterable[TablePlan]) -> None:
        """Ask for entries of tables that are new or have changed; returns at once."""
        if self.registrar is not None:
            self.registrar.want(tables)

    def end_registering(self) -> CatalogState | None:
        """Wait until the catalog has all tables, as long as it gets on; return its state."""
        if self.registrar is None:
            return None
        self.registrar.close()
        return self.registrar.state

    def close(self) -> None:
        """End the run: no batch comes any more."""
        self.end_registering()
        self.staging.forget_sent()
        self.progress.checkpoint.close_runs(self.progress.lane)
