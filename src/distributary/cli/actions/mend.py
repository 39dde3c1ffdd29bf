"""`resume`, `reset` and `clean`: what they will do is shown before they do it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributary.cli.actions.confirm import confirmed
from distributary.cli.actions.schema import find_table
from distributary.cli.lakes import find_lake, open_pipeline, pipeline_of
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut, number
from distributary.observe.ledger import Ledger
from distributary.publish.base import Outcome, Published
from distributary.run.pipeline import Pipeline
from distributary.run.resume import resume, waiting
from distributary.run.tidy import Removal, plan_clean, plan_reset, refuse_while_running, remove


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
    """Remove everything that this pipeline made."""
    pipeline = open_pipeline(call, file)
    return _take_away(call, pipeline, plan_clean(pipeline), dry_run=dry_run, yes=yes)


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
    refuse_while_running(pipeline)
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
    others = [each.kind for each in removals if each.kind != "table"]
    rows = sum(each.rows or 0 for each in tables)
    named = [f"{counted(len(tables), 'table')} with {counted(rows, 'row')}"] if tables else []
    return ", ".join([*named, *others])


def _draw_removals(paper: Paper, removals: Sequence[Removal]) -> None:
    if not removals:
        paper.line("there is nothing to remove")
        return
    paper.table(
        ("WHAT", "TABLE", "ROWS", "PATH"),
        (
            (each.kind, each.table, "" if each.rows is None else number(each.rows), each.path)
            for each in removals
        ),
        right=("ROWS",),
        indent=0,
    )


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
