"""`resume`, `rebuild`, `reset`, `recover` and `clean`: fix what a pipeline left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributary.cli.command.lakes import find_lake, find_table, open_pipeline, pipeline_of
from distributary.cli.command.output import Paper, confirmed, counted, duration, number, styled
from distributary.cli.command.verb import (
    FIX,
    AsOf,
    DryRun,
    File,
    FileOption,
    Invocation,
    LakeOption,
    PipelineName,
    TableArgument,
    Yes,
    complete_tables,
    option,
    single,
    verb,
)
from distributary.errors import RegistryError, SourceError
from distributary.observe.log_format import cut

if TYPE_CHECKING:
    from distributary.engine.pipeline import Pipeline
    from distributary.engine.progress.accounts import Repair
    from distributary.engine.progress.recovery import Recovery
    from distributary.engine.progress.removal import Removal
    from distributary.operations.repair.accept_table import Acceptance


app = single(FIX)

_SUBJECTS_SHOWN = 20
_SHARED_SHOWN = 10
_OWN_PART = {"dead letters": "(its rows only)", "ledger": "(its entries only)"}
"""The kinds of removals from folders that pipelines share: only a part of the folder is removed."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@verb(app, "resume bronze_events --dry-run --lake distributary-demo")
def resume(
    call: Invocation,
    table: TableArgument,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
    source_was: Annotated[
        Literal["replaced", "repeated"] | None,
        option(
            "--source-was",
            "Why the source went back in its log (SOURCE_WENT_BACK). replaced: another server took "
            "over, with positions of its own; repeated: old events were sent again.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Commit the parked batches of a table, in order."""
    from distributary.operations.repair.resume_table import refuse_lost_waiting, waiting
    from distributary.operations.repair.resume_table import resume as publish_waiting
    from distributary.publish.base import Outcome

    found = find_lake(call, lake, file)
    known = find_table(found.ledger().tables(), table)
    mine = pipeline_of(call, found, name=pipeline or known.pipeline)
    refuse_lost_waiting(mine, known.table)
    batches = waiting(mine, known.table)
    records = sum(batch.entry.records for batch in batches)
    done = []
    if batches and not dry_run:
        done = publish_waiting(mine, known.table, undecided=source_was or "refuse")
    failed = next((result for result in done if result.outcome is Outcome.PARKED), None)
    published = sum(result.outcome is not Outcome.PARKED for result in done)
    data = {
        "table": known.table,
        "dry_run": dry_run,
        "waiting": {"batches": len(batches), "records": records},
        "published": published,
        "error": failed.error if failed else None,
    }
    what = f"{counted(len(batches), 'batch', 'batches')} with {counted(records, 'record')}"
    text = f"{published:,} of {what} published to {known.table}"
    if not batches:
        text = f"nothing waits for {known.table}"
    elif dry_run:
        text = f"{what} would be published to {known.table}"

    def draw(paper: Paper) -> None:
        paper.line(text)
        if failed is not None:
            paper.line(styled("still parked: ", "red"), cut(failed.error, 500))

    call.out.show(data, draw)
    return 1 if failed else 0


@verb(
    app,
    "rebuild shop_orders --lake distributary-demo --dry-run",
    "rebuild shop_orders --lake distributary-demo",
)
def rebuild(
    call: Invocation,
    table: TableArgument,
    as_of: AsOf = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
    dry_run: DryRun = False,
) -> int:
    """Rebuild a table of change data from its log, or an aggregate table from its table.

    One commit replaces all rows of the table; the log and other tables do not change. If the
    pipeline runs, its process rebuilds the table between two batches. Try it after: distributary
    demo cdc
    """
    from distributary.operations.repair.rebuild_table import rebuild_table
    from distributary.operations.repair.verify_table import verify_aggregate, verify_table

    moment = moment_of(call, as_of)
    found = find_lake(call, lake, file)
    known = find_table(found.ledger().tables(pipeline), table)
    mine = pipeline_of(call, found, name=pipeline or known.pipeline)
    data: dict[str, Any] = {"table": known.table, "dry_run": dry_run, "as_of": moment}
    if dry_run and known.role == "aggregate":
        check = verify_aggregate(mine, known)
        wrong = 0 if check is None else check.wrong
        data |= {"rows": None if check is None else check.groups, "changed": wrong}
        text = f"{counted(wrong, 'group')} of {known.table} would change"
        call.out.show(data, lambda paper: paper.line(text))
        return 0
    if dry_run:
        would = verify_table(mine, known, as_of_us=microseconds(moment)).verified
        data |= {"rows": would.expected, "rows_now": would.found}
        data |= {"added": would.missing, "removed": would.extra, "changed": would.different}
        text = (
            f"{would.table} would have {counted(would.expected, 'row')}, it has "
            f"{number(would.found)}: {number(would.missing)} would be added, "
            f"{number(would.extra)} removed, {number(would.different)} changed"
        )
        call.out.show(data, lambda paper: paper.line(text))
        return 0
    done = rebuild_table(mine, known, as_of_us=microseconds(moment))
    data |= {
        "log": done.log,
        "rows": done.rows,
        "table_version": done.version if done.version >= 0 else None,
        "seconds": round(done.seconds, 3),
        "by_running_pipeline": done.by_owner,
    }

    def draw(paper: Paper) -> None:
        if done.version < 0:
            gone = f"there is no table {done.table}, and none was made"
            paper.line(f"{done.log} leaves no row: {gone}")
            return
        how = ", by the running pipeline" if done.by_owner else ""
        paper.line(
            "rebuilt ",
            styled(done.table, "bold"),
            f" from {done.log}: {counted(done.rows, 'row')}, version {done.version}, "
            f"{duration(done.seconds)}{how}",
        )

    call.out.show(data, draw)
    if moment is not None:
        call.out.warn(
            f"{known.table} has its rows of {moment.isoformat()}; new batches are merged into "
            f"these. To bring it up to date: distributary rebuild {known.table}"
        )
    if known.parked_batches:
        call.out.note(
            f"{counted(known.parked_batches, 'batch', 'batches')} wait for it still: "
            f"distributary resume {known.table}"
        )
    return 0


def moment_of(call: Invocation, text: str | None) -> datetime | None:
    """Parse a day or a time in ISO 8601, in UTC by default."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise call.usage(f"{text!r} is not a time such as 2026-11-15T12:00:00Z.") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def microseconds(moment: datetime | None) -> int | None:
    """Return the microseconds since 1970."""
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


KeepShared = Annotated[
    bool,
    option(
        "--keep-shared",
        "Continue, and keep tables that other pipelines also write to.",
    ),
]


@verb(
    app,
    "reset distributary-demo/games.yaml --dry-run",
    "reset distributary-demo/games.yaml --table bronze_events --dry-run",
)
def reset(
    call: Invocation,
    file: File,
    with_tables: Annotated[
        bool, option("--with-tables", "Also remove the pipeline's tables and their history.")
    ] = False,
    table: Annotated[
        str | None,
        option(
            "--table",
            "Keep all progress, and accept the rows that this table lacks.",
            metavar="NAME",
            autocompletion=complete_tables,
        ),
    ] = None,
    keep_shared: KeepShared = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Delete the progress of a pipeline: the next run reads its source from the start.

    --table keeps all progress. It accepts one table as it is, for `run` and `verify`: a table that
    was removed, truncated or restored from a copy on purpose.
    """
    from distributary.engine.progress.removal import finish_removal
    from distributary.operations.repair.accept_table import plan_acceptance
    from distributary.operations.repair.reset_clean import plan_clean, plan_reset, refuse_shared

    if table is not None and with_tables:
        raise call.usage("--table and --with-tables exclude each other.")
    pipeline = open_pipeline(call, file)
    if table is not None:
        return _accept(call, pipeline, plan_acceptance(pipeline, table), dry_run=dry_run, yes=yes)
    if not dry_run:
        finish_removal(pipeline)
    if with_tables:
        if not (keep_shared or dry_run):
            refuse_shared(pipeline, f"reset {file} --with-tables")
        removals = [each for each in plan_clean(pipeline) if each.kind != "card"]
        _warn_of_shared(call, pipeline)
    else:
        removals = plan_reset(pipeline)
        if removals:
            call.out.warn(
                "the tables keep their rows: the next run reads the source from its start and "
                "appends everything again; --with-tables empties them too"
            )
    return _take_away(call, pipeline, removals, dry_run=dry_run, yes=yes)


@verb(app, "recover distributary-demo/games.yaml --dry-run")
def recover(call: Invocation, file: File, dry_run: DryRun = False) -> int:
    """Restore a lost checkpoint from the lake, or set it back to the lake's last batch.

    The next run continues where the tables are: nothing is read twice, and an unfinished batch is
    finished. If an older copy of the lake was put back, the checkpoint forgets the batches that the
    lake lacks. If only the newest manifest is damaged, it is written again from the lake's copy. A
    checkpoint that agrees with the lake is not changed.

    Damaged files of the ledger are replaced first: their rows are written again from the manifests
    of the checkpoint.
    """
    from distributary.engine.progress.accounts import mend_ledger
    from distributary.engine.progress.recovery import plan_recovery
    from distributary.engine.progress.recovery import recover as make_checkpoint

    pipeline = open_pipeline(call, file)
    repairs = mend_ledger(pipeline, dry_run=dry_run)
    found = None
    if not dry_run:
        found = make_checkpoint(pipeline)
    elif not repairs:
        # the plan reads the ledger, which must be repaired first
        found = plan_recovery(pipeline)
    data = {
        "pipeline": pipeline.config.name,
        "dry_run": dry_run,
        "checkpoint": pipeline.checkpoint.address,
        "recovered": None if found is None else asdict(found),
        "ledger": [asdict(repair) for repair in repairs],
    }
    call.out.show(data, lambda paper: _draw_recovery(paper, found, repairs, dry_run=dry_run))
    return 0


def _draw_recovery(
    paper: Paper, found: Recovery | None, repairs: Sequence[Repair], *, dry_run: bool
) -> None:
    for repair in repairs:
        files = counted(len(repair.files), "damaged file")
        verb = "would be" if dry_run else "were"
        paper.line(
            f"{files} of the ledger's table {repair.table} {verb} written again: "
            f"{counted(repair.rows, 'row')}"
        )
    if found is None:
        if not repairs:
            paper.line("the checkpoint is there: nothing is lost")
        return
    if found.rewrites:
        verb = "would be" if dry_run else "was"
        paper.line(
            f"the damaged manifest of batch {found.batch} {verb} written again from the lake's copy"
        )
        return
    verb = "would go on" if dry_run else "goes on"
    if found.back_from is not None:
        would, lake = "would go" if dry_run else "goes", "the start of its life"
        lake = f"batch {found.batch}" if found.batch >= 0 else lake
        paper.line(f"the checkpoint {would} back from batch {found.back_from} to {lake}")
        if found.position:
            paper.line(f"the source is read from {cut(json.dumps(found.position), 500)}")
        return
    paper.line(f"the checkpoint {verb} with life {found.life}, after batch {found.batch}")
    paper.line(f"known by the {'newest manifest' if found.known_by == 'manifest' else 'ledger'}")
    if not found.settled:
        paper.line("that batch was decided and not finished: the next run finishes it")
    paper.line(f"the source is read on from {cut(json.dumps(found.position), 500)}")


@verb(app, "clean distributary-demo/games.yaml --dry-run")
def clean(
    call: Invocation,
    file: File,
    keep_shared: KeepShared = False,
    drop_schema: Annotated[
        bool,
        option(
            "--drop-schema",
            "Drop the schema in the catalog, too, if Distributary made it and it is empty then.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Remove everything that a pipeline has made, and nothing else."""
    from distributary.engine.progress.removal import finish_removal
    from distributary.operations.repair.produced_topics import plan_produced
    from distributary.operations.repair.reset_clean import plan_clean, plan_schema, refuse_shared

    pipeline = open_pipeline(call, file)
    if not dry_run:
        finish_removal(pipeline)
    if not (keep_shared or dry_run):
        refuse_shared(pipeline, f"clean {file}")
    removals = plan_clean(pipeline)
    _warn_of_shared(call, pipeline)
    try:
        removals += plan_produced(pipeline.config)
    except (SourceError, RegistryError) as error:
        # a lake can be cleaned even if its broker no longer exists
        call.out.warn(f"simulated topics and subjects are kept: {error.what} ({error.where})")
    removals += [plan_schema(pipeline)] if drop_schema else []
    return _take_away(call, pipeline, removals, dry_run=dry_run, yes=yes)


def _warn_of_shared(call: Invocation, pipeline: Pipeline) -> None:
    """Name the tables that stay, and what becomes of their rows."""
    from distributary.operations.repair.reset_clean import shared_tables

    for table in shared_tables(pipeline)[:_SHARED_SHOWN]:
        others = ", ".join(table.others)
        call.out.warn(
            f"{table.table} stays, because {others} writes to it too: its "
            f"{table.described()} of {pipeline.config.name} stay as well, and come a "
            "second time if this pipeline runs again"
        )


def _take_away(
    call: Invocation, pipeline: Pipeline, removals: list[Removal], *, dry_run: bool, yes: bool
) -> int:
    from distributary.engine.progress.claim import refuse_owned
    from distributary.operations.repair.reset_clean import SCHEMA, remove

    name = pipeline.config.name
    data: dict[str, Any] = {"pipeline": name, "dry_run": dry_run, "removals": removals}

    def draw(paper: Paper) -> None:
        _draw_removals(paper, removals)

    if dry_run or not removals:
        call.out.show(data | {"removed": False}, draw)
        return 0
    refuse_owned(pipeline.checkpoint)
    what = _summary(removals)
    question = f"Remove these {counted(len(removals), 'part')} of pipeline {name}?"
    if not confirmed(call, question, yes=yes, evidence=what, draw=draw):
        return 1
    why = remove(pipeline, removals)
    done = [each for each in removals if not (why and each.kind == SCHEMA)]
    text = f"removed {_summary(done)} of pipeline {name}" if done else "nothing was removed"

    def draw_end(paper: Paper) -> None:
        paper.line(text)
        if why:
            paper.line(f"the schema stays: {why}")

    kept = {"schema_kept": why} if why else {}
    call.out.show(data | {"removed": bool(done)} | kept, draw_end)
    return 0


def _summary(removals: Sequence[Removal]) -> str:
    from distributary.operations.repair.produced_topics import SUBJECT, TOPIC

    tables = [each for each in removals if each.kind == "table"]
    subjects = [each for each in removals if each.kind == SUBJECT]
    rows = sum(each.rows or 0 for each in tables)
    named = [f"{counted(len(tables), 'table')} with {counted(rows, 'row')}"] if tables else []
    named += [each.kind for each in removals if each.kind not in ("table", TOPIC, SUBJECT)]
    named += [f"topic {each.table}" for each in removals if each.kind == TOPIC]
    return ", ".join([*named, *([counted(len(subjects), "subject")] if subjects else [])])


def _draw_removals(paper: Paper, removals: Sequence[Removal]) -> None:
    from distributary.operations.repair.produced_topics import SUBJECT

    if not removals:
        paper.line("there is nothing to remove")
        return
    # the subjects are the last rows, so these are cut off
    more = max(0, sum(each.kind == SUBJECT for each in removals) - _SUBJECTS_SHOWN)
    paper.table(
        ("WHAT", "NAME", "ROWS>", "PATH"),
        (
            (
                each.kind,
                each.table or _OWN_PART.get(each.kind, ""),
                "" if each.rows is None else number(each.rows),
                each.path,
            )
            for each in removals[: len(removals) - more]
        ),
        indent=0,
    )
    paper.more(more, "subject")


def _accept(
    call: Invocation, pipeline: Pipeline, plan: Acceptance, *, dry_run: bool, yes: bool
) -> int:
    """Say in the ledger that a table counts as it is now; 1 if the person says no."""
    from distributary.operations.repair.accept_table import accept, refuse_running

    check, what = plan.check, _acceptance(plan)
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

    def draw(paper: Paper) -> None:
        paper.line(what)
        if check.agrees:
            paper.line("  its marks, rows and files agree with the ledger")
        for finding in check.findings:
            paper.line("  ", styled(finding.what, "bold red"), f": {finding.evidence}")

    if dry_run:
        call.out.show(data | {"accepted": False}, draw)
        return 0
    refuse_running(pipeline, plan)
    question = f"Accept {check.table} in its current state?"
    if not confirmed(call, question, yes=yes, evidence=what, draw=draw):
        return 1
    accept(pipeline, plan)
    call.out.show(
        data | {"accepted": True},
        lambda paper: paper.line(f"accepted in its current state: {what}"),
    )
    return 0


def _acceptance(plan: Acceptance) -> str:
    check = plan.check
    rows = "rows not counted" if check.rows is None else counted(check.rows, "row")
    has = "there is no table" if check.version is None else f"version {check.version}, {rows}"
    if not plan.difference:
        return f"{check.table} ({has})"
    more = f"{counted(abs(plan.difference), 'row')} {'fewer' if plan.difference < 0 else 'more'}"
    return f"{check.table} ({has}), {more} than written"
