"""Events in, numbers for Prometheus out.

Records, rows and files are counted when their batch is settled, which is when they can no longer be
lost, and once: a batch that is settled again, because its checkpoint was put back or its pipeline
was started again, adds nothing. So one `Metrics` may listen to many pipelines for as long as they
are restarted, and its counters only grow.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from importlib.metadata import version
from importlib.resources import files
from itertools import accumulate

import psutil
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from distributary.errors import ErrorCode
from distributary.model.change import connector_name
from distributary.model.table import Role
from distributary.observe import events
from distributary.observe.ledger.ledger_rows import TableSummary
from distributary.observe.status.pulse import HeldRecords

# The list of metrics: the endpoint, the docs page and the tests use it.

PREFIX = "distributary_"
OTHER = "other"
"""In place of a table's name and role: all tables beyond the limit."""


class MetricKind(StrEnum):
    """What Prometheus does with a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its name without the prefix, its help text, and its labels."""

    short: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("pipeline",)

    @property
    def name(self) -> str:
        """Return the name under which the metric is served."""
        return PREFIX + self.short


_LANE = ("pipeline", "lane")
_TABLE = ("pipeline", "table", "role")
_REGISTRY = ("pipeline", "endpoint", "outcome")


def _counter(short: str, help: str, labels: tuple[str, ...] = ("pipeline",)) -> Metric:
    return Metric(short, MetricKind.COUNTER, help, labels)


def _gauge(short: str, help: str, labels: tuple[str, ...] = ("pipeline",)) -> Metric:
    return Metric(short, MetricKind.GAUGE, help, labels)


READ = _counter("records_read_total", "Records read from the source, by its own count.", _LANE)
WRITTEN = _counter("records_written_total", "Records that reached their table.", _LANE)
DEAD_LETTERED = _counter("records_dead_lettered_total", "Records that became dead letters.", _LANE)
PARKED = _counter(
    "records_parked_total", "Records that were parked because their table was.", _LANE
)
SKIPPED = _counter("records_skipped_total", "Records passed over by policy, or copies.", _LANE)
FILTERED = _counter(
    "records_filtered_total", "Records kept out by the conditions of `shape`.", _LANE
)
DIFFERENCE = _gauge(
    "accounting_difference_records",
    "Records read less those written, dead-lettered, parked, skipped and filtered: must be 0.",
)
DEAD_LETTERS = _counter(
    "dead_letters_total", "Dead letters by error code.", ("pipeline", "lane", "code")
)
RULE_VIOLATIONS = _counter(
    "rule_violations_total",
    "Rows that broke a rule of `expectations`, in all tables that it holds for.",
    ("pipeline", "rule", "action"),
)
READ_BYTES = _counter("read_bytes_total", "Bytes of the values of records read.", _LANE)
REQUESTS = _counter("store_requests_total", "What the driver asked of buckets.", _LANE)

BATCHES = _counter("batches_total", "Batches that were finished.", _LANE)
BATCH_SECONDS = Metric(
    "batch_duration_seconds", MetricKind.HISTOGRAM, "How long finished batches took.", _LANE
)
STEP_SECONDS = Metric(
    "step_duration_seconds",
    MetricKind.HISTOGRAM,
    "How long each step of a finished batch took.",
    ("pipeline", "lane", "step"),
)
LAST_BATCH = _gauge("last_batch", "Number of the last finished batch.", _LANE)
LAST_BATCH_TIME = _gauge("last_batch_timestamp_seconds", "When it was finished.", _LANE)

LAG = _gauge(
    "lag_records",
    "Records that no table has yet, measured every few seconds while it runs.",
    ("pipeline", "topic", "partition"),
)
LAG_TIME = _gauge("lag_timestamp_seconds", "When the lag was measured.")
DELAY = _gauge(
    "record_delay_seconds",
    "From when the newest record of the last batch was produced until the batch was finished.",
)
NEWEST_RECORD = _gauge(
    "newest_record_timestamp_seconds", "Time of the newest record that was read."
)
SOURCE_SILENT = _gauge(
    "source_silent_seconds",
    "How long a Debezium connector has sent no heartbeat, when the source was asked last.",
    ("pipeline", "connector"),
)
SLOT_HELD = _gauge(
    "source_slot_held_bytes",
    "Log that a replication slot of the source holds back, with cdc.source_url; no series while "
    "the database does not answer.",
    ("pipeline", "slot"),
)
SLOT_LOST = _gauge(
    "source_slot_lost",
    "1 if the source has removed log that the slot still needs, else 0.",
    ("pipeline", "slot"),
)

HELD_RECORDS = _gauge(
    "held_records",
    "Records that the last batch held back until their transactions end in the source.",
)
HELD_TRANSACTIONS = _gauge("held_transactions", "The transactions of these records.")

TABLE_ROWS = _counter("table_rows_total", "Rows committed to a table.", _TABLE)
TABLE_BYTES = _counter("table_bytes_total", "Bytes of files committed to a table.", _TABLE)
TABLE_FILES = _counter("table_files_total", "Files committed to a table.", _TABLE)
TABLE_COMMITS = _counter("table_commits_total", "Commits to a table.", _TABLE)
TABLE_TIME = _gauge(
    "table_last_commit_timestamp_seconds",
    "When a table got its last commit; of `other`, when any of them did.",
    _TABLE,
)
TABLES_CREATED = _counter("tables_created_total", "Tables that were created.")
TABLES_PARKED = _gauge("tables_parked", "Tables that wait for `resume` now.")
TABLES_OTHER = _gauge("tables_in_other", "Tables without series of their own.")
SCHEMAS = _counter("schemas_seen_total", "Schemas met for the first time.")

CATALOG_TABLES = _gauge("catalog_tables", "Tables that the catalog has as they should be.")
CATALOG_WAITING = _gauge(
    "catalog_tables_waiting", "Tables that could not be registered yet; they are tried again."
)

RUNNING = _gauge("pipeline_running", "1 while it runs, 0 after its end.")
STATES = ("running", "paused", "retrying", "done", "stopped", "failed")
STATE = _gauge(
    "pipeline_state",
    "1 for the state that it is in, 0 for the others: running, paused, retrying, done, stopped, "
    "failed.",
    ("pipeline", "state"),
)
FAILING = _gauge("pipeline_failing", "1 from a failure until a batch succeeds or none is due.")
RETRYING = _gauge(
    "pipeline_retrying",
    "1 while an operation that failed with this error code is retried, 0 when it works again.",
    ("pipeline", "code"),
)
RETRYING_SINCE = _gauge(
    "pipeline_retrying_since_timestamp_seconds",
    "When it failed first, while it is tried again; 0 else.",
)
NEXT_TRY = _gauge(
    "pipeline_next_try_timestamp_seconds",
    "Time of the next retry, in the past while it runs; 0 if nothing failed.",
)
FAILURES = _counter(
    "failures_total", "Batches and runs that failed.", ("pipeline", "code", "retried")
)
LAST_EVENT = _gauge(
    "last_event_timestamp_seconds", "Last sign of life; a run gives one every few seconds."
)

REGISTRY_REQUESTS = _counter(
    "registry_requests_total", "Requests to the schema registry.", _REGISTRY
)
REGISTRY_SECONDS = _counter(
    "registry_request_seconds_total", "Time spent waiting for the registry.", _REGISTRY
)

MEMORY = _gauge(
    "process_tree_memory_bytes",
    "Resident memory of this process and all below it: driver, JVM and workers.",
    (),
)
BUILD = _gauge("build_info", "1, with the version as a label.", ("version",))

CATALOGUE: tuple[Metric, ...] = tuple(m for m in list(globals().values()) if type(m) is Metric)
"""All of the above, in the order of the docs page."""


# The memory of this process and its children, measured at each scrape.


class MemoryCollector(Collector):
    """Resident memory of the driver, its JVM and its workers."""

    def collect(self) -> Iterable[Family]:
        """Yield the metrics for `prometheus_client`."""
        me, total = psutil.Process(), 0
        for process in (me, *me.children(recursive=True)):
            # the child may have ended meanwhile
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return [GaugeMetricFamily(MEMORY.name, MEMORY.help, value=total)]


# The numbers behind the metrics: one listener writes them, and scrapes read them.
#
# All changes of one event are made under one lock, which `Metrics` takes, and a scrape takes the
# same lock: no reader ever sees half a batch. (The instruments of `prometheus_client` change one by
# one.)

BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Of the histograms, in seconds."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Spread:
    """The counts of a histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0


class _Series(Collector):
    """Every series and its value."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Metric, dict[Labels, float]] = {m: {} for m in CATALOGUE}
        self._spreads: dict[Metric, dict[Labels, _Spread]] = {m: {} for m in CATALOGUE}

    def _add(self, metric: Metric, *labels: str, amount: float = 0.0) -> None:
        """Count; an amount of 0 makes the series known, so that its first step is a step."""
        self._add_all(labels, [(metric, amount)])

    def _add_all(self, labels: Labels, amounts: Sequence[tuple[Metric, float]]) -> None:
        """Count several metrics that have the same labels: there may be a thousand tables."""
        key = _key(amounts[0][0], labels)
        for metric, amount in amounts:
            numbers = self._numbers[metric]
            numbers[key] = numbers.get(key, 0.0) + amount

    def _set(self, metric: Metric, *labels: str, value: float) -> None:
        self._numbers[metric][_key(metric, labels)] = value

    def _raise_to(self, metric: Metric, *labels: str, value: float) -> None:
        """Raise a gauge to a value, if it is lower."""
        numbers, key = self._numbers[metric], _key(metric, labels)
        numbers[key] = max(numbers.get(key, value), value)

    def _observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        spread = self._spreads[metric].setdefault(_key(metric, labels), _Spread())
        spread.counts[bisect_left(BOUNDS, seconds)] += 1
        spread.sum += seconds

    def _forget(self, metric: Metric, pipeline: str) -> None:
        """Drop the series of a pipeline, before the current ones are set."""
        known = self._numbers[metric]
        self._numbers[metric] = {key: n for key, n in known.items() if key[0] != pipeline}

    def collect(self) -> Iterable[Family]:
        """Yield the metrics for `prometheus_client`."""
        with self._lock:
            return [family for metric in CATALOGUE for family in self._family(metric)]

    def _family(self, metric: Metric) -> Iterator[Family]:
        if metric.kind is MetricKind.HISTOGRAM:
            spreads = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            bounds = (*map(str, BOUNDS), "+Inf")
            for labels, spread in self._spreads[metric].items():
                totals = map(float, accumulate(spread.counts))
                spreads.add_metric(labels, [*zip(bounds, totals, strict=True)], spread.sum)
            family: Family = spreads
        else:
            made = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            numbers = made(metric.name, metric.help, labels=metric.labels)
            for labels, value in self._numbers[metric].items():
                numbers.add_metric(labels, value)
            family = numbers
        if family.samples:
            yield family


def _key(metric: Metric, labels: Labels) -> Labels:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}")
    # a name from outside may be impossible to encode, which would break every scrape
    return tuple(
        [x if x.isascii() else x.encode("utf-8", "backslashreplace").decode() for x in labels]
    )


_EQUATION = (READ, WRITTEN, DEAD_LETTERED, PARKED, SKIPPED, FILTERED)
_WORKING = (events.BatchSettled, events.Idle, events.Paused, events.Recovered)
"""Events after which nothing is being retried."""
MOST_TABLES = 200
_MOST_PARTITIONS = 1000
_FEW = frozenset((Role.BRONZE, Role.UNIFIED, Role.DEAD_LETTERS))
"""There is one of each in a pipeline: they always have series of their own."""


class Metrics(_Series):
    """A listener that counts; safe to be called and read from several threads."""

    def __init__(self, *, max_tables: int = MOST_TABLES) -> None:
        super().__init__()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.registry.register(MemoryCollector())
        self._set(BUILD, version("distributary"), value=1)
        self._most_tables = max_tables
        self._limits: dict[str, int] = {}
        self._named: dict[str, set[str]] = {}
        self._others: dict[str, set[str]] = {}
        self._parked: dict[str, set[str]] = {}
        self._settled: dict[tuple[str, str, str], int] = {}
        self._known: set[str] = set()

    def limit(self, pipeline: str, *, max_tables: int) -> None:
        """Set the number of tables of one pipeline with series of their own."""
        self._limits[pipeline] = max_tables

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return all metrics with their content type: Prometheus' format or OpenMetrics."""
        encode, kind = choose_encoder(accept)
        return kind, encode(self.registry)

    def remember(self, pipeline: str, tables: Iterable[TableSummary]) -> None:
        """Begin with what the ledger knows, so that a table that is written no more is seen."""
        with self._lock:
            self._meet(pipeline)
            known = [table for table in tables if table.pipeline == pipeline]
            self._wait(pipeline, {table.table for table in known if table.parked_batches})
            for table in known:
                if table.last_commit is not None:
                    name, role = self._label(pipeline, table.table, table.role)
                    moment = table.last_commit.timestamp()
                    self._raise_to(TABLE_TIME, pipeline, name, role, value=moment)

    def listen(self, event: events.Event) -> None:
        """Take in one event."""
        with self._lock:
            self._meet(event.pipeline)
            self._alive(event)
            match event:
                case events.BatchSettled():
                    self._batch(event)
                case events.Failed():
                    retried = "false" if event.retry_in is None else "true"
                    labels = (event.pipeline, str(event.error.code), retried)
                    self._add(FAILURES, *labels, amount=1)
                    self._set(FAILING, event.pipeline, value=1)
                    if event.retry_in is not None:
                        self._retry(event)
                case events.RecordsHeld():
                    self._hold(event.pipeline, event.held)
                case events.Beat():
                    self._beat(event)
                case events.RegistryAsked():
                    for call in event.calls:
                        labels = (event.pipeline, call.endpoint, call.outcome)
                        spent = (REGISTRY_REQUESTS, call.count), (REGISTRY_SECONDS, call.seconds)
                        self._add_all(labels, spent)
                case events.CatalogUpdated():
                    self._set(CATALOG_TABLES, event.pipeline, value=event.registered)
                    # a catalog that does not answer has at least one waiting table
                    left = max(event.waiting, 1 if event.error else 0)
                    self._set(CATALOG_WAITING, event.pipeline, value=left)
                case events.SchemaSeen():
                    self._add(SCHEMAS, event.pipeline, amount=1)
                case events.TableResumed() if not event.parked:
                    waiting = self._parked.get(event.pipeline, set()) - {event.table}
                    self._wait(event.pipeline, waiting)

    def _meet(self, pipeline: str) -> None:
        """Create counters at 0, because Prometheus sees no rise in a counter that appears later."""
        if pipeline in self._known:
            return
        self._known.add(pipeline)
        for metric in (*_EQUATION, READ_BYTES, REQUESTS, BATCHES):
            self._add(metric, pipeline, "stream")
        for metric in (SCHEMAS, TABLES_CREATED):
            self._add(metric, pipeline)
        for metric in (DIFFERENCE, TABLES_PARKED, TABLES_OTHER, FAILING, RUNNING):
            self._set(metric, pipeline, value=0)
        for metric in (RETRYING_SINCE, NEXT_TRY):
            self._set(metric, pipeline, value=0)
        for retried in ("true", "false"):
            self._add(FAILURES, pipeline, ErrorCode.ACCOUNTING_BROKEN, retried)

    def _alive(self, event: events.Event) -> None:
        self._raise_to(LAST_EVENT, event.pipeline, value=event.at.timestamp())
        ended = isinstance(event, events.Stopped) or (
            isinstance(event, events.Failed) and event.retry_in is None
        )
        self._set(RUNNING, event.pipeline, value=0 if ended else 1)
        self._become(event)
        if ended or isinstance(event, _WORKING):
            self._retry_over(event.pipeline)
        if isinstance(event, (*_WORKING, events.Stopped)):
            self._set(FAILING, event.pipeline, value=0)

    def _become(self, event: events.Event) -> None:
        """Set the state of a pipeline from an event, if the event implies one."""
        match event:
            case events.Failed():
                state = "failed" if event.retry_in is None else "retrying"
            case events.Stopped():
                state = event.reason if event.reason in STATES else "stopped"
            case events.Paused():
                state = "paused"
            case events.BatchSettled() | events.Idle() | events.Recovered():
                state = "running"
            case events.Beat() if self._is(event.pipeline, "paused"):
                return
            case events.ProcessStarted() | events.BatchStarted() | events.Beat():
                state = "retrying" if self._is(event.pipeline, "retrying") else "running"
            case _:
                return
        for each in STATES:
            self._set(STATE, event.pipeline, each, value=int(each == state))

    def _is(self, pipeline: str, state: str) -> bool:
        return bool(self._numbers[STATE].get(_key(STATE, (pipeline, state)), 0))

    def _retry(self, event: events.Failed) -> None:
        name = event.pipeline
        since = self._numbers[RETRYING_SINCE].get(_key(RETRYING_SINCE, (name,)), 0.0)
        self._retry_over(name)
        self._set(RETRYING, name, str(event.error.code), value=1)
        failed_at = event.at.timestamp()
        self._set(RETRYING_SINCE, name, value=since or failed_at)
        self._set(NEXT_TRY, name, value=failed_at + (event.retry_in or 0.0))

    def _retry_over(self, pipeline: str) -> None:
        for key in self._numbers[RETRYING]:
            if key[0] == _key(RETRYING_SINCE, (pipeline,))[0]:
                self._numbers[RETRYING][key] = 0
        self._set(RETRYING_SINCE, pipeline, value=0)
        self._set(NEXT_TRY, pipeline, value=0)

    def _batch(self, event: events.BatchSettled) -> None:
        key = (event.pipeline, event.life, event.lane)
        if event.batch <= self._settled.get(key, -1):
            return
        self._settled[key] = event.batch
        lane = (event.pipeline, event.lane)
        self._records(event)
        self._add(BATCHES, *lane, amount=1)
        self._observe(BATCH_SECONDS, *lane, seconds=event.seconds)
        for step, seconds in event.steps.items():
            self._observe(STEP_SECONDS, *lane, step, seconds=seconds)
        self._set(LAST_BATCH, *lane, value=event.batch)
        self._set(LAST_BATCH_TIME, *lane, value=event.at.timestamp())
        for table in event.written:
            self._table(event, table)
        self._wait(event.pipeline, set(event.parked_tables))
        if event.lane == "stream":
            self._hold(event.pipeline, event.held)
            self._lag(event)

    def _hold(self, pipeline: str, held: HeldRecords | None) -> None:
        self._set(HELD_RECORDS, pipeline, value=0 if held is None else held.records)
        self._set(HELD_TRANSACTIONS, pipeline, value=0 if held is None else held.transactions)

    def _records(self, event: events.BatchSettled) -> None:
        lane, counts = (event.pipeline, event.lane), event.counts
        for metric, count in zip(_EQUATION, astuple(counts), strict=True):
            self._add(metric, *lane, amount=count)
        self._add(READ_BYTES, *lane, amount=event.bytes_read or 0)
        self._add(REQUESTS, *lane, amount=event.requests)
        for code, count in event.dead_letters.items():
            self._add(DEAD_LETTERS, *lane, code, amount=count)
        for broken in event.broken_rules:
            labels = (event.pipeline, broken.rule, broken.action)
            self._add(RULE_VIOLATIONS, *labels, amount=broken.violated)
        accounted = sum(astuple(counts)[1:])
        self._add(DIFFERENCE, event.pipeline, amount=counts.read - accounted)

    def _table(self, event: events.BatchSettled, table: events.TableWritten) -> None:
        if table.outcome == "parked" or (not table.files and table.version is None):
            return
        # `skipped` says that the commit was there already: by a process that ended before it
        # could tell
        name = event.pipeline
        labels = (name, *self._label(name, table.table, table.role))
        sizes = ((TABLE_ROWS, table.rows), (TABLE_BYTES, table.bytes), (TABLE_FILES, table.files))
        self._add_all(labels, (*sizes, (TABLE_COMMITS, 1)))
        self._raise_to(TABLE_TIME, *labels, value=event.at.timestamp())
        if table.created:
            self._add(TABLES_CREATED, name, amount=1)

    def _label(self, pipeline: str, table: str, role: str) -> tuple[str, str]:
        """Return a table's name and role, or the label for tables beyond the limit."""
        named = self._named.setdefault(pipeline, set())
        if table in named or role in _FEW:
            return table, role
        if len(named) < self._limits.get(pipeline, self._most_tables):
            named.add(table)
            return table, role
        others = self._others.setdefault(pipeline, set())
        others.add(table)
        self._set(TABLES_OTHER, pipeline, value=len(others))
        return OTHER, OTHER

    def _wait(self, pipeline: str, tables: set[str]) -> None:
        self._parked[pipeline] = tables
        self._set(TABLES_PARKED, pipeline, value=len(tables))

    def _lag(self, event: events.BatchSettled) -> None:
        name = event.pipeline
        self._measured(name, event.lag_by_partition, event.lag_records)
        if event.lag_records is not None:
            self._set(LAG_TIME, name, value=event.at.timestamp())
        if event.lag_seconds is not None:
            self._set(DELAY, name, value=event.lag_seconds)
            newest = event.at.timestamp() - event.lag_seconds
            self._raise_to(NEWEST_RECORD, name, value=newest)

    def _listened(self, event: events.Beat) -> None:
        """Set the silence of each connector; drop series of connectors no longer read."""
        self._forget(SOURCE_SILENT, event.pipeline)
        for topic, beat in event.heartbeats.items():
            if beat.silent_seconds is not None:
                labels = (event.pipeline, connector_name(topic))
                self._set(SOURCE_SILENT, *labels, value=beat.silent_seconds)

    def _beat(self, event: events.Beat) -> None:
        if event.lag_at is not None:
            self._measured(event.pipeline, event.lag_by_partition, event.lag_records)
            self._set(LAG_TIME, event.pipeline, value=event.lag_at.timestamp())
            self._listened(event)
        self._slots(event)

    def _slots(self, event: events.Beat) -> None:
        """Set how much log each slot holds back; of a database that is away nothing is known."""
        self._forget(SLOT_HELD, event.pipeline)
        self._forget(SLOT_LOST, event.pipeline)
        source = event.slots
        for slot in source.slots if source is not None and not source.error else ():
            self._set(SLOT_HELD, event.pipeline, slot.name, value=slot.bytes)
            self._set(SLOT_LOST, event.pipeline, slot.name, value=int(slot.lost))

    def _measured(self, name: str, by_partition: Mapping[str, int], records: int | None) -> None:
        # removed partitions have no lag
        self._forget(LAG, name)
        if not by_partition and records is not None:
            self._set(LAG, name, "", "", value=records)
        for number, (place, lag) in enumerate(by_partition.items()):
            topic, _, partition = place.rpartition("/")
            if number < _MOST_PARTITIONS:
                self._set(LAG, name, topic, partition, value=lag)
            else:
                self._add(LAG, name, OTHER, OTHER, amount=lag)


# Files for other systems: a dashboard for Grafana, alert rules for Prometheus.


def shipped(name: str) -> str:
    """Return the content of a file in the folder `shipped`."""
    return files("distributary.observe").joinpath("shipped", name).read_text(encoding="utf-8")
