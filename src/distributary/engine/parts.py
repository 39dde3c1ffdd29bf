"""The implementation of each seam that a pipeline file asks for."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pyspark.sql import SparkSession

from distributary.config.catalog import HiveCatalog, SparkCatalog
from distributary.config.kafka import KafkaSource as KafkaSourceConfig
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource as DeltaSourceConfig
from distributary.config.source import FilesSource as FilesSourceConfig
from distributary.config.source import storage_options_of
from distributary.engine.catalog import Registrar, iceberg_publisher
from distributary.engine.monitor import Lag, Monitor, lag_without_asking
from distributary.engine.plan import Planner
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy, Manifests
from distributary.engine.progress.claim import Claim
from distributary.engine.shards.source import shard_source
from distributary.engine.tables import table_folder
from distributary.errors import ConfigError
from distributary.model import layout
from distributary.model.manifest import SourceRange, app_id
from distributary.model.table import TablePlan
from distributary.observe.events import Asked, EventBus, RegistryAsked
from distributary.observe.ledger import Ledger
from distributary.observe.pipelines import CatalogState
from distributary.publish.base import MixedPublisher, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.parquet import ParquetPublisher
from distributary.publish.spark import SparkPublisher
from distributary.registry.base import RegistryCalls, SchemaRegistry
from distributary.registry.cache import CachedRegistry
from distributary.registry.folder import FileRegistry
from distributary.registry.http.registry import HttpRegistry
from distributary.registry.record_schemas import (
    CarriedSchemas,
    FileSchemas,
    InferredSchemas,
    inferred_folder,
)
from distributary.source.base import BatchInput, Source
from distributary.source.delta import DeltaEnds, DeltaSource
from distributary.source.files.source import FilesSource
from distributary.source.kafka import KafkaEnds, KafkaSource
from distributary.stage.catalog import Catalog
from distributary.stage.job import CatalogFile
from distributary.store.base import absolute, at, introduce, reaching


def make_registry(
    config: PipelineConfig, *, calls: RegistryCalls | None = None
) -> SchemaRegistry | None:
    """The folder or server that keeps the schemas; None where records come without any.

    What a server is asked is counted in `calls`.
    """
    settings = config.registry
    if isinstance(config.source, FilesSourceConfig):
        return FileSchemas(file_schemas(config)) if config.source.format == "avro" else None
    if settings is None and config.infers:
        return None
    if settings is None:
        raise ConfigError(
            f"payloads of format {config.payload.format if config.payload else '?'} need schemas",
            where="registry",
            next_step="set registry.url, or registry.path for a folder of schemas",
        )
    if settings.path is not None:
        return FileRegistry(Path(settings.path))
    registry = HttpRegistry(settings)
    if calls is not None:
        registry.count_in(calls)
    return CachedRegistry(
        registry,
        folder=schema_cache(config),
        latest_seconds=settings.cache_ttl.total_seconds(),
    )


def make_inferred(config: PipelineConfig, *, trial: bool = False) -> InferredSchemas | None:
    """What records without a schema have looked like; None where every record has one."""
    if not config.infers:
        return None
    return InferredSchemas(inferred_folder(_checkpoint(config)), trial=trial)


def make_carried(config: PipelineConfig, *, trial: bool = False) -> CarriedSchemas | None:
    """Schemas that records bring along; None where none do."""
    if config.cdc is None or config.cdc.format != "debezium" or config.records.format != "json":
        return None
    return CarriedSchemas(file_schemas(config), trial=trial)


def file_schemas(config: PipelineConfig) -> str:
    """Where the schemas in the heads of files are kept."""
    return f"{_checkpoint(config)}/file-schemas"


def schema_cache(config: PipelineConfig) -> str:
    """Where schemas outlive a run: one folder per registry and context, because ids are its own."""
    places = "\n".join(config.registry.places if config.registry else ())
    registry = hashlib.sha256(places.encode()).hexdigest()[:16]
    return f"{_checkpoint(config)}/schemas/{registry}"


def _checkpoint(config: PipelineConfig) -> str:
    return absolute(config.checkpoint_path)


def make_source(config: PipelineConfig) -> Source:
    """Where records come from."""
    if config.shard is not None and not config.shard.lands:
        return shard_source(config, config.shard)
    if isinstance(config.source, DeltaSourceConfig):
        return DeltaSource(
            config.source, storage_options=storage_options_of(config.source, config.lake)
        )
    if isinstance(config.source, KafkaSourceConfig):
        return KafkaSource(config.source)
    return FilesSource(
        config.source,
        folder=f"{_checkpoint(config)}/files",
        schemas=file_schemas(config),
        storage_options=storage_options_of(config.source, config.lake),
        max_payload_bytes=config.limits.max_payload_bytes,
    )


def make_ends(config: PipelineConfig) -> KafkaEnds | DeltaEnds | None:
    """Who says where the source ends now; None where that is not known by offsets."""
    source = config.source
    if config.shard is not None and not config.shard.lands:
        return None
    if isinstance(source, KafkaSourceConfig):
        return KafkaEnds(source)
    # rows before a version that was named are not counted by anybody
    if isinstance(source, DeltaSourceConfig) and source.reads_all:
        return DeltaEnds(source, storage_options=storage_options_of(source, config.lake))
    return None


def make_publisher(config: PipelineConfig, spark: SparkSession | None = None) -> Publisher:
    """Who commits to the tables."""
    introduce(config.lake.address, config.lake.options)
    direct = DirectPublisher()
    if config.tables.format in ("parquet", "iceberg"):
        parquet = config.tables.format == "parquet"
        letters = table_folder(config, config.tables.dead_letters)
        usual: Publisher = ParquetPublisher() if parquet else iceberg_publisher(config)
        return MixedPublisher(usual, special={letters: direct})
    # a log that is emptied again is nobody's but ours: it needs no features of Spark's
    hidden = config.cdc is not None and not config.cdc.log
    if config.tables.publisher == "spark" and spark is not None and not hidden:
        catalog = config.lake.registered_in
        if isinstance(catalog, SparkCatalog | HiveCatalog):
            return SparkPublisher(spark, schema=catalog.names)
        return SparkPublisher(spark)
    return direct


# Everything a batch works with, gathered once per run.


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
    exchange: str = "disk"
    """How records travel between the two hops of a stage: by a `disk` that all see, or `spark`."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Records per table of the batch before."""
    monitor: Monitor | None = None
    """Measures the lag beside the batches of a stream."""
    registrar: Registrar | None = None
    """Keeps the catalog in line with the tables, where they are registered in one."""
    manifests: Manifests = field(init=False)
    """The decided batches of this lane."""
    _sent: tuple[Catalog, CatalogFile] | None = None

    def __post_init__(self) -> None:
        self.manifests = self.checkpoint.manifests(self.lane, owned=True)

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

    def lag(self, source: BatchInput, newest_us: int | None) -> Lag:
        """How far behind its source a batch is that is settled now."""
        if self.monitor is None:
            return lag_without_asking(source, newest_us)
        return self.monitor.lag(source, newest_us)

    def tell_registry_calls(self) -> None:
        """Tell whoever listens what the registry was asked since the last time."""
        calls = tuple(Asked(*kind, *sums) for kind, sums in self.calls.take().items())
        if calls:
            self.bus.publish(RegistryAsked(pipeline=self.config.name, calls=calls))

    def register(self, tables: Iterable[TablePlan]) -> None:
        """These tables are there, maybe new or other than before; returns at once."""
        if self.registrar is not None:
            self.registrar.want(tables)

    def end_registering(self) -> CatalogState | None:
        """Wait until the catalog has all tables, as long as it gets on; how it stands then."""
        if self.registrar is None:
            return None
        self.registrar.close()
        return self.registrar.state

    def close(self) -> None:
        """No batch comes any more."""
        self.end_registering()
        self.forget_sent()
        self.checkpoint.close_runs(self.lane)

    def sent(self, catalog: Catalog) -> CatalogFile:
        """Send the catalog to the executors, unless they have this one already."""
        if self._sent is None or self._sent[0] is not catalog:
            self.forget_sent()
            with reaching(self._plans):
                self._sent = (catalog, CatalogFile.send(catalog, self._plans))
            # what is known of a thousand tables stays: to walk over it again and again, looking
            # for garbage, costs more than the facts of a batch that set the collector off
            gc.collect()
            gc.freeze()
        return self._sent[1]

    def forget_older_sent(self) -> None:
        """Remove what processes that were killed have sent; this lane is ours alone."""
        with suppress(OSError):
            at(self._plans).remove_folder()

    @property
    def _plans(self) -> str:
        home = layout.pipeline(self.config.lake.address, self.config.name)
        return layout.join(home, "plan", self.lane)

    def forget_sent(self) -> None:
        """Remove the catalog that was sent, if one was."""
        if self._sent is not None:
            with suppress(OSError):
                self._sent[1].remove()
            self._sent = None


# Places in a batch at which a run can be told to kill or pause itself, to show what that does.

KILL = "DISTRIBUTARY_KILL_AT"
"""`after_stage`, or `after_stage:3` for batch 3 only: the process kills itself there (SIGKILL)."""
PAUSE = "DISTRIBUTARY_PAUSE_AT"
"""The same, but the process stops there (SIGSTOP) until somebody continues it (SIGCONT)."""


class Moment(StrEnum):
    """The moments of a batch, in order."""

    AFTER_PLAN = "after_plan"
    AFTER_STAGE = "after_stage"
    AFTER_MANIFEST = "after_manifest"
    AFTER_FIRST_COMMIT = "after_first_commit"
    BEFORE_MERGE = "before_merge"
    BEFORE_SETTLE = "before_settle"


def reached(moment: Moment, batch: int) -> None:
    """Die or pause here without a word, if that is what the environment asks for."""
    for variable, kind in ((KILL, signal.SIGKILL), (PAUSE, signal.SIGSTOP)):
        wanted, _, number = os.environ.get(variable, "").partition(":")
        if wanted == moment and number in ("", str(batch)):
            os.kill(os.getpid(), kind)
