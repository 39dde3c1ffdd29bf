"""`resume`, `reset` and `clean`: what they will do is shown before they do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from distributary.changes.rebuild import Verified
from distributary.cli.actions.dlq import Selection, letters_in
from distributary.cli.actions.schema import find_table
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import Lake, find_lake, open_pipeline, pipeline_of
from distributary.cli.logs import usage_error
from distributary.cli.output import (
    Paper,
    Words,
    clock,
    confirmed,
    counted,
    cut,
    duration,
    number,
    styled,
    tally,
)
from distributary.cli.verb import Invocation
from distributary.engine.claim import refuse_owned
from distributary.engine.mending import (
    SUBJECT,
    TOPIC,
    Acceptance,
    accept,
    plan_acceptance,
    plan_clean,
    plan_produced,
    plan_reset,
    rebuild_table,
    refuse_running,
    remove,
    resume,
    verify_table,
    waiting,
)
from distributary.engine.pipeline import Pipeline
from distributary.engine.recovery import Recovery, plan_recovery, recover
from distributary.engine.removal import Removal, dead_letters_of, finish_removal
from distributary.engine.replay import (
    LANE,
    Insight,
    Replayed,
    finish,
    look_inside,
    replay,
    try_replay,
    unfinished,
)
from distributary.engine.requests import Rebuilt
from distributary.errors import DistributaryError, ErrorCode, RegistryError, SourceError
from distributary.observe.deadletters import find_letter, hexdump
from distributary.observe.ledger import Ledger
from distributary.observe.pipelines import DECODING
from distributary.observe.rows import TableSummary
from distributary.publish.base import Outcome, Published

_SUBJECTS_SHOWN = 20
_OWN_PART = {"dead letters": "(its rows only)", "ledger": "(its entries only)"}
"""What pipelines of a lake share: the path alone would look as if all of it went."""


def resume_table(
    call: Invocation,
    table: str,
    *,
    lake: str | None,
    pipeline: str | None,
    file: Path | None,
    dry_run: bool,
) -> int:
    """Publish what waits; 1 if the table still cannot be written."""
    found = find_lake(call, lake, file)
    known = find_table(Ledger(found.path, storage_options=found.options).tables(), table)
    mine = pipeline_of(call, found, name=pipeline or known.pipeline)
    batches = waiting(mine, known.table)
    records = sum(batch.entry.records for batch in batches)
    done = resume(mine, known.table) if batches and not dry_run else []
    published = [result for result in done if result.outcome is not Outcome.PARKED]
    failed = next((result for result in done if result.outcome is Outcome.PARKED), None)
    data = {
        "table": known.table,
        "dry_run": dry_run,
        "waiting": {"batches": len(batches), "records": records},
        "published": len(published),
        "error": failed.error if failed else None,
    }
    text = _resumed(known.table, len(batches), records, published, dry_run=dry_run)
    call.out.show(data, lambda paper: _draw_resumed(paper, text, failed))
    return 1 if failed else 0


def reset_pipeline(
    call: Invocation, file: Path, *, with_tables: bool, dry_run: bool, yes: bool
) -> int:
    """Forget progress, and with `with_tables` everything that came of it."""
    pipeline = open_pipeline(call, file)
    if not dry_run:
        finish_removal(pipeline)
    if with_tables:
        removals = [each for each in plan_clean(pipeline) if each.kind != "card"]
    else:
        removals = plan_reset(pipeline)
        if removals:
            call.out.warn(
                "the tables keep their rows: the next run reads the source from its start and "
                "appends everything again; --with-tables empties them too"
            )
    return _take_away(call, pipeline, removals, dry_run=dry_run, yes=yes)


def clean_pipeline(call: Invocation, file: Path, *, dry_run: bool, yes: bool) -> int:
    """Remove everything that this pipeline made, and what the simulators made for it."""
    pipeline = open_pipeline(call, file)
    if not dry_run:
        finish_removal(pipeline)
    removals = plan_clean(pipeline)
    try:
        removals += plan_produced(pipeline.config)
    except (SourceError, RegistryError) as error:
        # a broker that is gone for ever must not keep a lake from being cleaned
        call.out.warn(f"simulated topics and subjects stay: {error.what} ({error.where})")
    return _take_away(call, pipeline, removals, dry_run=dry_run, yes=yes)


def recover_pipeline(call: Invocation, file: Path, *, dry_run: bool) -> int:
    """Make a lost checkpoint anew from what the lake knows."""
    pipeline = open_pipeline(call, file)
    found = plan_recovery(pipeline) if dry_run else recover(pipeline)
    data = {
        "pipeline": pipeline.config.name,
        "dry_run": dry_run,
        "checkpoint": pipeline.checkpoint.address,
        "recovered": None if found is None else asdict(found),
    }
    call.out.show(data, lambda paper: _draw_recovery(paper, found, dry_run=dry_run))
    return 0


def _draw_recovery(paper: Paper, found: Recovery | None, *, dry_run: bool) -> None:
    if found is None:
        paper.line("the checkpoint is there: nothing is lost")
        return
    verb = "would go on" if dry_run else "goes on"
    paper.line(f"the checkpoint {verb} with life {found.life}, after batch {found.batch}")
    paper.line(f"known by the {'newest manifest' if found.known_by == 'manifest' else 'ledger'}")
    if not found.settled:
        paper.line("that batch was decided and not finished: the next run finishes it")
    paper.line(f"the source is read on from {cut(json.dumps(found.position), 500)}")


def _take_away(
    call: Invocation, pipeline: Pipeline, removals: list[Removal], *, dry_run: bool, yes: bool
) -> int:
    data: dict[str, Any] = {
        "pipeline": pipeline.config.name,
        "dry_run": dry_run,
        "removals": removals,
    }
    if dry_run or not removals:
        call.out.show(data | {"removed": False}, lambda paper: _draw_removals(paper, removals))
        return 0
    refuse_owned(pipeline.checkpoint)
    if not yes:
        _draw_removals(call.out.margin, removals)
        parts = counted(len(removals), "part")
        question = f"Remove these {parts} of pipeline {pipeline.config.name}?"
        if not confirmed(call, question, yes=yes, evidence=_summary(removals)):
            return 1
    remove(pipeline, removals)
    text = f"removed {_summary(removals)} of pipeline {pipeline.config.name}"
    call.out.show(data | {"removed": True}, lambda paper: paper.line(text))
    return 0


def _summary(removals: Sequence[Removal]) -> str:
    tables = [each for each in removals if each.kind == "table"]
    subjects = [each for each in removals if each.kind == SUBJECT]
    rows = sum(each.rows or 0 for each in tables)
    named = [f"{counted(len(tables), 'table')} with {counted(rows, 'row')}"] if tables else []
    named += [each.kind for each in removals if each.kind not in ("table", TOPIC, SUBJECT)]
    named += [f"topic {each.table}" for each in removals if each.kind == TOPIC]
    return ", ".join([*named, *([counted(len(subjects), "subject")] if subjects else [])])


def _name(removal: Removal) -> str:
    return removal.table or _OWN_PART.get(removal.kind, "")


def _draw_removals(paper: Paper, removals: Sequence[Removal]) -> None:
    if not removals:
        paper.line("there is nothing to remove")
        return
    # they come last
    more = max(0, sum(each.kind == SUBJECT for each in removals) - _SUBJECTS_SHOWN)
    paper.table(
        ("WHAT", "NAME", "ROWS", "PATH"),
        (
            (each.kind, _name(each), "" if each.rows is None else number(each.rows), each.path)
            for each in removals[: len(removals) - more]
        ),
        right=("ROWS",),
        indent=0,
    )
    if more:
        paper.line(f"and {counted(more, 'more subject')}")


def _resumed(
    table: str, batches: int, records: int, published: Sequence[Published], *, dry_run: bool
) -> str:
    if not batches:
        return f"nothing waits for {table}"
    what = f"{counted(batches, 'batch', 'batches')} with {counted(records, 'record')}"
    if dry_run:
        return f"{what} would be published to {table}"
    return f"{len(published):,} of {what} published to {table}"


def _draw_resumed(paper: Paper, text: str, failed: Published | None) -> None:
    paper.line(text)
    if failed is not None:
        paper.line(styled("still parked: ", "red"), cut(failed.error, 500))


# `reset --table`: a table is taken as it is; what that means is shown before it is done.


def accept_table(
    call: Invocation, file: Path, table: str, *, with_tables: bool, dry_run: bool, yes: bool
) -> int:
    """Say in the ledger that a table counts as it is now; 1 if the person says no."""
    if with_tables:
        raise usage_error(
            "--table keeps everything, --with-tables removes it: say one of them.",
            command="distributary reset",
        )
    pipeline = open_pipeline(call, file)
    plan = plan_acceptance(pipeline, table)
    check = plan.check
    data = {
        "pipeline": pipeline.config.name,
        "table": check.table,
        "dry_run": dry_run,
        "exists": check.version is not None,
        "rows": check.rows,
        "rows_by_ledger": check.rows_by_ledger,
        "difference": plan.difference,
        "findings": check.findings,
    }
    if dry_run:
        call.out.show(data | {"accepted": False}, lambda paper: _draw(paper, plan))
        return 0
    refuse_running(pipeline, plan)
    if not yes:
        _draw(call.out.margin, plan)
        if not confirmed(
            call, f"Take {check.table} as it is?", yes=yes, evidence=_accept_summary(plan)
        ):
            return 1
    accept(pipeline, plan)
    done = f"taken as it is: {_accept_summary(plan)}"
    call.out.show(data | {"accepted": True}, lambda paper: paper.line(done))
    return 0


def _draw(paper: Paper, plan: Acceptance) -> None:
    paper.line(_accept_summary(plan))
    if plan.check.agrees:
        paper.line("  by marks, rows and files it is what the ledger says")
    for finding in plan.check.findings:
        paper.line("  ", styled(finding.what, "bold red"), f": {finding.evidence}")


def _accept_summary(plan: Acceptance) -> str:
    check = plan.check
    if check.version is None:
        has = "there is no table"
    else:
        has = f"version {check.version}, " + (
            "rows not counted" if check.rows is None else counted(check.rows, "row")
        )
    if not plan.difference:
        return f"{check.table} ({has})"
    rows = counted(abs(plan.difference), "row")
    return (
        f"{check.table} ({has}), {rows} {'fewer' if plan.difference < 0 else 'more'} than written"
    )


# Moments that a person types.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(text: str | None, *, command: str) -> datetime | None:
    """ISO 8601, or a day; without an offset it is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise usage_error(
            f"{text!r} is no time such as 2026-11-15T12:00:00Z.", command=command
        ) from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def microseconds(moment: datetime | None) -> int | None:
    """Since 1970."""
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


# `rebuild`: a merged table from its log.


def rebuild_from_log(
    call: Invocation,
    table: str,
    *,
    as_of: str | None,
    lake: str | None,
    pipeline: str | None,
    file: Path | None,
    dry_run: bool,
) -> int:
    """Make one table anew, or say what that would change."""
    moment = moment_of(as_of, command="distributary rebuild")
    found = find_lake(call, lake, file)
    tables = Ledger(found.path, storage_options=found.options).tables(pipeline)
    known = find_table(tables, table)
    mine = pipeline_of(call, found, name=pipeline or known.pipeline)
    data: dict[str, Any] = {"table": known.table, "dry_run": dry_run, "as_of": moment}
    if dry_run:
        would = verify_table(mine, known, as_of_us=microseconds(moment)).verified
        call.out.show(data | _planned(would), lambda paper: _draw_planned(paper, would))
    else:
        _rebuild(call, mine, known, moment, data)
    return 0


def _rebuild(
    call: Invocation,
    pipeline: Pipeline,
    known: TableSummary,
    moment: datetime | None,
    data: dict[str, Any],
) -> None:
    done = rebuild_table(pipeline, known, as_of_us=microseconds(moment))
    told = {
        "log": done.log,
        "rows": done.rows,
        "table_version": done.version if done.version >= 0 else None,
        "seconds": round(done.seconds, 3),
        "by_running_pipeline": done.by_owner,
    }
    call.out.show(data | told, lambda paper: _draw_done(paper, done))
    if moment is not None:
        call.out.warn(
            f"{known.table} is as it was at {moment.isoformat()}; new batches are merged into "
            f"that. Up to date again: distributary rebuild {known.table}"
        )
    if known.parked_batches:
        call.out.note(
            f"{counted(known.parked_batches, 'batch', 'batches')} wait for it still: "
            f"distributary resume {known.table}"
        )


def _planned(would: Verified) -> dict[str, Any]:
    changes = {"added": would.missing, "removed": would.extra, "changed": would.different}
    return {"rows": would.expected, "rows_now": would.found, **changes}


def _draw_planned(paper: Paper, would: Verified) -> None:
    paper.line(
        f"{would.table} would have {counted(would.expected, 'row')}, it has {number(would.found)}: "
        f"{number(would.missing)} would be added, {number(would.extra)} removed, "
        f"{number(would.different)} changed"
    )


def _draw_done(paper: Paper, done: Rebuilt) -> None:
    if done.version < 0:
        paper.line(f"{done.log} leaves no row: there is no table {done.table}, and none was made")
        return
    how = ", by the running pipeline" if done.by_owner else ""
    paper.line(
        "rebuilt ",
        styled(done.table, "bold"),
        f" from {done.log}: {counted(done.rows, 'row')}, version {done.version}, "
        f"{duration(done.seconds)}{how}",
    )


# `dlq replay`: dead letters through the pipeline once more.


def replay_letters(
    call: Invocation,
    wanted: Selection,
    *,
    lake: str | None,
    file: Path | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Say what would happen, or do it; 1 if some of them failed again."""
    found = find_lake(call, lake, file)
    pipeline = pipeline_of(call, found, name=wanted.pipeline)
    letters = dead_letters_of(pipeline)
    open_ones = wanted.letters(letters, pipeline=pipeline.config.name, columns=("id",)).num_rows
    if not open_ones and (dry_run or not unfinished(pipeline.checkpoint)):
        return _show(call, Replayed(), dry_run=dry_run)
    chosen = counted(open_ones, "dead letter")
    ask = wanted.is_everything and open_ones > 0 and not dry_run
    if ask and not confirmed(call, f"Replay all {chosen}?", yes=yes, evidence=chosen):
        return 1
    # before Spark is started for nothing
    pipeline.ready(LANE)
    with start_spark(call, pipeline) as spark, pipeline.open(spark, lane=LANE) as context:
        if dry_run:
            selected = wanted.letters(letters, pipeline=pipeline.config.name)
            return _show(call, try_replay(context, selected), dry_run=True)
        # what an earlier replay has begun is no longer open when it is done: it goes first
        begun = finish(context, letters)
        selected = wanted.letters(letters, pipeline=pipeline.config.name)
        done = replay(context, letters, selected)
    return _show(call, _sum([*begun, done]), dry_run=False)


def _sum(parts: list[Replayed]) -> Replayed:
    failed: dict[str, int] = {}
    tables: dict[str, int] = {}
    for part in parts:
        for into, counts in ((failed, part.failed_again), (tables, part.tables)):
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count
    selected, replayed = (sum(getattr(p, n) for p in parts) for n in ("selected", "replayed"))
    return Replayed(selected, replayed, failed, tables)


def _show(call: Invocation, done: Replayed, *, dry_run: bool) -> int:
    data = {"dry_run": dry_run, **asdict(done)}
    call.out.show(data, lambda paper: _draw_replay(paper, done, dry_run=dry_run))
    return 1 if done.failed_again and not dry_run else 0


def _draw_replay(paper: Paper, done: Replayed, *, dry_run: bool) -> None:
    if not done.selected:
        paper.line("0 to replay")
        return
    into = f", into {tally(done.tables)}" if done.tables and done.replayed else ""
    what = "would decode" if dry_run else "replayed"
    paper.line(f"{done.replayed:,} {what}{into}")
    if done.failed_again:
        still = sum(done.failed_again.values())
        fail = "would fail again" if dry_run else "failed again"
        paper.line(f"{still:,} {fail}: {tally(done.failed_again)}")


# `dlq show`: one dead letter, whole.

_LABEL = 10


def show_letter(call: Invocation, id: str, *, lake: str | None, file: Path | None) -> None:
    """The record, why it is here, and as much of it as can be read."""
    found = find_lake(call, lake, file)
    letter = find_letter(letters_in(found), id, lake=found.path)
    insight = _look(call, found, letter)
    data = {**letter, "schema": insight.schema, "payload_start": insight.payload_start}
    data |= {"failing_byte": insight.mark, "decoded": insight.text}
    call.out.show(data, lambda paper: _draw_letter(paper, letter, insight, found))


def _look(call: Invocation, lake: Lake, letter: Mapping[str, Any]) -> Insight:
    try:
        pipeline = pipeline_of(call, lake, name=letter["pipeline"], needs=DECODING)
        return look_inside(pipeline, letter)
    except DistributaryError as error:
        next_step = f"; {error.next_step}" if error.code is ErrorCode.FILE_NOT_TRUSTED else ""
        call.out.warn(f"the record is shown without its schema: {error.what}{next_step}")
        return look_inside(None, letter)


def _draw_letter(paper: Paper, letter: Mapping[str, Any], insight: Insight, lake: Lake) -> None:
    paper.line(
        "dead letter ",
        styled(letter["id"], "bold"),
        "  ",
        styled(letter["error_code"], "bold red"),
        f"  {letter['status']}",
    )
    at = letter["timestamp"]
    _row(
        paper,
        "record",
        f"{letter['topic']}/{letter['partition']}/{letter['offset']}"
        + (f", written {clock(at)}" if at else ""),
    )
    _row(paper, "pipeline", f"{letter['pipeline']}, batch {letter['batch']}")
    _row(paper, "type", cut(letter["type"] or "unknown", 200))
    _row(paper, "schema", insight.schema)
    _row(paper, "failed in", f"step {letter['stage']}")
    _row(paper, "words", letter["error_message"] or "")
    attempts = counted(letter["attempts"] or 0, "attempt")
    _row(paper, "seen", f"first {clock(letter['first_seen'])}, last {clock(letter['last_seen'])}")
    _row(paper, "tried", attempts)
    _row(paper, "note", letter["note"] or "")
    _draw_bytes(paper, letter, insight)
    if letter["status"] == "open":
        command = f"distributary dlq replay --id {letter['id']} --dry-run{lake.flag}"
        paper.line(styled(f"  {command}", "dim"))


def _draw_bytes(paper: Paper, letter: Mapping[str, Any], insight: Insight) -> None:
    _row(paper, "key", _short(letter["key"]))
    for header in letter["headers"] or ():
        _row(paper, "header", f"{header['key']}: {_short(header['value'])}")
    value = letter["value"]
    if value is None:
        _row(paper, "value", "null")
        return
    start = insight.payload_start
    inside = f", its payload begins at byte {start}" if start else ""
    _row(paper, "value", f"{counted(len(value), 'byte')}{inside}")
    for line in hexdump(value, mark=insight.mark, label=insight.label):
        paper.line("    ", styled(line, "red") if "^^" in line[:60] else line)
    if insight.text:
        _row(paper, "decoded", "as far as it can be read")
        paper.lines(insight.text, indent="    ")


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.hex()
    return f"{cut(text, 80)} ({counted(len(data), 'byte')})"


def _row(paper: Paper, label: str, text: Words) -> None:
    if text:
        paper.line(styled(f"  {label:{_LABEL}}", "dim"), text)
