"""The state that the batches of a run share."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.mirrors import Mirrors
from distributary.engine.monitor import Lag, Monitor, lag_without_asking
from distributary.engine.planning.planner import Planner
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
    """The progress of one lane: the stream, a replay, or reads from a database."""

    pipeline: str
    lake: str
    checkpoint: Checkpoint
    claim: Claim
    ledger: Ledger
    lane: str = "stream"
    newest_settled: int = -1
    """The newest batch in the ledger at the start; up to it, batches may be repeated, not
    replaced."""
    manifests: Manifests = field(init=False)
    """The manifests of this lane."""

    def __post_init__(self) -> None:
        self.manifests = self.checkpoint.manifests(self.lane, owned=True)

    @property
    def app_id(self) -> str:
        """Return the application id in the marks of this lane's commits."""
        return app_id(self.pipeline, self.checkpoint.life, self.lane)

    @property
    def manifest_copy(self) -> ManifestCopy:
        """Return the place of the newest decided batch in the lake."""
        return ManifestCopy(self.lake, self.pipeline, self.lane)

    def settled_ranges(self, batch: int) -> tuple[SourceRange, ...] | None:
        """Return the source ranges of a batch that was settled in this life; None if it was not."""
        if batch > self.newest_settled:
            return None
        return self.ledger.settled_ranges(self.pipeline, self.checkpoint.life, self.lane, batch)


@dataclass(slots=True)
class PublishState:
    """The publisher of a run's tables, and the known state of their commits."""

    publisher: Publisher
    parking: str
    """The folder of parked batches."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """The lock during commits: a batch and a `resume` must not overtake each other."""
    marked: dict[str, int] = field(default_factory=dict)
    """The newest batch of this lane in each table's log, as last read."""
    followed: set[str] = field(default_factory=set)
    """Logs whose merged tables have all events from before this run."""


@dataclass(slots=True)
class StageState:
    """The state that stages share from batch to batch: the exchange and the plan."""

    folder: str
    """The folder of this lane's plans in the lake."""
    exchange: str = "disk"
    """The way of records between the hops: `disk`, which all workers see, or `spark`."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """The number of records of each table in the previous batch."""
    cut_transactions: set[tuple[str, str]] = field(default_factory=set)
    """The transactions that were too large for a batch, by connector and id."""
    _sent: tuple[TaskPlan, TaskPlanFile] | None = None

    def sent(self, plan: TaskPlan) -> TaskPlanFile:
        """Send the plan to the executors, if it has changed."""
        if self._sent is None or self._sent[0] is not plan:
            self.forget_sent()
            with reaching(self.folder):
                self._sent = (plan, TaskPlanFile.send(plan, self.folder))
            # the plan of a thousand tables is long-lived, and garbage collections would traverse it
            # after every batch
            gc.collect()
            gc.freeze()
        return self._sent[1]

    def forget_older_sent(self) -> None:
        """Remove the plans of killed processes; only this process owns the lane."""
        with suppress(OSError):
            at(self.folder).remove_folder()

    def forget_sent(self) -> None:
        """Remove the plan that was sent, if there is one."""
        if self._sent is not None:
            with suppress(OSError):
                self._sent[1].remove()
            self._sent = None


@dataclass(slots=True)
class RunReports:
    """The reports of a run: events, registry requests and the lag."""

    pipeline: str
    bus: EventBus
    calls: RegistryCalls = field(default_factory=RegistryCalls)
    """Requests to the registry that no event has reported yet."""
    monitor: Monitor | None = None
    """The monitor, which measures the lag beside the batches of a stream."""

    def lag(self, source: BatchInput, newest_us: int | None) -> Lag:
        """Return the lag of a batch that is settled now."""
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
    """The registrar, if tables are registered in a catalog."""
    mirrors: Mirrors | None = None
    """The Iceberg mirrors of the tables, if they have any."""

    def register(self, tables: Iterable[TablePlan]) -> None:
        """Request catalog entries and mirrors for new and changed tables; return at once."""
        plans = tuple(tables)
        if self.registrar is not None:
            self.registrar.want(plans)
        if self.mirrors is not None:
            self.mirrors.want(plans)

    def end_registering(self) -> CatalogState | None:
        """Wait for mirrors and catalog while they make progress; return the catalog's state."""
        if self.mirrors is not None:
            self.mirrors.close()
        if self.registrar is None:
            return None
        self.registrar.close()
        return self.registrar.state

    def close(self) -> None:
        """Release everything at the end of the run."""
        self.end_registering()
        self.staging.forget_sent()
        self.progress.checkpoint.close_runs(self.progress.lane)
