"""`status`: the state of a lake's pipelines on one screen, whether or not they run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from distributary.cli.command.lakes import (
    FoundLake,
    find_lake,
    loaded_of,
    open_registry,
    require_lake,
)
from distributary.cli.command.output import (
    Paper,
    Words,
    ago,
    brief,
    clock,
    counted,
    duration,
    number,
    since,
    styled,
)
from distributary.cli.command.verb import (
    LOOK,
    Invocation,
    LakeOption,
    OptionalFile,
    option,
    single,
    verb,
)
from distributary.errors import DistributaryError, ErrorCode, LakeUnavailableError
from distributary.observe.log_format import cut, listed, plain
from distributary.threads import begun

if TYPE_CHECKING:
    from distributary.config.load import Loaded
    from distributary.model.change import SourceSlots
    from distributary.observe.cards import CatalogState, MirrorState, UpkeepState
    from distributary.observe.ledger.ledger_rows import RuleStatus
    from distributary.observe.pause import Pause
    from distributary.observe.status.forecast import Forecast
    from distributary.observe.status.health import Ranking
    from distributary.observe.status.pulse import HeldRecords, Pace, UnderWay
    from distributary.observe.status.source_tables import SourceTables, SourceTableStatus
    from distributary.observe.status.status import PipelineStatus, SourceHeartbeat


app = single(LOOK)

_STATE_COLOURS = {
    "running": "green",
    "paused": "yellow",
    "retrying": "bold red",
    "crashed": "bold red",
    "failed": "bold red",
    "stopped": "yellow",
    "done": "green",
}
_HEALTH_COLOURS = {
    "missing": "bold red",
    "behind": "bold red",
    "parked": "red",
    "refusing": "red",
    "doubtful": "yellow",
    "stale": "yellow",
    "absent": "dim",
    "healthy": "green",
}
_RULE_COLOURS = {"warn": "yellow", "dead_letter": "yellow", "fail": "red"}
_LABEL = 14
_OLD_SECONDS = 10.0
"""The age from which a measurement is shown with its time."""
_TELLS_RECORDS = ("catching_up", "holding", "behind")
"""Forecasts whose words say how many records are left."""
_RARE = ("truncate",)
"""Kinds of change that get a column only where there are any."""
_MOST_RULES = 20
_OLD_SLOTS_SECONDS = 90.0
_MOST_TABLES = 3
_BROKER_SECONDS, _REGISTRY_SECONDS = 4.0, 5.0
"""The longest time to wait for the answer of a server."""
_T = TypeVar("_T")

Partition = tuple[str, int]


@verb(app, "status --lake distributary-demo", "status distributary-demo/games.yaml --partitions")
def status(
    call: Invocation,
    file: OptionalFile = None,
    lake: LakeOption = None,
    partitions: Annotated[
        bool,
        option("--partitions", "Show the offset and the lag of each partition; asks the broker."),
    ] = False,
) -> int:
    """Show lag, freshness, rows, dead letters and parked tables."""
    from distributary.engine.progress.claim import liveness
    from distributary.observe.cards import unfinished_removal
    from distributary.observe.status.status import status as status_of

    found = find_lake(call, lake, file, empty=file is not None)
    try:
        require_lake(found)
        now = status_of(found.path, pipeline=found.pipeline, liveness=liveness)
    except LakeUnavailableError as error:
        if found.pipeline is None:
            raise
        return _show_without_lake(call, found, error)
    for one in now.pipelines:
        if unfinished_removal(found.path, one.name):
            call.out.warn(
                f"a reset or clean of {one.name} has not finished: the next run finishes it"
            )
    healable = {p.name: _find_healable(call, found, p) for p in now.pipelines}
    read = {p.name: _find_partitions(call, found, p) for p in now.pipelines if partitions}
    data = now.as_dict()
    for each in data["pipelines"]:
        each["healable"] = plain(healable[each["name"]])
        if partitions:
            each["partitions"] = plain(read[each["name"]])

    def draw(paper: Paper) -> None:
        paper.line(styled(f"lake {found.path} ({found.found_by})", "dim"))
        if not now.pipelines:
            paper.line("no pipeline has finished a batch here yet")
        for each in now.pipelines:
            _draw_pipeline(paper, each, now.now, healable[each.name], found)
        for name, lags in read.items():
            paper.line(styled(f"partitions of {name}", "bold"))
            _draw_partitions(paper, lags)

    call.out.show(data, draw)
    return 0


def _show_without_lake(call: Invocation, lake: FoundLake, error: LakeUnavailableError) -> int:
    """Show a pipeline's status from its checkpoint alone, while the lake does not answer."""
    from distributary.engine.progress.claim import liveness
    from distributary.observe.status.status import RUNS, Live, live_of

    live = live_of(lake.checkpoint, liveness) if lake.keeps_elsewhere else Live()
    now = datetime.now(UTC)
    under_way = live.pulse.under_way if live.pulse and live.state in RUNS else None
    known = {
        "name": lake.pipeline,
        "state": live.state,
        "checkpoint": lake.checkpoint,
        "failure": live.failure,
        "pause": live.pause,
        "backlog": live.pulse.backlog if live.pulse else None,
        "under_way": under_way,
    }
    details = {key: value for key, value in error.as_dict().items() if key != "context"}
    data = {"version": 1, "lake": lake.path, "now": now, "unavailable": details}

    def draw(paper: Paper) -> None:
        paper.line(styled(f"lake {lake.path} ({lake.found_by})", "dim"))
        paper.line(
            styled(lake.pipeline or "", "bold"),
            "  ",
            styled(live.state, _STATE_COLOURS.get(live.state, "")),
        )
        if live.pause is not None:
            _draw_pause(paper, live.pause, now)
        if live.failure is not None:
            _draw_failure(paper, live.failure, now)
        if under_way is not None:
            paper.row("batch", _under_way(under_way, now))
        paper.row(
            "lake", styled("the lake does not answer: rows, lag and tables are unknown", "red")
        )
        paper.row("", cut(call.out.mask(f"{error.what}: {error.evidence}"), 300))

    call.out.show(plain(data | {"pipelines": [known]}), draw)
    return error.exit_code


def _draw_pipeline(
    paper: Paper, each: PipelineStatus, now: datetime, healable: Healable | None, lake: FoundLake
) -> None:
    as_of = f"as of {clock(each.as_of, now=now)}, {ago(each.age_seconds)}"
    paper.line(
        styled(each.name, "bold"),
        "  ",
        styled(each.state, _STATE_COLOURS.get(each.state, "")),
        f"  {as_of if each.as_of else 'no batch finished yet'}",
    )
    if each.pause is not None:
        _draw_pause(paper, each.pause, now)
    if each.failure is not None:
        _draw_failure(paper, each.failure, now)
    rate = f", {number(each.records_per_second)} records/s" if each.records_per_second else ""
    paper.row("records", styled(each.equation, "" if each.balanced else "bold red"))
    if each.under_way is not None:
        paper.row("batch", _under_way(each.under_way, now))
    paper.row("lag", _lag(each, now))
    if each.held is not None:
        paper.row("held back", _held(each.held, now))
    if freshness := _freshness(each.lag):
        paper.row("freshness", freshness)
    if each.pace is not None:
        paper.row("pace", _pace(each.pace))
    _draw_heartbeats(paper, each.heartbeats, now)
    _draw_slots(paper, each.slots, now)
    paper.row("rows", f"{number(each.rows)} in {counted(each.tables.total, 'table')}{rate}")
    if each.changes is not None:
        paper.row("changes", kinds(each.changes.changes))
    _draw_dead_letters(paper, each, healable)
    _draw_parked(paper, each, now, lake)
    _draw_catalog(paper, each.catalog, now)
    _draw_mirrors(paper, each.iceberg, now)
    _draw_upkeep(paper, each.upkeep, now)
    _draw_lost(paper, each.tables, lake)
    _draw_kinds(paper, each, lake)
    _draw_rules(paper, each.expectations, now)
    if each.changes is not None:
        _draw_source_tables(paper, each.changes, now)
    elif each.tables.shown:
        _draw_tables(paper, each.tables, now)


def _draw_pause(paper: Paper, pause: Pause, now: datetime) -> None:
    when = "" if pause.since is None else f"since {since(pause.since, now=now)}"
    note = cut(pause.note, 200)
    paper.row("paused", "; ".join(part for part in (when, note) if part) or "its file is damaged")
    paper.row("", "no batch is read; to continue: distributary continue")


def _draw_failure(paper: Paper, failure: Mapping[str, Any], now: datetime) -> None:
    when = since(datetime.fromisoformat(failure["at"]), now=now) if failure.get("at") else ""
    what = styled(cut(f"{failure.get('code')}: {failure.get('what')}", 200), "bold red")
    again = "attempts" in failure
    if again:
        tries = counted(failure["attempts"], "attempt")
        when = f"first {when}, {tries}, next try {_next_try(failure, now)}"
    paper.row(
        "retrying" if again else "failed",
        what.append(f", {when}" if when else "", style="not bold dim"),
    )
    if failure.get("next_step"):
        paper.row("", cut(failure["next_step"], 200))


def _next_try(failure: Mapping[str, Any], now: datetime) -> str:
    if failure["next_try"] is None:
        return "unknown"
    left = (datetime.fromisoformat(failure["next_try"]) - now).total_seconds()
    return f"in {duration(left)}" if left > 0 else "now"


def _under_way(batch: UnderWay, now: datetime) -> str:
    size = "" if batch.records is None else f" of {counted(batch.records, 'record')}"
    spent = max((now - batch.started_at).total_seconds(), 0.0)
    return f"{batch.batch}{size} under way for {duration(spent)}, step {batch.step}"


def _lag(each: PipelineStatus, now: datetime) -> str:
    known = each.lag
    parts = [each.lag_in_words]
    if known.lag_records is not None and known.trend not in _TELLS_RECORDS:
        parts.append(counted(known.lag_records, "record"))
    if known.lag_at is not None and (now - known.lag_at).total_seconds() > _OLD_SECONDS:
        parts.append(f"as of {since(known.lag_at, now=now)}")
    return "; ".join(parts)


def _held(held: HeldRecords, now: datetime) -> str:
    """Name the records that wait for the ends of their transactions."""
    of = counted(held.transactions, "transaction")
    begun = f"the oldest from {since(held.since, now=now)}"
    return f"{counted(held.records, 'record')} of {of} that did not come completely, {begun}"


def _freshness(known: Forecast) -> str:
    """Say how long the newest record took to become readable, and what its own time is."""
    off = known.event_seconds
    own = "" if off is None else f"its own time is {duration(abs(off))} {_direction(off)}"
    if known.lag_seconds is None:
        return f"unknown: arrival of the newest record not observed, and {own}" if own else ""
    took = duration(known.lag_seconds)
    if own:
        return f"newest record readable at most {took} after it reached the source; {own}"
    return f"newest record readable {took} after it was produced"


def _pace(pace: Pace) -> Any:
    """Say when batches begin, and how that follows from the freshness and their durations."""
    takes = f"{duration(pace.batch_seconds)} for about {counted(pace.records, 'record')}"
    wanted = f"readable within {duration(pace.freshness_seconds)}"
    if pace.late:
        return styled(f"no pauses, and still not {wanted}: a batch takes {takes}", "yellow")
    return f"a batch every {duration(pace.interval_seconds)}, {takes}: {wanted}"


def _draw_heartbeats(paper: Paper, beats: Sequence[SourceHeartbeat], now: datetime) -> None:
    """Say when each connector was heard last; the longest silent ones where there are many."""
    for position, beat in enumerate(beats[:_MOST_TABLES]):
        paper.row("" if position else "heartbeat", _heartbeat(beat, now))
    if len(beats) > _MOST_TABLES:
        others = counted(len(beats) - _MOST_TABLES, "connector")
        paper.row("", styled(f"{others} more were heard later", "dim"))


def _heartbeat(beat: SourceHeartbeat, now: datetime) -> str:
    last = f"{beat.connector}: last one sent {since(beat.at, now=now)}"
    if beat.looked_at is None:
        return f"{last}; newer ones may not be read yet"
    if (now - beat.looked_at).total_seconds() > _OLD_SECONDS:
        return f"{last}; looked for a newer one {since(beat.looked_at, now=now)}"
    return last


def _draw_slots(paper: Paper, source: SourceSlots | None, now: datetime) -> None:
    """Print the log that each replication slot holds back, in descending order."""
    if source is None:
        return
    # imported here, because few pipelines have a replication slot
    from distributary.cli.upkeep.source_comparison import slot_in_words

    lines: list[Words] = [slot_in_words(slot) for slot in source.slots[:_MOST_TABLES]]
    if len(source.slots) > _MOST_TABLES:
        others = counted(len(source.slots) - _MOST_TABLES, "slot")
        lines.append(styled(f"{others} more hold back less", "dim"))
    if source.error:
        asked = "never answered" if source.at is None else f"answered {since(source.at, now=now)}"
        lines.append(styled(f"not known now, the database {asked}: {source.error}", "yellow"))
    elif source.at is not None and (now - source.at).total_seconds() > _OLD_SLOTS_SECONDS:
        lines.append(styled(f"measured {since(source.at, now=now)}", "dim"))
    if not source.slots and source.at is not None:
        lines.insert(0, styled("no slot sends the changes of this database", "yellow"))
    for position, line in enumerate(lines):
        paper.row("" if position else "slots", line)


def _direction(seconds: float) -> str:
    return "back" if seconds > 0 else "ahead"


def _draw_dead_letters(paper: Paper, each: PipelineStatus, healable: Healable | None) -> None:
    by_status = each.dead_letters.by_status
    reasons = listed((f"{r.code} {r.count:,}" for r in each.dead_letters.reasons), most=4)
    others = ", ".join(
        f"{count:,} {name}" for name, count in by_status.items() if name != "open" and count
    )
    text = f"{by_status.get('open', 0):,} open"
    text += f": {reasons}" if reasons else ""
    text += f"; {others}" if others else ""
    paper.row("dead letters", text)
    if healable is None:
        unknown = "could not check whether dead letters would decode now: -v shows why"
        paper.row("", styled(unknown, "dim"))
    elif healable.count:
        would = f"{counted(healable.count, 'dead letter')} would decode now: "
        paper.row("", styled(would + healable.command, "green"))


def _draw_parked(paper: Paper, each: PipelineStatus, now: datetime, lake: FoundLake) -> None:
    waiting = sum(table.records for table in each.parked)
    tables = counted(len(each.parked), "table")
    paper.row("parked", f"{counted(waiting, 'record')} for {tables}" if waiting else "0")
    for table in each.parked[:5]:
        paper.line(
            "    ",
            styled(table.table, "bold red"),
            f"  {counted(table.records, 'record')} in {counted(table.batches, 'batch', 'batches')}"
            f", since {since(table.since, now=now)}: {cut(table.error, 200)}",
        )
        if table.lost_batches:
            gone = counted(table.lost_batches, "batch", "batches")
            paper.line(styled(f"      gone from the folder of parked batches: {gone}", "red"))
            paper.line(f"      distributary verify {table.table}{lake.flag}")
            continue
        resume = f"      distributary resume {table.table}{lake.flag}"
        if not table.error.startswith(f"{ErrorCode.SOURCE_WENT_BACK}:"):
            paper.line(resume)
            continue
        paper.line(f"{resume} --source-was replaced   # another server took over")
        paper.line(f"{resume} --source-was repeated   # old events were sent again")


def _draw_upkeep(paper: Paper, found: UpkeepState | None, now: datetime) -> None:
    if found is None:
        return
    parts = [f"{since(found.at, now=now)}: {counted(found.tables, 'table')}"]
    if found.files_after < found.files_before:
        parts.append(f"{number(found.files_before)} files became {number(found.files_after)}")
    if found.files_deleted:
        parts.append(f"{counted(found.files_deleted, 'file')} deleted")
    if found.left:
        parts.append(f"{counted(found.left, 'table')} next time")
    if found.failed:
        parts.append(f"{counted(found.failed, 'table')} failed: {cut(found.error, 200)}")
    if found.rows_removed and found.rows_removed_at is not None:
        when = since(found.rows_removed_at, now=now)
        parts.append(f"{counted(found.rows_removed, 'old row')} removed {when}")
    paper.row("upkeep", styled(", ".join(parts), "yellow" if found.error else ""))


def _draw_catalog(paper: Paper, found: CatalogState | None, now: datetime) -> None:
    if found is None:
        return
    text = f"{counted(found.registered, 'table')} in {found.place} ({found.type})"
    waiting = f", {counted(found.waiting, 'table')} wait" if found.waiting else ""
    paper.row("catalog", styled(text + waiting, "yellow" if found.problems else ""))
    for problem in found.problems[:_MOST_TABLES]:
        paper.line(
            "    ",
            styled(problem.table or found.place, "bold red"),
            f"  {problem.code} since {since(problem.since, now=now)}: {cut(problem.error, 300)}",
        )
        paper.line(f"      {cut(problem.next_step, 200)}")


def _draw_mirrors(paper: Paper, found: MirrorState | None, now: datetime) -> None:
    if found is None:
        return
    parts = [f"{counted(found.tables, 'mirror')} in Iceberg"]
    if found.current_until is not None:
        parts.append(f"up to what was committed {since(found.current_until, now=now)}")
    if found.behind:
        parts.append(f"{number(found.behind)} behind")
    if found.made_again:
        parts.append(f"{number(found.made_again)} made again")
    paper.row("iceberg", styled(", ".join(parts), "yellow" if found.behind else ""))
    for problem in found.problems[:_MOST_TABLES]:
        paper.line(
            "    ",
            styled(problem.table, "bold red"),
            f"  {problem.code} since {since(problem.since, now=now)}: {cut(problem.error, 300)}",
        )
        paper.line(f"      {cut(problem.next_step, 200)}")


def _draw_lost(paper: Paper, tables: Ranking, lake: FoundLake) -> None:
    parts = {"missing": tables.missing, "behind what was written": tables.behind}
    text = ", ".join(f"{counted(n, 'table')} {what}" for what, n in parts.items() if n)
    if text:
        paper.row("lost", styled(f"{text}: distributary verify --all{lake.flag}", "bold red"))


def _draw_kinds(paper: Paper, each: PipelineStatus, lake: FoundLake) -> None:
    """Print the tables that refuse most records, and the columns of a doubtful kind."""
    file = shlex.quote(each.file or "FILE")
    letters = each.dead_letters.open_by_type
    refusing = [item.table for item in each.tables.shown if item.health == "refusing"]
    if each.tables.refusing:
        text = f"{counted(each.tables.refusing, 'table')} with more dead letters than rows"
        paper.row("refusing", styled(text, "bold red"))
    for table in refusing[:_MOST_TABLES]:
        rows = counted(table.rows or 0, "row")
        paper.line(
            "    ",
            styled(table.table, "bold red"),
            f"  {counted(letters[table.type], 'dead letter')}, {rows}",
        )
        paper.line(f"      distributary dlq list --type {shlex.quote(table.type)}{lake.flag}")
        mismatches = (r for r in each.dead_letters.reasons if r.code == "PAYLOAD_MISMATCH")
        if each.infers and any(table.type in reason.types for reason in mismatches):
            paper.line(f"      distributary schema retype {table.table} COLUMN KIND {file}")
    if each.doubts:
        text = f"{counted(len(each.doubts), 'column')} whose type does not fit all values"
        paper.row("doubtful", styled(text, "yellow"))
    for doubt in each.doubts[:_MOST_TABLES]:
        others, later = (
            ", ".join(f"{n:,} {name}" for name, n in counts.items())
            for counts in (doubt.values, doubt.later)
        )
        paper.line(
            "    ",
            styled(f"{doubt.table}.{doubt.column}", "bold yellow"),
            f"  is {doubt.kind}: {others}" + (f"; of other kinds later: {later}" if later else ""),
        )
        column = shlex.quote(doubt.column)
        kind = max(doubt.later, key=lambda name: doubt.later[name], default="KIND")
        paper.line(f"      distributary schema retype {doubt.table} {column} {kind} {file}")


def _draw_tables(paper: Paper, ranking: Ranking, now: datetime) -> None:
    paper.table(
        ("TABLE", "HEALTH", "ROWS>", "LAST COMMIT", "BATCHES>", "COLUMNS>"),
        (
            (
                item.table.table,
                styled(item.health, _HEALTH_COLOURS[item.health]),
                number(item.table.rows),
                since(item.table.last_commit, now=now),
                number(item.table.batches),
                number(item.table.columns),
            )
            for item in ranking.shown
        ),
    )
    if ranking.healthy_not_shown:
        paper.line(f"  and {number(ranking.healthy_not_shown)} healthy")


def kinds(changes: Mapping[str, int]) -> str:
    """Format the numbers of events: `insert 244, update 547, delete 139`."""
    counts_text = ", ".join(f"{op} {count:,}" for op, count in changes.items() if count)
    return counts_text or "none yet"


def _draw_source_tables(paper: Paper, found: SourceTables, now: datetime) -> None:
    """Print a line for each table of the source, the furthest behind first."""
    ops = [op for op, count in found.changes.items() if count or op not in _RARE]
    numbers = ["ROWS>", *(f"{op.upper()}>" for op in ops)]
    paper.table(
        ("TABLE", *numbers, "LAST EVENT", "LAG>"),
        (list(_source_cells(table, ops, now)) for table in found.shown),
    )
    more = found.total - len(found.shown)
    if more:
        paper.line(f"  and {more:,} more, with less lag")
    if any(table.rows is None for table in found.shown):
        paper.line(
            styled(
                "  ROWS -: only the log is kept, because no key is known or no row has come", "dim"
            )
        )


def _source_cells(table: SourceTableStatus, ops: list[str], now: datetime) -> Iterator[Words]:
    yield styled(table.table, "red") if table.parked_events else table.table
    yield number(table.rows)
    yield from (number(table.changes.get(op, 0)) for op in ops)
    yield since(table.last_event, now=now)
    behind = f"parked {table.parked_events:,}" if table.parked_events else ""
    yield styled(behind, "red") if behind else brief(table.lag_seconds)


def _draw_rules(paper: Paper, rules: Sequence[RuleStatus], now: datetime) -> None:
    """Print a line for each rule, those with the most violations first."""
    for index, rule in enumerate(rules[:_MOST_RULES]):
        paper.line(
            styled(f"  {'' if index else 'expectations':{_LABEL}}", "dim"),
            styled(rule.rule, "bold"),
            f" ({rule.action}): ",
            styled(_found(rule, now), _RULE_COLOURS.get(rule.action, "") if rule.violated else ""),
        )
        if rule.unfit_tables:
            one, more = rule.unfit[0], rule.unfit_tables - 1
            others = f" and {counted(more, 'other table')}" if more else ""
            text = f"not applied to {one.table}{others}: {cut(one.unfit, 200)}"
            paper.line(f"  {'':{_LABEL}}", styled(text, "yellow"))
    paper.more(len(rules) - _MOST_RULES, "rule", indent=f"  {'':{_LABEL}}")


def _found(rule: RuleStatus, now: datetime) -> str:
    tables = counted(rule.tables, "table")
    if not rule.checked:
        return "no row checked yet"
    if not rule.violated:
        return f"kept by {counted(rule.checked, 'row')} of {tables}"
    worst = ", ".join(f"{one.table} {one.violated:,}" for one in rule.violating[:_MOST_TABLES])
    more = rule.violating_tables - _MOST_TABLES
    text = f"broken by {rule.violated:,} of {counted(rule.checked, 'row')}: {worst}"
    text += f" and {counted(more, 'more table')}" if more > 0 else ""
    if rule.last_violated is not None:
        text += f"; last {since(rule.last_violated, now=now)}"
    example = rule.violating[0].example
    return f"{text}, such as {cut(example, 100)}" if example else text


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition."""

    topic: str
    partition: int
    next_offset: int | None
    """The first offset that was not read yet; None before the first batch."""
    oldest: int | None
    newest: int | None
    """One past the newest record; None when the broker did not say it."""
    lag: int | None
    """Offsets between the two; None when the broker did not say it."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """All partitions of a pipeline."""

    asked: str
    """`broker`, or `ledger` where there was no broker to ask or it did not answer."""
    reason: str
    """The reason why no request was sent to the broker."""
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        """Return the sum of the lag of all partitions."""
        lags = [each.lag for each in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None


def _find_partitions(call: Invocation, lake: FoundLake, status: PipelineStatus) -> Partitions:
    """Return a pipeline's partitions from the ledger, completed by its broker."""
    read: dict[Partition, int] = {}
    if status.last_batch is not None:
        # only offsets of the newest life count, because a reset starts over
        rows = lake.ledger().read_ranges(status.name, life=status.last_batch.life).to_pylist()
        read = {(row["topic"], row["partition"]): row["end"] for row in rows}
    ends, reason = _ask_broker(call, lake, status)
    if ends is None:
        known = [PartitionLag(*one, end, None, None, None) for one, end in sorted(read.items())]
        return Partitions("ledger", reason, tuple(known))
    every = sorted({*read, *ends[1]})
    return Partitions("broker", "", tuple(_partition_lag(one, read, *ends) for one in every))


def _partition_lag(
    one: Partition,
    read: Mapping[Partition, int],
    oldest: Mapping[Partition, int],
    newest: Mapping[Partition, int],
) -> PartitionLag:
    position, first, end = read.get(one), oldest.get(one), newest.get(one)
    # an unread partition lags by all of its records, without those that the broker has deleted
    lag = None if end is None else max(end - max(position or 0, first or 0), 0)
    return PartitionLag(*one, position, first, end, lag)


def _ask_broker(
    call: Invocation, lake: FoundLake, status: PipelineStatus
) -> tuple[tuple[Mapping[Partition, int], Mapping[Partition, int]] | None, str]:
    """Ask for the oldest and newest offsets; return the reason if they are unknown."""
    from distributary.source.source_entry import entry_of

    try:
        source = loaded_of(call, lake, name=status.name, needs=("source",)).config.source
    except DistributaryError as error:
        return None, error.what
    problems: list[str] = []

    def ask() -> tuple[Mapping[Partition, int], Mapping[Partition, int]] | None:
        return entry_of(source).bounds(source)

    def failed(error: Exception) -> None:
        problems.append(getattr(error, "what", type(error).__name__))

    if not source.servers:
        return None, f"a source of type {source.type} has no broker"
    ends = _answer(ask, failed, seconds=_BROKER_SECONDS)
    reason = next(iter(problems), "the broker does not answer")
    return ends, "" if ends else f"{reason} ({source.servers})"


def _answer(
    ask: Callable[[], _T], failed: Callable[[Exception], None], *, seconds: float
) -> _T | None:
    """Return a server's answer, if it arrives in time: it must not delay the other output."""
    try:
        return begun(ask, name="question").result(timeout=seconds)
    except TimeoutError:
        failed(TimeoutError(f"no answer within {seconds:.0f} s"))
    except Exception as error:
        failed(error)
    return None


def _draw_partitions(paper: Paper, found: Partitions) -> None:
    """Print a row for each partition, the furthest behind first."""
    rows = sorted(found.partitions, key=lambda p: (-(p.lag or 0), p.topic, p.partition))
    paper.table(
        ("TOPIC", "PARTITION>", "NEXT>", "NEWEST>", "LAG>"),
        (
            (
                each.topic,
                str(each.partition),
                number(each.next_offset),
                number(each.newest),
                styled(number(each.lag), "yellow" if each.lag else ""),
            )
            for each in rows
        ),
    )
    if found.asked == "ledger":
        paper.line(styled(f"  as of the last batch: {found.reason}", "dim"))
    elif found.lag is not None:
        count = counted(len(rows), "partition")
        paper.line(f"  {counted(found.lag, 'offset')} behind in {count}, by the broker")


@dataclass(frozen=True, slots=True)
class Healable:
    """Open dead letters that a replay would bring into their tables."""

    count: int
    by_reason: Mapping[str, int] = field(default_factory=dict)
    command: str = ""


def _find_healable(call: Invocation, lake: FoundLake, status: PipelineStatus) -> Healable | None:
    """Return the number of dead letters that would decode; None if it cannot be determined now."""
    from distributary.model.deadletter import MAY_HEAL

    if MAY_HEAL.isdisjoint(reason.code for reason in status.dead_letters.reasons):
        return Healable(0)

    def failed(error: Exception) -> None:
        text = f"healing of {status.name} unknown: {error}"
        refused = getattr(error, "code", None) is ErrorCode.FILE_NOT_TRUSTED
        (call.out.warn if refused else call.out.step)(text)

    return _answer(lambda: _ask_registry(call, lake, status), failed, seconds=_REGISTRY_SECONDS)


def _ask_registry(call: Invocation, lake: FoundLake, status: PipelineStatus) -> Healable:
    from distributary.observe.cards import DECODING

    loaded = loaded_of(call, lake, name=status.name, needs=DECODING)
    if not _may_decode(lake, status, loaded):
        return Healable(0)
    # imported here, because decoders take long to import
    from distributary.engine.pipeline import Pipeline
    from distributary.operations.replay import healable

    found = healable(Pipeline(loaded))
    one = f" --reason {next(iter(found.by_reason))}" if len(found.by_reason) == 1 else ""
    command = f"distributary dlq replay{one} --lake {shlex.quote(lake.path)}"
    return Healable(found.count, dict(found.by_reason), command)


def _may_decode(lake: FoundLake, status: PipelineStatus, loaded: Loaded) -> bool:
    """Return whether a schema that dead letters wait for exists; decoders are loaded only then."""
    from distributary.model.deadletter import MAY_HEAL
    from distributary.observe.deadletters import letter_tables
    from distributary.registry.base import has_schema

    settings = loaded.config.registry
    tables = letter_tables(lake.path, pipeline=status.name)
    letters = tables.get(status.name)
    if settings is None or letters is None:
        return True
    # one attempt only, because `status` must not wait for a registry that is down
    registry = open_registry(settings, attempts=1)
    columns = [
        letters.select(reason=reason, pipeline=status.name, columns=("schema_id",))["schema_id"]
        for reason in sorted(MAY_HEAL)
    ]
    wanted = {id for column in columns for id in column.to_pylist() if id is not None}
    return any(has_schema(registry, id) for id in sorted(wanted))
