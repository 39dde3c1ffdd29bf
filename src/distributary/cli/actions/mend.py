"""`resume`, `reset` and `clean`: what they will do is shown before they do it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributary.cli.actions.confirm import confirmed
from distributary.cli.actions.schema import find_table
from distributary.cli.lakes import find_lake, open_pipeline, pipeline_of
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut, number
from distributary.errors import RegistryError, SourceError
from distributary.observe.ledger import Ledger
from distributary.publish.base import Outcome, Published
from distributary.run.claim import refuse_owned
from distributary.run.pipeline import Pipeline
from distributary.run.produced import SUBJECT, TOPIC, plan_produced
from distributary.run.recovery import Recovery, plan_recovery, recover
from distributary.run.removal import Removal, finish_removal
from distributary.run.resume import resume, waiting
from distributary.run.tidy import plan_clean, plan_reset, remove

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
        "checkpoint": str(pipeline.checkpoint_folder),
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
    refuse_owned(pipeline.checkpoint_folder)
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
