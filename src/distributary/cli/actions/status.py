"""`status`: how the pipelines of a lake stand, on one screen, whether or not they run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from distributary.cli.actions.change_status import draw_source_tables, kinds
from distributary.cli.actions.healing import Healable, find_healable
from distributary.cli.actions.partitions import draw_partitions, find_partitions
from distributary.cli.actions.rules_status import draw_rules
from distributary.cli.lakes import Lake, find_lake
from distributary.cli.output import Paper, Words, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import ago, clock, counted, cut, duration, listed, number, since
from distributary.observe.forecast import Trend
from distributary.observe.health import Health, Ranking, TableHealth
from distributary.observe.plain import plain
from distributary.observe.status import PipelineStatus, Status, status
from distributary.run.claim import liveness
from distributary.run.removal import unfinished_removal
from distributary.stores.known import introduce

_STATE_COLOURS = {"running": "green", "crashed": "bold red", "stopped": "yellow"}
_HEALTH_COLOURS = {
    Health.MISSING: "bold red",
    Health.BEHIND: "bold red",
    Health.PARKED: "red",
    Health.STALE: "yellow",
    Health.HEALTHY: "green",
}
_LABEL = 14
_TELLS_RECORDS = (Trend.CATCHING_UP, Trend.HOLDING, Trend.BEHIND)
"""Forecasts whose words say how many records are left."""


def show_status(
    call: Invocation,
    *,
    file: Path | None,
    lake: str | None,
    partitions: bool = False,
) -> None:
    """All pipelines of the lake, or the one of a file."""
    found = find_lake(call, lake, file)
    now = status(
        found.path, pipeline=found.pipeline, liveness=liveness, storage_options=found.options
    )
    introduce(found.path, found.options or {})
    for one in now.pipelines:
        if unfinished_removal(found.path, one.name):
            call.out.warn(
                f"a reset or clean of {one.name} was begun and has not ended: its next run ends it"
            )
    healable = {p.name: find_healable(call, found, p) for p in now.pipelines}
    data = _document(now, healable)
    read = {p.name: find_partitions(call, found, p) for p in now.pipelines if partitions}
    for each in data["pipelines"] if partitions else ():
        each["partitions"] = plain(read[each["name"]])

    def draw(paper: Paper) -> None:
        _draw(paper, now, healable, found)
        for name, each in read.items():
            paper.line(styled(f"partitions of {name}", "bold"))
            draw_partitions(paper, each)

    call.out.show(data, draw)


def _document(now: Status, healable: dict[str, Healable | None]) -> dict[str, Any]:
    data = now.as_dict()
    for each in data["pipelines"]:
        each["healable"] = plain(healable[each["name"]])
    return data


def _draw(paper: Paper, now: Status, healable: dict[str, Healable | None], found: Lake) -> None:
    paper.line(styled(f"lake {found.path} ({found.found_by})", "dim"))
    if not now.pipelines:
        paper.line("no pipeline has settled a batch here yet")
    for each in now.pipelines:
        _draw_pipeline(paper, each, now.now, healable[each.name], found)


def _draw_pipeline(
    paper: Paper, each: PipelineStatus, now: datetime, healable: Healable | None, lake: Lake
) -> None:
    as_of = f"as of {clock(each.as_of, now=now)}, {ago(each.age_seconds)}"
    paper.line(
        styled(each.name, "bold"),
        "  ",
        styled(each.state, _STATE_COLOURS.get(each.state, "")),
        f"  {as_of if each.as_of else 'no batch settled yet'}",
    )
    if each.failure is not None:
        _draw_failure(paper, each.failure, now)
    _row(paper, "records", styled(each.equation, "" if each.balanced else "bold red"))
    _row(paper, "lag", _lag(each))
    rate = f", {number(each.records_per_second)} records/s" if each.records_per_second else ""
    _row(paper, "rows", f"{number(each.rows)} in {counted(each.tables.total, 'table')}{rate}")
    if each.changes is not None:
        _row(paper, "changes", kinds(each.changes.changes))
    _draw_dead_letters(paper, each, healable)
    _draw_parked(paper, each, now, lake)
    _draw_lost(paper, each.tables, lake)
    draw_rules(paper, each.expectations, now, label=_LABEL)
    if each.changes is not None:
        draw_source_tables(paper, each.changes, now)
    else:
        _draw_tables(paper, each.tables, now)


def _draw_failure(paper: Paper, failure: Mapping[str, Any], now: datetime) -> None:
    when = since(datetime.fromisoformat(failure["at"]), now=now) if failure.get("at") else ""
    what = styled(cut(f"{failure.get('code')}: {failure.get('what')}", 200), "bold red")
    _row(paper, "failed", what.append(f", {when}" if when else "", style="not bold dim"))
    if failure.get("next_step"):
        _row(paper, "", cut(failure["next_step"], 200))


def _lag(each: PipelineStatus) -> str:
    known = each.lag
    parts = [each.lag_in_words]
    if known.lag_records is not None and known.trend not in _TELLS_RECORDS:
        parts.append(counted(known.lag_records, "record"))
    if known.lag_seconds is not None:
        parts.append(f"newest record read was {duration(known.lag_seconds)} old")
    return "; ".join(parts)


def _draw_dead_letters(paper: Paper, each: PipelineStatus, healable: Healable | None) -> None:
    by_status = each.dead_letters.by_status
    reasons = listed((f"{r.code} {r.count:,}" for r in each.dead_letters.reasons), most=4)
    others = ", ".join(
        f"{count:,} {name}" for name, count in by_status.items() if name != "open" and count
    )
    text = f"{by_status.get('open', 0):,} open"
    text += f": {reasons}" if reasons else ""
    text += f"; {others}" if others else ""
    _row(paper, "dead letters", text)
    if healable is not None and healable.count:
        would = f"{counted(healable.count, 'dead letter')} would decode now: "
        _row(paper, "", styled(would + healable.command, "green"))


def _draw_parked(paper: Paper, each: PipelineStatus, now: datetime, lake: Lake) -> None:
    waiting = sum(table.records for table in each.parked)
    tables = counted(len(each.parked), "table")
    _row(paper, "parked", f"{counted(waiting, 'record')} for {tables}" if waiting else "0")
    for table in each.parked[:5]:
        paper.line(
            "    ",
            styled(table.table, "bold red"),
            f"  {counted(table.records, 'record')} in {counted(table.batches, 'batch', 'batches')}"
            f", since {since(table.since, now=now)}: {cut(table.error, 200)}",
        )
        paper.line(f"      distributary resume {table.table}{lake.flag}")


def _draw_lost(paper: Paper, tables: Ranking, lake: Lake) -> None:
    parts = {"missing": tables.missing, "behind what was settled": tables.behind}
    text = ", ".join(f"{counted(n, 'table')} {what}" for what, n in parts.items() if n)
    if text:
        _row(paper, "lost", styled(f"{text}: distributary verify --all{lake.flag}", "bold red"))


def _draw_tables(paper: Paper, ranking: Ranking, now: datetime) -> None:
    if not ranking.shown:
        return
    paper.table(
        ("TABLE", "HEALTH", "ROWS", "LAST COMMIT", "BATCHES", "COLUMNS"),
        (_table_row(item, now) for item in ranking.shown),
        right=("ROWS", "BATCHES", "COLUMNS"),
    )
    if ranking.healthy_not_shown:
        paper.line(f"  and {number(ranking.healthy_not_shown)} healthy")


def _table_row(item: TableHealth, now: datetime) -> list[Words]:
    table = item.table
    return [
        table.table,
        styled(item.health, _HEALTH_COLOURS[item.health]),
        number(table.rows),
        since(table.last_commit, now=now),
        number(table.batches),
        number(table.columns),
    ]


def _row(paper: Paper, label: str, text: Words) -> None:
    paper.line(styled(f"  {label:{_LABEL}}", "dim"), text)
