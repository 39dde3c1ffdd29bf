"""How it stands: read from the lake alone, whether or not anything is running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar

from distributary.model.manifest import Counts
from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters, Reason
from distributary.observe.delta import StorageOptions
from distributary.observe.failures import read_failure
from distributary.observe.forecast import WINDOW, Forecast, forecast, our_rate
from distributary.observe.health import SHOWN, Ranking, losses_of, rank
from distributary.observe.ledger import Ledger
from distributary.observe.measured import with_measures
from distributary.observe.pipelines import Registration, registrations
from distributary.observe.plain import plain
from distributary.observe.rows import BatchRow, TableRow, TableSummary
from distributary.observe.rule_counts import RuleStatus, TableRule, rule_statuses
from distributary.observe.source_tables import SourceTables, source_tables
from distributary.publish.marks import Loss

STATUS_VERSION = 1

Liveness = Callable[[str], str]
"""From a checkpoint's path to `running`, `stopped`, `crashed` or `unknown`."""

_Row = TypeVar("_Row", TableSummary, TableRow, TableRule)

_NOT_RUNNING = frozenset({"stopped", "crashed"})


@dataclass(frozen=True, slots=True)
class ParkedTable:
    """A table whose files wait, and the reason."""

    table: str
    batches: int
    records: int
    since: datetime
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetterStatistics:
    """The dead letters of a pipeline."""

    by_status: Mapping[str, int]
    reasons: tuple[Reason, ...]
    """Of the open ones."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Everything about one pipeline on one screen."""

    name: str
    state: str
    file: str
    checkpoint: str
    as_of: datetime | None
    """When its last batch was settled; None before the first."""
    age_seconds: float | None
    last_batch: BatchRow | None
    totals: Counts
    equation: str
    balanced: bool
    rows: int
    """Written to all its tables, dead letters not counted."""
    records_per_second: float | None
    """While batches are under way, over the last ones."""
    lag: Forecast
    lag_in_words: str
    tables: Ranking
    dead_letters: DeadLetterStatistics
    parked: tuple[ParkedTable, ...]
    failure: dict[str, Any] | None = None
    """Code and words of the error that ended the last run, if one did."""
    changes: SourceTables | None = None
    """Of change data: the tables of the source."""
    expectations: tuple[RuleStatus, ...] = ()
    """What the rules for its rows have found, those that were broken most first."""


@dataclass(frozen=True, slots=True)
class Status:
    """All pipelines of a lake."""

    lake: str
    now: datetime
    pipelines: tuple[PipelineStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        """The documented shape for `--json`: plain values, times in UTC."""
        return {"version": STATUS_VERSION, **plain(self)}


def unknown_liveness(checkpoint: str) -> str:
    """For callers who cannot tell whether a process is alive."""
    return "unknown"


def status(
    lake: str,
    *,
    pipeline: str | None = None,
    liveness: Liveness = unknown_liveness,
    now: datetime | None = None,
    tz: tzinfo | None = None,
    shown: int = SHOWN,
    storage_options: StorageOptions | None = None,
) -> Status:
    """How the pipelines of a lake stand; an empty lake has none."""
    ledger = Ledger(lake, storage_options=storage_options)
    known = {r.name: r for r in registrations(lake, storage_options=storage_options)}
    tables = _by_pipeline(ledger.tables(pipeline, schema_ids=False))
    parked = _by_pipeline(ledger.parked(pipeline))
    rules = _by_pipeline(ledger.rules(pipeline))
    moment = now or datetime.now(UTC)
    names = {*known, *ledger.pipelines()}
    result = []
    for name in sorted(names if pipeline is None else names & {pipeline}):
        facts = _Facts(
            name=name,
            registration=known.get(name),
            batches=ledger.batches(name, lane="stream", last=WINDOW),
            tables=tables.get(name, []),
            parked=parked.get(name, []),
            totals=ledger.totals(name),
            dead_letters=_dead_letters(lake, name, tables.get(name, []), storage_options),
            rules=rules.get(name, []),
            losses=losses_of(lake, tables.get(name, [])),
        )
        one = _one(facts, liveness=liveness, now=moment, tz=tz, shown=shown)
        result.append(_measured(one, facts.tables, lake, shown, storage_options))
    return Status(lake, moment, tuple(result))


@dataclass(frozen=True, slots=True)
class _Facts:
    name: str
    registration: Registration | None
    batches: Sequence[BatchRow]
    tables: Sequence[TableSummary]
    parked: Sequence[TableRow]
    totals: Counts
    dead_letters: DeadLetterStatistics
    rules: Sequence[TableRule]
    losses: Mapping[str, Loss]


def _one(
    facts: _Facts, *, liveness: Liveness, now: datetime, tz: tzinfo | None, shown: int
) -> PipelineStatus:
    checkpoint = facts.registration.checkpoint if facts.registration else ""
    state = liveness(checkpoint) if checkpoint else "unknown"
    last = facts.batches[-1] if facts.batches else None
    current = [batch for batch in facts.batches if last and batch.life == last.life]
    lag = forecast(current, running=state not in _NOT_RUNNING)
    as_of = last.finished_at if last else None
    return PipelineStatus(
        name=facts.name,
        state=state,
        file=facts.registration.file if facts.registration else "",
        checkpoint=checkpoint,
        as_of=as_of,
        age_seconds=None if as_of is None else max((now - as_of).total_seconds(), 0.0),
        last_batch=last,
        totals=facts.totals,
        equation=facts.totals.equation(),
        balanced=facts.totals.balanced,
        rows=sum(t.rows or 0 for t in facts.tables if t.role != Role.DEAD_LETTERS),
        records_per_second=our_rate([b for b in current if b.batches == 1]),
        lag=lag,
        lag_in_words=lag.words(now=now, tz=tz),
        tables=rank(facts.tables, as_of=as_of or now, shown=shown, losses=facts.losses),
        dead_letters=facts.dead_letters,
        parked=parked_tables(facts.parked),
        failure=read_failure(checkpoint) if checkpoint else None,
        expectations=rule_statuses(facts.rules),
    )


def _measured(
    one: PipelineStatus,
    tables: Sequence[TableSummary],
    lake: str,
    shown: int,
    storage_options: StorageOptions | None,
) -> PipelineStatus:
    """The same with what is to be read from the tables themselves: of the shown ones only."""
    changes = source_tables(
        lake,
        tables,
        as_of=one.as_of or datetime.now(UTC),
        shown=shown,
        storage_options=storage_options,
    )
    if changes is None:
        return one
    first = [item.table for item in one.tables.shown]
    found = with_measures(lake, first, storage_options=storage_options)
    items = (replace(i, table=t) for i, t in zip(one.tables.shown, found, strict=True))
    return replace(one, changes=changes, tables=replace(one.tables, shown=tuple(items)))


def parked_tables(rows: Iterable[TableRow]) -> tuple[ParkedTable, ...]:
    """What waits, one line per table, most records first."""
    by_table: dict[str, list[TableRow]] = defaultdict(list)
    for row in rows:
        by_table[row.table].append(row)
    found = [
        ParkedTable(
            table=table,
            batches=len(waiting),
            records=sum(row.records for row in waiting),
            since=min(row.at for row in waiting),
            error=max(waiting, key=lambda row: row.at).error,
        )
        for table, waiting in by_table.items()
    ]
    return tuple(sorted(found, key=lambda p: (-p.records, p.table)))


def _dead_letters(
    lake: str,
    pipeline: str,
    tables: Sequence[TableSummary],
    storage_options: StorageOptions | None,
) -> DeadLetterStatistics:
    by_status: dict[str, int] = defaultdict(int)
    reasons: list[Reason] = []
    for path in sorted({t.path for t in tables if t.role == Role.DEAD_LETTERS}):
        here = layout.place(lake, path)
        letters = DeadLetters(here, storage_options=storage_options)
        for name, count in letters.count_by_status(pipeline=pipeline).items():
            by_status[name] += count
        reasons += letters.reasons(pipeline=pipeline)
    return DeadLetterStatistics(dict(by_status), tuple(reasons))


def _by_pipeline(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    grouped: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        grouped[row.pipeline].append(row)
    return grouped
