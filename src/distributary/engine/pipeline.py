"""The pipeline of a file, opened and run: the entry for the command line and for Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyspark
from pydantic_core import PydanticCustomError
from pyspark.sql import SparkSession

from distributary.config.alerts import Lineage
from distributary.config.base import hide_credentials
from distributary.config.load import Loaded, load, load_settings
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.runtime import Trigger, TriggerKind
from distributary.engine.context import (
    LaneProgress,
    PublishState,
    RunContext,
    RunReports,
    StageState,
)
from distributary.engine.earlier_tables_publisher import EarlierTablesPublisher
from distributary.engine.loop import RunSummary, StreamRun
from distributary.engine.mirrors import start_mirrors
from distributary.engine.monitor import Monitor
from distributary.engine.planning.planner import Planner
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_names import Entries, Names
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.engine.progress.claim import Claim, refuse_owned
from distributary.engine.progress.erasure import finish_erasures
from distributary.engine.progress.recovery import refuse_behind, refuse_lost, refuse_older_lake
from distributary.engine.progress.removal import finish_removal
from distributary.engine.registrar import start_registrar
from distributary.engine.seams import (
    make_carried,
    make_ends,
    make_inferred,
    make_publisher,
    make_registry,
    make_source,
    needs_delta,
    require_source,
)
from distributary.engine.shards.progress import divide, family, refuse_replay
from distributary.engine.slots import SlotWatch
from distributary.engine.steps.hops import choose_exchange, drop_undecided
from distributary.errors import (
    DistributaryError,
    DivergedError,
    ErrorCode,
    FencedError,
    OwnedError,
    PausedError,
    SetupError,
)
from distributary.model import layout
from distributary.model.arguments import require, require_spark_session, wrong_argument
from distributary.model.dataset import Dataset
from distributary.model.manifest import app_id
from distributary.observe.cards import Registration, pin, refuse_half_restored, register
from distributary.observe.events import BatchSettled, Event, EventBus
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.status.pulse import begin_pulse, write_failure
from distributary.publish.base import Publisher
from distributary.registry.base import RegistryCalls, SchemaRegistry
from distributary.spark.in_process import is_in_process
from distributary.spark.session import spark_session
from distributary.spark.settings import SparkSettings
from distributary.spark.versions import require_delta, require_session
from distributary.store.base import Store, absolute, at, introduce

if TYPE_CHECKING:
    # an extra, and a third of a second to import
    from distributary.observe.lineage import LineageRun


@dataclass(slots=True)
class Pipeline:
    """One pipeline file, ready to run."""

    loaded: Loaded
    bus: EventBus = field(default_factory=EventBus)
    stop: threading.Event = field(default_factory=threading.Event)
    """The event that ends a run after the batch under way, once it is set."""
    log_file: Path | None = None
    """The file of Spark's log; a file in the user's log folder when left out."""
    calls: RegistryCalls = field(default_factory=RegistryCalls)
    """The counter of requests to the registry."""

    def __post_init__(self) -> None:
        require(
            "loaded", self.loaded, Loaded, "must be a file that was read: use Pipeline.load(FILE)"
        )
        # from here on, the lake is reached by its address alone, with these credentials
        introduce(self.lake, self.config.lake.options)
        introduce(self.config.lake.checkpoint, self.config.lake.options)

    @classmethod
    def load(cls, file: str | Path, **overrides: Any) -> Self:
        """Read a pipeline file; raise ConfigError with all of its mistakes."""
        require("file", file, str | Path, "must be the path of a pipeline file")
        return cls(load(file, overrides=overrides))

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **overrides: Any) -> Self:
        """Build a pipeline from settings that are laid out as a pipeline file.

        References such as `${env:KAFKA_PASSWORD}` are replaced. Raises ConfigError with everything
        that is wrong.
        """
        require("settings", settings, Mapping, "must be a mapping, as in a pipeline file")
        return cls(load_settings(settings, overrides=overrides))

    @property
    def config(self) -> PipelineConfig:
        """Return the settings."""
        return self.loaded.config

    @property
    def lake(self) -> str:
        """Return the absolute path of the lake, or its address."""
        return self.config.lake.address

    @property
    def checkpoint(self) -> Store:
        """Return the store of this pipeline's checkpoint."""
        return at(absolute(self.config.checkpoint_path))

    @property
    def parking(self) -> str:
        """Return the folder of parked batches and of requests to the owner."""
        return self.config.lake.parking_of(self.config.name)

    def ledger(self) -> Ledger:
        """Return the ledger of the lake."""
        return Ledger(self.lake)

    def registry(self) -> SchemaRegistry | None:
        """Return the schema registry; None if the pipeline has none."""
        return make_registry(self.config, calls=self.calls)

    def planner(
        self,
        publisher: Publisher | None = None,
        *,
        trial: bool = False,
        registry: SchemaRegistry | None = None,
        ledger: Ledger | None = None,
    ) -> Planner:
        """Return a planner of this pipeline's tables, with their state in the ledger.

        With `trial` nothing is written. `registry` and `ledger` replace the pipeline's own.
        """
        publisher = publisher or make_publisher(self.config)
        jobs = family(self.config, lake=self.lake)
        known = (ledger or self.ledger()).tables(schema_ids=False)
        entries = Entries(self.lake, trial=trial)
        return Planner(
            self.config,
            registry=registry or self.registry(),
            publisher=publisher,
            names=Names(entries, ledger={t.table: t.type for t in known}),
            types=[t.type for t in known if t.type and t.pipeline in jobs],
            inferred=make_inferred(self.config, trial=trial),
            carried=make_carried(self.config, trial=trial),
            folder=None if self.loaded.path is None else Path(self.loaded.path).parent,
        )

    def spark_settings(self, trigger: Trigger | None = None) -> SparkSettings:
        """Return the settings of the Spark session."""
        return SparkSettings.of(self.loaded, trigger, log_file=self.log_file)

    def session(self) -> SparkSession:
        """Return a Spark session for a command: the existing one, or a new one."""
        return spark_session(self.spark_settings(), app_name=self.config.name)

    def run(
        self, *, trigger: Trigger | str | None = None, spark: SparkSession | None = None
    ) -> RunSummary:
        """Run until the trigger says that it is done, or `stop` is set.

        Raises ConfigError for an argument that is wrong.
        """
        wanted = self.chosen_trigger(trigger)
        if spark is not None and not is_in_process(spark):
            require_spark_session("spark", spark)
        with self.failure_recorded():
            if spark is not None:
                require_session(spark, "argument spark")
            elif wanted.kind is TriggerKind.AVAILABLE_NOW:
                require_source(self.config)
            session = spark or spark_session(self.spark_settings(wanted), app_name=self.config.name)
            with (
                self.open(session) as context,
                _lineage(context, wanted, mask=self.loaded.mask),
                self._monitored(context),
            ):
                divide(
                    self.config,
                    lake=self.lake,
                    manifests=context.progress.manifests,
                    parking=context.publishing.parking,
                )
                return StreamRun(context, make_source(self.config), stop=self.stop).run(wanted)

    def chosen_trigger(self, given: Trigger | str | None) -> Trigger:
        """Return the trigger of a run: the given one, or the one in the file."""
        if given is None:
            return self.config.trigger
        try:
            return Trigger.parse(given)
        except PydanticCustomError as error:
            close = (error.context or {}).get("suggestion")
            meant = f", did you mean {close}?" if close else ""
            raise wrong_argument("trigger", given, f"{error.message()}{meant}") from None

    @contextmanager
    def failure_recorded(self) -> Iterator[None]:
        """Store the error that ends a run, so that `status` shows it."""
        try:
            yield
        except (FencedError, OwnedError, PausedError):
            # these errors concern this process or a person's decision, not a fault of the pipeline
            raise
        except DistributaryError as error:
            write_failure(self.checkpoint, error)
            raise

    def _monitored(self, context: RunContext) -> Monitor:
        """Measure the lag of a run beside its batches, and write its pulse."""
        context.reports.monitor = Monitor(
            self.config.name,
            self.bus,
            checkpoint=self.checkpoint,
            ends=make_ends(self.config),
            slots=self._slots(),
            is_owner=context.progress.claim.is_held,
            mask=self.loaded.mask,
        )
        return context.reports.monitor

    def _slots(self) -> SlotWatch | None:
        """Return the watch over replication slots; None without the source's address."""
        url = strategy_of(self.config).source_url
        return None if url is None else SlotWatch(url, mask=self.loaded.mask)

    @contextmanager
    def open(
        self, spark: SparkSession | None = None, *, lane: str = "stream"
    ) -> Iterator[RunContext]:
        """Claim a lane of the checkpoint, and build the context of its batches."""
        self.ready(lane)
        claim = Claim.take(self._claimed(lane), lease=self.config.run.lease.total_seconds())
        if lane == "stream":
            begin_pulse(self.checkpoint)
        context: RunContext | None = None
        try:
            context = self._context(spark, self._checkpoint(lane), claim, lane)
            yield context
        finally:
            if context is not None:
                context.close()
            claim.release()

    def ready(self, lane: str = "stream") -> None:
        """Finish an interrupted reset, and raise errors that `open` would meet; without Spark."""
        if lane != "stream":
            refuse_replay(self.config)
        refuse_half_restored(self.lake)
        finish_removal(self)
        finish_erasures(self.lake)
        refuse_owned(self._claimed(lane))
        refuse_lost(self)
        refuse_older_lake(self, lane)

    def _claimed(self, lane: str) -> Store:
        """Claim a lane. Lanes have separate owners, so a replay can run beside the stream."""
        return self.checkpoint if lane == "stream" else self.checkpoint.below(lane)

    def _checkpoint(self, lane: str) -> Checkpoint:
        """Return the checkpoint, brought up to date with the lake; begin one for a new pipeline."""
        name, place = self.config.name, self.checkpoint
        checkpoint = Checkpoint.find(place, pipeline=name)
        if checkpoint is None:
            return Checkpoint.begin(place, pipeline=name)
        newest = ManifestCopy(self.lake, name, lane).read()
        if newest is not None and newest.life != checkpoint.life:
            raise DivergedError(
                "this checkpoint was replaced: another life of the pipeline has written since",
                where=place.address,
                evidence=f"life {checkpoint.life}; the lake has batch {newest.batch} of life "
                f"{newest.life}, decided {newest.created_at}",
                next_step="put the checkpoint of that life back; to use neither, run "
                "`distributary reset` and read the source again",
            )
        manifests = checkpoint.manifests(lane)
        # not for files: the list that numbers them is in the checkpoint, and equally old
        numbered = self.config.source.irrecoverable is not None and lane == "stream"
        if newest is not None and newest.batch > manifests.newest() and not numbered:
            # an older copy of the checkpoint was put back
            refuse_older_lake(self, lane, newest)
            manifests.adopt(newest)
        return checkpoint

    def _context(
        self, spark: SparkSession | None, checkpoint: Checkpoint, claim: Claim, lane: str
    ) -> RunContext:
        session = spark or self.session()
        if purpose := needs_delta(self.config):
            require_delta(session, purpose)
        publisher = make_publisher(self.config, session, adopts=True)
        ledger = self.ledger()
        # one version for all questions of a start: opening a table costs more than reading it
        start = self.ledger().hold()
        refuse_behind(self.config, start, checkpoint.life)
        if isinstance(publisher, EarlierTablesPublisher):
            known = start.tables(self.config.name, schema_ids=False)
            publisher.adopt(layout.place(self.lake, table.path) for table in known)
        planner = self.planner(publisher, ledger=start)
        self._describe(checkpoint)
        runs = checkpoint.open_runs(lane)
        name, lake = self.config.name, self.config.lake.address
        context = RunContext(
            config=self.config,
            spark=session,
            planner=planner,
            ledger=ledger,
            progress=LaneProgress(
                name,
                lake,
                checkpoint,
                claim,
                ledger,
                lane,
                newest_settled=start.newest_settled(app_id(name, checkpoint.life, lane)),
            ),
            publishing=PublishState(publisher, self.parking),
            staging=StageState(
                layout.join(layout.pipeline(lake, name), "plan", lane),
                exchange=choose_exchange(self.config.run.exchange, session, runs).way,
            ),
            reports=RunReports(name, self.bus, self.calls),
        )
        drop_undecided(context)
        context.staging.forget_older_sent()
        context.registrar = start_registrar(
            self.config, session, self.bus, ledger=self.ledger, mask=self.loaded.mask
        )
        context.mirrors = start_mirrors(self.config, ledger=self.ledger, mask=self.loaded.mask)
        context.register(table for table in planner.book.tables.values() if table.exists)
        return context

    def _describe(self, checkpoint: Checkpoint) -> None:
        """Write the pipeline's card into the lake, so that commands find it without its file."""
        if self.config.lake.is_local:
            Path(self.lake).mkdir(parents=True, exist_ok=True)
        file = str(self.loaded.path.resolve()) if self.loaded.path is not None else ""
        if self.loaded.sha256:
            pin(
                self.lake,
                self.config.name,
                file=Path(file),
                sha256=self.loaded.sha256,
                checkpoint=checkpoint.store.address,
            )
        register(
            self.lake,
            Registration(
                name=self.config.name,
                file=file,
                checkpoint=checkpoint.store.address,
                reads=self.config.source.table_folder or "",
            ),
        )


Mask = Callable[[str], str]


@contextmanager
def _lineage(context: RunContext, trigger: Trigger, *, mask: Mask) -> Iterator[None]:
    """Send lineage of a run, if the file configures it."""
    settings = context.config.lineage
    if settings is None:
        yield
        return

    def clean(text: str) -> str:
        return mask(hide_credentials(text))

    runs = _runs(context.config, settings, trigger, clean)
    known = _inputs(context.config, (), clean)
    for run in runs:
        run.start(known)

    def listen(event: Event) -> None:
        if isinstance(event, BatchSettled):
            _report_batch(context, event, runs, clean)

    detach = context.reports.bus.subscribe(listen)
    # the wait for a server's last answer is limited
    patience = 2 * settings.timeout.total_seconds()
    state, error = "COMPLETE", ""
    try:
        yield
    except DistributaryError as failure:
        state, error = "FAIL", f"{failure.code}: {failure.what}"
        raise
    except BaseException as failure:
        state, error = "ABORT", type(failure).__name__
        raise
    finally:
        detach()
        for run in runs:
            run.end(state, error, patience=patience)


def _report_batch(
    context: RunContext, event: BatchSettled, runs: list[LineageRun], clean: Mask
) -> None:
    book = context.planner.book
    if book.origins is None:
        return
    written = [w for w in event.written if w.outcome != "parked" and w.table in book.tables]
    tables = [
        (each, (table, book.origins.of(table.name, table.role)))
        for each in written
        for table in (book.tables[each.table],)
    ]
    known = _inputs(context.config, event.topics, clean)
    for run in runs:
        run.settled(event, known, tables)


def _inputs(config: PipelineConfig, topics: tuple[str, ...], clean: Mask) -> dict[str, Dataset]:
    datasets = config.source.datasets(topics)
    return {topic: replace(each, name=clean(each.name)) for topic, each in datasets.items()}


def _runs(
    config: PipelineConfig, settings: Lineage, trigger: Trigger, clean: Mask
) -> list[LineageRun]:
    try:
        from openlineage.client.uuid import generate_new_uuid

        from distributary.observe.lineage import LineageRun, RunFacts, sinks
    except ImportError as error:
        raise SetupError(
            "lineage needs a package that is not installed",
            code=ErrorCode.EXTRA_MISSING,
            where="lineage",
            evidence=str(error),
            next_step="pip install 'distributary[lineage]'",
        ) from error
    facts = RunFacts(
        run_id=str(generate_new_uuid()),
        namespace=settings.namespace,
        pipeline=config.name,
        streaming=trigger.kind is not TriggerKind.AVAILABLE_NOW,
        engine=pyspark.__version__,
        every_seconds=settings.every.total_seconds(),
        clean=clean,
    )
    every = settings.every.total_seconds()
    return [LineageRun(facts, sink, every=every) for sink in sinks(settings)]
