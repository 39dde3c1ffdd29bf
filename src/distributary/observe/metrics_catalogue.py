"""Every metric, declared once: what is served, the docs page and the tests come from here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "distributary_"
OTHER = "other"
"""In place of a table's name and role: all tables beyond the limit."""


class Kind(StrEnum):
    """What Prometheus does with a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its name without the prefix, what it says, and its labels."""

    short: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("pipeline",)

    @property
    def name(self) -> str:
        """As it is served."""
        return PREFIX + self.short

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which its samples are served."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.name,)
        return tuple(self.name + ending for ending in ("_bucket", "_sum", "_count"))


_LANE = ("pipeline", "lane")
_TABLE = ("pipeline", "table", "role")
_REGISTRY = ("pipeline", "endpoint", "outcome")


def _counter(short: str, help: str, labels: tuple[str, ...] = ("pipeline",)) -> Metric:
    return Metric(short, Kind.COUNTER, help, labels)


def _gauge(short: str, help: str, labels: tuple[str, ...] = ("pipeline",)) -> Metric:
    return Metric(short, Kind.GAUGE, help, labels)


READ = _counter("records_read_total", "Records read from the source, by its own count.", _LANE)
WRITTEN = _counter("records_written_total", "Records that reached their table.", _LANE)
DEAD_LETTERED = _counter("records_dead_lettered_total", "Records that became dead letters.", _LANE)
PARKED = _counter(
    "records_parked_total", "Records that were parked because their table was.", _LANE
)
SKIPPED = _counter("records_skipped_total", "Records passed over by policy, or copies.", _LANE)
DIFFERENCE = _gauge(
    "accounting_difference_records",
    "Records read less those written, dead-lettered, parked and skipped: must be 0.",
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

BATCHES = _counter("batches_total", "Batches that were settled.", _LANE)
BATCH_SECONDS = Metric(
    "batch_duration_seconds", Kind.HISTOGRAM, "How long settled batches took.", _LANE
)
STEP_SECONDS = Metric(
    "step_duration_seconds",
    Kind.HISTOGRAM,
    "How long each step of a settled batch took.",
    ("pipeline", "lane", "step"),
)
LAST_BATCH = _gauge("last_batch", "Number of the last settled batch.", _LANE)
LAST_BATCH_TIME = _gauge("last_batch_timestamp_seconds", "When it was settled.", _LANE)

LAG = _gauge(
    "lag_records",
    "Records left at the source after the last batch.",
    ("pipeline", "topic", "partition"),
)
DELAY = _gauge(
    "record_delay_seconds",
    "How old the newest record of the last batch was when the batch was settled.",
)
NEWEST_RECORD = _gauge(
    "newest_record_timestamp_seconds", "Time of the newest record that was read."
)

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

RUNNING = _gauge("pipeline_running", "1 while it runs, 0 after its end.")
FAILING = _gauge("pipeline_failing", "1 from a failure until a batch succeeds or none is due.")
FAILURES = _counter(
    "failures_total", "Batches and runs that failed.", ("pipeline", "code", "retried")
)
LAST_EVENT = _gauge(
    "last_event_timestamp_seconds", "Last sign of life; an idle pipeline gives one every 30 s."
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

CATALOGUE: tuple[Metric, ...] = (
    *(READ, WRITTEN, DEAD_LETTERED, PARKED, SKIPPED, DIFFERENCE, DEAD_LETTERS),
    *(RULE_VIOLATIONS, READ_BYTES),
    *(BATCHES, BATCH_SECONDS, STEP_SECONDS, LAST_BATCH, LAST_BATCH_TIME),
    *(LAG, DELAY, NEWEST_RECORD),
    *(TABLE_ROWS, TABLE_BYTES, TABLE_FILES, TABLE_COMMITS, TABLE_TIME),
    *(TABLES_CREATED, TABLES_PARKED, TABLES_OTHER, SCHEMAS),
    *(RUNNING, FAILING, FAILURES, LAST_EVENT),
    *(REGISTRY_REQUESTS, REGISTRY_SECONDS, MEMORY, BUILD),
)
"""In the order of the docs page."""


def reference() -> str:
    """The table of the docs page, as Markdown."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"
