"""Events in, numbers for Prometheus out.

Records, rows and files are counted when their batch is settled, which is when they can no longer be
lost, and once: a batch that is settled again, because its checkpoint was put back or its pipeline
was started anew, adds nothing. So one `Metrics` may listen to many pipelines for as long as they
are restarted, and its counters only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from distributary.errors import ErrorCode
from distributary.model.table import Role
from distributary.observe import metrics_catalogue as m
from distributary.observe.events import (
    BatchSettled,
    Event,
    EventBus,
    Failed,
    Idle,
    RegistryAsked,
    SchemaSeen,
    Stopped,
    TableResumed,
    TableWritten,
)
from distributary.observe.metrics_process import MemoryCollector
from distributary.observe.metrics_values import Values
from distributary.observe.rows import TableSummary

MOST_TABLES = 200
_MOST_PARTITIONS = 1000
_FEW = frozenset((Role.BRONZE, Role.UNIFIED, Role.DEAD_LETTERS))
"""There is one of each in a pipeline: they always have series of their own."""


class Metrics:
    """A listener that counts; safe to be called and read from several threads."""

    def __init__(self, *, max_tables: int = MOST_TABLES, process: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._values = Values()
        self.registry.register(self._values)
        if process:
            ProcessCollector(registry=self.registry)
            self.registry.register(MemoryCollector())
        self._values.set(m.BUILD, version("distributary"), value=1)
        self._most_tables = max_tables
        self._limits: dict[str, int] = {}
        self._named: dict[str, set[str]] = {}
        self._others: dict[str, set[str]] = {}
        self._parked: dict[str, set[str]] = {}
        self._settled: dict[tuple[str, str, str], int] = {}
        self._known: set[str] = set()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Listen to a bus; the answer ends it. The numbers stay."""
        return bus.subscribe(self.listen)

    def limit(self, pipeline: str, *, max_tables: int) -> None:
        """How many tables of one pipeline have series of their own."""
        self._limits[pipeline] = max_tables

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Everything, and its content type: Prometheus' text format, or OpenMetrics if accepted."""
        encode, kind = choose_encoder(accept)
        return kind, encode(self.registry)

    def remember(self, pipeline: str, tables: Iterable[TableSummary]) -> None:
        """Begin with what the ledger knows, so that a table that is written no more is seen."""
        with self._values.lock:
            self._meet(pipeline)
            known = [table for table in tables if table.pipeline == pipeline]
            self._wait(pipeline, {table.table for table in known if table.parked_batches})
            for table in known:
                if table.last_commit is not None:
                    name, role = self._label(pipeline, table.table, table.role)
                    moment = table.last_commit.timestamp()
                    self._values.raise_to(m.TABLE_TIME, pipeline, name, role, value=moment)

    def listen(self, event: Event) -> None:
        """Take in one event."""
        with self._values.lock:
            self._meet(event.pipeline)
            self._alive(event)
            match event:
                case BatchSettled():
                    self._batch(event)
                case Failed():
                    self._failed(event)
                case RegistryAsked():
                    self._asked(event)
                case SchemaSeen():
                    self._values.add(m.SCHEMAS, event.pipeline, amount=1)
                case TableResumed() if not event.parked:
                    waiting = self._parked.get(event.pipeline, set()) - {event.table}
                    self._wait(event.pipeline, waiting)

    def _meet(self, pipeline: str) -> None:
        """Counters that are there from the start, at 0: a rise from nothing is not seen as one."""
        if pipeline in self._known:
            return
        self._known.add(pipeline)
        counted = (m.READ, m.WRITTEN, m.DEAD_LETTERED, m.PARKED, m.SKIPPED, m.READ_BYTES, m.BATCHES)
        for metric in counted:
            self._values.add(metric, pipeline, "stream")
        for metric in (m.SCHEMAS, m.TABLES_CREATED):
            self._values.add(metric, pipeline)
        for metric in (m.DIFFERENCE, m.TABLES_PARKED, m.TABLES_OTHER, m.FAILING, m.RUNNING):
            self._values.set(metric, pipeline, value=0)
        for retried in ("true", "false"):
            self._values.add(m.FAILURES, pipeline, ErrorCode.ACCOUNTING_BROKEN, retried)

    def _alive(self, event: Event) -> None:
        values, name = self._values, event.pipeline
        values.raise_to(m.LAST_EVENT, name, value=event.at.timestamp())
        ended = isinstance(event, Stopped) or (isinstance(event, Failed) and event.retry_in is None)
        values.set(m.RUNNING, name, value=0 if ended else 1)
        if isinstance(event, BatchSettled | Idle | Stopped):
            values.set(m.FAILING, name, value=0)

    def _batch(self, event: BatchSettled) -> None:
        key = (event.pipeline, event.life, event.lane)
        if event.batch <= self._settled.get(key, -1):
            return
        self._settled[key] = event.batch
        values, lane = self._values, (event.pipeline, event.lane)
        self._records(event)
        values.add(m.BATCHES, *lane, amount=1)
        values.observe(m.BATCH_SECONDS, *lane, seconds=event.seconds)
        for step, seconds in event.steps.items():
            values.observe(m.STEP_SECONDS, *lane, step, seconds=seconds)
        values.set(m.LAST_BATCH, *lane, value=event.batch)
        values.set(m.LAST_BATCH_TIME, *lane, value=event.at.timestamp())
        for table in event.written:
            self._table(event, table)
        self._wait(event.pipeline, set(event.parked_tables))
        if event.lane == "stream":
            self._lag(event)

    def _records(self, event: BatchSettled) -> None:
        values, lane, counts = self._values, (event.pipeline, event.lane), event.counts
        values.add(m.READ, *lane, amount=counts.read)
        values.add(m.WRITTEN, *lane, amount=counts.written)
        values.add(m.DEAD_LETTERED, *lane, amount=counts.dead_lettered)
        values.add(m.PARKED, *lane, amount=counts.parked)
        values.add(m.SKIPPED, *lane, amount=counts.skipped)
        values.add(m.READ_BYTES, *lane, amount=event.bytes_read or 0)
        for code, count in event.dead_letters.items():
            values.add(m.DEAD_LETTERS, *lane, code, amount=count)
        for broken in event.broken_rules:
            labels = (event.pipeline, broken.rule, broken.action)
            values.add(m.RULE_VIOLATIONS, *labels, amount=broken.violated)
        accounted = counts.written + counts.dead_lettered + counts.parked + counts.skipped
        values.add(m.DIFFERENCE, event.pipeline, amount=counts.read - accounted)

    def _table(self, event: BatchSettled, table: TableWritten) -> None:
        if table.outcome == "parked" or (not table.files and table.version is None):
            return
        # `skipped` says that the commit was there already: by a process that ended before it
        # could tell
        values, name = self._values, event.pipeline
        labels = (name, *self._label(name, table.table, table.role))
        counts = (
            (m.TABLE_ROWS, table.rows),
            (m.TABLE_BYTES, table.bytes),
            (m.TABLE_FILES, table.files),
            (m.TABLE_COMMITS, 1),
        )
        values.add_all(labels, counts)
        values.raise_to(m.TABLE_TIME, *labels, value=event.at.timestamp())
        if table.created:
            values.add(m.TABLES_CREATED, name, amount=1)

    def _label(self, pipeline: str, table: str, role: str) -> tuple[str, str]:
        """A table's name and role, or those of all that are too many."""
        named = self._named.setdefault(pipeline, set())
        if table in named or role in _FEW:
            return table, role
        if len(named) < self._limits.get(pipeline, self._most_tables):
            named.add(table)
            return table, role
        others = self._others.setdefault(pipeline, set())
        others.add(table)
        self._values.set(m.TABLES_OTHER, pipeline, value=len(others))
        return m.OTHER, m.OTHER

    def _wait(self, pipeline: str, tables: set[str]) -> None:
        self._parked[pipeline] = tables
        self._values.set(m.TABLES_PARKED, pipeline, value=len(tables))

    def _lag(self, event: BatchSettled) -> None:
        values, name = self._values, event.pipeline
        # partitions that are gone have no lag
        values.forget(m.LAG, name)
        if not event.lag_by_partition and event.lag_records is not None:
            values.set(m.LAG, name, "", "", value=event.lag_records)
        for number, (place, lag) in enumerate(event.lag_by_partition.items()):
            topic, _, partition = place.rpartition("/")
            if number < _MOST_PARTITIONS:
                values.set(m.LAG, name, topic, partition, value=lag)
            else:
                values.add(m.LAG, name, m.OTHER, m.OTHER, amount=lag)
        if event.lag_seconds is not None:
            values.set(m.DELAY, name, value=event.lag_seconds)
            newest = event.at.timestamp() - event.lag_seconds
            values.raise_to(m.NEWEST_RECORD, name, value=newest)

    def _failed(self, event: Failed) -> None:
        retried = "false" if event.retry_in is None else "true"
        self._values.add(m.FAILURES, event.pipeline, str(event.error.code), retried, amount=1)
        self._values.set(m.FAILING, event.pipeline, value=1)

    def _asked(self, event: RegistryAsked) -> None:
        for call in event.calls:
            labels = (event.pipeline, call.endpoint, call.outcome)
            self._values.add(m.REGISTRY_REQUESTS, *labels, amount=call.count)
            self._values.add(m.REGISTRY_SECONDS, *labels, amount=call.seconds)
