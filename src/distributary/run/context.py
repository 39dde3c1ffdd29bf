"""Everything a batch works with, gathered once per run."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field

from pyspark import Broadcast
from pyspark.sql import SparkSession

from distributary.config.pipeline import PipelineConfig
from distributary.model.manifest import SourceRange, app_id
from distributary.model.plan import Catalog
from distributary.observe.events import Asked, EventBus, RegistryAsked
from distributary.observe.ledger import Ledger
from distributary.publish.base import Publisher
from distributary.registry.calls import RegistryCalls
from distributary.run.checkpoint import Checkpoint, ManifestCopy, Manifests
from distributary.run.claim import Claim
from distributary.run.planner import Planner


@dataclass(slots=True)
class RunContext:
    """One lane of one pipeline: the stream itself, or a replay of dead letters."""

    config: PipelineConfig
    spark: SparkSession
    checkpoint: Checkpoint
    claim: Claim
    planner: Planner
    publisher: Publisher
    ledger: Ledger
    bus: EventBus
    parking: str
    """Folder for the files of parked tables."""
    lane: str = "stream"
    newest_settled: int = -1
    """By the ledger, at the start: up to here batches may only be repeated, not replaced."""
    followed: set[str] = field(default_factory=set)
    """Logs of change data whose tables have everything that was there when this run began."""
    calls: RegistryCalls = field(default_factory=RegistryCalls)
    """Questions to the registry that nobody was told of yet."""
    marked: dict[str, int] = field(default_factory=dict)
    """By table, the newest batch of this lane that its own log had when it was looked at."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while tables are committed: a batch and a `resume` must not overtake each other."""
    _sent: tuple[Catalog, Broadcast[Catalog]] | None = None

    @property
    def manifests(self) -> Manifests:
        """The decided batches of this lane."""
        return self.checkpoint.manifests(self.lane)

    @property
    def app_id(self) -> str:
        """How this lane signs its commits."""
        return app_id(self.config.name, self.checkpoint.life, self.lane)

    @property
    def manifest_copy(self) -> ManifestCopy:
        """The newest decided batch, in the lake."""
        return ManifestCopy(self.config.lake.address, self.config.name, self.lane)

    def settled_ranges(self, batch: int) -> tuple[SourceRange, ...] | None:
        """What a batch covered that was settled before, in this life; None if it was not."""
        if batch > self.newest_settled:
            return None
        return self.ledger.settled_ranges(self.config.name, self.checkpoint.life, self.lane, batch)

    def tell_registry_calls(self) -> None:
        """Tell whoever listens what the registry was asked since the last time."""
        calls = tuple(Asked(*kind, *sums) for kind, sums in self.calls.take().items())
        if calls:
            self.bus.publish(RegistryAsked(pipeline=self.config.name, calls=calls))

    def broadcast(self, catalog: Catalog) -> Broadcast[Catalog]:
        """Send the catalog to the executors, unless they have this one already."""
        if self._sent is None or self._sent[0] is not catalog:
            if self._sent is not None:
                self._sent[1].destroy()
            self._sent = (catalog, self.spark.sparkContext.broadcast(catalog))
            # what is known of a thousand tables stays: to walk over it again and again, looking
            # for garbage, costs more than the facts of a batch that set the collector off
            gc.collect()
            gc.freeze()
        return self._sent[1]
