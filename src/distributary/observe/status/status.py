"""The status of pipelines: read from the lake alone, whether or not a pipeline runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeVar

from distributary.errors import CheckpointError, ErrorCode, PublishError, RegistryError
from distributary.model import layout
from distributary.model.change import SourceSlots, connector_name
from distributary.model.manifest import Counts
from distributary.model.table import Role
from distributary.observe.cards import (
    CatalogState,
    MirrorState,
    UpkeepState,
    read_catalog_state,
    read_mirror_state,
    read_upkeep_state,
    registrations,
)
from distributary.observe.deadletters import DeadLetters, Reason
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import (
    BatchRow,
    RuleStatus,
    TableRow,
    TableRule,
    TableSummary,
    rule_statuses,
)
from distributary.observe.log_format import plain
from distributary.observe.pause import Pause, read_pause
from distributary.observe.status.forecast import (
    WINDOW,
    Forecast,
    forecast,
    judged,
    our_rate,
    without_answer,
)
from distributary.observe.status.health import (
    DERIVED,
    SHOWN,
    Ranking,
    filled_rows,
    losses_of,
    rank,
    with_measures,
    written_rows,
)
from distributary.observe.status.pulse import (
    Backlog,
    HeldRecords,
    Pace,
    Pulse,
    UnderWay,
    read_failure,
    read_pulse,
)
from distributary.observe.status.source_tables import SourceTables, source_tables
from distributary.observe.verify.gaps import current_life, lost_parking
from distributary.registry.folder_files import has_inferred, inferred_folder, read_doubts

RUNS = ("running", "paused", "retrying")
"""States of a process that is there."""
_ENDS = ("done", "stopped", "failed")
"""The ways in which a run ends that is not killed."""
_SILENT_SECONDS = 60.0
_SAME_MOMENT = 5.0
Liveness = Callable[[str], str]
"""From a checkpoint's path to `running`, `stopped`, `crashed` or `unknown`."""

_Row = TypeVar("_Row", TableSummary, TableRow, TableRule)


@dataclass(frozen=True, slots=True)
class ParkedTable:
    """A table whose files wait, and the reason."""

    table: str
    batches: int
    records: int
    since: datetime
    error: str
    lost_batches: int = 0
    """The parked batches that are missing in the parking folder."""


@dataclass(frozen=True, slots=True)
class DeadLetterStatistics:
    """The dead letters of a pipeline."""

    by_status: Mapping[str, int]
    reasons: tuple[Reason, ...]
    """Of the open ones."""

    @property
    def open_by_type(self) -> Counter[str]:
        """Return the number of open dead letters by type."""
        counts: Counter[str] = Counter()
        for reason in self.reasons:
            counts.update(reason.types)
        return counts


@dataclass(frozen=True, slots=True)
class ColumnDoubt:
    """A column of JSON without a schema whose kind was decided on values of several kinds."""

    table: str
    type: str
    column: str
    kind: str
    values: Mapping[str, int]
    """The number of values of each kind on which the decision was made."""
    later: Mapping[str, int]
    """The number of values of other kinds that came later, by the name of the kind in
    `schema retype`. If the statistics of the table count the rows with a value, `values` has that
    count."""


@dataclass(frozen=True, slots=True)
class SourceHeartbeat:
    """The newest heartbeat of a Debezium connector that was read."""

    connector: str
    topic: str
    at: datetime
    """The time at which the connector sent it."""
    looked_at: datetime | None
    """The time of the last request to the source that found no newer heartbeat."""
    silent_seconds: float | None
    """The silence of the connector at that time; None if unknown."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Everything about one pipeline on one screen."""

    name: str
    state: str
    """running, paused, retrying, done, stopped, failed, crashed, new or unknown."""
    file: str
    checkpoint: str
    as_of: datetime | None
    """The time at which its last batch was settled; None before the first batch."""
    age_seconds: float | None
    last_batch: BatchRow | None
    totals: Counts
    equation: str
    balanced: bool
    rows: int
    """The rows of its tables, without dead letters and without tables made from a log."""
    records_per_second: float | None
    """The rate of the last batches of this run; None when the run is idle."""
    lag: Forecast
    lag_in_words: str
    tables: Ranking
    dead_letters: DeadLetterStatistics
    parked: tuple[ParkedTable, ...]
    failure: dict[str, Any] | None = None
    """The error that is being retried, or that ended the last run."""
    backlog: Backlog | None = None
    """The unread records, by partition if the source has partitions."""
    under_way: UnderWay | None = None
    """The batch that is being worked on."""
    changes: SourceTables | None = None
    """The tables of the source, for change data."""
    expectations: tuple[RuleStatus, ...] = ()
    """The results of its rules, those with the most violations first."""
    doubts: tuple[ColumnDoubt, ...] = ()
    """Columns of records without a schema whose kind is worth a look."""
    infers: bool = False
    """Whether tables refuse records that came without a schema."""
    catalog: CatalogState | None = None
    """The state of its tables in the catalog, if there is one."""
    iceberg: MirrorState | None = None
    """The progress of the Iceberg mirrors of its tables; None without mirrors."""
    upkeep: UpkeepState | None = None
    """The last maintenance of its tables; None: never."""
    heartbeats: tuple[SourceHeartbeat, ...] = ()
    """The heartbeats of Debezium connectors, the longest silent connector first."""
    slots: SourceSlots | None = None
    """The replication slots of the source; None without `cdc.source_url`."""
    pace: Pace | None = None
    """The pace of its batches, while it runs and its trigger is a freshness."""
    held: HeldRecords | None = None
    """The records that its last batch has held back, so that transactions stay whole."""
    pause: Pause | None = None
    """The pause of the pipeline, whether or not it runs; None: it is not paused."""


@dataclass(frozen=True, slots=True)
class Status:
    """All pipelines of a lake."""

    lake: str
    now: datetime
    pipelines: tuple[PipelineStatus, ...]
    unavailable: dict[str, Any] | None = None
    """The reason why the lake cannot be read now; the contents of tables are then those read
    last."""

    def as_dict(self) -> dict[str, Any]:
        """Return the documented shape for `--json`: plain values, times in UTC."""
        return {"version": 1, **plain(self)}


def status(
    lake: str,
    *,
    pipeline: str | None = None,
    liveness: Liveness = lambda checkpoint: "unknown",
    now: datetime | None = None,
    tz: tzinfo | None = None,
    shown: int = SHOWN,
) -> Status:
    """Return the status of the pipelines of a lake; an empty lake has none."""
    found = settled_status(lake, pipeline=pipeline, now=now, shown=shown)
    pipelines = (
        now_with(each, live_of(each.checkpoint, liveness), now=found.now, tz=tz)
        for each in found.pipelines
    )
    return replace(found, pipelines=tuple(pipelines))


def settled_status(
    lake: str, *, pipeline: str | None = None, now: datetime | None = None, shown: int = SHOWN
) -> Status:
    """Read the status from the lake alone; `now_with` adds the running processes."""
    ledger = Ledger(lake).hold()
    known = {r.name: r for r in registrations(lake)}
    tables = _by_pipeline(ledger.tables(pipeline, schema_ids=False))
    parked = _by_pipeline(ledger.parked(pipeline))
    rules = _by_pipeline(ledger.rules(pipeline))
    moment = now or datetime.now(UTC)
    names = {*known, *ledger.pipelines()}

    def one(name: str) -> PipelineStatus:
        card, mine = known.get(name), tables[name]
        checkpoint = card.checkpoint if card else ""
        batches = ledger.batches(name, lane="stream", last=WINDOW)
        last = batches[-1] if batches else None
        current = [batch for batch in batches if last and batch.life == last.life]
        lag = forecast(current)
        as_of = last.finished_at if last else None
        totals = ledger.totals(name)
        dead_letters = _dead_letters(lake, name, mine)
        doubts = column_doubts(lake, checkpoint, mine)
        ranking = rank(
            mine,
            as_of=as_of or moment,
            shown=shown,
            losses=losses_of(lake, mine),
            letters=dead_letters.open_by_type,
            doubtful={doubt.type for doubt in doubts},
        )
        changes = source_tables(lake, mine, as_of=as_of or moment, shown=shown)
        if any(item.table.role in DERIVED for item in ranking.shown):
            # counting rows reads the table's log, so only the shown tables are counted
            first = [item.table for item in ranking.shown]
            found = with_measures(lake, first)
            items = (replace(i, table=t) for i, t in zip(ranking.shown, found, strict=True))
            ranking = replace(ranking, shown=tuple(items))
        return PipelineStatus(
            name=name,
            state="unknown",
            file=card.file if card else "",
            checkpoint=checkpoint,
            as_of=as_of,
            age_seconds=None if as_of is None else max((moment - as_of).total_seconds(), 0.0),
            last_batch=last,
            totals=totals,
            equation=totals.equation(),
            balanced=totals.balanced,
            rows=written_rows(mine),
            records_per_second=our_rate([b for b in current if b.batches == 1]),
            lag=lag,
            lag_in_words="",
            tables=ranking,
            dead_letters=dead_letters,
            doubts=doubts,
            infers=ranking.refusing > 0 and has_inferred(checkpoint),
            parked=parked_tables(parked[name], lost=_lost(ledger, name, checkpoint, parked[name])),
            changes=changes,
            expectations=rule_statuses(rules[name]),
            catalog=read_catalog_state(lake, name),
            iceberg=read_mirror_state(lake, name),
            upkeep=read_upkeep_state(lake, name),
        )

    wanted = sorted(names if pipeline is None else names & {pipeline})
    return Status(lake, moment, tuple(one(name) for name in wanted))


@dataclass(frozen=True, slots=True)
class Live:
    """The state of a pipeline's process."""

    state: str = "unknown"
    failure: dict[str, Any] | None = None
    pulse: Pulse | None = None
    pause: Pause | None = None


def live_of(checkpoint: str, liveness: Liveness) -> Live:
    """Return the state of a checkpoint's process, from the checkpoint alone."""
    if not checkpoint:
        return Live()
    state, pulse, pause = liveness(checkpoint), read_pulse(checkpoint), _pause_of(checkpoint)
    if state == "running" and pulse is not None and pulse.trouble is not None:
        return Live("retrying", pulse.trouble.as_failure(), pulse, pause)
    failure = read_failure(checkpoint)
    if state == "stopped":
        state = _end_of_run(pulse, failure)
    if state == "running" and pause is not None:
        state = "paused"
    return Live(state, failure, pulse, pause)


def _pause_of(checkpoint: str) -> Pause | None:
    """Return the pause; None also for a checkpoint that cannot be reached."""
    try:
        return read_pause(checkpoint)
    except OSError:
        return None


def _end_of_run(pulse: Pulse | None, failure: Mapping[str, Any] | None) -> str:
    """Return how the last run ended, of a checkpoint that its owner has given back."""
    if failure is not None:
        # a successful run removes the failure
        return "failed"
    ended = "" if pulse is None else pulse.ended
    # a checkpoint of an earlier version does not say how its last run ended
    return ended if ended in _ENDS else "stopped"


def now_with(
    found: PipelineStatus, live: Live, *, now: datetime, tz: tzinfo | None = None
) -> PipelineStatus:
    """Return a pipeline's status from the ledger, completed by the current state of its process."""
    pulse = live.pulse
    backlog = None if pulse is None else pulse.backlog
    lag = found.lag
    # a process on another machine may run or not
    going = live.state in ("running", "unknown")
    if found.as_of is not None:
        # rates of old batches predict nothing
        silent = (now - found.as_of).total_seconds()
        going = going and silent <= _SILENT_SECONDS + 5 * lag.batch_seconds
    # a batch knows the ends of its source as they were while it was published: where the run has
    # measured at about the same time, its own measurement is of one moment
    margin = timedelta(seconds=_SAME_MOMENT if live.state in RUNS else 0.0)
    if backlog is not None and (lag.lag_at is None or backlog.at >= lag.lag_at - margin):
        lag = replace(lag, lag_records=backlog.records, lag_at=backlog.at)
    lag = without_answer(lag) if _is_source_away(live) else judged(lag, running=going)
    # the speed of an earlier run is not that of this one
    began = None if pulse is None else pulse.began
    its_own = began is None or (found.as_of is not None and found.as_of >= began)
    fast = live.state == "running" and going and its_own
    return replace(
        found,
        state=live.state,
        failure=live.failure,
        age_seconds=None if found.as_of is None else max((now - found.as_of).total_seconds(), 0.0),
        records_per_second=found.records_per_second if fast else None,
        lag=lag,
        lag_in_words=lag.words(now=now, tz=tz),
        backlog=backlog,
        under_way=pulse.under_way if live.state in RUNS and pulse is not None else None,
        heartbeats=() if pulse is None else _heartbeats(pulse),
        slots=None if pulse is None else pulse.slots,
        pace=pulse.pace if live.state in RUNS and pulse is not None else None,
        held=None if pulse is None else pulse.held,
        pause=live.pause,
    )


def _heartbeats(pulse: Pulse) -> tuple[SourceHeartbeat, ...]:
    every = sorted(pulse.heartbeats.items(), key=lambda each: (each[1].at, each[0]))
    return tuple(
        SourceHeartbeat(
            connector=connector_name(topic),
            topic=topic,
            at=beat.at,
            looked_at=beat.looked_at,
            silent_seconds=beat.silent_seconds,
        )
        for topic, beat in every
    )


def _lost(
    ledger: Ledger, pipeline: str, checkpoint: str, waiting: Sequence[TableRow]
) -> Sequence[TableRow]:
    """Find batches that are parked by the ledger, but whose folders are gone."""
    folder = layout.parking(ledger.lake, pipeline, checkpoint)
    try:
        life = current_life(ledger.lake, pipeline) if waiting else ""
        return lost_parking(ledger, pipeline, folder, life=life) if life else ()
    except (CheckpointError, PublishError):
        # the entry cannot be read: the next run and `resume` report it
        return ()


def _is_source_away(live: Live) -> bool:
    """Return whether the source did not answer the last run when it was asked last."""
    away = ErrorCode.SOURCE_UNAVAILABLE
    if live.state in ("crashed", "unknown") and live.pulse and live.pulse.trouble:
        # a killed process may have died of something else, but it has measured nothing since
        return live.pulse.trouble.error.get("code") == away
    return live.state in ("retrying", "failed") and (live.failure or {}).get("code") == away


def parked_tables(
    rows: Iterable[TableRow], lost: Iterable[TableRow] = ()
) -> tuple[ParkedTable, ...]:
    """Return one line per parked table, most records first."""
    gone = Counter(row.table for row in lost)
    by_table: dict[str, list[TableRow]] = defaultdict(list)
    for row in rows:
        by_table[row.table].append(row)
    found = [
        ParkedTable(
            table=table,
            batches=len(waiting),
            records=sum(row.records for row in waiting),
            since=min(row.at for row in waiting),
            # the first batch has the reason; later ones only wait behind it
            error=min(waiting, key=lambda row: (row.at, row.batch)).error,
            lost_batches=gone[table],
        )
        for table, waiting in by_table.items()
    ]
    return tuple(sorted(found, key=lambda p: (-p.records, p.table)))


def _dead_letters(lake: str, pipeline: str, tables: Sequence[TableSummary]) -> DeadLetterStatistics:
    by_status: Counter[str] = Counter()
    reasons: list[Reason] = []
    for path in sorted({t.path for t in tables if t.role == Role.DEAD_LETTERS}):
        letters = DeadLetters(layout.place(lake, path))
        counts, found = letters.summary(pipeline=pipeline)
        by_status.update(counts)
        reasons += found
    return DeadLetterStatistics(dict(by_status), tuple(reasons))


def column_doubts(
    lake: str, checkpoint: str, tables: Sequence[TableSummary]
) -> tuple[ColumnDoubt, ...]:
    """Return the columns whose kind was decided on mixed values, or on few that later ones outvote.

    A column that was decided on few values and has many of its kind since is none of them.
    """
    if not checkpoint:
        return ()
    try:
        known = read_doubts(inferred_folder(checkpoint))
    except RegistryError:
        # an incomplete status is better than none
        return ()
    doubts = []
    for table in tables:
        for each in known.get(table.type or "", ()) if table.role == Role.EACH else ():
            values, later = each["values"], each.get("later", {})
            if len(values) == 1:
                if sum(later.values()) < sum(values.values()):
                    continue
                rows = filled_rows(lake, table, each["column"])
                if rows is not None and rows[0] > max(rows[1], sum(later.values())):
                    continue
                values = values if rows is None else {each["kind"]: rows[0]}
            column = ColumnDoubt(
                table.table, table.type, each["column"], each["kind"], values, later
            )
            doubts.append(column)
    return tuple(doubts)


def _by_pipeline(rows: Iterable[_Row]) -> defaultdict[str, list[_Row]]:
    grouped: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        grouped[row.pipeline].append(row)
    return grouped
